"""The differences of balance proofs, and what explains each of them; without Spark.

Only three proofs can fail because of an item. A row of ``clearing`` or ``double-entry`` names the
transfer whose rows it adds up. ``clearing-total`` is the sum of all rows of the day, so an item
whose ``clearing`` fails contributes exactly the sum of its own. No item contributes to
``conservation``, which counts both sides of every transfer; and that an account's table or an
earlier balance differs by the amount of an item does not prove that the item is the reason. A
person explains these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from txmq.reconcile.classes import Class
from txmq.reconcile.explanations import Difference, Explanations, ProofExplanation
from txmq.reconcile.extract.manifest import FILE, Manifest
from txmq.reconcile.results import Results
from txmq.reconcile.storage import Directory
from txmq.reconcile.summary import Result, Run, digest_of
from txmq.reconcile.tables import ENTRIES
from txmq.reconcile.written_table import WrittenTable, find_items, items_of

__all__ = [
    "ABOUT_PROOFS",
    "OF_ACCOUNTS",
    "OF_TRANSFERS",
    "Place",
    "ProofDay",
    "differences_in",
    "old_entries_like",
]

Place: TypeAlias = tuple[str, str | None, str | None, str | None]
"""A proof, its bank, its account or transfer, and its currency."""

ABOUT_PROOFS: Final = {
    "roll-forward": "the opening balance equals the closing balance of the day before, so no "
    "earlier entry changed",
    "roll-forward-rows": "the number of entries of earlier days is unchanged",
    "account-table": "the balance in the table of accounts equals the sum of the journal's entries",
    "conservation": "the gain of all banks' customers equals the money from outside and the "
    "transfers that arrived",
    "clearing": "the clearing accounts hold the money in transit of each transfer",
    "clearing-total": "the gain of all clearing accounts equals the money newly in transit, and "
    "the differences of earlier days that transfers have settled",
    "double-entry": "the rows of each booking add up to zero",
    "readable-rows": "every row of the banks' tables can be read",
    "gapless": "the ids of the entries have no gaps, within the day and since the day before",
    **{
        f"classes-{kind}": f"the sum {kind}ed in all classes equals the sum {kind}ed by all banks"
        for kind in ("debit", "return", "credit")
    },
}
OF_ACCOUNTS: Final = ("roll-forward", "roll-forward-rows", "account-table")
"""Proofs with a row for each account; the others have a row for each transfer, or none."""
OF_TRANSFERS: Final = ("clearing", "double-entry")
_ENTRY: Final = ("id", "key", "account", "currency", "amount")
_HINTS: Final = 3
"""The maximum of entries that a hint names."""
_ITEM: Final = ("break_id", "key", "class", "amount", "currency", "debits")


class Cover(NamedTuple):
    """A difference, and what explains it."""

    difference: Difference
    """Without the part of a whole proof that items explain."""
    by_items: int | None
    """The part that items explain; ``None`` if they explain nothing of a single row."""
    person: ProofExplanation | None = None


class ProofDay(NamedTuple):
    """The proofs of a day, and what may explain their differences."""

    source: Manifest | Result
    """It names the rules and the date, with its window."""
    tables: Mapping[str, WrittenTable]
    """The run's ``proofs``, ``items`` and ``entries``."""
    people: Explanations | None

    @staticmethod
    def place_of(row: Mapping[str, Any]) -> Place:
        """The place of a row of ``PROOFS``."""
        return row["proof"], row["bank"], row["account"], row["currency"]

    def covers(self, *, is_complete: bool = False) -> dict[Place, Cover]:
        """What explains the differences of a day; without those that nothing explains, or all."""
        items, found = self._explaining_items(), dict[Place, Cover]()
        people = {
            (note.difference.id, note.difference.amounts): note
            for note in (self.people.proofs_in_force() if self.people else ())
            if note.first <= self.source.business_date <= note.last
        }
        named = {note.difference.account or "" for note in people.values()} | items.keys()
        breaks = self.people.in_force() if self.people else ()
        seen = {explanation.break_id: explanation.proofs for explanation in breaks}
        for place, one in self._singles(None if is_complete else named).items():
            item = items.get(one.account or "")
            if item is not None and _is_of_item(one, item, seen.get(item["break_id"], {})):
                found[place] = Cover(one, sum(one.amounts))
            elif (person := people.get((one.id, one.amounts))) or is_complete:
                found[place] = Cover(one, None, person)
        of_items = self._of_items_today(found)
        for place, off in self._wholes().items():
            by_items = of_items.get(place[3] or "", 0) if place[0] == "clearing-total" else 0
            one = self._difference(place, off - by_items)
            person = people.get((one.id, one.amounts))
            if by_items or person or is_complete:
                found[place] = Cover(one, by_items, person)
        return found

    def covered_rows(self, covers: Mapping[Place, Cover]) -> Iterator[pa.Table]:
        """The rows of single accounts or transfers that differ, with what explains them."""
        names = pa.array(["\0".join(name or "" for name in place) for place in covers], pa.string())
        are_persons = pa.array([cover.person is not None for cover in covers.values()], pa.bool_())
        for piece in self._single_rows():
            places = pc.binary_join_element_wise(
                *(piece[name] for name in ("proof", "bank", "account", "currency")), "\0",
                null_handling="replace", null_replacement="",
            )  # fmt: skip
            # NULL if nothing explains the row.
            is_person = pc.take(are_persons, pc.index_in(places, names))
            off, nothing = piece["off"], pa.scalar(0, piece["off"].type)
            is_open = is_person.is_null()
            more = {
                "is_open": is_open.cast(pa.int64()),
                "size": pc.if_else(is_open, pc.abs(off), nothing),
                "by_items": pc.if_else(is_person.fill_null(True), nothing, off),
                "by_person": pc.if_else(is_person.fill_null(False), off, nothing),
            }
            yield pa.table({name: piece[name] for name in piece.column_names} | more)

    def _single_rows(self) -> Iterator[pa.Table]:
        """The rows of accounts or transfers that differ, with ``off``: found less expected."""
        differs = pc.field("account").is_valid() & ~pc.field("holds")
        for rows in self.tables["proofs"].pieces(where=differs):
            # These decimals have room for the difference of any two numbers.
            wide = (rows[name].cast(pa.decimal128(19, 0)) for name in ("found", "expected"))
            yield rows.append_column("off", pc.subtract(*wide))

    def _difference(self, place: Place, *amounts: int) -> Difference:
        id_ = digest_of([self.source.name, *place])[:16]
        return Difference(id_, *place, tuple(sorted(amounts)))

    def _singles(self, accounts: set[str] | None) -> dict[Place, Difference]:
        """The differences of single accounts or transfers: all, or those of some names."""
        found: defaultdict[Place, list[int]] = defaultdict(list)
        is_named = pc.field("account").isin(pa.array(sorted(accounts or ()), pa.string()))
        for piece in self._single_rows():
            for row in (piece if accounts is None else piece.filter(is_named)).to_pylist():
                found[self.place_of(row)].append(int(row["off"]))
        return {place: self._difference(place, *amounts) for place, amounts in found.items()}

    def _wholes(self) -> dict[Place, int]:
        """The differences of proofs that have no single rows, also those of zero."""
        pieces = (piece["proof"].unique().to_pylist() for piece in self._single_rows())
        single = {*chain.from_iterable(pieces)}
        return {
            self.place_of(row): row["found"] - row["expected"]
            for row in self.tables["proofs"].rows(where=pc.field("account").is_null())
            if row["proof"] not in single
        }

    def _explaining_items(self) -> dict[str, dict[str, Any]]:
        """The explained items and those in flight for which a proof fails, by transfer."""
        # After a mishap most transfers may fail: Arrow has room for all of their keys.
        of_transfers = pc.field("proof").isin(OF_TRANSFERS)
        pieces = (piece.filter(of_transfers)["account"].chunks for piece in self._single_rows())
        failed = pa.chunked_array([*chain.from_iterable(pieces)], pa.string())
        has_failed = pc.field("key").isin(failed.combine_chunks())
        return {
            row["key"]: row
            for row in self.tables["items"].rows(*_ITEM, where=has_failed)
            if row["class"] in {Class.EXPLAINED, Class.IN_FLIGHT}
        }

    def _of_items_today(self, covers: Mapping[Place, Cover]) -> dict[str, int]:
        """What the day's rows of items contribute to ``clearing-total``, by currency.

        Only rows of items whose own ``clearing`` fails and is explained do; all others add up to
        nothing there.
        """
        found: defaultdict[str, int] = defaultdict(int)
        explained = {
            place[2:]
            for place, (_, by_items, person) in covers.items()
            if place[0] == "clearing" and (by_items is not None or person)
        }
        keys, at = {key or "" for key, _ in explained}, pc.field("recorded_ms")
        is_today = (at >= self.source.start_ms) & (at < self.source.end_ms)
        where = is_today & pc.field("key").isin(pa.array(sorted(keys), pa.string()))
        columns = "key", "currency", "amount", "recorded_ms"
        for row in self.tables["entries"].rows(*columns, where=where):
            if (row["key"], row["currency"]) in explained:
                found[row["currency"]] += row["amount"]
        return found


def differences_in(
    directory: Directory,
    run: Run,
    proof: str | None = None,
    bank: str | None = None,
    account: str | None = None,
    ids: Sequence[str] = (),
    *,
    is_complete: bool = False,
) -> list[dict[str, Any]]:
    """The differences of a run's proofs that nothing explains, or all with what explains them.

    Ids, or their beginnings, also find explained ones. A hint names an item with the same account
    and amount as a difference of ``account-table``.

    Raises:
        ReconcileRefused: A table is missing, or an explanation cannot be read.
        UsageError: No difference matches an id, or several do.
    """
    names = ("proofs", "items", "entries")
    tables = {name: WrittenTable.of_run(directory, run.day, run.run_id, name) for name in names}
    day = ProofDay(run.result, tables, Explanations(directory))
    hints = {
        ("account-table", item[side], item["currency"], item["amount"]): f"like {item['break_id']}"
        for item in items_of(directory, run, is_complete=True)
        for side in ("payer", "payee")
    }
    rows = []
    for one, by_items, person in day.covers(is_complete=True).values():
        # What items explain of a whole proof is not in its difference any more.
        of_items = "items" if by_items is not None and one.account is not None else None
        explained_by = person.by if person else of_items
        pairs = (proof, one.proof), (bank, one.bank), (account, one.account)
        is_wanted = any(one.amounts) and (is_complete or ids or explained_by is None)
        if is_wanted and all(only in {None, has} for only, has in pairs):
            hint = hints.get((one.proof, one.account, one.currency, abs(one.amounts[0])))
            row = {**msgspec.to_builtins(one), "explained_by": explained_by}
            row |= {"explanation": person and person.reason, "until": person and person.last}
            rows.append(row | {"hint": None if person else hint})
    rows.sort(key=lambda row: (row["proof"], -sum(map(abs, row["amounts"]))))
    return find_items(rows, ids, "id") if ids else rows


def old_entries_like(
    results: Results, run: Run, rows: Sequence[Mapping[str, Any]], history: int
) -> dict[str, str]:
    """Hints for differences of ``roll-forward``, by their ids, from the extracts of earlier days.

    A hint names entries of the account with exactly the amount that the book lacks now; ``history``
    is the number of days to search. Whether one of them was deleted, only the bank can tell.

    Raises:
        ReconcileRefused: An extract cannot be read.
    """
    lacking = {
        (row["bank"], row["account"], row["currency"], -row["amounts"][0]): row["id"]
        for row in rows
        if row["proof"] == "roll-forward" and row["account"] and not row["explained_by"]
    }
    runs = results.chain(run, run.day - timedelta(days=history))[:-1] if lacking else []
    found: defaultdict[str, list[str]] = defaultdict(list)
    for past in reversed(runs):
        folder = results.folder.at("extracts", past.result.business_date, past.extract_id)
        tables = Manifest.read(folder).tables if folder.exists(FILE) else ()
        for table in (one for one in tables if one.table == ENTRIES.name and one.parts):
            bank = table.written.source
            accounts = sorted({account for of, account, *_ in lacking if of == bank})
            is_wanted = pc.field("account").isin(pa.array(accounts, pa.string()))
            entries = WrittenTable(f"entries of {past.day}", folder.at(table.place))
            for row in entries.rows(*_ENTRY, where=is_wanted):
                place = bank, row["account"], row["currency"], row["amount"]
                if place in lacking:
                    name = row["key"] or f"row {row['id']}"
                    found[lacking[place]].append(f"{name} of {past.day}")
    return {
        id_: f"like {', '.join(names[:_HINTS])}{' and others' if names[_HINTS:] else ''}"
        for id_, names in found.items()
    }


def _is_of_item(
    difference: Difference, item: Mapping[str, Any], seen: Mapping[str, tuple[int, ...]]
) -> bool:
    if difference.proof not in OF_TRANSFERS:
        return False
    if item["class"] == Class.EXPLAINED:
        # A break's figures do not have its clearing rows: the person must have seen these amounts.
        return seen.get(difference.id) == difference.amounts
    # In flight: one side of its booking may be recorded after the end of the day. The other side
    # takes the money from the payer, or gives it to clearing.
    alone = -item["amount"] if item["debits"] else item["amount"]
    return difference.amounts == (alone,) and difference.currency == item["currency"]
