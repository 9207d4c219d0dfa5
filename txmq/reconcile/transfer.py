"""A transfer with all of its rows, and the facts in them; pure.

Python assembles each transfer that does not plainly agree. These are few on most days, so texts can
be compared in full, and sets hold the values that should be unique.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from msgspec import Struct

from txmq.reconcile.rules import TRANSFER_KINDS, Day
from txmq.reconcile.tables import EntryRow, FailureRow, MessageRow

__all__ = ["ARRIVED", "VISIBLE", "Consumers", "TransferFacts", "TransferRows", "split_bookings"]

VISIBLE: Final = ("sent", "committed")
"""States of messages that are visible to consumers."""
ARRIVED: Final = ("credit", "recall", "fee")
"""The kinds of entries whose sum is the money that arrived."""
_BY_PROGRESS: Final = ("prepared", "parked", "rolled_back", "sent", "committed")
"""The states of a message in order: if two days know different states, the later one counts."""
_BY_EFFECT: Final = ("rolled_back", "prepared", "parked", "sent", "committed")
"""Of several messages of one key, the one with the greatest effect is shown."""


def split_bookings(entries: Iterable[EntryRow]) -> Iterator[EntryRow]:
    """Give rows that name no transfer the keys of their bookings.

    All rows without a transfer that a bank wrote at the same moment first share one key
    (``frames.with_keys``). Each becomes a separate transfer, with the row on the clearing account
    that has the opposite amount; if several clearing rows fit, any of them will do.
    """
    alike: defaultdict[Any, tuple[list[EntryRow], list[EntryRow]]]
    alike = defaultdict(lambda: ([], []))
    for entry in sorted(entries, key=_number):
        is_clearing = entry.role == "clearing"
        amount = -entry.amount if is_clearing else entry.amount
        alike[entry.key, entry.kind, entry.currency, amount][is_clearing].append(entry)
    for legs, clearing in alike.values():
        for pair in zip_longest(legs, clearing):
            booking = [entry for entry in pair if entry is not None]
            for entry in booking:
                yield entry._replace(key=f"{entry.bank}/#{_number(booking[0])}")


def _number(entry: EntryRow) -> int:
    return entry.recorded_ms if entry.id is None else entry.id


class Consumers(NamedTuple):
    """The consumer group of each topic, and the progress of the groups."""

    groups: Mapping[str, str]
    offsets: Mapping[tuple[str, str, int], int]
    """The offset of the first unacknowledged message, by group, topic and queue."""

    def delivery(self, messages: Collection[MessageRow], failure: FailureRow | None) -> str | None:
        """How far visible messages have come, by each group's offset: logs record no deliveries."""
        if failure is not None:
            return failure.state
        has_taken = set()
        for row in messages:
            reached = self.offsets.get((self.groups.get(row.topic, ""), row.topic, row.queue))
            if reached is not None and row.queue_offset is not None:
                has_taken.add(reached > row.queue_offset)
        if True in has_taken:
            return "consumed"
        if has_taken:
            return "unacknowledged"
        return "undelivered" if messages else None


class TransferRows(Struct):
    """All rows of a transfer that the run knows, of this day and of earlier ones."""

    key: str
    entries: list[EntryRow] = []
    messages: list[MessageRow] = []
    failures: list[FailureRow] = []
    was_open: bool = False
    """True if the day before left it open."""
    agreed_entries: list[EntryRow] = []
    """The entries of days on which it was agreed; :meth:`settle` adds them to ``entries``."""
    agreed_messages: list[MessageRow] = []
    item: Mapping[str, Any] | None = None
    """Its item at the end of the day before."""
    histories: list[str] = []
    """Its history each time that it was closed on one of the dates of ``day.history``."""
    was_agreed: bool = False
    """True if it was agreed on one of these dates."""

    @property
    def legs(self) -> list[EntryRow]:
        """The entries that are not on clearing accounts."""
        return [entry for entry in self.entries if entry.role != "clearing"]

    def settle(self) -> None:
        """Join the rows of all days in order, with the latest known state of each message."""
        begins = self.messages and any(leg.kind == "debit" for leg in self.legs)
        # An open transfer has already carried along the rows of days on which it was agreed. An id
        # whose earlier orders were all rolled back begins anew.
        if self.was_open or (begins and not self.agreed_entries):
            self.agreed_entries, self.agreed_messages = [], []
        self.was_agreed = bool(self.histories or self.agreed_entries or self.agreed_messages)
        self.entries += self.agreed_entries
        self.messages += self.agreed_messages
        by_progress = sorted(self.messages, key=lambda row: -_BY_PROGRESS.index(row.state))
        known = {(row.id, row.position): row for row in reversed(by_progress)}
        self.messages = [known[place] for place in sorted(known)]
        failures = {(failure.position, failure.group): failure for failure in self.failures}
        self.failures = [failures[place] for place in sorted(failures)]
        self.entries.sort(key=lambda row: (row.bank, row.recorded_ms, row.id or 0, *row[2:8]))


class TransferFacts:
    """The facts in the settled rows of a transfer.

    An entry is late if it was booked before ``start_ms``, the beginning of the day, but recorded
    then or later.
    """

    def __init__(self, rows: TransferRows, consumers: Consumers, day: Day, start_ms: int) -> None:
        self.key = rows.key
        self.was_open = rows.was_open
        self._read_entries(rows.legs, start_ms)
        self._read_messages(rows, consumers)
        self.is_used_again = (
            self.debits > 1
            and self.messages > 1
            and len({day.of(leg.recorded_ms) for leg in rows.legs if leg.kind == "debit"}) > 1
            and len({day.of(row.stored_ms) for row in rows.messages if row.state in VISIBLE}) > 1
        )

    def _read_entries(self, legs: Collection[EntryRow], start_ms: int) -> None:
        of = {kind: [leg for leg in legs if leg.kind == kind] for kind in TRANSFER_KINDS}
        sums = {kind: sum(leg.amount for leg in some) for kind, some in of.items()}
        self.debits, self.credits = len(of["debit"]), len(of["credit"])
        self.returns = len(of["return"])
        self.debited, self.returned = -sums["debit"], sums["return"]
        self.given, self.recalled, self.fees = sums["credit"], -sums["recall"], sums["fee"]
        self.credited = sum(sums[kind] for kind in ARRIVED)
        self.missing = self.debited - self.returned - self.credited
        """Money taken from a payer and not given to anyone; negative if given and not taken."""
        ids = [(leg.bank, leg.kind, leg.id) for leg in legs if leg.id is not None]
        self.has_copies = len(set(ids)) < len(ids)
        self.debit_banks = {leg.bank for leg in [*of["debit"], *of["return"]]}
        self.credit_banks = {leg.bank for leg in [*of["credit"], *of["recall"]]}
        self.booked = {(leg.kind, leg.bank) for leg in legs}
        # Money on a suspense account has arrived; any other account must be the one ordered.
        self.moved = {
            kind: _by_name((leg.account, abs(leg.amount)) for leg in some if leg.role != "suspense")
            for kind, some in of.items()
        }
        kept = _by_name((leg.account, leg.amount) for leg in [*of["credit"], *of["recall"]])
        self.is_overdrawn = min(kept.values(), default=0) < 0
        """True if more was taken back from an account than it had."""
        self.payers = {*self.moved["debit"], *self.moved["return"]}
        self.payees = {*self.moved["credit"], *self.moved["recall"]}
        self.currencies = {leg.currency for leg in legs}
        self.amounts = {abs(leg.amount) for leg in legs if leg.kind not in {"recall", "fee"}}
        # An odd row has the wrong sign: it takes where it should give, or the reverse.
        takes = {"debit", "recall"}
        self.is_odd = any((leg.amount > 0) == (leg.kind in takes) and leg.amount for leg in legs)
        self.is_late = any(leg.booked_ms < start_ms <= leg.recorded_ms for leg in legs)
        self.moments = [leg.recorded_ms for leg in legs]

    def _read_messages(self, rows: TransferRows, consumers: Consumers) -> None:
        messages = rows.messages
        visible = [message for message in messages if message.state in VISIBLE]
        of = {state: {row.id for row in messages if row.state == state} for state in _BY_EFFECT}
        ids, undecided = of["sent"] | of["committed"], of["prepared"] | of["parked"]
        self.messages = len(ids)
        self.topics = {message.topic for message in messages}
        self.has_commit = bool(of["committed"])
        self.is_undecided = bool(undecided - ids)
        self.is_parked = bool(of["parked"] - ids)
        self.is_rolled_back = bool(of["rolled_back"] - ids - undecided)
        self.is_unread = any(row.amount is None or row.currency is None for row in visible)
        # Every copy counts, so that a changed copy with the same id is found too.
        known = [message for message in messages if message.state != "rolled_back"]
        orders = {(row.id, row.amount, row.payer, row.payee) for row in visible}
        self.has_changed_copy = len(orders) > len(ids)
        self.is_odd |= any(amount is not None and amount < 0 for _, amount, _, _ in orders)
        self.ordered_in_all = sum(amount or 0 for _, amount, _, _ in orders)
        self.ordered_from = _by_name((payer, amount) for _, amount, payer, _ in orders)
        self.ordered_to = _by_name((payee, amount) for _, amount, _, payee in orders)
        self.ordered = max((row.amount for row in known if row.amount is not None), default=0)
        self.payers |= {row.payer for row in visible if row.payer is not None}
        self.payees |= {row.payee for row in visible if row.payee is not None}
        self.currencies |= {row.currency for row in visible if row.currency is not None}
        self.amounts |= {row.amount for row in visible if row.amount is not None}
        self.spread = max(self.amounts, default=0) - min(self.amounts, default=0)
        ordered_currency = max((row.currency or "" for row in known), default="")
        self.currency = min(self.currencies, default=ordered_currency)
        self.moments += [message.stored_ms for message in messages]
        self.first_ms = min(self.moments)
        decided = [message.decided_ms for message in messages if message.decided_ms is not None]
        self.last_ms = max([*self.moments, *decided])
        self.message = max(
            messages, key=lambda row: (_BY_EFFECT.index(row.state), row.position), default=None
        )
        wanted = {(message.id, consumers.groups.get(message.topic)) for message in visible}
        failed = [failure for failure in rows.failures if (failure.id, failure.group) in wanted]
        last = max(failed, key=lambda row: (row.stored_ms, row.position, row.state), default=None)
        self.delivery = consumers.delivery(visible, last)
        self.reason = self.message and self.message.reason
        if last is not None and last.state == "dead" and last.reason is not None:
            self.reason = last.reason


def _by_name(amounts: Iterable[tuple[str | None, int | None]]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for name, amount in amounts:
        found[name] += amount or 0
    return found
