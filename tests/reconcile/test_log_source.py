"""Spark reads the same records as a plain reader, in parts."""

import re

import pytest
from pyspark.sql import functions as f

from tests.docs.pages import read as read_page
from tests.reconcile.log_stage import ALWAYS, Taken, order, read_log, rules_of
from tests.servers.serving import CHECKOUT
from tests.unit.store.shelf import Shelf, Sizes
from txmq.protocol.span import HEAD_BYTES, DecisionKind
from txmq.reconcile.log.collapse import LogRequest
from txmq.reconcile.log.day_source import DayLogSource, options_of, with_rests_joined
from txmq.reconcile.log.source import COLUMNS, register
from txmq.reconcile.tables import MESSAGES
from txmq.runtime.disk import LocalDisk

PAGE = CHECKOUT / "docs/howto/reconcile-library.md"
pytestmark = pytest.mark.timeout(600)  # The first of them starts Spark.


@pytest.fixture
def data(tmp_path):
    """A log of several files, with all kinds of records that a store by itself can make."""
    (tmp_path / "data").mkdir()
    shelf = Shelf(LocalDisk(str(tmp_path / "data")), Sizes(segment_size=8000))
    for number in range(60):
        unique = f"u{number}"
        if number % 3:
            shelf.prepare(order(unique), "Transfers", unique=unique, keys=f"k{number}", tag="pay")
        else:
            shelf.put(order(unique), ["Transfers", "%RETRY%g", "%DLQ%g"][number % 9 // 3])
        shelf.flush()
        if number % 3 == 1 and number > 10:
            kind = list(DecisionKind)[number // 3 % 3]
            shelf.decide(f"u{number - 9}", kind, "ann: because" if number % 2 else "")
            shelf.flush()
    shelf.close()
    return tmp_path / "data"


@pytest.fixture
def session(spark):
    register(spark)
    return spark


def read(session, data, **options):
    return session.read.format("txmq").options(**options).load(str(data))


@pytest.mark.parametrize("stretch", [4000, 1 << 20])
def test_spark_reads_every_record_once(session, data, stretch):
    plain = list(read_log(data))

    found = read(session, data, stretch=stretch)
    rows = [row.asDict() for row in found.sort("position").collect()]

    assert found.columns == COLUMNS.names
    assert rows == [vars(record) for record in plain]
    assert {item.kind for item in plain} == {
        "message", "half", "decision", "retry", "dead_letter", "parked",
    }  # fmt: skip
    count = len(list((data / "log").iterdir()))
    parts = found.select(f.spark_partition_id()).distinct().count()
    assert parts > count if stretch == 4000 else parts == count > 1


def test_the_log_can_be_queried_with_sql(session, data):
    found = read(session, data)
    found.createOrReplaceTempView("log")

    rows = session.sql(
        "SELECT outcome, decided_by, count(*) AS n, max(reason) AS why FROM log "
        "WHERE kind = 'decision' GROUP BY ALL ORDER BY outcome"
    ).collect()
    (tags,) = session.sql(
        "SELECT DISTINCT properties['TAGS'], tags FROM log WHERE kind = 'half'"
    ).collect()

    decisions = [record for record in read_log(data) if record.kind == "decision"]
    assert [row.outcome for row in rows] == ["committed", "parked", "rolled_back"]
    assert sum(row.n for row in rows) == len(decisions)
    assert {row.why for row in rows} == {"ann: because"}
    assert tuple(tags) == ("pay", "pay")
    assert read(session, data).where("kind = 'half'").count() == 40


def test_the_queries_of_the_howto_run(session, data, capsys):
    texts = [block.text for block in read_page(PAGE).blocks()]
    (console,) = [text for text in texts if "createOrReplaceTempView" in text]
    (query,) = [text for text in texts if text.startswith("SELECT")]
    program = "".join(re.findall(r"^(?:>>>|\.\.\.) (.*\n)", console, re.MULTILINE))

    exec(program.replace("/var/lib/txmq", str(data)), {})
    halves = session.sql(query).collect()

    assert "|  committed|" in capsys.readouterr().out
    assert {half.outcome for half in halves} == {"committed", "parked", "rolled_back"}


def test_a_damaged_log_is_refused(session, data):
    from pyspark.errors import PySparkException

    file = sorted((data / "log").iterdir())[1]
    bad = list(read_log(data))
    at = next(record.position for record in bad if record.position > int(file.stem) + 1000)
    content = bytearray(file.read_bytes())
    content[at - int(file.stem)] ^= 1
    file.write_bytes(content)

    with pytest.raises(Exception, match=rf"{file.name} is damaged at position {at - HEAD_BYTES}"):
        read(session, data).count()
    with pytest.raises(PySparkException, match="load needs the broker's directory"):
        session.read.format("txmq").load().count()
    with pytest.raises(PySparkException, match="is not a broker's directory"):
        read(session, data / "log").count()
    with pytest.raises(PySparkException, match="stretch must be a number of bytes, not 'much'"):
        read(session, data, stretch="much").count()


def test_a_log_read_in_several_tasks_gives_the_same_messages(spark, data):
    rules = rules_of(data)
    alone = Taken(data)
    request = LogRequest(rules.log, rules.money, ALWAYS, stretch=1000)
    spark.dataSource.register(DayLogSource)
    found = spark.read.format("txmq.log").options(**options_of(request)).load()
    rests = found.where("table = 'rests'")

    whole = found.unionByName(with_rests_joined(request, rests)).where("table = 'messages'")
    rows = [row.asDict() for row in whole.select(*MESSAGES.names).collect()]

    assert rests.count() > 8
    assert sorted(rows, key=str) == sorted(alone.messages, key=str) != []


def test_the_howto_explains_every_column():
    page = PAGE.read_text()

    assert all(f"`{field_}`" in page for field_ in COLUMNS.names)
