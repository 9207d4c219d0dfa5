"""The statements for a bank behind JDBC, on tables in Spark itself, so most need no driver."""

from unittest.mock import Mock

import msgspec
import pytest
from py4j.protocol import Py4JError

from tests.reconcile.extracts import (
    DAY,
    JOURNAL,
    NOON_MS,
    START_MS,
    bank_of,
    extracted,
    rows_of,
    rules_of,
)
from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.frame_books import SparkDialect
from txmq.reconcile.extract.jdbc import _error_sentence, options
from txmq.reconcile.extract.statements import EntryStatements
from txmq.reconcile.rules import Bank, Day, Money

pytestmark = pytest.mark.timeout(600)  # Spark is slow when other tests run at the same time.


class Nowhere:
    url = "jdbc:nothing://bank"


def bank(**entries):
    return msgspec.convert(bank_of(Nowhere, zone="Asia/Shanghai", **entries), Bank)


def asked(spark, values, types, money=None, **entries):
    """Statements over rows that have these columns."""
    frame = spark.sql(f"SELECT * FROM VALUES {values} AS t({', '.join(types)})")
    frame = frame.selectExpr(*(f"CAST({name} AS {held}) AS {name}" for name, held in types.items()))
    frame.createOrReplaceTempView("journal")
    dialect = SparkDialect({item.name: item.dataType.typeName() for item in frame.schema})
    window = Day().window(DAY)
    return EntryStatements(bank(**entries), money or {}, window, dialect)


TYPES = {
    "id": "BIGINT",
    "transfer": "DECIMAL(38, 10)",
    "account": "STRING",
    "amount": "DECIMAL(20, 4)",
    "currency": "STRING",
    "kind": "STRING",
    "booked": "TIMESTAMP_NTZ",
}


def test_statements_in_spark_sql_give_the_expected_rows(spark):
    statements = asked(
        spark,
        "(1, 4711, 'alice', -12.34, 'CNY', 'D', '2024-11-20 20:00:00.123456'), "
        "(2, NULL, 'o\\'neil', 500, 'JPY', NULL, '2024-11-20 20:00:00'), "
        "(3, 1, 'clearing', 1, 'CNY', 'C', '2024-11-20 07:59:59.999')",
        TYPES,
        {"CNY": Money(), "JPY": Money(digits=0)},
        units="major",
        time="timestamp",
        suspense=["o'neil"],
    )

    found = sorted(tuple(row) for row in spark.sql(statements.rows()).collect())
    sums = [tuple(row) for row in spark.sql(statements.sums()).collect()]

    at = NOON_MS
    assert found == [
        (1, "icbc/4711", "debit", "customer", "alice", -1234, "CNY", at + 123, at + 123),
        (2, None, "other", "suspense", "o'neil", 500, "JPY", at, at),
    ]
    assert sorted(sums) == [
        (0, "clearing", "clearing", "CNY", 100, 0, 1),
    ]


def test_unreadable_rows_are_left_out_and_counted(spark):
    types = TYPES | {"amount": "STRING", "booked": "STRING"}
    good = "'alice', '1', 'CNY', 'D', '2024-11-20 20:00:00'"
    bad = [
        good.replace("'1'", "'0.5'"),
        good.replace("'1'", "'many'"),
        good.replace("CNY", "yuan"),
        good.replace("2024-11-20", "2024-02-30"),
        good.replace("'alice'", "NULL"),
    ]
    values = ", ".join(f"({number}, 2, {row})" for number, row in enumerate([*bad, good], 1))
    statements = asked(spark, values, types, time="timestamp")

    found = [tuple(row) for row in spark.sql(statements.unreadable(9)).collect()]

    columns = [statements.faults[index].column for _, index, *_ in found]
    assert columns == ["amount", "amount", "currency", "booked", "account"]
    assert [value for _, _, value, *_ in found[:3]] == ["0.5", "many", "yuan"]
    assert {count for count, *_ in found} == {5}
    assert [id_ for *_, id_, _ in found] == ["1", "2", "3", "4", "5"]
    assert [row.id for row in spark.sql(statements.rows()).collect()] == [6]
    sums = spark.sql(statements.sums()).collect()
    assert {row.period for row in sums} == {2}
    assert sum(row.lines for row in sums) == 5


def test_a_bank_is_read_through_its_jdbc_driver(spark, tmp_path):
    """Derby comes with Spark."""

    class Derby:
        url = f"jdbc:derby:memory:{tmp_path.name};create=true"

    rows = ", ".join(
        f"({number}, 't-{number}', 'alice', {amount}, 'CNY', 'debit', {booked})"
        for number, (amount, booked) in enumerate(
            [("'7'", START_MS - 1), ("'-5'", NOON_MS), ("'x'", NOON_MS), ("'-6'", NOON_MS)], 1
        )
    )
    spark.sql(f"SELECT * FROM VALUES {rows} AS t({', '.join(JOURNAL)})").write.jdbc(
        Derby.url, "journal", properties={"driver": "org.apache.derby.jdbc.EmbeddedDriver"}
    )
    told = bank_of(Derby) | {"readers": 2}
    told["properties"] = {"driver": "org.apache.derby.jdbc.EmbeddedDriver"}
    rules = rules_of(tmp_path, told, limits={"quarantine_max": 1})

    manifest, folder = extracted(spark, rules)

    assert [(row["id"], row["amount"]) for row in rows_of(folder)] == [(2, -5), (4, -6)]
    assert [row["amount"] for row in rows_of(folder, table="opening")] == [7]
    (row,) = manifest.sources[0].tables[0].quarantine
    assert (row.row, row.reason) == (
        "id 3, key t-3",
        "amount is 'x': not a whole number of minor units",
    )
    assert {table.table for table in manifest.sources[0].tables} == {"entries", "opening", "later"}


def test_an_error_of_the_database_midway_is_quoted(spark, tmp_path):
    class Derby:
        url = f"jdbc:derby:memory:{tmp_path.name};create=true"

    driver = {"driver": "org.apache.derby.jdbc.EmbeddedDriver"}
    row = f"1, 't-1', 'alice', '-5', 'CNY', 'debit', {NOON_MS}"
    frame = spark.sql(f"SELECT * FROM VALUES ({row}) AS t({', '.join(JOURNAL)})")
    frame.write.jdbc(Derby.url, "journal", properties=driver)
    told = bank_of(Derby, where='1 / ("id" - 1) = 0') | {"readers": 2, "properties": driver}

    with pytest.raises(ReconcileRefused, match=r"icbc: .*Attempt to divide by zero"):
        extracted(spark, rules_of(tmp_path, told))


def test_a_failure_while_rows_arrive_names_its_cause(spark):
    """Spark's own words are "Exception thrown in awaitResult:", and nothing else."""
    number = "java_method('java.lang.Integer', 'parseInt', 'x')"
    failing = spark.sql(f"SELECT if(id = 7, {number}, id) AS x FROM range(9)")

    with pytest.raises(Py4JError) as caught:
        failing.collect()
    assert _error_sentence(caught.value, "jdbc:x://bank") == 'For input string: "x"'


def test_the_where_condition_and_properties_are_passed_on_unchanged():
    given = msgspec.structs.replace(
        bank(table="core.journal", where="rownum > 0"), properties={"driver": "a.b.C"}
    )

    found = options(given, given.entries)

    assert found["dbtable"] == "(SELECT * FROM core.journal WHERE (rownum > 0)) txmq_found"
    assert (found["driver"], found["url"]) == ("a.b.C", "jdbc:nothing://bank")


def test_a_missing_driver_is_reported(spark, tmp_path):
    rules = rules_of(tmp_path, bank_of(Nowhere))

    with pytest.raises(ReconcileRefused, match="no driver for jdbc:nothing; name its jar"):
        extracted(spark, rules)


def test_a_url_of_an_unknown_kind_is_refused(tmp_path):
    class Other:
        url = "mongodb://bank"

    with pytest.raises(ReconcileRefused, match="icbc: its URL must begin with"):
        extracted(Mock(), rules_of(tmp_path, bank_of(Other)))
