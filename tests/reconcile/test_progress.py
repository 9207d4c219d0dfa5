"""The progress of a run: on a terminal, in a log, and when quiet."""

import io
import os
import pty
import re
import threading

import pytest

from txmq.reconcile.progress import Progress, show_progress
from txmq.reconcile.summary import Stage


class Ticking:
    """A clock that advances by a second on every reading."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += 1.0
        return self.now

    def wall_ms(self):
        return 0


def test_stages_are_measured():
    progress = Progress(clock=Ticking())

    with progress.stage("load") as load:
        load.rows = 7
    with progress.stage("match"):
        pass

    assert progress.stages == (Stage("load", 1.0, 7), Stage("match", 1.0, 0))


def test_a_stage_that_fails_is_not_counted():
    progress = Progress(clock=Ticking())

    with pytest.raises(ZeroDivisionError), progress.stage("match"):
        _ = 1 / 0

    assert progress.stages == ()


def test_nested_stages_are_shown_from_the_inside_out():
    lines = []
    progress = Progress(lines.append, clock=Ticking())

    with progress.stage("extract"), progress.stage("icbc") as bank:
        bank.rows = 1_200

    assert lines == ["icbc: 1.0 s, 1,200 rows", "extract: 3.0 s"]


def test_a_pipe_gets_a_line_for_each_stage():
    stream = io.StringIO()

    with show_progress(stream=stream) as progress, progress.stage("load"):
        pass

    assert re.fullmatch(r"txmq: load: 0\.\d s\n", stream.getvalue())


def test_quiet_progress_prints_nothing():
    stream = io.StringIO()

    with show_progress(quiet=True, stream=stream) as progress, progress.stage("load"):
        pass

    assert stream.getvalue() == ""
    assert [stage.name for stage in progress.stages] == ["load"]


def test_a_terminal_shows_finished_tasks_over_spark_connect(connect, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    ours, theirs = pty.openpty()
    said = []
    seen = threading.Event()

    def read():
        text = b""
        while True:
            try:
                text += (data := os.read(ours, 4096))
            except OSError:
                data = b""  # The other end is closed.
            if not data:
                said.append(text.decode())
                return
            if re.search(rb"match.*?\d/5", text, re.DOTALL):
                seen.set()

    reader = threading.Thread(target=read)
    reader.start()
    with (
        os.fdopen(theirs, "w") as stream,
        show_progress(stream=stream) as progress,
        progress.tracking(connect),
        progress.stage("match"),
    ):
        while not seen.is_set():
            # Four tasks for the parts, and one for their sum.
            connect.range(4_000_000, numPartitions=4).selectExpr("sum(hash(id))").collect()
    reader.join()
    os.close(ours)

    assert seen.is_set()
    assert re.search(r"match: \d+\.\d s", said[0])


def description_of_a_job(spark):
    """What Spark's pages show, and what was given to the session."""

    def told(batches):
        import pyarrow as pa
        from pyspark import TaskContext

        for _ in batches:
            said = TaskContext.get().getLocalProperty("spark.job.description")
            yield pa.RecordBatch.from_pydict({"said": [said]})

    return spark.range(1).mapInArrow(told, "said string").collect()[0].said


@pytest.mark.parametrize("kind", ["spark", "connect"])
def test_jobs_are_described_by_their_stage_and_then_as_before(request, kind):
    session = request.getfixturevalue(kind)
    session.conf.set("spark.job.description", "the user's own")
    progress = Progress()

    with progress.tracking(session), progress.stage("extract"), progress.stage("icbc"):
        inside = description_of_a_job(session)

    assert inside == "icbc"
    assert description_of_a_job(session) == "the user's own"
    session.conf.unset("spark.job.description")
