"""The differences of balance proofs, from date to date, and what explains each; without Spark.

Most proofs compare the bookings of one date, or a date with the one before. Their differences would
not show on the next date, so each is carried on until a later difference corrects it.

Only a row of ``clearing`` or ``double-entry`` can fail because of an item: it names the transfer
whose rows it adds up. If an account's table or an earlier balance differs by the amount of an item,
the item need not be the reason, so a person must explain the difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from txmq.reconcile.archive import find_items, items_of
from txmq.reconcile.arrow import arrow_table
from txmq.reconcile.classes import Class
from txmq.reconcile.explanations import Difference, Explanations, ProofExplanation
from txmq.reconcile.extract.manifest import FILE, Manifest
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
    "Cover",
    "Dated",
    "Place",
    "carry_on",
    "covers_of",
    "dated",
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
"""The most entries that a hint names."""
OTHER: Final = "other"
"""Stands in place of a transfer for all bookings without one."""
_OF_SUMS: Final = ("conservation", "clearing-total", "gapless")
"""Proofs of sums alone: if one fails, its row is the difference."""
EXPLAINING: Final = ("break_id", "key", "class", "amount", "currency", "debits")
EXPLAINING_CLASSES: Final = (Class.EXPLAINED, Class.IN_FLIGHT)


class Cover(NamedTuple):
    """A difference, and what explains it: the item of its transfer, a person, or nothing."""

    difference: Difference
    is_by_item: bool
    person: ProofExplanation | None

    @property
    def is_open(self) -> bool:
        """True if nothing explains it."""
        return not self.is_by_item and self.person is None


def covers_of(
    source: Manifest | Result,
    proofs: Iterable[_Row],
    items: Iterable[Mapping[str, Any]],
    people: Explanations | None,
) -> dict[Dated, Cover]:
    """The differences of a day's proofs, and what explains each.

    ``source`` names the rules and the date; ``items`` have the columns :data:`EXPLAINING`.
    """
    amounts = defaultdict[Dated, list[int]](list)
    for row in proofs:
        if row["first_seen"] is not None:
            amounts[dated(row)].append(_off(row))
    explaining = {row["key"]: row for row in items if row["class"] in EXPLAINING_CLASSES}
    notes = {
        (note.difference.id, note.difference.amounts): note
        for note in (people.proofs_in_force() if people else ())
        if note.holds_on(source.business_date)
    }
    seen = {note.break_id: note.proofs for note in (people.in_force() if people else ())}
    found = dict[Dated, Cover]()
    for place, offs in amounts.items():
        id_ = digest_of([source.name, *place])[:16]
        one = Difference(id_, *place[:4], tuple(sorted(offs)), place[4] or "")
        item = explaining.get(one.account or "")
        is_by_item = item is not None and _is_of_item(one, item, seen.get(item["break_id"], {}))
        person = None if is_by_item else notes.get((one.id, one.amounts))
        found[place] = Cover(one, is_by_item, person)
    return found


def carry_on(proofs: pa.Table, before: Iterable[pa.Table], rules: Rules, day: date) -> pa.Table:
    """The proofs of a day, with the differences that earlier days left; as ``PROOFS``.

    ``before`` has the proofs of the day before. A proof that compares everything replaces the
    differences that it found then. A proof that compares one day's bookings adds to them: a
    difference stays until a later one in the same place corrects it.
    """
    wholes, new, old = dict[Place, _Row](), _RowsOf(list), _RowsOf(list)
    for row in proofs.to_pylist():
        if row["account"] is not None or (row["proof"] in _OF_SUMS and not row["holds"]):
            new[_place_of(row)].append(row)
        else:
            wholes[_place_of(row)] = row
    for row in chain.from_iterable(piece.to_pylist() for piece in before):
        if row.get("first_seen") is not None:  # Older versions of txmq carried nothing on.
            old[_place_of(row)].append(row)
    carried = {_whole_of(place) for place in old}
    found, of_wholes = list[_Row](), _RowsOf(list)
    for place in new.keys() | old.keys():
        is_whole = _is_whole(place, new[place], rules, day)
        left = _differences_left(old[place], new[place], day.isoformat(), is_whole=is_whole)
        found += left
        if place[2] is not None:
            of_wholes[_whole_of(place)] += left
        elif not left:  # The day has corrected the earlier differences.
            row = new[place][0]
            wholes[place] = row | {"found": row["expected"], "holds": True}
    for place, left in of_wholes.items():
        nothing = dict(zip(PROOFS.names, (*place, 0, 0, True, "", None), strict=True))
        row = wholes.setdefault(place, nothing)
        row |= {"found": row["expected"] + sum(map(_off, left)), "holds": not left}
        if place in carried:
            row["about"] = _about(place[0], len(left))
    rows = [tuple(row.values()) for row in (*wholes.values(), *found)]
    rows.sort(key=lambda row: [name or "" for name in (*row[:4], row[-1])])  # Place and date.
    return arrow_table(PROOFS, rows)


def _differences_left(
    old: list[_Row], new: list[_Row], today: str, *, is_whole: bool
) -> list[_Row]:
    """The differences in a place after a day: the new ones, and the old ones that are left."""
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
    # A correction may come in several parts, or correct several differences.
    is_corrected = sum(map(_off, left)) == -sum(map(_off, added)) != 0
    return [] if is_corrected else [*left, *added]


def _is_whole(place: Place, new: list[_Row], rules: Rules, day: date) -> bool:
    """True if a proof has compared everything, not only the bookings of one day."""
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
        return False  # The file of a date has only that date's rows, or both of its balances.
    return bool(new) or rules.day.is_business(day)  # On other dates there may be no file.


def _about(proof: str, count: int) -> str:
    about = ABOUT_PROOFS[proof]
    return f"{count} do not: {about}" if count else about


def _place_of(row: Mapping[str, Any]) -> Place:
    return row["proof"], row["bank"], row["account"], row["currency"]


def _whole_of(place: Place) -> Place:
    return place[0], place[1], None, place[3]


def dated(row: Mapping[str, Any]) -> Dated:
    """The place of a row of ``PROOFS``, with the date of its difference."""
    return (*_place_of(row), row["first_seen"])


def _off(row: Mapping[str, Any]) -> int:
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
    """The unexplained differences of a run's proofs; all of them if ``is_complete``.

    ``ids``, or their beginnings, also find explained ones. A hint names an item with the same
    account and amount as a difference of ``account-table``.

    Raises:
        ReconcileRefused: A table is missing, or an explanation cannot be read.
        UsageError: No difference matches an id, or several do.
    """
    results = Results(directory)
    proofs = results.table("proofs", run.day, run.run_id).rows()
    items = items_of(results, run, is_complete=True)
    covers = covers_of(run.result, proofs, items, Explanations(directory))
    hints = {
        ("account-table", item[side], item["currency"], item["amount"]): f"like {item['break_id']}"
        for item in items
        for side in ("payer", "payee")
    }
    rows = []
    for one, is_by_item, person in covers.values():
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
    is the number of days to search. Only the bank can tell whether one of them was deleted.

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
            place = table.parts[0].path.rpartition("/")[0]
            for row in folder.at(place).rows(*_ENTRY, where=is_wanted):
                side = bank, row["account"], row["currency"], row["amount"]
                if side in lacking:
                    name = row["key"] or f"row {row['id']}"
                    found[lacking[side]].append(f"{name} of {past.day}")
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
        # A break's figures leave out its clearing rows: the person must have seen these amounts.
        return seen.get(difference.id) == difference.amounts
    # In flight: one side of its booking may be recorded after the end of the day. The other side
    # takes the money from the payer, or gives it to clearing.
    alone = -item["amount"] if item["debits"] else item["amount"]
    return difference.amounts == (alone,) and difference.currency == item["currency"]
