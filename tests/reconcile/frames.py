"""Rows and Parquet as the frames that the core takes, and results as rows again."""

from functools import cache

import pyarrow as pa
import pyarrow.parquet as pq

from tests.reconcile.days import BANKS, RULES, schema_of
from tests.reconcile.reference import Entry, Failure, Message
from tests.servers import spark_session
from txmq.reconcile.contents import ContentHash
from txmq.reconcile.core import reconcile_frames
from txmq.reconcile.ledgers import CARRIED_ON, Role
from txmq.reconcile.proofs import proofs_of
from txmq.reconcile.tables import (
    ACCOUNTS,
    ENTRIES,
    FAILURES,
    LATER,
    MESSAGES,
    OFFSETS,
    OPENING,
)

OF_BANKS = (ENTRIES, OPENING, LATER, ACCOUNTS)
OF_THE_LOG = (MESSAGES, FAILURES, OFFSETS)


@cache
def session():
    """The Spark session of this process."""
    return spark_session.start()


def read(folder, banks=BANKS):
    """The ledgers of a day that :func:`~tests.reconcile.days.write_day` has written."""

    def rows(source, table):
        place = folder / source / table.name
        return pq.read_table(place) if place.exists() else schema_of(table).empty_table()

    def of_bank(bank, table):
        there = rows(bank, table)
        return there.append_column("bank", pa.repeat(bank, len(there)))

    of_banks = {
        Role(t.name): pa.concat_tables([of_bank(bank, t) for bank in banks]) for t in OF_BANKS
    }
    return of_banks | {Role(t.name): rows("log", t) for t in OF_THE_LOG}


class Outcome:
    """The result of a day, its tables in memory."""

    def __init__(self, found):
        self.found = found
        self.sums = found.sums
        self.tables = _Tables(found.tables)

    @property
    def all_tables(self):
        """Every table of the run, by name."""
        return {name: self.tables[name] for name in self.found.tables}


class _Tables(dict):
    """Tables by name, each computed when it is first asked for."""

    def __init__(self, frames):
        super().__init__()
        self._frames = frames

    def __missing__(self, name):
        rows = self._frames[name].toArrow()
        self[name] = rows.sort_by("key") if "key" in rows.column_names else rows
        return self[name]


def reconcile(tables, explanations, rules, day, as_of_ms):
    """A day's result, from and in tables of Arrow."""
    spark = session()
    frames = {role: spark.createDataFrame(rows) for role, rows in tables.items()}
    return Outcome(reconcile_frames(frames, explanations, rules, day, as_of_ms))


def in_memory(table, rows, *, has_bank=False):
    """Tuples as a table: in the order of its columns, with a bank before them or not."""
    schema = schema_of(table)
    if has_bank:
        schema = pa.schema([pa.field("bank", pa.string()), *schema])
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def ledgers_of(entries, messages, failures, offsets):
    """Rows of :mod:`tests.reconcile.reference` as ledgers; accounts are left out."""
    assert Entry._fields == ("bank", *ENTRIES.names)
    assert (Message._fields, Failure._fields) == (MESSAGES.names, FAILURES.names)
    places = [(*place, after) for place, after in offsets.items()]
    return {
        Role.ENTRIES: in_memory(ENTRIES, entries, has_bank=True),
        Role.MESSAGES: in_memory(MESSAGES, messages),
        Role.FAILURES: in_memory(FAILURES, failures),
        Role.OFFSETS: in_memory(OFFSETS, places),
    }


def content(table, rows):
    """A hash of all rows, in whatever order they stand, and how many there are."""
    whole = ContentHash(table)
    for batch in rows.to_batches():
        whole.add(batch)
    return whole.word


GROUPS = {flow.topic: flow.group for flow in RULES.log.flow}
TOLERANCE = {name: money.tolerance for name, money in RULES.money.items()}


def collected(table):
    """The rows of a table."""
    return [Row(row) for row in table.to_pylist()]


class Row(dict):
    """A row whose columns are attributes too."""

    __getattr__ = dict.__getitem__


def proved(outcome, rules):
    """The rows of all proofs of a day."""
    return collected(proofs_of(outcome.found, rules).toArrow())


def left_by(outcome, extract=None):
    """What a day leaves to the next one: with its extract, what it left agreed too."""
    left = {role: outcome.tables[name] for name, role in CARRIED_ON.items()}
    if extract is None:
        return left
    return left | {
        Role.AGREED: outcome.tables["matches"],
        Role.OLD_ENTRIES: extract[Role.ENTRIES],
        Role.OLD_MESSAGES: extract[Role.MESSAGES],
    }
