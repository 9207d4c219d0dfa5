"""A day's reconciliation: tables in, tables out.

The sieve finds the transfers that plainly agree, while the balances of accounts are added up beside
it. Every other transfer is decided in the second pass from all of its rows, which meet at its
place. On most days these are few, and hardly other rows are sent; after a mishap they may be all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.reconcile.balances import ACCOUNT, NO_BALANCES, STATED, add_up, balances_of, facts_of
from txmq.reconcile.classes import Class
from txmq.reconcile.columns import Words, hash_column
from txmq.reconcile.explanations import Explanation
from txmq.reconcile.extract.table_writer import arrow_schema, arrow_table, parquet_writer
from txmq.reconcile.items import with_doubts
from txmq.reconcile.ledgers import (
    OLD,
    READ_BY_SIEVE,
    ReconciledDay,
    Role,
    Source,
    TableFile,
    Tables,
    evidence_in,
    matches_in,
    rows_of,
    with_keys,
)
from txmq.reconcile.rules import DayWindow, Rules
from txmq.reconcile.second_pass import SecondPass
from txmq.reconcile.sieve import PLAIN, SUSPECT, Others, OthersFilter, Sieve, split_by_hash
from txmq.reconcile.storage import Folder
from txmq.reconcile.tables import MATCHES, MESSAGES, RESULTS, TOTALS, Sums, TableSchema
from txmq.reconcile.workers import Workers, uncollected

__all__ = ["FEW", "reconcile"]

FEW: Final = 100_000
"""Up to so many suspects, workers return what they have decided, and it is sorted."""
ROWS_AT_A_PLACE: Final = 2_000_000
"""The rows that meet at one place; each takes some 200 bytes of a worker's memory."""


class DayTask(NamedTuple):
    """What the workers know of a day."""

    window: DayWindow
    sieve: Sieve
    known_ids: Mapping[str, int]
    """The greatest id before the day, of banks whose ids have no gaps."""
    places: int
    drafts: Mapping[str, Folder]
    """Where workers write rows of the run's tables."""

    def write(self, part: int, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """Write a part of tables; returns those that have no draft."""
        for name in tables.keys() & self.drafts.keys():
            if len(rows := tables[name]):
                file = self.drafts[name].create(f"part-{part:05}.parquet")
                with file as out, parquet_writer(out, rows.schema) as writer:
                    writer.write_table(rows)
        return {name: rows for name, rows in tables.items() if name not in self.drafts}


def reconcile(
    given: Tables,
    explanations: Mapping[str, Explanation],
    rules: Rules,
    day: date,
    as_of_ms: int,
    *,
    rows: int = 0,
    workers: Workers | None = None,
    drafts: Mapping[str, Folder] | None = None,
    few: int = FEW,
) -> ReconciledDay:
    """Reconcile a day.

    ``explanations`` are the valid ones, by break id. ``as_of_ms`` is the end of the day, or the
    time of reading if that was earlier. ``rows`` is the number of rows of the day's ledgers, about.
    Up to ``few`` suspects, workers return what they have decided.
    """
    workers, window = workers or Workers(), rules.day.window(day)
    sieve, places = Sieve(rules, window.start_ms), 1 << (rows // ROWS_AT_A_PLACE).bit_length()
    ids = _known_ids(given.get(Role.BALANCES, ()))
    # Proofs are returned: the differences of earlier days are added to them.
    drafts = {name: draft for name, draft in (drafts or {}).items() if name != "proofs"}
    of_day = DayTask(window, sieve, ids, places, drafts)
    offsets = _offsets(given.get(Role.OFFSETS, ()))
    second = SecondPass(rules, day, as_of_ms, offsets, explanations)

    known = [(role, part) for role in Role for part in given.get(role, ())]
    first = [one for one in known if one[0] in READ_BY_SIEVE or one[0] in STATED]
    sifted = workers.by_place(partial(_split, of_day), first, partial(_sift, of_day), places)
    others, balances, sums_of_all = zip(*sifted, strict=True)
    unread = {*STATED, Role.AGREED, Role.OFFSETS}
    if not any(some.is_seen.any() for some in others):
        unread |= OLD
    sources = [one for one in known if one[0] not in unread]
    is_small = sum(int((some.plain == SUSPECT).sum()) for some in others) <= few
    task = of_day._replace(drafts={}) if is_small else of_day
    all_decided = workers.by_place(
        partial(_split_rows, of_day, OthersFilter(others)),
        [*enumerate(sources, places), *enumerate(others)],
        partial(_decide, task, second),
        places,
    )
    tables = {
        name: _together(table, [of.get(name) for of, _ in all_decided])
        for name, table in RESULTS.items()
    }
    if is_small:
        # The number of places must not show. With more items, single suggestions would not help.
        tables |= {name: tables[name].sort_by("key") for name in tables.keys() - {"proofs"}}
        tables["items"] = with_doubts(tables["items"])
    sums: Sums = Counter()
    for some_sums in (*sums_of_all, *(some for _, some in all_decided)):
        sums.update(some_sums)  # An operator would drop what is negative.
    tables["balances"] = pa.concat_tables([NO_BALANCES.empty_table(), *filter(None, balances)])
    broken = tables.pop("proofs")
    names = TOTALS.names[3:]
    groups = sorted({(of, currency) for name, of, currency in sums if name in names})
    totals = [
        (class_, Class(class_).group, currency, *(sums[name, class_, currency] for name in names))
        for class_, currency in groups
    ]
    tables["totals"] = arrow_table(TOTALS, totals)
    return ReconciledDay(tables, broken, sums, was_closed=Role.BALANCES in given)


def _split(day: DayTask, source: Source) -> Iterator[tuple[int, Any]]:
    """What a part of a table has for each place in the first pass."""
    (role, _), places, stated = source, day.places, list[pa.Table]()
    gapless = day.sieve.rules.banks(lambda bank: bank.entries.gapless)
    names = (*ACCOUNT, "role", *STATED[role]) if role in STATED else READ_BY_SIEVE[role]
    for rows in rows_of(source, day.window, names):
        if role in STATED or role is Role.ENTRIES:
            stated.append(facts_of(role, rows, gapless))
        if role in STATED:
            continue
        columns = _narrow(role, with_keys(role, rows), day.sieve)
        for place, some in split_by_hash(columns[0], places):
            yield place, (role, columns.take(some, axis=1))
        for bank in gapless if role is Role.ENTRIES else ():
            ids = rows["id"].filter(pc.equal(rows["bank"], bank)).drop_null()
            for place, some in split_by_hash(hash_column(ids), places):
                yield place, (bank, ids.take(some).to_numpy())
    if stated:
        sums = add_up(stated)
        for place, some in split_by_hash(hash_column(sums["account"]), places):
            yield place, (Role.BALANCES, sums.take(some))


def _narrow(role: Role, rows: pa.Table, sieve: Sieve) -> Words:
    """What the sieve reads of rows; of transfers that are agreed, only the hashes."""
    if role is Role.AGREED:
        return hash_column(rows["key"])[np.newaxis]
    if role is Role.ENTRIES:
        return sieve.entries(rows)
    return sieve.messages(rows) if role is Role.MESSAGES else sieve.carried(rows)


def _sift(day: DayTask, place: int, values: list[Any]) -> tuple[Others, pa.Table | None, Sums]:
    """The others of a place, its balances if they are not in their draft, and its sums."""
    found = defaultdict[Any, list[Any]](list)
    for of, value in values:
        found[of].append(value)
    carried = found[Role.OPEN_ENTRIES] + found[Role.OPEN_MESSAGES]
    agreed = [hashes[0] for hashes in found[Role.AGREED]]
    others, sums = day.sieve.sift(found[Role.ENTRIES] + carried, found[Role.MESSAGES], agreed)
    left = day.write(place, {"balances": balances_of(found[Role.BALANCES])})
    for bank in day.sieve.rules.banks(lambda bank: bank.entries.gapless):
        new = np.unique(np.concatenate([np.empty(0, np.int64), *found[bank]]))
        known = day.known_ids.get(bank, np.iinfo(np.int64).min)
        sums["ids", bank, ""] = int((new > known).sum())
    return others, left.get("balances"), sums


def _split_rows(
    day: DayTask, others: OthersFilter, numbered: tuple[int, Source | Others]
) -> Iterator[tuple[int, Any]]:
    """The other transfers of a place; or the rows of a part of a table that may be about such
    transfers, for each place. The matches of all others are written here.
    """
    number, source = numbered
    if isinstance(source, Others):
        yield number, (Others, source)
        return
    (role, _), matches = source, []
    for piece in rows_of(source, day.window):
        rows = with_keys(role, piece)
        hashes = hash_column(rows["key"])
        may_be = others.may_have(hashes)
        matches.append(matches_in(role, rows, np.where(may_be, SUSPECT, PLAIN[Class.MATCHED])))
        if role is Role.MESSAGES:
            yield 0, ("by_hand", rows.filter(pc.equal(rows["decided_by"], "operator")))
        some = rows.filter(pa.array(may_be))
        for place, of_place in split_by_hash(hashes[may_be], day.places):
            yield place, (role, some.take(of_place))
    for rows in day.write(number, {"matches": _together(MATCHES, matches)}).values():
        yield 0, ("matches", rows)


def _decide(
    day: DayTask, second: SecondPass, place: int, values: list[Any]
) -> tuple[dict[str, pa.Table], Sums]:
    """Decide the transfers of a place from its rows."""
    found = defaultdict[Any, list[Any]](list)
    for of, value in values:
        found[of].append(value)
    evidence, matches = {}, found["matches"]
    for role in (of for of in found if isinstance(of, Role)):
        # Files of an older txmq may have fewer columns.
        rows = pa.concat_tables(found[role], promote_options="default")
        evidence[role], plain = evidence_in(role, rows, found[Others][0])
        matches.append(plain)
    with uncollected():
        decided = second.decide(evidence)
        tables = decided.tables()
    tables["matches"] = _together(MATCHES, [*matches, tables["matches"]]).sort_by("key")
    order = [("key", "ascending"), ("position", "ascending")]
    tables["by_hand"] = _together(MESSAGES, found["by_hand"]).sort_by(order)
    return day.write(place, tables), decided.sums


def _together(table: TableSchema, some: Iterable[pa.Table | None]) -> pa.Table:
    schema = arrow_schema(table)
    rows = (one.select(table.names).cast(schema) for one in some if one is not None)
    return pa.concat_tables([schema.empty_table(), *rows])


def _known_ids(closed: Sequence[TableFile]) -> dict[str, int]:
    rows = [piece for part in closed for piece in part.pieces(("bank", "last_id"))]
    if not rows:
        return {}
    known = pa.concat_tables(rows).drop_null().group_by("bank").aggregate([("last_id", "max")])
    return dict(zip(*(column.to_pylist() for column in known.columns), strict=True))


def _offsets(table: Sequence[TableFile]) -> dict[tuple[str, str, int], int]:
    rows = (row for part in table for piece in part.pieces() for row in piece.to_pylist())
    return {(row["group"], row["topic"], row["queue"]): row["next_offset"] for row in rows}
