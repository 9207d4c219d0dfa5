"""Rows and Parquet as the ledgers that the core takes, and results as rows again."""

from typing import NamedTuple

import pyarrow as pa

from tests.reconcile.days import BANKS, RULES, schema_of
from tests.reconcile.reference import Entry, Failure, Message
from txmq.reconcile.columns import ContentHash
from txmq.reconcile.ledgers import CARRIED_ON, Role, TableFile
from txmq.reconcile.proofs import proofs_of
from txmq.reconcile.storage import LocalFolder
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


class RowsInMemory(NamedTuple):
    """Rows instead of a file, as a part of a table."""

    rows: pa.Table

    def pieces(self, names=()):
        """All rows: all columns, or some."""
        there = [name for name in self.rows.column_names if name in names]
        yield self.rows.select(there) if there else self.rows


def read(folder, banks=BANKS):
    """The ledgers of a day that :func:`~tests.reconcile.days.write_day` has written."""

    def files(source, table, bank=None):
        place = LocalFolder(folder / source / table.name)
        return [TableFile(place, name, bank) for name in place.files()]

    of_banks = {Role(t.name): [f for b in banks for f in files(b, t, b)] for t in OF_BANKS}
    return of_banks | {Role(t.name): files("log", t) for t in OF_THE_LOG}


def in_memory(table, rows, *, has_bank=False):
    """Tuples as a table: in the order of its columns, with a bank before them or not."""
    schema = schema_of(table)
    if has_bank:
        schema = pa.schema([pa.field("bank", pa.string()), *schema])
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return [RowsInMemory(pa.table(arrays, schema=schema))]


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
    return collected(proofs_of(outcome, [outcome.tables["balances"]], rules))


def left_by(outcome, extract=None):
    """What a day leaves to the next one, as if it were read from files: with its extract, what it
    left agreed too.
    """
    left = {role: [RowsInMemory(outcome.tables[name])] for name, role in CARRIED_ON.items()}
    if extract is None:
        return left
    return left | {
        Role.AGREED: [RowsInMemory(outcome.tables["matches"])],
        Role.OLD_ENTRIES: extract[Role.ENTRIES],
        Role.OLD_MESSAGES: extract[Role.MESSAGES],
    }
