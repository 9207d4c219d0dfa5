"""The differences of balance proofs, from date to date, and what explains each; without Spark.

Most proofs compare the bookings of one date, or a date with the one before. Their differences do
not show on the next date, so each is carried on until a later difference corrects it.

Only a row of ``clearing`` or ``double-entry`` can fail because of an item: it names the transfer
whose rows it adds up. That an account's table or an earlier balance differs by the amount of an
item does not prove that the item is the reason. A person explains these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from txmq.reconcile.archive import find_items, items_of
from txmq.reconcile.classes import Class
from txmq.reconcile.explanations import Difference, Explanations, ProofExplanation
from txmq.reconcile.extract.manifest import FILE, Manifest
from txmq.reconcile.extract.table_writer import arrow_table
from txmq.reconcile.results import Results
from txmq.reconcile.rules import Rules
from txmq.reconcile.storage import Directory
from txmq.reconcile.summary import Result, Run, digest_of
from txmq.reconcile.tables import ENTRIES, PROOFS

__all__ = [
    "ABOUT_PROOFS",
    "EXPLAINING",
    "EXPLAINING_CLASSES",
    "OF_ACCOUNTS",
    "OF_TRANSFERS",
    "Place",
    "ProofDay",
    "carry_on",
    "differences_in",
    "old_entries_like",
]

Place: TypeAlias = tuple[str, str | None, str | None, str | None]
"""A proof, its bank, its account or transfer, and its currency."""
Dated: TypeAlias = tuple[str, str | None, str | None, str | None, str | None]
"""A place, and the date that its difference comes from; ``None`` for a proof as a whole."""
_Row: TypeAlias = dict[str, Any]
"""A row of ``PROOFS``."""
_RowsOf: Final = defaultdict[Place, list[_Row]]
_DATED: Final = ("proof", "bank", "account", "currency", "first_seen")

ABOUT_PROOFS: Final = {
    "roll-forward": "the opening balance equals the closing balance of the day before, so no "
    "earlier entry changed",
    "roll-forward-rows": "the number of entries of earlier days is unchanged",
    "account-table": "the balance in the table of accounts equals the sum of the journal's entries",
    "conservation": "the gain of all banks' customers equals the money from outside and the "
    "transfers that arrived",
    "clearing": "the clearing accounts hold the money in transit of each transfer",
    "clearing-total": "the gain of all clearing accounts equals the money newly in transit and "
    "the bookings of transfers that do not add up",
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
IS_OF_TRANSFER: Final = pc.field("first_seen").is_valid() & pc.field("proof").isin(OF_TRANSFERS)
_ENTRY: Final = ("id", "key", "account", "currency", "amount")
_HINTS: Final = 3
"""The maximum of entries that a hint names."""
OTHER: Final = "other"
"""In place of a transfer: all bookings without one."""
_OF_SUMS: Final = ("conservation", "clearing-total", "gapless")
"""Proofs of sums alone: if one fails, its row is the difference."""
EXPLAINING: Final = ("break_id", "key", "class", "amount", "currency", "debits")
EXPLAINING_CLASSES: Final = (Class.EXPLAINED, Class.IN_FLIGHT)


class Cover(NamedTuple):
    """A difference, and what explains it: its own item, a person, or nothing."""

    difference: Difference
    is_by_item: bool = False
    person: ProofExplanation | None = None


class ProofDay(NamedTuple):
    """The proofs of a day, and what may explain their differences."""

    source: Manifest | Result
    """It names the rules and the date, with its window."""
    proofs: Sequence[pa.Table]
    """All rows of ``PROOFS``, in pieces."""
    items: Sequence[_Row]
    """The columns :data:`EXPLAINING` of the items that may explain a difference of a transfer."""
    people: Explanations | None

    @staticmethod
    def place_of(row: Mapping[str, Any]) -> Dated:
        """The place of a row of ``PROOFS``, with the date of its difference."""
        return (*_place_of(row), row["first_seen"])

    def covers(self, *, is_complete: bool = False) -> dict[Dated, Cover]:
        """What explains the differences of a day; without those that nothing explains, or all."""
        items = {row["key"]: row for row in self.items if row["class"] in EXPLAINING_CLASSES}
        found = dict[Dated, Cover]()
        people = {
            (note.difference.id, note.difference.amounts): note
            for note in (self.people.proofs_in_force() if self.people else ())
            if note.holds_on(self.source.business_date)
        }
        named = {note.difference.account or "" for note in people.values()} | items.keys()
        breaks = self.people.in_force() if self.people else ()
        seen = {explanation.break_id: explanation.proofs for explanation in breaks}
        for place, one in self._singles(None if is_complete else named).items():
            item = items.get(one.account or "")
            if item is not None and _is_of_item(one, item, seen.get(item["break_id"], {})):
                found[place] = Cover(one, is_by_item=True)
            elif (person := people.get((one.id, one.amounts))) or is_complete:
                found[place] = Cover(one, person=person)
        return found

    def covered_rows(self, covers: Mapping[Dated, Cover]) -> Iterator[pa.Table]:
        """The rows of differences, with what explains them."""
        names = pa.array(["\0".join(name or "" for name in place) for place in covers], pa.string())
        are_persons = pa.array([cover.person is not None for cover in covers.values()], pa.bool_())
        for piece in self._differing_rows():
            places = pc.binary_join_element_wise(
                *(piece[name] for name in _DATED), "\0",
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

    def _differing_rows(self) -> Iterator[pa.Table]:
        """The rows of differences, with ``off``: found less expected."""
        for piece in self.proofs:
            rows = piece.filter(pc.field("first_seen").is_valid())
            # These decimals have room for the difference of any two numbers.
            wide = (rows[name].cast(pa.decimal128(19, 0)) for name in ("found", "expected"))
            yield rows.append_column("off", pc.subtract(*wide))

    def _singles(self, accounts: set[str] | None) -> dict[Dated, Difference]:
        """The differences: all, or those of some accounts and of sums."""
        found: defaultdict[Dated, list[int]] = defaultdict(list)
        account = pc.field("account")
        is_named = account.is_null() | account.isin(pa.array(sorted(accounts or ()), pa.string()))
        for piece in self._differing_rows():
            for row in (piece if accounts is None else piece.filter(is_named)).to_pylist():
                found[self.place_of(row)].append(int(row["off"]))
        return {
            dated: Difference(
                digest_of([self.source.name, *dated])[:16],
                *dated[:4],
                tuple(sorted(amounts)),
                dated[4] or "",
            )
            for dated, amounts in found.items()
        }


def carry_on(proofs: pa.Table, before: Iterable[pa.Table], rules: Rules, day: date) -> pa.Table:
    """The proofs of a day, with the differences that earlier days left; as ``PROOFS``.

    ``before`` has the proofs of the day before. A proof that compares everything replaces what it
    found then. One that compares the bookings of a day adds to it: a difference stays until a
    later one in the same place corrects it.
    """
    wholes, new, old = dict[Place, _Row](), _RowsOf(list), _RowsOf(list)
    for row in proofs.to_pylist():
        if row["account"] is not None or (row["proof"] in _OF_SUMS and not row["holds"]):
            new[_place_of(row)].append(row)
        else:
            wholes[_place_of(row)] = row
    # An older txmq carried nothing on.
    for piece in (one for one in before if "first_seen" in one.column_names):
        for row in piece.filter(pc.field("first_seen").is_valid()).to_pylist():
            old[_place_of(row)].append(row)
    found, counts, today = list[_Row](), defaultdict[Place, int](int), day.isoformat()
    for place in new.keys() | old.keys():
        is_whole = _is_whole(place, new[place], rules, day)
        left = _differences_left(old[place], new[place], today, is_whole=is_whole)
        found += left
        if place[2] is None:
            if not left:  # The day has corrected what earlier ones left.
                row = new[place][0]
                wholes[place] = row | {"found": row["expected"], "holds": True}
            continue
        whole = place[0], place[1], None, place[3]
        if whole not in wholes:
            wholes[whole] = dict(zip(PROOFS.names, (*whole, 0, 0, True, "", None), strict=True))
        row = wholes[whole]
        row["found"] += sum(map(_off, left)) - sum(map(_off, new[place]))
        counts[whole] += len(left)
        row["about"] = "" if old[place] else row["about"]
    for place, count in counts.items():
        row = wholes[place]
        row |= {"holds": not count, "about": row["about"] or _about(place[0], count)}
    rows = [tuple(row.values()) for row in (*wholes.values(), *found)]
    rows.sort(key=lambda row: [name or "" for name in (*row[:4], row[-1])])  # Place and date.
    return arrow_table(PROOFS, rows)


def _differences_left(
    old: list[_Row], new: list[_Row], today: str, *, is_whole: bool
) -> list[_Row]:
    """The differences of a place after a day: those that it found, and what is left of the old."""
    failed = [row for row in new if not row["holds"]]
    if is_whole:
        first_seen = min((row["first_seen"] for row in old), default=today)
        return [row | {"first_seen": row["first_seen"] or first_seen} for row in failed]
    left, added = sorted(old, key=lambda row: row["first_seen"]), list[_Row]()
    for row in failed:
        opposite = next((one for one in left if _off(one) == -_off(row)), None)
        if opposite is None:
            added.append(row | {"first_seen": today})
        else:
            left.remove(opposite)
    # A correction in several parts, or of several differences.
    is_corrected = sum(map(_off, left)) == -sum(map(_off, added)) != 0
    return [] if is_corrected else [*left, *added]


def _is_whole(place: Place, new: list[_Row], rules: Rules, day: date) -> bool:
    """True if a proof has compared everything, and not only the bookings of a day."""
    proof, name, account, _ = place
    if proof in OF_TRANSFERS:
        # The rows of a transfer on earlier days are known if it is open, or has moved again.
        return account != OTHER and any(row["first_seen"] is None for row in new)
    if proof not in {"account-table", "readable-rows"}:
        return False
    bank = next((bank for bank in rules.bank if bank.name == name), None)
    files, accounts = (bank.files, bank.accounts) if bank else (None, None)
    if files is None or not files.is_dated:
        return True
    if proof == "readable-rows" or files.is_statement or (accounts and accounts.opening):
        return False  # The file of a date has only its own rows, or both of its balances.
    return bool(new) or rules.day.is_business(day)  # On other dates there may be no file.


def _about(proof: str, count: int) -> str:
    about = ABOUT_PROOFS[proof]
    return f"{count} do not: {about}" if count else about


def _place_of(row: Mapping[str, Any]) -> Place:
    return row["proof"], row["bank"], row["account"], row["currency"]


def _off(row: _Row) -> int:
    return int(row["found"] - row["expected"])


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
    results = Results(directory)
    proofs = list(results.table("proofs", run.day, run.run_id).pieces())
    # After a mishap most transfers may fail: Arrow has room for all of their keys.
    failed = [piece.filter(IS_OF_TRANSFER)["account"].combine_chunks() for piece in proofs]
    has_failed = pc.field("key").isin(pa.chunked_array(failed, pa.string()).combine_chunks())
    items = results.table("items", run.day, run.run_id)
    explaining = list(items.rows(*EXPLAINING, where=has_failed))
    day = ProofDay(run.result, proofs, explaining, Explanations(directory))
    hints = {
        ("account-table", item[side], item["currency"], item["amount"]): f"like {item['break_id']}"
        for item in items_of(results, run, is_complete=True)
        for side in ("payer", "payee")
    }
    rows = []
    for one, is_by_item, person in day.covers(is_complete=True).values():
        explained_by = person.by if person else "items" if is_by_item else None
        pairs = (proof, one.proof), (bank, one.bank), (account, one.account)
        is_wanted = is_complete or ids or explained_by is None
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
            for row in folder.at(table.place).rows(*_ENTRY, where=is_wanted):
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
