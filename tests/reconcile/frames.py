"""Rows and Parquet as the DataFrames that the core takes, and results as rows again."""

from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from tests.reconcile.days import BANKS, RULES, TYPES
from tests.reconcile.reference import Entry, Failure, Message
from txmq.reconcile.ledgers import EarlierDays, Ledgers
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

CARRIED_ON = ("items", "entries", "messages", "failures", "balances")
OF_BANKS = (ENTRIES, OPENING, LATER, ACCOUNTS)
OF_THE_LOG = (MESSAGES, FAILURES, OFFSETS)


def read(spark, folder, banks=BANKS):
    """The ledgers of a day that :func:`~tests.reconcile.days.write_day` has written."""
    found = {}
    for table in OF_BANKS:
        sides = (
            spark.read.schema(table.ddl)
            .parquet(str(folder / bank / table.name))
            .withColumn("bank", f.lit(bank))
            for bank in banks
        )
        found[table.name] = reduce(DataFrame.unionByName, sides)
    for table in OF_THE_LOG:
        found[table.name] = spark.read.schema(table.ddl).parquet(str(folder / "log" / table.name))
    return Ledgers(**found)


def frame(spark, table, rows, *, has_bank=False):
    """Tuples as a DataFrame: in the order of the table's columns, a bank before them."""
    ddl = ("bank STRING NOT NULL, " if has_bank else "") + table.ddl
    names = ["bank", *table.names] if has_bank else list(table.names)
    types = [pa.string()] * has_bank + [TYPES[column.type] for column in table.columns]
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
    return spark.createDataFrame(pa.table(arrays, names=names), schema=ddl)


def ledgers_of(spark, entries, messages, failures, offsets):
    """Rows of :mod:`tests.reconcile.reference` as ledgers; accounts are left out."""
    assert Entry._fields == ("bank", *ENTRIES.names)
    assert (Message._fields, Failure._fields) == (MESSAGES.names, FAILURES.names)
    places = [(*place, after) for place, after in offsets.items()]
    return Ledgers(
        entries=frame(spark, ENTRIES, entries, has_bank=True),
        **{t.name: frame(spark, t, [], has_bank=True) for t in (OPENING, LATER, ACCOUNTS)},
        messages=frame(spark, MESSAGES, messages),
        failures=frame(spark, FAILURES, failures),
        offsets=frame(spark, OFFSETS, places),
    )


def content(frame):
    """A hash of all rows, in whatever order they stand, and how many there are."""
    whole = f.xxhash64(f.to_json(f.struct(*sorted(frame.columns)))).cast("decimal(38,0)")
    return tuple(frame.agg(f.count("*"), f.sum(whole)).first())


GROUPS = {flow.topic: flow.group for flow in RULES.log.flow}
TOLERANCE = {name: money.tolerance for name, money in RULES.money.items()}


def collected(table):
    """The rows of a table, of Spark's or of Arrow's."""
    if isinstance(table, DataFrame):
        return table.collect()
    return [Row(**row) for row in table.to_pylist()]


def proved(outcome, rules):
    """The rows of all proofs of a day."""
    return collected(proofs_of(outcome, [outcome.tables["balances"].toArrow()], rules))


def left_by(spark, outcome, **more):
    """What a day leaves to the next one, as if it were read from files."""
    left = {}
    for name in CARRIED_ON:
        table = outcome.tables[name]
        is_frame = isinstance(table, DataFrame)
        left[name] = table.localCheckpoint() if is_frame else spark.createDataFrame(table)
    return EarlierDays(**left, **more)
