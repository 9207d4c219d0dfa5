"""Tests of reconciliation may wait for Spark, and ask for a session of Spark Connect."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def progress_of_two_dates():
    """The progress of a command that starts Spark and runs two dates."""
    from txmq.reconcile.progress import Progress
    from txmq.reconcile.summary import Stage

    progress = Progress()
    progress.stages = (Stage("start Spark", 100.0),)
    return progress


@pytest.fixture(scope="session")
def wednesday(spark, progress_of_two_dates, tmp_path_factory):
    """A stage on which Wednesday is over and reconciled, and its run. Tests change copies of it."""
    from tests.reconcile.whole_stage import WEDNESDAY, Stage

    stage = Stage.set_up(tmp_path_factory.mktemp("whole") / "wednesday")
    stage.first_day()
    return stage, stage.run(spark, WEDNESDAY, progress=progress_of_two_dates)


@pytest.fixture(scope="session")
def thursday(spark, wednesday, progress_of_two_dates, tmp_path_factory):
    """Another on which Thursday is too."""
    from tests.reconcile.whole_stage import THURSDAY

    stage = wednesday[0].copy(tmp_path_factory.mktemp("whole") / "thursday")
    stage.second_day()
    return stage, stage.run(spark, THURSDAY, progress=progress_of_two_dates)


def pytest_collection_modifyitems(items):
    """The first test waits until Spark has started."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def connect_server():
    """The URL of one Spark Connect server for all tests of a process."""
    from tests.reconcile import standalone

    with standalone.connect_server() as (url, _):
        yield url


@pytest.fixture
def connect(connect_server, monkeypatch):
    """A session of Spark Connect. During the test PySpark's functions are those of Connect, so the
    same test must not use the fixture spark.
    """
    from pyspark.sql import SparkSession

    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    session = SparkSession.builder.remote(connect_server).create()
    yield session
    session.stop()
