"""The differences of balance proofs, and what explains each of them; without Spark.

Only three proofs can fail because of an item. A row of ``clearing`` or ``double-entry`` names the
transfer whose rows it adds up. ``clearing-total`` is the sum of all rows of the day, so the rows
of one item contribute exactly their own sum. No item contributes to ``conservation``, which counts
both legs of every transfer, and no amount of an item proves why an account's table or an earlier
balance differs. A person explains these.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from txmq.reconcile.classes import Class
from txmq.reconcile.explanations import Explanation, ProofExplanation
from txmq.reconcile.written_table import WrittenTable

__all__ = [
    "Cover",
    "Difference",
    "Place",
    "ProofDay",
    "covers_of",
    "differences_of",
    "place_of",
    "single_rows",
]

Place: TypeAlias = tuple[str, str | None, str | None, str | None]
"""A proof, its bank, its account or transfer, and its currency."""

_OF_TRANSFERS: Final = ("clearing", "double-entry")
_TOTAL: Final = "clearing-total"
_EXPLAINERS: Final = (Class.EXPLAINED.value, Class.IN_FLIGHT.value)
_WIDE: Final = pa.decimal128(38, 0)


class Difference(Struct, frozen=True):
    """Two values of a proof that should be equal, and what is left to explain of it."""

    id: str
    """The same on every day and in every run."""
    proof: str
    bank: str | None
    account: str | None
    """The account or the transfer."""
    currency: str | None
    amounts: tuple[int, ...]
    """Found less expected; ``double-entry`` has one for each kind of booking."""


class Cover(NamedTuple):
    """What explains a difference."""

    by_items: int = 0
    person: ProofExplanation | None = None


class ProofDay(NamedTuple):
    """What a day's proofs are explained from."""

    name: str
    """The name of the rules."""
    day: str
    start_ms: int
    end_ms: int
    tables: Mapping[str, WrittenTable]
    """The run's ``proofs``, ``items``, ``closed`` and ``entries``."""
    before: WrittenTable | None = None
    """The proofs of the day before."""
    breaks: Sequence[Explanation] = ()
    proofs: Sequence[ProofExplanation] = ()


def covers_of(day: ProofDay) -> dict[Place, Cover]:
    """What explains the differences of a day; without those that nothing explains."""
    items = _explaining_items(day)
    named = {note.account for note in day.proofs} | items.keys()
    singles = _grouped(day, sorted(filter(None, named)))
    recorded = {note.break_id: note.proofs for note in day.breaks}
    people = {(note.id, note.amounts): note for note in day.proofs if note.is_valid_on(day.day)}
    found: dict[Place, Cover] = {}
    for place, difference in singles.items():
        item = items.get(difference.account or "")
        if item is not None and _is_of_item(difference, item, recorded):
            found[place] = Cover(sum(difference.amounts))
        elif note := people.get((difference.id, difference.amounts)):
            found[place] = Cover(0, note)
    settled = _of_items_today(day, found)
    for place, off in _whole(day).items():
        by_items = settled.get(place[3] or "", 0) if place[0] == _TOTAL else 0
        person = people.get((_id(day.name, place), (off - by_items,)))
        if by_items or person:
            found[place] = Cover(by_items, person)
    return found


def differences_of(day: ProofDay) -> list[tuple[Difference, Cover | None]]:
    """The differences of a day, each with what explains it; ``None`` if nothing does."""
    covers = covers_of(day)
    singles = _grouped(day, None)
    found = [(difference, covers.get(place)) for place, difference in singles.items()]
    for place, off in _whole(day).items():
        cover = covers.get(place, Cover())
        if left := off - cover.by_items:
            difference = Difference(_id(day.name, place), *place, (left,))
            found.append((difference, cover if cover.person else None))
    return sorted(found, key=lambda pair: (pair[0].proof, -sum(map(abs, pair[0].amounts))))


def single_rows(proofs: WrittenTable) -> Iterator[pa.Table]:
    """The rows of single accounts or transfers that do not hold, with ``off``: found less
    expected, as decimals with room for the difference of any two numbers.
    """
    for piece in proofs.pieces():
        rows = piece.filter(pc.field("account").is_valid() & ~pc.field("holds"))
        off = pc.subtract(_wide(rows["found"]), _wide(rows["expected"]))
        yield rows.append_column("off", off)


def place_of(row: Mapping[str, Any]) -> Place:
    """The place of a row of ``PROOFS``."""
    return row["proof"], row["bank"], row["account"], row["currency"]


def _wide(numbers: pa.ChunkedArray) -> pa.ChunkedArray:
    return numbers.cast(pa.decimal128(19, 0))


def _id(name: str, place: Place) -> str:
    return hashlib.sha256(msgspec.json.encode([name, *place])).hexdigest()[:16]


def _grouped(day: ProofDay, accounts: Sequence[str] | None) -> dict[Place, Difference]:
    """The differences of single accounts or transfers: all, or those of some names."""
    found: defaultdict[Place, list[int]] = defaultdict(list)
    for piece in single_rows(day.tables["proofs"]):
        rows = piece if accounts is None else _with(piece, "account", accounts)
        for row in rows.to_pylist():
            found[place_of(row)].append(int(row["off"]))
    return {
        place: Difference(_id(day.name, place), *place, tuple(sorted(amounts)))
        for place, amounts in found.items()
    }


def _whole(day: ProofDay) -> dict[Place, int]:
    """The differences of proofs that have no single rows, also those of zero."""
    proofs = day.tables["proofs"]
    single = {name for piece in single_rows(proofs) for name in piece["proof"].unique().to_pylist()}
    return {
        place_of(row): row["found"] - row["expected"]
        for piece in proofs.pieces()
        for row in piece.filter(pc.field("account").is_null()).to_pylist()
        if row["proof"] not in single
    }


def _with(table: pa.Table, column: str, values: Sequence[str]) -> pa.Table:
    return table.filter(pc.is_in(table[column], pa.array(values, pa.string())))


def _explaining_items(day: ProofDay) -> dict[str, dict[str, Any]]:
    """The explained items and those in flight for which a proof fails, by transfer."""
    failed = {
        key
        for piece in single_rows(day.tables["proofs"])
        for key in _with(piece, "proof", _OF_TRANSFERS)["account"].to_pylist()
    }
    columns = ("break_id", "key", "class", "amount", "currency")
    return {
        row["key"]: row
        for piece in day.tables["items"].pieces(*columns)
        for row in _with(_with(piece, "class", _EXPLAINERS), "key", sorted(failed)).to_pylist()
    }


def _is_of_item(
    difference: Difference, item: Mapping[str, Any], recorded: Mapping[str, Mapping[str, Any]]
) -> bool:
    if difference.proof not in _OF_TRANSFERS:
        return False
    if item["class"] == Class.EXPLAINED:
        # The person has seen this difference: the facts of a break do not have its clearing rows.
        return recorded.get(item["break_id"], {}).get(difference.id) == difference.amounts
    # In flight: the other side of its one booking may be recorded after the end of the day.
    sides = {abs(amount) for amount in difference.amounts}
    return sides == {item["amount"]} and difference.currency == item["currency"]


def _of_items_today(day: ProofDay, covers: Mapping[Place, Cover]) -> dict[str, int]:
    """What the day's rows of items contribute to ``clearing-total``, by currency.

    A transfer whose own ``clearing`` fails, and that nothing explains, is left out.
    """
    sums = _sums_today(day)
    # An item that is agreed now had a difference before, and its rows of today have settled it.
    for piece in () if day.before is None else single_rows(day.before):
        before = _with(piece, "proof", ["clearing"])
        for closed in day.tables["closed"].pieces("key"):
            for row in _with(before, "account", closed["key"].to_pylist()).to_pylist():
                sums[row["account"], row["currency"]] -= int(row["off"])
    failed = _grouped(day, sorted({key for key, _ in sums}))
    found: defaultdict[str, int] = defaultdict(int)
    for (key, currency), sum_ in sums.items():
        place = "clearing", None, key, currency
        if place in covers or place not in failed:
            found[currency] += sum_
    return found


def _sums_today(day: ProofDay) -> defaultdict[tuple[str, str], int]:
    """The sums of the day's rows of each open item, clearing included, where they are not zero."""
    found: defaultdict[tuple[str, str], int] = defaultdict(int)
    at, is_transfer = pc.field("recorded_ms"), pc.field("kind") != "other"
    is_today = (at >= day.start_ms) & (at < day.end_ms)
    for piece in day.tables["entries"].pieces("key", "currency", "kind", "amount", "recorded_ms"):
        rows = piece.filter(is_today & is_transfer)
        wide = rows.append_column("wide", rows["amount"].cast(_WIDE))
        sums = wide.group_by(["key", "currency"]).aggregate([("wide", "sum")])
        # A piece may end within a transfer; a part that adds up to zero adds nothing.
        for row in sums.filter(pc.field("wide_sum") != pa.scalar(0, _WIDE)).to_pylist():
            found[row["key"], row["currency"]] += int(row["wide_sum"])
    return found
