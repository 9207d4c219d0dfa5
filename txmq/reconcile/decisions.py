"""The decision about each transfer that does not plainly agree, from all of its rows; pure.

The input is evidence: one row for each row of a ledger, or of the result of the day before. The
output has the rows of this day's result. Each call decides a batch of transfers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import date
from decimal import Decimal
from itertools import chain
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from txmq.reconcile.arrow import arrow_schema, arrow_table
from txmq.reconcile.classes import Class
from txmq.reconcile.classification import classify, facts_of_item
from txmq.reconcile.differences import ABOUT_PROOFS, Place
from txmq.reconcile.explanations import Explanation
from txmq.reconcile.items import BreakLife, folded
from txmq.reconcile.ledgers import EVIDENCE, Role
from txmq.reconcile.rules import Rules
from txmq.reconcile.tables import (
    FOLDED_ITEMS,
    ITEMS,
    MATCHES,
    RESULTS,
    SUMS,
    EntryRow,
    FailureRow,
    MessageRow,
    Sums,
)
from txmq.reconcile.transfer import ARRIVED, Consumers, TransferFacts, TransferRows, split_bookings

__all__ = ["DECIDED", "Decider"]

_AS_ITEM, _AS_MATCH = itemgetter(*ITEMS.names), itemgetter(*MATCHES.names)
_TABLES: Final = {
    **{name: table for name, table in RESULTS.items() if name != "by_hand"},
    "items": FOLDED_ITEMS,
    "sums": SUMS,
}
DECIDED: Final = ", ".join(f"`{name}` struct<{table.ddl}>" for name, table in _TABLES.items())
"""Each row holds a row of one table in that table's column; the other columns are NULL."""
_COLUMNS: Final = {
    name: pa.schema([field.with_nullable(True) for field in arrow_schema(table)])
    for name, table in _TABLES.items()
}
_SUMMED: Final = {"debit": ("debited", -1), "return": ("returned", 1)}
"""The sum and the sign with which these kinds count in a class; others count in ``credited``."""


class Decisions(NamedTuple):
    """The decisions about a batch of transfers."""

    rows: Mapping[str, list[tuple[Any, ...]]]
    """By table."""
    sums: Sums

    def add(self, rows: TransferRows, today: Mapping[str, Any], class_: str) -> None:
        """Add a transfer to the totals of its class: the sums of its rows, in their currencies."""
        place = class_, today["currency"]
        self.sums["transfers", *place] += 1
        self.sums["ordered", *place] += today["ordered"]
        if Class(class_).group != "agreed":
            self.sums["at_risk", *place] += today["amount"]
        for leg in rows.legs:
            name, sign = _SUMMED.get(leg.kind, ("credited", 1))
            self.sums[name, class_, leg.currency] += sign * leg.amount

    def prove(self, place: Place, expected: int, now: int, off_today: int, day: str) -> None:
        """Add two values, which must be equal, to the sums of a proof.

        A row lists them if they differ, or if they are equal again. ``off_today`` is the part of
        the difference that the day's own rows made. If it is the whole difference, ``day`` is the
        date on which the row was first seen.
        """
        proof, bank, _, currency = place
        for name, value in (("rows", 1), ("expected", expected), ("found", now)):
            self.sums[f"{proof} {name}", bank or "", currency or ""] += value
        off = now - expected
        if off:
            self.sums[f"{proof} wrong", bank or "", currency or ""] += 1
        if off or off_today:
            first_seen = day if off == off_today else None
            row = (*place, expected, now, not off, ABOUT_PROOFS[proof], first_seen)
            self.rows["proofs"].append(row)

    def as_columns(self) -> pa.Table:
        """The rows of all tables, as rows of :data:`DECIDED`."""
        sums = [(*place, Decimal(value)) for place, value in self.sums.items()]
        rows = {**self.rows, "sums": sums}
        some = (
            pa.table({name: arrow_table(table, rows[name]).cast(_COLUMNS[name]).to_struct_array()})
            for name, table in _TABLES.items()
        )
        return pa.concat_tables(some, promote_options="default")


class Decider:
    """Decides transfers, each from all of its rows.

    ``as_of_ms`` is the end of the day, or the time of reading if that was earlier. ``offsets`` has
    the progress of consumers, and ``explanations`` the valid explanations by break id.
    """

    def __init__(
        self,
        rules: Rules,
        day: date,
        as_of_ms: int,
        offsets: Mapping[tuple[str, str, int], int],
        explanations: Mapping[str, Explanation],
    ) -> None:
        self._rules = rules
        self._as_of_ms = as_of_ms
        self._start_ms = rules.day.window(day).start_ms
        self._day = day.isoformat()
        groups = {flow.topic: flow.group for flow in rules.log.flow}
        self._consumers = Consumers(groups, offsets)
        self._life = BreakLife(rules, day, explanations)
        self._both_sides, self._proves_clearing = rules.both_sides, rules.proves_clearing

    def decide_rows(self, evidence: pa.Table) -> pa.Table:
        """Decide all transfers in the evidence, as rows of :data:`DECIDED`."""
        of_roles = {}
        for role, table in EVIDENCE.items():
            rows = evidence.filter(pc.equal(evidence["role"], role.name))
            if len(rows):
                of_roles[role] = pa.Table.from_struct_array(rows[table.name])
        return self.decide(of_roles).as_columns()

    def decide(self, evidence: Mapping[Role, pa.Table]) -> Decisions:
        """Decide all transfers in the evidence."""
        found = Decisions({name: [] for name in RESULTS}, Counter())
        cases = _cases(evidence)
        for key in sorted(cases):
            self._decide(cases[key], found)
        return found

    def _decide(self, rows: TransferRows, found: Decisions) -> None:
        sums = found.sums
        rows.settle()
        self._prove(rows, found)
        for leg in rows.legs:
            if leg.recorded_ms < self._start_ms:
                kind = "credit" if leg.kind in ARRIVED else leg.kind
                sums["earlier", kind, leg.currency] += leg.amount
        today = None
        if rows.legs or rows.messages:
            facts = TransferFacts(rows, self._consumers, self._rules.day, self._start_ms)
            is_unseen = rows.item is not None and rows.item["class"] == Class.PRIOR_PERIOD
            class_ = classify(facts, self._rules, self._as_of_ms, is_unseen=is_unseen)
            today = facts_of_item(facts, class_)
        elif rows.item is None:
            return  # A clearing row alone is not a transfer; proofs detect it.
        item = self._life.item(today, rows)
        if today is not None:
            found.add(rows, today, (item or today)["class"])
        if item is None:
            assert today is not None
            found.rows["matches"].append(_AS_MATCH(today))
            return
        if item["status"] == "closed":
            found.rows["closed"].append(_AS_ITEM(item))
            found.rows["matches"].append(_AS_MATCH(item))
            return
        found.rows["items"].append((*_AS_ITEM(item), folded(item["key"])))
        found.rows["entries"] += rows.entries
        found.rows["messages"] += map(msgspec.structs.astuple, rows.messages)
        found.rows["failures"] += map(msgspec.structs.astuple, rows.failures)

    def _prove(self, rows: TransferRows, found: Decisions) -> None:
        """Prove the bookings of a transfer: ``double-entry`` and ``clearing``."""
        sides, sides_today = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
        owed, cleared, today = Counter[str](), Counter[str](), Counter[str]()
        kinds = {(row.bank, row.recorded_ms): row.kind for row in rows.entries if row.kind != "fee"}
        for entry in rows.entries:
            new = entry.amount if entry.recorded_ms >= self._start_ms else 0
            if entry.bank in self._both_sides:
                # A fee belongs to the booking that was written at the same moment.
                is_fee = entry.kind == "fee"
                kind = kinds.get((entry.bank, entry.recorded_ms)) if is_fee else entry.kind
                side = entry.bank, entry.currency, kind or "fee"
                sides[side] += entry.amount
                sides_today[side] += new
            today[entry.currency] += new
            if entry.role == "clearing":
                cleared[entry.currency] += entry.amount
            else:
                owed[entry.currency] -= entry.amount
        for side, amount in sides.items():
            of_bank = "double-entry", side[0], rows.key, side[1]
            found.prove(of_bank, 0, amount, sides_today[side], self._day)
        for currency in today if self._proves_clearing else ():
            of_all = "clearing", None, rows.key, currency
            found.prove(of_all, owed[currency], cleared[currency], today[currency], self._day)
            found.sums["unbalanced", "", currency] += today[currency]


def _cases(evidence: Mapping[Role, pa.Table]) -> dict[str, TransferRows]:
    cases: dict[str, TransferRows] = {}

    def rows(make: Any, *roles: Role) -> Iterator[tuple[Role, Any]]:
        """The rows of tables, with their roles."""
        for role in (role for role in roles if role in evidence):
            columns = (evidence[role][name].to_pylist() for name in EVIDENCE[role].names)
            yield from ((role, row) for row in map(make, *columns))

    def case_of(key: str | None) -> TransferRows:
        return cases.setdefault(key or "", TransferRows(key or ""))

    entries = [*rows(EntryRow, Role.ENTRIES, Role.OPEN_ENTRIES, Role.OLD_ENTRIES)]
    # A row that names no transfer gets the key of its booking.
    bookings = split_bookings(entry for _, entry in entries if entry.is_lone)
    named = (row for row in entries if not row[1].is_lone)
    for role, entry in chain(named, ((Role.ENTRIES, row) for row in bookings)):
        case = case_of(entry.key)
        case.was_open |= role is Role.OPEN_ENTRIES
        (case.agreed_entries if role is Role.OLD_ENTRIES else case.entries).append(entry)
    of_messages = Role.MESSAGES, Role.OPEN_MESSAGES, Role.OLD_MESSAGES
    for role, message in rows(MessageRow, *of_messages):
        case = case_of(message.key)
        case.was_open |= role is Role.OPEN_MESSAGES
        (case.agreed_messages if role is Role.OLD_MESSAGES else case.messages).append(message)
    for _, failure in rows(FailureRow, Role.FAILURES, Role.OPEN_FAILURES):
        case_of(failure.key).failures.append(failure)
    for item in evidence[Role.ITEMS].to_pylist() if Role.ITEMS in evidence else ():
        case_of(item["key"]).item = item
    for _, (key, history) in rows(lambda *row: row, Role.CLOSED):
        case_of(key).histories.append(history)
    return cases
