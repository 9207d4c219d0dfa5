"""Operators' requests to a broker.

They concern the audit, delayed messages, settings, damage, single transactions and accounts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from txmq.protocol.bodies import Body, TransactionEntry
from txmq.protocol.headers import Header, Int32, Int64

__all__ = [
    "RECHECK_REASON_BYTES_MAX",
    "AccountChange",
    "AccountName",
    "Accounts",
    "AccountsVersion",
    "AddressesChange",
    "AuditPage",
    "AuditedRequest",
    "CheckEntry",
    "DecisionEntry",
    "DelayLevelEntry",
    "DelayedEntry",
    "DelayedPage",
    "ListAudit",
    "ListDelayed",
    "PlainAccount",
    "RecallDelayed",
    "RecheckEntry",
    "RecheckTransaction",
    "RecheckTransactions",
    "RecheckedTransactions",
    "SettingEntry",
    "SettingsView",
    "SkipDamaged",
    "TransactionHistory",
]


class ListAudit(Header):
    """7720: what operators did, newest first."""

    before: str = ""
    """Where to begin, from an earlier answer's ``next``; empty for the newest entry."""
    since_ms: Int64 = 0
    until_ms: Int64 = 0
    """Only entries before this moment; 0 for all."""
    person: str = ""
    """Only entries whose account, operator or address contains this text."""
    action: str = ""
    """Only requests whose name contains this text."""
    refused: bool = False
    """Only refused requests."""
    count: Int32 = 100


class AuditedRequest(Body):
    """One request of an operator in the answer to 7720."""

    at_ms: int
    request: str
    """The name of the request code."""
    peer: str
    """The address it came from."""
    account: str = ""
    fields: Mapping[str, str] = {}
    body: str = ""
    refused: str = ""
    """Why it was refused; empty if it was carried out."""


class AuditPage(Body):
    """The answer to 7720. It may have fewer entries than requested, even none, without being the
    last.
    """

    entries: list[AuditedRequest]
    next: str = ""
    """Where the next page begins; empty after the oldest entry."""


class ListDelayed(Header):
    """7721: delayed messages, ordered by the second in which they are due."""

    level: Int32 = -1
    """Only messages of this delay level; 0 for messages with an exact delivery time, -1 for all."""
    from_ms: Int64 = 0
    """Only messages that are due in this second or later."""
    after: str = ""
    """Where to begin, from an earlier answer's ``next``; empty for the first message."""
    count: Int32 = 100


class DelayedEntry(Body):
    """A message in the answer to 7721."""

    due_ms: int
    level: int
    """Its delay level, or 0 for an exact delivery time."""
    topic: str = ""
    """The topic it is for."""
    queue_id: int = 0
    message_id: str = ""
    """The id from its producer."""
    keys: str = ""
    tags: str = ""
    size: int = 0
    """The size of its stored body in bytes."""
    stored_ms: int = 0
    offset_msg_id: str = ""
    """Where it is stored while it waits."""
    recall_handle: str = ""
    """The handle that recalls it; empty if it has no id."""
    problem: str = ""
    """Why the broker cannot read it."""


class DelayLevelEntry(Body):
    """A delay level in the answer to 7721."""

    level: int
    delay_ms: int
    waiting: int
    """Messages in its queue, including recalled ones that are not due yet."""


class DelayedPage(Body):
    """The answer to 7721. It may have fewer messages than requested, even none, without being the
    last.
    """

    messages: list[DelayedEntry]
    levels: list[DelayLevelEntry]
    waiting: int
    """All delayed messages at the broker."""
    next: str = ""
    """Where the next page begins; empty after the last message."""


class RecallDelayed(Header):
    """7722: an operator recalls a delayed message. Unlike a producer's recall, it is audited."""

    topic: str
    recall_handle: str
    operator: str
    reason: str


class SettingEntry(Body):
    """A setting in the answer to 7723."""

    name: str
    """RocketMQ's name."""
    value: str
    key: str = ""
    """txmq's name; empty if txmq has no such setting."""
    default: str | None = None
    """The default; ``None`` if it depends on the machine."""
    source: str = ""
    """``default``, ``start`` for a file, a variable or an option, or ``change`` for a change while
    the broker runs."""
    can_change: bool = False
    """Whether the setting can change while the broker runs."""


class SettingsView(Body):
    """The answer to 7723."""

    settings: list[SettingEntry]


class SkipDamaged(Header):
    """7724: an operator has a group skip the damaged messages in a range of a queue.

    The group still receives the intact messages of the range.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    offset: Int64
    """The first message of the range, which must be damaged."""
    through: Int64
    """The last message of the range."""
    operator: str
    reason: str


RECHECK_REASON_BYTES_MAX: Final = 256
"""The operator's name and reason; the broker refuses longer texts."""


class RecheckTransaction(Header):
    """7704: check an open transaction again, by its id or the id of its half message."""

    transaction_id: str
    operator: str = ""
    """The operator's name, as the client states it."""
    reason: str = ""


class RecheckTransactions(Header):
    """7709: check open transactions again, from an offset of the half queue on."""

    state: str = ""
    producer_group: str = ""
    from_offset: Int64 = 0
    operator: str = ""
    """The operator's name, as the client states it."""
    reason: str = ""


class RecheckedTransactions(Header):
    """The answer to 7709."""

    rechecked: Int32
    """The number of transactions that the broker checks."""
    next_offset: Int64
    """Where the next request continues; -1 if there are no more."""


class CheckEntry(Body):
    """A check that the broker sent to a producer."""

    asked_ms: int
    client_id: str
    address: str
    answer: str = ""
    """``unknown``, ``silent``, ``lost`` or ``decided``; empty while the check is open."""
    answered_ms: int = 0


class RecheckEntry(Body):
    """An operator's request to check the transaction again."""

    at_ms: int
    operator: str
    """The operator's name in the request; empty if it has none."""
    account: str
    """The account that sent the request; empty without one."""
    address: str
    reason: str


class DecisionEntry(Body):
    """A marker in the log: a commit, a rollback or the parking of the transaction."""

    kind: str
    """``committed``, ``rolled_back`` or ``parked``."""
    source: str
    """``producer``, ``check``, ``operator`` or ``broker``."""
    at_ms: int
    reason: str = ""
    """The operator and the reason, if an operator decided."""
    offset_msg_id: str = ""
    """The offset id of the visible message, if the marker is that message."""


class TransactionHistory(Body):
    """A transaction, its decisions, its latest checks, and what comes next."""

    transaction: TransactionEntry
    """``state`` may also be ``committed`` or ``rolled back``."""
    born_ms: int
    born_host: str
    """The address of the producer's connection."""
    decisions: list[DecisionEntry]
    checks: list[CheckEntry]
    """The latest checks since the start of the broker, oldest first."""
    check_max: int
    next_check_ms: int = 0
    """When the broker checks next; 0 if it will not, or does not know."""
    waits_for_producer: bool = False
    """True if a check is due but no producer of the group can be asked."""
    producers: int = 0
    """The number of connected producers of the group."""
    rechecks: list[RecheckEntry] = []
    """The latest recheck requests since the start of the broker, oldest first."""


class AccountChange(Header):
    """50: create or change an account; omitted fields keep their values."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    """Permissions by topic, separated by ``,``, for example ``Orders=PUB``."""
    group_perms: str | None = None

    def __repr__(self) -> str:
        return f"AccountChange(access_key={self.access_key!r}, secret_key=***)"


class AccountName(Header):
    """51: remove an account."""

    access_key: str


class AddressesChange(Header):
    """53: replace the addresses that need no account."""

    global_white_addrs: str
    acl_file_full_path: str | None = None
    """The account file; the first one if this is missing or empty."""


class AccountsVersion(Header):
    """The answer to 52: the versions of the account files."""

    version: str
    """The version of the first file, as JSON."""
    all_acl_file_version: str
    """The versions of all files by path, as JSON."""
    broker_name: str
    broker_addr: str
    cluster_name: str


class PlainAccount(Body):
    """An account in the answer to 54, without its secret."""

    access_key: str
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


class Accounts(Body):
    """The answer to 54."""

    global_white_addrs: list[str]
    plain_access_configs: list[PlainAccount]
