"""The second pass: every transfer that does not plainly agree, assembled from all of its rows.

It reads evidence, one row for each row of a ledger or of the day before, and returns the rows of
the result. On most days the evidence is small and this process reads it; if it is not, Spark's
workers do, each with all rows of some transfers. Both call :meth:`SecondPass.decide`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from txmq.reconcile.classes import ABOUT, Class
from txmq.reconcile.classification import classify, facts_of_item
from txmq.reconcile.explanations import Explanation
from txmq.reconcile.extract.table_writer import arrow_table
from txmq.reconcile.lifecycle import BreakLife, Earlier
from txmq.reconcile.log.flows import FailureRow, MessageRow
from txmq.reconcile.lone_bookings import is_lone, split_bookings
from txmq.reconcile.rules import Rules
from txmq.reconcile.tables import (
    BOOKED,
    FAILURES,
    ITEMS,
    MATCHES,
    MESSAGES,
    PROOFS,
    TableSchema,
)
from txmq.reconcile.transfer import ARRIVED, Consumers, EntryRow, TransferFacts, TransferRows

__all__ = [
    "ABOUT_PROOFS",
    "CARRIED",
    "EARLIER",
    "RESULTS",
    "TODAY",
    "Decisions",
    "SecondPass",
    "Sums",
    "batch_sql",
    "row_sql",
]

TODAY, CARRIED, EARLIER = range(3)
"""The origin of a row: this day, the items of the day before, or another earlier day."""
RESULTS: Final[Mapping[str, TableSchema]] = {
    "matches": MATCHES,
    "items": ITEMS,
    "closed": ITEMS,
    "entries": BOOKED,
    "messages": MESSAGES,
    "failures": FAILURES,
    "by_hand": MESSAGES,
    "proofs": PROOFS,
}
"""The tables that the pass writes rows of."""

Sums: TypeAlias = Counter[tuple[str, str, str]]
"""Sums of money and counts of rows, by name, class or bank, and currency."""
_SUM: Final = pa.struct(
    [
        pa.field("name", pa.string()),
        pa.field("of", pa.string()),
        pa.field("currency", pa.string()),
        pa.field("value", pa.decimal128(38, 0)),
    ]
)
_SUMMED: Final = {
    "debit": ("debited", -1),
    "return": ("returned", 1),
    **dict.fromkeys(ARRIVED, ("credited", 1)),
}


class Decisions(NamedTuple):
    """The result of the pass for some transfers."""

    rows: Mapping[str, list[tuple[Any, ...]]]
    """By table."""
    sums: Sums

    def tables(self) -> dict[str, pa.Table]:
        """The rows as Arrow tables."""
        return {name: arrow_table(RESULTS[name], rows) for name, rows in self.rows.items()}

    def batch(self) -> pa.RecordBatch:
        """The rows of all tables in one batch, with a column for each table and one for sums."""
        values = {name: _structs(RESULTS[name], rows) for name, rows in self.rows.items()}
        sums = [(*place, value) for place, value in self.sums.items()]
        names = [field.name for field in _SUM]
        values["sums"] = pa.array([dict(zip(names, row, strict=True)) for row in sums], _SUM)
        count = sum(map(len, values.values()))
        columns, before = {}, 0
        for name, array in values.items():
            after = count - before - len(array)
            none = [pa.nulls(size, array.type) for size in (before, after)]
            columns[name] = pa.concat_arrays([none[0], array, none[1]])
            before += len(array)
        return pa.RecordBatch.from_pydict(columns)


def batch_sql() -> str:
    """The columns of :meth:`Decisions.batch` as Spark declares them."""
    tables = [f"{name} {row_sql(table)}" for name, table in RESULTS.items()]
    return ", ".join(
        [*tables, "sums STRUCT<name: STRING, of: STRING, currency: STRING, value: DECIMAL(38,0)>"]
    )


def row_sql(table: TableSchema) -> str:
    """The rows of a table as Spark declares them in one column."""
    fields = ", ".join(f"`{name}`: {type_}" for name, type_ in table.sql_types.items())
    return f"STRUCT<{fields}>"


class SecondPass:
    """Decides transfers, each from all of its rows.

    Args:
        rules: The tolerances, the grace, and the banks with double entry.
        day: The business date.
        as_of_ms: The end of the day, or the time of reading if that was earlier.
        offsets: The progress of consumers, as in :class:`Consumers`.
        explanations: The valid explanations, by break id.
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
        self._consumers = Consumers.of(rules, offsets)
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
        by_hand = [message for _, _, message in _rows(evidence, "by_hand", MESSAGES, _as_tuple)]
        found.rows["by_hand"] += sorted(by_hand, key=lambda row: (row[0], row[-2]))
        return found

    def batches(self, evidence: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decide the transfers of sorted evidence in pieces; for Spark's workers."""
        for piece in _whole_keys(evidence):
            yield self.decide(piece).batch()

    def _decide(self, case: _Case, found: Decisions) -> None:
        rows, tables, sums = case.rows, found.rows, found.sums
        rows.settle()
        self._prove(rows, found)
        for leg in rows.legs:
            if leg.recorded_ms < self._start_ms:
                kind = "credit" if leg.kind in ARRIVED else leg.kind
                sums["earlier", kind, leg.currency] += leg.amount
        today = None
        if rows.legs or rows.messages:
            facts = TransferFacts(rows, self._consumers, self._rules.day, self._start_ms)
            is_unseen = case.item is not None and case.item["class"] == Class.PRIOR_PERIOD
            class_ = classify(facts, self._rules, self._as_of_ms, is_unseen=is_unseen)
            today = facts_of_item(facts, class_)
        elif case.item is None:
            return  # A clearing row alone is not a transfer; proofs detect it.
        item = self._life.item(today, Earlier(case.item, case.was_agreed, case.histories))
        if today is not None:
            self._count(rows, today, item, sums)
        if item is None:
            tables["matches"].append(_values(today or {}, MATCHES))
            return
        if item["status"] == "closed":
            tables["closed"].append(_values(item, ITEMS))
            tables["matches"].append(_values(item, MATCHES))
            return
        tables["items"].append(_values(item, ITEMS))
        tables["entries"] += rows.entries
        tables["messages"] += map(msgspec.structs.astuple, rows.messages)
        tables["failures"] += map(msgspec.structs.astuple, rows.failures)

    def _count(
        self,
        rows: TransferRows,
        today: Mapping[str, Any],
        item: Mapping[str, Any] | None,
        sums: Sums,
    ) -> None:
        """Add a transfer to the totals of its class. Sums are taken from its rows, in the rows' own
        currencies.
        """
        class_ = (item or today)["class"]
        sums["transfers", class_, today["currency"]] += 1
        sums["ordered", class_, today["currency"]] += today["ordered"]
        if ABOUT[Class(class_)].group != "agreed":
            sums["at_risk", class_, today["currency"]] += today["amount"]
        for leg in rows.legs:
            name, sign = _SUMMED[leg.kind]
            sums[name, class_, leg.currency] += sign * leg.amount

    def _prove(self, rows: TransferRows, found: Decisions) -> None:
        """Prove the bookings of a transfer: ``double-entry`` and ``clearing``."""
        sides: Counter[tuple[str, str, str]] = Counter()
        cleared: dict[str, list[int]] = {}
        kinds = {(row.bank, row.recorded_ms): row.kind for row in rows.entries if row.kind != "fee"}
        for entry in rows.entries:
            if entry.bank in self._both_sides:
                # A fee is a part of the booking that was written at the same moment.
                is_fee = entry.kind == "fee"
                kind = kinds.get((entry.bank, entry.recorded_ms)) if is_fee else entry.kind
                sides[entry.bank, entry.currency, kind or "fee"] += entry.amount
            of_currency = cleared.setdefault(entry.currency, [0, 0])
            if entry.role == "clearing":
                of_currency[1] += entry.amount
            else:
                of_currency[0] -= entry.amount
        for (bank, currency, _), amount in sides.items():
            _add_proof(found, "double-entry", (bank, rows.key, currency), 0, amount)
        if self._proves_clearing:
            for currency, (expected, cleared_) in cleared.items():
                _add_proof(found, "clearing", (None, rows.key, currency), expected, cleared_)


def _add_proof(
    found: Decisions, proof: str, place: tuple[str | None, str, str], expected: int, now: int
) -> None:
    """Add two values that must be equal to the sums of a proof; list them if they differ."""
    bank, key, currency = place
    for name, value in (("rows", 1), ("expected", expected), ("found", now)):
        found.sums[f"{proof} {name}", bank or "", currency] += value
    if expected != now:
        found.sums[f"{proof} wrong", bank or "", currency] += 1
        row = (proof, bank, key, currency, expected, now, False, ABOUT_PROOFS[proof])
        found.rows["proofs"].append(row)


ABOUT_PROOFS: Final = {
    "double-entry": "the rows of each booking add up to zero",
    "clearing": "the clearing accounts hold the money in transit of each transfer",
}


class _Case(msgspec.Struct):
    """The evidence of a transfer."""

    rows: TransferRows
    entries: list[EntryRow] = msgspec.field(default_factory=list)
    """Those of days on which it was agreed."""
    messages: list[MessageRow] = msgspec.field(default_factory=list)
    item: dict[str, Any] | None = None
    histories: list[str] = msgspec.field(default_factory=list)

    @property
    def was_agreed(self) -> bool:
        """True if it was agreed on an earlier day."""
        return bool(self.histories or self.entries or self.messages)

    def join_earlier(self) -> None:
        """Add the rows of the days on which it was agreed, unless it was open since: then it has
        brought them along. An id whose orders were only rolled back begins anew.
        """
        rows = self.rows
        begins = rows.messages and any(leg.kind == "debit" for leg in rows.legs)
        if rows.was_open or (begins and not self.entries):
            self.entries, self.messages = [], []
        rows.entries += self.entries
        rows.messages += self.messages


def _cases(evidence: pa.Table) -> dict[str, _Case]:
    cases = _Cases()
    for key, origin, entry in _entries(evidence):
        case = cases[key]
        case.rows.was_open |= origin == CARRIED
        (case.entries if origin == EARLIER else case.rows.entries).append(entry)
    for key, origin, message in _rows(evidence, "message", MESSAGES, MessageRow):
        case = cases[key]
        case.rows.was_open |= origin == CARRIED
        (case.messages if origin == EARLIER else case.rows.messages).append(message)
    for key, _, failure in _rows(evidence, "failure", FAILURES, FailureRow):
        cases[key].rows.failures.append(failure)
    for key, _, item in _rows(evidence, "item", ITEMS, _as_item):
        cases[key].item = item
    if "history" in evidence.column_names:
        closed = evidence.filter(pc.field("history").is_valid())
        for key, history in zip(
            closed["key"].to_pylist(), closed["history"].to_pylist(), strict=True
        ):
            cases[key].histories.append(history)
    for case in cases.values():
        case.join_earlier()
    return cases


def _entries(evidence: pa.Table) -> Iterator[tuple[str, int, EntryRow]]:
    """The entries as :func:`_rows`; one that names no transfer has the key of its booking."""
    lone: dict[str, list[EntryRow]] = {}
    for key, origin, entry in _rows(evidence, "entry", BOOKED, EntryRow):
        if is_lone(entry):
            lone.setdefault(key, []).append(entry)
        else:
            yield key, origin, entry
    for entries in lone.values():
        for entry in split_bookings(entries):
            assert entry.key is not None
            yield entry.key, TODAY, entry


class _Cases(dict[str, _Case]):
    def __missing__(self, key: str) -> _Case:
        case = self[key] = _Case(TransferRows(key))
        return case


def _as_tuple(*values: Any) -> tuple[Any, ...]:
    return values


def _as_item(*values: Any) -> dict[str, Any]:
    return dict(zip(ITEMS.names, values, strict=True))


def _rows(
    evidence: pa.Table, name: str, table: TableSchema, make: Any
) -> Iterator[tuple[str, int, Any]]:
    """The rows of one kind: the key, the origin, and the row."""
    if name not in evidence.column_names:
        return
    some = evidence.filter(evidence[name].is_valid())
    for batch in some.select(["key", "origin", name]).to_batches():
        held = batch.column(name)
        columns = (held.field(held.type.get_field_index(field)) for field in table.names)
        rows = map(make, *(column.to_pylist() for column in columns))
        yield from zip(
            batch.column("key").to_pylist(), batch.column("origin").to_pylist(), rows, strict=True
        )


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


def _values(item: Mapping[str, Any], table: TableSchema) -> tuple[Any, ...]:
    return tuple(item[name] for name in table.names)


def _structs(table: TableSchema, rows: list[tuple[Any, ...]]) -> pa.StructArray:
    filled = arrow_table(table, rows)
    columns = [column.combine_chunks() for column in filled.columns]
    return pa.StructArray.from_arrays(columns, fields=list(filled.schema))
