"""How fast a PostgreSQL bank's books become Parquet, and how much CPU that takes in all processes:
PostgreSQL's, Java and Spark's Python workers.

Spark's reader of JDBC makes the same tables from the same journal: the entries of the day, with
keys, kinds and amounts in minor units, the sums of each account before and after it, and what
cannot be read. No two of its queries see one state, so it reads the journal once, in as many parts
as the extract, and keeps the rows until all tables are written. It does this in two ways, by turns
with the extract, warm: ``jdbc`` is the extract of a bank behind JDBC, with the same control totals;
``by_hand`` writes the tables alone, and adds up nothing.
"""

import os
import shutil
import sys
import time
from datetime import date
from functools import partial
from pathlib import Path

import msgspec
from bench_process import CannotStart, tree_cpu_s
from bench_sends import spread

DAY = date(2026, 11, 20)
DAY_MS = 86_400_000
NOON_MS = 1_795_176_000_000
READERS = 4
TABLE = (
    "CREATE TABLE journal (id bigint PRIMARY KEY, transfer bigint, account text NOT NULL, amount "
    "bigint NOT NULL, currency text NOT NULL, kind text NOT NULL, booked bigint NOT NULL)"
)
FILL = (
    "INSERT INTO journal SELECT n, n / 2, CASE n % 2 WHEN 0 THEN 'account-' || n % 100000 ELSE "
    "'clearing' END, CASE n % 2 WHEN 0 THEN -1 ELSE 1 END * (n / 2 % 100000), 'CNY', CASE n % 2 "
    f"WHEN 0 THEN 'debit' ELSE 'other' END, {NOON_MS} + n % 10000000 + CASE n % 12 WHEN 0 THEN "
    f"-{DAY_MS} WHEN 1 THEN {DAY_MS} ELSE 0 END FROM generate_series(1, {{rows}} * 12 / 10) AS n"
)
"""Of twelve rows, one is of the day before and one of the day after."""


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
            return _measured(rules, plan, jar, server.pid)
    finally:
        server.stop()


def _measured(rules, plan, jar, server):
    spark = _spark(jar)
    ways = _ways(rules, spark)
    seconds, cpu, totals = {way: [] for way in ways}, {way: [] for way in ways}, {}
    try:
        for turn in range(1 + plan.extract_turns):
            for way in sorted(ways, reverse=bool(turn % 2)):
                plan.say(f"reconcile_extract: {way}")
                folder = Path(rules.directory) / "out"
                used, begun = _cpu_s(server), time.perf_counter()
                totals[way] = ways[way](folder)
                seconds[way].append(time.perf_counter() - begun)
                cpu[way].append(_cpu_s(server) - used)
                shutil.rmtree(folder)
            _see_alike(totals, plan.extracted)
    finally:
        spark.stop()
    found = {"rows": plan.extracted}
    for way in ways:
        del seconds[way][0], cpu[way][0]  # The first warms up.
        found[way] = {"s": spread(seconds[way]), "cpu_s": spread(cpu[way])}
        found[way]["rows_per_s"] = round(plan.extracted / found[way]["s"]["median"])
    for way in ("jdbc", "by_hand"):
        found[f"{way}_over_extract"] = _over(seconds[way], seconds["extract"])
        found[f"{way}_cpu_over_extract"] = _over(cpu[way], cpu["extract"])
    return found


def _ways(rules, spark):
    """A function of a folder for each way; it returns what :func:`_see_alike` compares."""
    (bank,) = rules.bank
    behind = msgspec.structs.replace(bank, database=_jdbc_url(bank.database))
    over_jdbc = msgspec.structs.replace(rules, bank=(behind,))
    return {
        "extract": partial(_extract, rules, spark),
        "jdbc": partial(_extract, over_jdbc, spark),
        "by_hand": partial(_by_hand, over_jdbc, spark),
    }


def _over(some, others):
    return spread([one / other for one, other in zip(some, others, strict=True)])


def _cpu_s(server):
    """The CPU of all processes; none of PostgreSQL's if it is a stranger's."""
    return tree_cpu_s(os.getpid()) + (tree_cpu_s(server) if server else 0)


def _see_alike(totals, rows):
    """All ways made the same tables: the extracts by all control totals, the other by its rows."""
    if totals["extract"] != totals["jdbc"]:
        raise CannotStart(f"one bank, two extracts: {totals}")
    counts = [table.rows for table in totals["extract"]]
    if counts != totals["by_hand"] or counts[0] != rows:
        raise CannotStart(f"{rows} rows of a day were extracted as {counts}: {totals}")


def _extract(rules, spark, folder):
    """The control totals of the tables of an extract; its log is empty."""
    from txmq.reconcile.extract.extraction import extract_day
    from txmq.reconcile.rules import LogRules
    from txmq.reconcile.storage import open_folder

    (folder / "broker" / "log").mkdir(parents=True)
    rules = msgspec.structs.replace(rules, log=LogRules(str(folder / "broker")))
    found = extract_day(spark, rules, DAY, open_folder(folder)).sources[0]
    return [table.written for table in found.tables]


def _by_hand(rules, spark, folder):
    """The rows of each table."""
    import pyarrow.dataset as ds

    from txmq.reconcile.extract.frame_books import SparkDialect
    from txmq.reconcile.extract.jdbc import options
    from txmq.reconcile.extract.statements import EntryStatements

    (bank,) = rules.bank
    given = options(bank, bank.entries)
    ends = {"dbtable": "(SELECT min(id) AS least, max(id) AS most FROM journal) AS ends"}
    ((least, most),) = spark.read.format("jdbc").options(**(given | ends)).load().collect()
    bounds = {"partitionColumn": "id", "lowerBound": least, "upperBound": most + 1}
    reader = spark.read.format("jdbc").options(**given, **bounds, numPartitions=READERS)
    kept = reader.load().persist()
    kept.createOrReplaceTempView("journal")
    dialect = SparkDialect({field.name: field.dataType.typeName() for field in kept.schema})
    statements = EntryStatements(bank, rules.money, rules.day.window(DAY), dialect)
    spark.sql(statements.rows()).write.parquet(f"{folder}/entries", compression="zstd")
    sums = spark.sql(statements.sums()).write.partitionBy("period")
    sums.parquet(f"{folder}/sums", compression="zstd")
    if (folder / "sums" / "period=2").exists():
        aside = spark.sql(statements.unreadable(1)).write
        aside.parquet(f"{folder}/quarantine", compression="zstd")
    kept.unpersist()
    tables = "entries", "sums/period=0", "sums/period=1"
    return [ds.dataset(folder / table).count_rows() for table in tables]


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
