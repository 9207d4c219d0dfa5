"""The second pass: every transfer that does not plainly agree, assembled from all of its rows.

It reads evidence, one row for each row of a ledger or of the day before, and returns the rows of
the result. On most days the evidence is small and this process reads it; if it is not, Spark's
workers do, each with all rows of some transfers. Both call :meth:`SecondPass.decide`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from itertools import chain
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from txmq.reconcile.classes import Class
from txmq.reconcile.classification import classify, facts_of_item
from txmq.reconcile.differences import ABOUT_PROOFS, Place
from txmq.reconcile.explanations import Explanation
from txmq.reconcile.extract.table_writer import arrow_table
from txmq.reconcile.items import BreakLife
from txmq.reconcile.rules import Rules
from txmq.reconcile.tables import ITEMS, MATCHES, RESULTS, SUMS, EntryRow, FailureRow, MessageRow
from txmq.reconcile.transfer import ARRIVED, Consumers, TransferFacts, TransferRows, split_bookings

__all__ = ["CARRIED", "EARLIER", "TODAY", "SecondPass", "Sums", "batch_sql"]

TODAY, CARRIED, EARLIER = range(3)
"""The origin of a row: this day, the items of the day before, or another earlier day."""
Sums: TypeAlias = Counter[tuple[str, str, str]]
"""Sums of money and counts of rows, by name, class or bank, and currency."""
_COLUMNS: Final = {**RESULTS, "sums": SUMS}
_AS_ITEM, _AS_MATCH = itemgetter(*ITEMS.names), itemgetter(*MATCHES.names)
_SUMMED: Final = {"debit": ("debited", -1), "return": ("returned", 1)}
"""The sums of a class that have these kinds; all others are in ``credited``."""


class Decisions(NamedTuple):
    """The result of the pass for some transfers."""

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

    def prove(self, place: Place, expected: int, now: int) -> None:
        """Add two values that must be equal to the sums of a proof; list them if they differ."""
        proof, bank, _, currency = place
        for name, value in (("rows", 1), ("expected", expected), ("found", now)):
            self.sums[f"{proof} {name}", bank or "", currency or ""] += value
        if expected != now:
            self.sums[f"{proof} wrong", bank or "", currency or ""] += 1
            self.rows["proofs"].append((*place, expected, now, False, ABOUT_PROOFS[proof]))

    def tables(self) -> dict[str, pa.Table]:
        """The rows as Arrow tables."""
        return {name: arrow_table(RESULTS[name], rows) for name, rows in self.rows.items()}

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of each table, in the column of its name, and the sums in ``sums``."""
        rows = {**self.rows, "sums": [(*place, str(value)) for place, value in self.sums.items()]}
        columns = {
            name: arrow_table(table, rows[name]).to_struct_array().combine_chunks()
            for name, table in _COLUMNS.items()
        }
        for name, column in columns.items():
            empty = {other: pa.nulls(len(column), columns[other].type) for other in columns}
            yield pa.RecordBatch.from_pydict(empty | {name: column})


def batch_sql() -> str:
    """The columns of :meth:`Decisions.batches` as Spark declares them."""
    return ", ".join(f"{name} {table.struct}" for name, table in _COLUMNS.items())


class SecondPass:
    """Decides transfers, each from all of its rows.

    ``as_of_ms`` is the end of the day, or the time of reading if that was earlier. ``offsets`` has
    the progress of consumers, and ``explanations`` the valid ones by break id.
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
        groups = {flow.topic: flow.group for flow in rules.log.flow}
        self._consumers = Consumers(groups, offsets)
        self._life = BreakLife(rules, day, explanations)
        self._both_sides = frozenset(bank.name for bank in rules.bank if bank.entries.double_entry)
        self._proves_clearing = all(bank.entries.clearing for bank in rules.bank)

    def decide(self, evidence: pa.Table) -> Decisions:
        """Decide all transfers of some evidence."""
        found = Decisions({name: [] for name in RESULTS}, Counter())
        cases = _cases(evidence)
        for key in sorted(cases):
            self._decide(cases[key], found)
        voids = evidence["key"].filter(pc.fill_null(evidence["is_void"], False))
        nothing = (Class.ROLLED_BACK.value, 0, "")
        found.rows["matches"] += [(key, *nothing) for key in sorted(set(voids.to_pylist()))]
        by_hand = [message for _, _, message in _rows(evidence, "by_hand", MessageRow)]
        by_hand.sort(key=lambda message: (message.key, message.position))
        found.rows["by_hand"] += map(msgspec.structs.astuple, by_hand)
        return found

    def batches(self, evidence: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decide the transfers of sorted evidence in pieces; for Spark's workers."""
        for piece in _whole_keys(evidence):
            yield from self.decide(piece).batches()

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
        found.rows["items"].append(_AS_ITEM(item))
        found.rows["entries"] += rows.entries
        found.rows["messages"] += map(msgspec.structs.astuple, rows.messages)
        found.rows["failures"] += map(msgspec.structs.astuple, rows.failures)

    def _prove(self, rows: TransferRows, found: Decisions) -> None:
        """Prove the bookings of a transfer: ``double-entry`` and ``clearing``."""
        sides: Counter[tuple[str, str, str]] = Counter()
        cleared: dict[str, list[int]] = {}
        today = Counter[str]()
        kinds = {(row.bank, row.recorded_ms): row.kind for row in rows.entries if row.kind != "fee"}
        for entry in rows.entries:
            if entry.bank in self._both_sides:
                # A fee is a part of the booking that was written at the same moment.
                is_fee = entry.kind == "fee"
                kind = kinds.get((entry.bank, entry.recorded_ms)) if is_fee else entry.kind
                sides[entry.bank, entry.currency, kind or "fee"] += entry.amount
            if entry.recorded_ms >= self._start_ms:
                today[entry.currency] += entry.amount
            of_currency = cleared.setdefault(entry.currency, [0, 0])
            if entry.role == "clearing":
                of_currency[1] += entry.amount
            else:
                of_currency[0] -= entry.amount
        for (bank, currency, _), amount in sides.items():
            found.prove(("double-entry", bank, rows.key, currency), 0, amount)
        if self._proves_clearing:
            for currency, (expected, cleared_) in cleared.items():
                found.prove(("clearing", None, rows.key, currency), expected, cleared_)
                if expected == cleared_:
                    # Rows of the day that do not add up settle a difference of an earlier day.
                    found.sums["settled", "", currency] += today[currency]


def _cases(evidence: pa.Table) -> dict[str, TransferRows]:
    cases: dict[str, TransferRows] = {}

    def case_of(key: str) -> TransferRows:
        return cases.setdefault(key, TransferRows(key))

    def as_item(*values: Any) -> dict[str, Any]:
        return dict(zip(ITEMS.names, values, strict=True))

    entries = list(_rows(evidence, "entry", EntryRow))
    # A row that names no transfer has the key of its booking.
    bookings = split_bookings(entry for _, _, entry in entries if entry.is_lone)
    named = (row for row in entries if not row[2].is_lone)
    for key, origin, entry in chain(named, ((row.key or "", TODAY, row) for row in bookings)):
        case = case_of(key)
        case.was_open |= origin == CARRIED
        (case.agreed_entries if origin == EARLIER else case.entries).append(entry)
    for key, origin, message in _rows(evidence, "message", MessageRow):
        case = case_of(key)
        case.was_open |= origin == CARRIED
        (case.agreed_messages if origin == EARLIER else case.messages).append(message)
    for key, _, failure in _rows(evidence, "failure", FailureRow):
        case_of(key).failures.append(failure)
    for key, _, item in _rows(evidence, "item", as_item):
        case_of(key).item = item
    if "history" in evidence.column_names:
        closed = evidence.filter(pc.field("history").is_valid()).select(["key", "history"])
        for row in closed.to_pylist():
            case_of(row["key"]).histories.append(row["history"])
    return cases


def _rows(evidence: pa.Table, name: str, make: Any) -> Iterator[tuple[str, int, Any]]:
    """The rows of one kind, which have the columns of their table: key, origin, and the row."""
    if name not in evidence.column_names:
        return
    some = evidence.filter(evidence[name].is_valid())
    columns = (pc.struct_field(some[name], field.name).to_pylist() for field in some[name].type)
    places = some["key"].to_pylist(), some["origin"].to_pylist()
    yield from zip(*places, map(make, *columns), strict=True)


def _whole_keys(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Sorted rows in pieces that end where a key ends."""
    left: pa.Table | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = pa.Table.from_batches([batch])
        rows = rows if left is None else pa.concat_tables([left, rows])
        last = rows["key"][-1]
        end = pc.index(rows["key"], last).as_py()
        if end:
            yield rows.slice(0, end)
        left = rows.slice(end)
    if left is not None:
        yield left
