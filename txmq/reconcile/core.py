"""A day's reconciliation: tables in, tables out.

The sieve finds the transfers that plainly agree, while the balances of accounts are added up beside
it. Every other transfer is decided in the second pass from all of its rows. On most days these are
few, and this process decides them; after a mishap they may be all, and then each worker gets all
rows of some transfers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.reconcile.balances import NO_BALANCES, AccountPart, Accounts, account_parts
from txmq.reconcile.classes import Class
from txmq.reconcile.column_hash import Words, hash_column
from txmq.reconcile.evidence import (
    READ_BY_SIEVE,
    Evidence,
    Role,
    Source,
    find,
    history_of,
    rows_of,
    sources_of,
    with_keys,
)
from txmq.reconcile.extract.table_writer import arrow_schema, arrow_table, parquet_writer
from txmq.reconcile.items import with_doubts
from txmq.reconcile.ledgers import EarlierDays, Ledgers, ReconciledDay, Table
from txmq.reconcile.rules import DayWindow, Rules
from txmq.reconcile.second_pass import SecondPass
from txmq.reconcile.sieve import PLAIN, SUSPECT, Others, Sieve, split_by_hash
from txmq.reconcile.storage import Folder
from txmq.reconcile.tables import MATCHES, OFFSETS, RESULTS, TOTALS, Sums
from txmq.reconcile.workers import Threads, Workers

__all__ = ["FEW", "Drafts", "reconcile"]

FEW: Final = 100_000
"""Up to so many transfers are decided in this process; workers decide more."""
ROWS_AT_A_PLACE: Final = 2_000_000
"""The rows that meet at one place; each takes some 200 bytes of a worker's memory."""
_CLASSES: Final = {code: class_.value for class_, code in PLAIN.items()}


class Drafts(NamedTuple):
    """Where workers write rows of a run's tables; without folders they return them."""

    folders: Mapping[str, Folder] = {}

    def write(self, part: int, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """Write a part of tables; returns what is not written."""
        left = {}
        for name, rows in tables.items():
            if name not in self.folders:
                left[name] = rows
            elif len(rows):
                file = self.folders[name].create(f"part-{part:05}.parquet")
                with file as out, parquet_writer(out, rows.schema) as writer:
                    writer.write_table(rows)
        return left


class Day(NamedTuple):
    """What the workers know of a day."""

    rules: Rules
    window: DayWindow
    known_ids: Mapping[str, int]
    """The greatest id before the day, of banks whose ids have no gaps."""
    places: int
    drafts: Drafts

    @property
    def sieve(self) -> Sieve:
        return Sieve(self.rules, self.window.start_ms)

    @property
    def accounts(self) -> Accounts:
        return Accounts(self.rules)


class AtPlace(NamedTuple):
    """What the first pass has found at a place."""

    others: Others
    totals: Mapping[tuple[str, int, int, bool], int]
    balances: pa.Table | None
    """``None`` if they are in their draft."""
    sums: Sums


def reconcile(
    ledgers: Ledgers,
    yesterday: EarlierDays,
    rules: Rules,
    day: date,
    as_of_ms: int,
    *,
    rows: int = 0,
    workers: Workers | None = None,
    drafts: Drafts | None = None,
    few: int = FEW,
) -> ReconciledDay:
    """Reconcile a day.

    ``as_of_ms`` is the end of the day, or the time of reading if that was earlier. ``rows`` is the
    number of rows of the day's ledgers, about. Up to ``few`` transfers are decided in this process.
    """
    workers, window = workers or Threads(), rules.day.window(day)
    places = 1 << max(-(-rows // ROWS_AT_A_PLACE) - 1, 0).bit_length()
    closed = yesterday.balances
    of_day = Day(rules, window, _known_ids(closed or ()), places, drafts or Drafts())
    second = SecondPass(rules, day, as_of_ms, _offsets(ledgers.offsets), yesterday.explanations)

    tables_of_day = sources_of(ledgers, yesterday)
    read_first = (one for one in tables_of_day if one.role in READ_BY_SIEVE)
    parts = [*read_first, *account_parts(ledgers, closed or ())]
    sifted = workers.by_place(partial(_split, of_day), parts, partial(_sift, of_day), places)
    others = [one.others for one in sifted]
    sources: list[Any] = [one for one in tables_of_day if one.role is not Role.AGREED]
    if any(some.is_seen.any() for some in others):
        sources += history_of(yesterday)
    if sum(int((some.plain == SUSPECT).sum()) for some in others) <= few:
        evidence = Evidence()
        task = partial(_find, of_day, Others.all_of(others))
        for some in workers.each(task, list(enumerate(sources))):
            evidence.update(some)
        matches = evidence.take("match", arrow_schema(MATCHES))
        decided = second.decide(evidence)
        tables, sums = decided.tables(), decided.sums
        # After a mishap with more items, single suggestions would not help.
        tables["items"] = with_doubts(tables["items"])
        tables["matches"] = pa.concat_tables([matches, tables["matches"]])
    else:
        sources += enumerate(others)
        split, decide = partial(_split_rows, of_day), partial(_decide, of_day, second)
        some_tables, some_sums = zip(*workers.by_place(split, sources, decide, places), strict=True)
        sums = sum(some_sums, Counter())
        tables = {
            name: pa.concat_tables([arrow_schema(table).empty_table(), *(
                of[name] for of in some_tables if name in of
            )])
            for name, table in RESULTS.items()
        }  # fmt: skip
    for one in sifted:
        sums.update(one.sums)
        _add_plain(sums, one.totals, sorted(rules.money))
    balances = [one.balances for one in sifted if one.balances is not None]
    tables["balances"] = pa.concat_tables([NO_BALANCES.empty_table(), *balances])
    broken = tables.pop("proofs")
    names = TOTALS.names[3:]
    groups = sorted({(of, currency) for name, of, currency in sums if name in names})
    totals = [
        (class_, Class(class_).group, currency, *(sums[name, class_, currency] for name in names))
        for class_, currency in groups
    ]
    tables["totals"] = arrow_table(TOTALS, totals)
    return ReconciledDay(tables, broken, sums, was_closed=closed is not None)


def _split(day: Day, source: Source | AccountPart) -> Iterator[tuple[int, Any]]:
    """What a part of a table has for each place in the first pass."""
    accounts, places = day.accounts, day.places
    if isinstance(source, AccountPart):
        yield from _split_sums(accounts.added_up(accounts.stated(source)), places)
        return
    role = source.role
    narrow, booked = list[Words](), list[pa.Table]()
    for rows in rows_of(source, day.window, READ_BY_SIEVE[role]):
        narrow.append(_narrow(role, with_keys(role, rows), day.sieve))
        if role is Role.ENTRIES:
            booked.append(accounts.booked(rows))
            for bank in accounts.numbered:
                ids = rows["id"].filter(pc.equal(rows["bank"], bank)).drop_null()
                for place, some in split_by_hash(hash_column(ids), places):
                    yield place, (bank, ids.take(some).to_numpy())
    if booked:
        yield from _split_sums(accounts.added_up(booked), places)
    if narrow:
        columns = np.concatenate(narrow, axis=1)
        for place, some in split_by_hash(columns[0], places):
            yield place, columns[:, some]


def _narrow(role: Role, rows: pa.Table, sieve: Sieve) -> Words:
    """What the sieve reads of rows; of transfers that are agreed, only the hashes."""
    if role is Role.AGREED:
        return hash_column(rows["key"])[np.newaxis]
    if role is Role.ENTRIES:
        return sieve.entries(rows)
    return sieve.messages(rows) if role is Role.MESSAGES else sieve.carried(rows)


def _split_sums(sums: pa.Table, places: int) -> Iterator[tuple[int, pa.Table]]:
    for place, some in split_by_hash(hash_column(sums["account"]), places):
        yield place, sums.take(some)


def _sift(day: Day, place: int, values: list[Any]) -> AtPlace:
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    ids = defaultdict[str, list[Any]](list)
    for bank, some in (value for value in values if isinstance(value, tuple)):
        ids[bank].append(some)
    sums: Sums = Counter()
    for bank, of_bank in ids.items():
        known = day.known_ids.get(bank)
        different = np.unique(np.concatenate(of_bank))
        sums["ids", bank, ""] = int(
            (different > known).sum() if known is not None else len(different)
        )
    accounts = [value for value in values if isinstance(value, pa.Table)]
    balances = day.drafts.write(place, {"balances": day.accounts.total(accounts)})
    others, totals = day.sieve.sift(
        [one for one in arrays if len(one) > 1], [one[0] for one in arrays if len(one) == 1]
    )
    return AtPlace(others, totals, balances.get("balances"), sums)


def _find(day: Day, others: Others, source: tuple[int, Source]) -> Evidence:
    """The evidence in a part of a table."""
    number, (role, part) = source
    found = Evidence()
    for rows in rows_of(Source(role, part), day.window):
        find(role, with_keys(role, rows), others, found)
    matches = found.take("match", arrow_schema(MATCHES))
    for rows in day.drafts.write(number, {"matches": matches}).values():
        found.add("match", role, rows)
    return found


def _split_rows(day: Day, source: Source | tuple[int, Others]) -> Iterator[tuple[int, Any]]:
    """All rows of a part of a table for each place; or its other transfers."""
    if not isinstance(source, Source):
        yield source
        return
    for rows in rows_of(source, day.window):
        keyed = with_keys(source.role, rows)
        for place, some in split_by_hash(hash_column(keyed["key"]), day.places):
            yield place, (source.role, keyed.take(some))


def _decide(
    day: Day, second: SecondPass, place: int, values: list[Any]
) -> tuple[dict[str, pa.Table], Sums]:
    """Decide the transfers of a place from all of its rows."""
    (others,) = (value for value in values if isinstance(value, Others))
    found = Evidence()
    for role, rows in (value for value in values if not isinstance(value, Others)):
        find(role, rows, others, found)
    matches = found.take("match", arrow_schema(MATCHES))
    decided = second.decide(found)
    tables = decided.tables()
    tables["matches"] = pa.concat_tables([matches, tables["matches"]]).sort_by("key")
    return day.drafts.write(place, tables), decided.sums


def _known_ids(closed: Table) -> dict[str, int]:
    found: dict[str, int] = {}
    for piece in (piece for part in closed for piece in part.pieces(("bank", "last_id"))):
        ends = piece.drop_null().group_by("bank").aggregate([("last_id", "max")])
        for bank, last in zip(*(column.to_pylist() for column in ends.columns), strict=True):
            found[bank] = max(last, found.get(bank, last))
    return found


def _offsets(table: Table) -> dict[tuple[str, str, int], int]:
    pieces = (piece for part in table for piece in part.pieces(OFFSETS.names))
    rows = (tuple(row.values()) for piece in pieces for row in piece.to_pylist())
    return {(group, topic, queue): after for group, topic, queue, after in rows}


def _add_plain(
    sums: Sums, totals: Mapping[tuple[str, int, int, bool], int], currencies: Sequence[str]
) -> None:
    """Add the plainly agreed transfers to the totals of their classes."""
    for (what, code, money, is_ordered), value in totals.items():
        # A rolled-back transfer has no currency.
        place = _CLASSES[code], currencies[money] if money >= 0 else ""
        if what == "transfers":
            sums["transfers", *place] += value
            continue
        sums["debited", *place] += value
        if code == PLAIN[Class.RETURNED]:
            sums["returned", *place] += value
        if code == PLAIN[Class.MATCHED]:
            sums["credited", *place] += value
        if is_ordered:
            sums["ordered", *place] += value
