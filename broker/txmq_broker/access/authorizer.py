"""Decides whether a request may be served: who sends it, and what it needs."""

from __future__ import annotations

from hmac import compare_digest
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from txmq.errors import NoPermission
from txmq.limits import TOPICS_MAX
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command
from txmq.protocol.headers import SignedSend
from txmq.remoting.connection import Connection
from txmq.security.signatures import ACCESS_KEY
from txmq_broker.access.accounts import AccessRules, Account, Permission
from txmq_broker.access.addresses import NO_ADDRESSES, AddressPattern
from txmq_broker.access.refusals import Refusals
from txmq_broker.access.requirements import (
    NO_MESSAGES,
    REGISTRATIONS,
    REQUIREMENTS,
    MessageTopics,
    Need,
    Requirement,
    is_met,
)

__all__ = ["Authorizer"]

_NAME_CHARS_SHOWN: Final = 100
"""The characters of a stranger's text that a refusal shows."""


class RulesSource(Protocol):
    """Where the rules of the moment are."""

    @property
    def value(self) -> AccessRules:
        """The rules of now."""
        ...


class Authorizer:
    """Compares each request with the rules of the moment.

    Args:
        source: Has the rules, which may change while the server runs.
        topics: Finds the topics of messages that requests name by their position.
        refusals: Where refused requests are noted.
        trust_brokers: The addresses whose brokers may register without an account.
    """

    def __init__(
        self,
        source: RulesSource,
        topics: MessageTopics = NO_MESSAGES,
        *,
        refusals: Refusals | None = None,
        trust_brokers: AddressPattern = NO_ADDRESSES,
    ) -> None:
        self._source = source
        self._refusals = refusals or Refusals()
        self._trust_brokers = trust_brokers
        self._names: WeakKeyDictionary[Connection, str] = WeakKeyDictionary()
        """The accounts of connections that have sent a heartbeat."""
        self._topics = topics

    def check(self, connection: Connection, request: Command) -> None:
        """Let a request pass.

        Raises:
            NoPermission: The sender is unknown, the signature is wrong, or a permission is missing.
        """
        rules = self._source.value
        send = request.ext
        if type(send) is SignedSend:  # The usual send, in few steps; below, a refusal has a reason.
            account = rules.without_addresses.get(send.access_key)
            if (
                account is not None
                and (send.topic in account.publishes or _may_publish(account, send.topic))
                and (content := send.content()) is not None
                and compare_digest(send.signature, account.key.digest(content, request.body))
            ):
                return
        host = connection.host
        requirement = REQUIREMENTS.get(request.code)
        if requirement is None:
            raise NoPermission(f"request {request.code} is in no table of permissions")
        if rules.is_trusted(host):
            return
        if request.code in REGISTRATIONS and self._trust_brokers.matches(host):
            return
        try:
            account = self._sender(rules, connection, request)
            self._check_needs(account, requirement, request)
        except NoPermission as error:
            is_known = request.field_map().get(ACCESS_KEY) in rules.accounts
            kind = "" if is_known else "of a stranger"
            self._refusals.note(connection, request, str(error), kind=kind)
            raise
        if request.code == RequestCode.HEART_BEAT:
            self._names[connection] = account.name

    def may_publish(self, connection: Connection, topic: str) -> bool:
        """Whether the account of a connection's heartbeats may publish to a topic now."""
        rules = self._source.value
        account = rules.accounts.get(self._names.get(connection, ""))
        if account is None:
            return rules.is_trusted(connection.host)
        return is_met(Need("topic", topic, Permission.PUB), account)

    def _sender(self, rules: AccessRules, connection: Connection, request: Command) -> Account:
        fields = request.field_map()
        name = fields.get(ACCESS_KEY)
        if name is None:
            return _certified(rules, connection)
        account = rules.accounts.get(name)
        if account is None:
            raise NoPermission(f"no account has the accessKey {name[:_NAME_CHARS_SHOWN]!r}")
        if account.addresses.matches(connection.host):
            return account
        if not account.key.has_signed(fields, request.body):
            raise NoPermission(
                f"check signature failed for accessKey={name}: the secret key is wrong"
            )
        return account

    def _check_needs(self, account: Account, requirement: Requirement, request: Command) -> None:
        for need in requirement(request, self._topics):
            if not is_met(need, account):
                name = RequestCode(request.code).name
                raise NoPermission(f"account {account.name} needs {need} for {name}")


def _certified(rules: AccessRules, connection: Connection) -> Account:
    """The account of a request without a signature: that of the client's certificate."""
    subject = connection.subject
    if subject is None:
        raise NoPermission("no accessKey is configured: this server serves only known accounts")
    account = rules.of_subject(subject)
    if account is None:
        text = subject.text[:_NAME_CHARS_SHOWN]
        raise NoPermission(
            f"no accessKey is configured, and no account has the tlsSubject {text!r}"
        )
    return account


def _may_publish(account: Account, topic: str) -> bool:
    if not is_met(Need("topic", topic, Permission.PUB), account):
        return False
    if len(account.publishes) < TOPICS_MAX:
        account.publishes.add(topic)
    return True
