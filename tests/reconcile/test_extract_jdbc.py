"""What a bank behind JDBC is asked, over tables that Spark has itself: no driver is needed here."""

import msgspec
import pytest

from tests.extracts import DAY, NOON_MS, START_MS, bank_of, no_log, rules_of
from txmq.errors import ReconcileRefused
from txmq.reconcile.extract.extraction import extract_day
from txmq.reconcile.extract.jdbc import SparkDialect, options
from txmq.reconcile.extract.statements import EntryStatements, control_from_answer, control_query
from txmq.reconcile.rules import Bank, Day, Money
from txmq.reconcile.tables import ENTRIES

pytestmark = pytest.mark.timeout(180)  # Spark takes its time where others work beside it.


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
    return EntryStatements(bank(**entries), money or {}, window, dialect), dialect


TYPES = {
    "id": "BIGINT",
    "transfer": "DECIMAL(38, 10)",
    "account": "STRING",
    "amount": "DECIMAL(20, 4)",
    "currency": "STRING",
    "kind": "STRING",
    "booked": "TIMESTAMP_NTZ",
}


def test_sparks_words_make_the_same_rows(spark):
    statements, dialect = asked(
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
    control = control_from_answer(
        "icbc",
        ENTRIES,
        [
            tuple(row)
            for row in spark.sql(control_query(statements.rows(), ENTRIES, dialect)).collect()
        ],
    )

    at = NOON_MS
    assert found == [
        (1, "icbc/4711", "debit", "customer", "alice", -1234, "CNY", at + 123, at + 123),
        (2, None, "other", "suspense", "o'neil", 500, "JPY", at, at),
    ]
    assert sorted(sums) == [
        (0, 0, "clearing", "clearing", "CNY", 100, 1, 0),
        (1, 0, None, None, "CNY", 100, 1, 1),
    ]
    assert (control.rows, control.amounts) == (2, {"CNY": -1234, "JPY": 500})
    assert (control.least, control.most) == (1, 2)
    assert control.hash_total == 3 - 1234 + 500 + 4 * at + 246


@pytest.mark.parametrize(
    ("amount", "currency", "column"),
    [("'0.5'", "'CNY'", "amount"), ("'many'", "'CNY'", "amount"), ("'1'", "'yuan'", "currency")],
)
def test_what_does_not_fit_is_found(spark, amount, currency, column):
    types = TYPES | {"amount": "STRING", "booked": "BIGINT"}
    statements, _ = asked(spark, f"(1, 2, 'alice', {amount}, {currency}, 'D', {START_MS})", types)

    found = {fault.column for fault in statements.faults() if spark.sql(fault.statement).collect()}

    assert found == {column}


def test_a_condition_is_the_databases_own_and_properties_are_passed_on():
    given = msgspec.structs.replace(
        bank(table="core.journal", where="rownum > 0"), properties={"driver": "a.b.C"}
    )

    found = options(given, given.entries)

    assert found["dbtable"] == "(SELECT * FROM core.journal WHERE (rownum > 0)) txmq_found"
    assert (found["driver"], found["url"]) == ("a.b.C", "jdbc:nothing://bank")


def test_a_missing_driver_is_told(spark, tmp_path):
    rules = rules_of(tmp_path, bank_of(Nowhere))

    with pytest.raises(ReconcileRefused, match="no driver for jdbc:nothing; name its jar"):
        extract_day(rules, DAY, take_log=no_log, spark=spark)
    with pytest.raises(ReconcileRefused, match="Spark reads JDBC URLs, and no session was given"):
        extract_day(rules, DAY, take_log=no_log)


def test_a_url_of_nothing_known_is_told(tmp_path):
    class Other:
        url = "mongodb://bank"

    with pytest.raises(ReconcileRefused, match="icbc: its URL must begin with"):
        extract_day(rules_of(tmp_path, bank_of(Other)), DAY, take_log=no_log)
