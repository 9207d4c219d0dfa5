"""How fast a PostgreSQL bank's books become Parquet: the extract with its control totals beside
Spark's reader of JDBC, which reads the same rows in as many parts and writes the same columns.

Both read the same table by turns, warm. The extract also asks for what was before and after the
day, and adds up its totals; JDBC does neither.
"""

import os
import shutil
import sys
import time
from datetime import date
from pathlib import Path

import msgspec
from bench_process import CannotStart
from bench_sends import spread

DAY = date(2026, 11, 20)
NOON_MS = 1_795_176_000_000
READERS = 4
TABLE = (
    "CREATE TABLE journal (id bigint PRIMARY KEY, transfer bigint, account text NOT NULL, amount "
    "bigint NOT NULL, currency text NOT NULL, kind text NOT NULL, booked bigint NOT NULL)"
)
FILL = (
    "INSERT INTO journal SELECT n, n / 2, CASE n % 2 WHEN 0 THEN 'account-' || n % 100000 ELSE "
    "'clearing' END, CASE n % 2 WHEN 0 THEN -1 ELSE 1 END * (n / 2 % 100000), 'CNY', CASE n % 2 "
    f"WHEN 0 THEN 'debit' ELSE 'other' END, {NOON_MS} + n % 10000000 "
    "FROM generate_series(1, {rows}) AS n"
)


def reconcile_extract(bench, plan):
    """Seconds of each way, and how much faster the extract is."""
    from tests import databases, jdbc_driver  # Other sections need no database.
    from tools.packages import Unprepared

    try:
        jar = jdbc_driver.jar()
    except Unprepared as error:
        raise CannotStart(f"reconcile_extract cannot compare with Spark's JDBC: {error}") from error
    server = databases.postgres()
    try:
        with server.database() as url:
            _fill(url, plan.extracted)
            rules = _rules(databases.conninfo(url), bench.new_folder())
            return _measured(rules, plan, jar)
    finally:
        server.stop()


def _measured(rules, plan, jar):
    spark = _spark(jar)
    try:
        ours, theirs = [], []
        for turn in range(1 + plan.extract_turns):
            for way, taken in ((_extract, ours), (_jdbc, theirs))[:: 1 if turn % 2 else -1]:
                plan.say(f"reconcile_extract: {way.__name__[1:]}")
                folder = Path(rules.directory) / "out"
                begun = time.perf_counter()
                rows = way(rules, folder, spark)
                taken.append(time.perf_counter() - begun)
                shutil.rmtree(folder)
                if rows != plan.extracted:
                    raise CannotStart(f"{rows} of {plan.extracted} rows were extracted")
        _see_alike(rules, folder, spark)
    finally:
        spark.stop()
    ours, theirs = ours[1:], theirs[1:]  # The first warms up.
    return {
        "rows": plan.extracted,
        "extract_s": spread(ours),
        "jdbc_s": spread(theirs),
        "rows_per_s": round(plan.extracted / spread(ours)["median"]),
        "jdbc_over_extract": spread([one / other for one, other in zip(theirs, ours, strict=True)]),
    }


def _extract(rules, folder, spark):
    return _bank_of(rules, folder, spark).tables[0].written.rows


def _see_alike(rules, folder, spark):
    """The extract of a bank behind JDBC has the same control totals."""
    (bank,) = rules.bank
    behind = msgspec.structs.replace(bank, database=_jdbc_url(bank.database))
    one = _bank_of(rules, folder / "one", spark)
    other = _bank_of(msgspec.structs.replace(rules, bank=(behind,)), folder / "other", spark)
    if [table.written for table in one.tables] != [table.written for table in other.tables]:
        raise CannotStart(f"one bank, two extracts: {one} and {other}")


def _bank_of(rules, folder, spark):
    """The bank of the rules in an extract; the log is empty."""
    from txmq.reconcile.extract.extraction import extract_day
    from txmq.reconcile.rules import LogRules
    from txmq.reconcile.storage import open_folder

    (folder / "broker" / "log").mkdir(parents=True)
    rules = msgspec.structs.replace(rules, log=LogRules(str(folder / "broker")))
    return extract_day(spark, rules, DAY, open_folder(folder)).sources[0]


def _jdbc(rules, folder, spark):
    import pyarrow.parquet as pq

    from txmq.reconcile.extract.frame_books import SparkDialect
    from txmq.reconcile.extract.jdbc import options
    from txmq.reconcile.extract.statements import EntryStatements

    (bank,) = rules.bank
    given = options(bank, bank.entries) | {"url": _jdbc_url(bank.database)}
    ends = {"dbtable": "(SELECT min(id) AS least, max(id) AS most FROM journal) AS ends"}
    ((least, most),) = spark.read.format("jdbc").options(**(given | ends)).load().collect()
    bounds = {"partitionColumn": "id", "lowerBound": least, "upperBound": most + 1}
    reader = spark.read.format("jdbc").options(**given, **bounds, numPartitions=READERS)
    frame = reader.load()
    frame.createOrReplaceTempView("journal")
    dialect = SparkDialect({field.name: field.dataType.typeName() for field in frame.schema})
    statement = EntryStatements(bank, rules.money, rules.day.window(DAY), dialect).rows()
    out = folder / "jdbc"
    rows = spark.sql(statement)
    rows.write.option("compression", "zstd").parquet(str(out))
    return sum(pq.read_metadata(file).num_rows for file in out.glob("*.parquet"))


def _fill(url, rows):
    from sqlalchemy import NullPool, create_engine

    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in (TABLE, FILL, "VACUUM ANALYZE journal"):
            connection.exec_driver_sql(statement.format(rows=rows).replace("%", "%%"))


def _rules(url, folder):
    from txmq.reconcile.rules import Rules

    columns = {name: name for name in ("id", "account", "amount", "currency", "kind", "booked")}
    columns |= {"table": "journal", "key": "transfer", "namespace": "icbc"}
    columns |= {"kinds": {"debit": ["debit"], "credit": ["credit"]}, "clearing": ["clearing"]}
    bank = {"name": "icbc", "database": url, "entries": columns, "readers": READERS}
    bank |= {"properties": {"driver": "org.postgresql.Driver"}}
    plain = {"name": "bench", "directory": str(folder), "bank": [bank], "money": {"CNY": {}}}
    return msgspec.convert(plain | {"log": {"directory": "log"}}, Rules)


def _jdbc_url(url):
    from sqlalchemy.engine import make_url

    found = make_url(url)
    secret = f"&password={found.password}" if found.password else ""
    return f"jdbc:postgresql://{found.host}:{found.port}/{found.database}?user={found.username}{secret}"


def _spark(jar):
    from pyspark.sql import SparkSession

    chosen = {
        "spark.jars": str(jar),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
    }
    os.environ["PYSPARK_PYTHON"] = sys.executable  # Its workers need our packages.
    builder = SparkSession.builder.master("local[*]").appName("reconcile_extract")
    return builder.config(map=chosen).getOrCreate()
