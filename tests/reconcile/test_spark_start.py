"""Spark in processes of its own: quiet, bounded, and gone without a trace."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.reconcile import standalone
from tests.serving import CHECKOUT, free_port
from txmq.errors import ConfigError, ReconcileRefused
from txmq.reconcile.java import check_java
from txmq.reconcile.spark import open_spark

pytestmark = pytest.mark.timeout(240)

LOCAL = "local[2]"
END_SECONDS = 100
STOPPED = (
    "txmq: SIGTERM stopped this before it was finished; a date that has no verdict above has no "
    "result of this run: start it again\n"
)


class Driver:
    """Runs the driver in an empty directory, with temporary files in another one."""

    def __init__(self, tmp_path):
        self.here = tmp_path / "here"
        self.temporary = tmp_path / "temporary"
        self.here.mkdir()
        self.temporary.mkdir()

    def start(self, *arguments, **environ):
        return subprocess.Popen(
            [sys.executable, "-m", "tests.reconcile.spark_driver", *arguments],
            cwd=self.here,
            env={
                **os.environ,
                "PYTHONPATH": str(CHECKOUT),
                "TMPDIR": str(self.temporary),
                **environ,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments, **environ):
        return self.ended(self.start(*arguments, **environ))

    def ended(self, process):
        out, err = process.communicate(timeout=END_SECONDS)
        return process.returncode, out, err

    def javas(self):
        """The processes of Java that were started here."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # It may have ended.
                command = (process / "cmdline").read_bytes()
                if str(self.temporary).encode() in command and b"java" in command:
                    found.append(int(process.name))
        return sorted(found)

    def left(self):
        return sorted(item.name for item in (*self.here.iterdir(), *self.temporary.iterdir()))

    def first_java(self):
        pause = threading.Event()
        for _ in range(END_SECONDS * 20):
            if found := self.javas():
                return found[0]
            pause.wait(0.05)
        raise AssertionError("no Java was started")


@pytest.fixture
def driver(tmp_path):
    return Driver(tmp_path)


# Java


def java_that_says(text, directory, code=0):
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return {"JAVA_HOME": str(directory), "PATH": os.environ["PATH"]}


def test_without_java_it_is_said_how_to_get_one(driver):
    code, out, err = driver.run(LOCAL, "work", PATH=str(driver.here), JAVA_HOME="")

    assert (code, out, err.count("\n")) == (3, "", 1)
    assert err.startswith("txmq: Spark needs Java, and none was found: install Java 17 or later")
    assert "apt install openjdk-17-jre-headless" in err
    assert "brew install openjdk@17" in err
    assert driver.left() == []


def test_a_java_home_without_java_is_named(tmp_path):
    with pytest.raises(ReconcileRefused, match=f"JAVA_HOME is {tmp_path}, which has no bin/java"):
        check_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


@pytest.mark.parametrize(
    ("text", "version"),
    [('openjdk version "11.0.2" 2019-01-15', 11), ('java version "1.8.0_292"', 8)],
)
def test_an_old_java_is_refused(tmp_path, text, version):
    with pytest.raises(ReconcileRefused, match=f"is Java {version}, too old for Spark: install"):
        check_java(java_that_says(text, tmp_path))


@pytest.mark.parametrize("text", ['openjdk version "17" 2021-09-14', 'openjdk version "25-ea"'])
def test_a_new_java_will_do(tmp_path, text):
    check_java(java_that_says(text, tmp_path))


def test_a_java_that_is_only_an_advertisement_is_none(tmp_path):
    with pytest.raises(ReconcileRefused, match="does not report its version"):
        check_java(java_that_says("Unable to locate a Java Runtime.", tmp_path, code=1))


# What is refused before anything is started


def test_a_master_that_nobody_is_at_is_refused_at_once():
    master = f"spark://127.0.0.1:{free_port()}"

    with (
        pytest.raises(ReconcileRefused, match=f"no master answers at {master}"),
        open_spark(master),
    ):
        pass


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"memory": "lots"}, "memory 'lots' is not a size"),
        ({"master": "spark://nowhere"}, "write spark://host:7077"),
    ],
)
def test_what_cannot_be_is_said(wrong, said):
    with pytest.raises(ConfigError, match=said), open_spark(**wrong):
        pass


def test_a_jar_that_is_not_there_is_named(tmp_path):
    jar = tmp_path / "driver.jar"

    with pytest.raises(ConfigError, match=f"jar {jar} does not exist"), open_spark(jars=[jar]):
        pass


# A real one


def test_what_works_is_quiet_and_what_fails_is_one_sentence_and_a_log(driver):
    options = f"-Dsomebody=else {os.environ['JAVA_TOOL_OPTIONS']}"
    code, out, err = driver.run(LOCAL, "work", "broken", JAVA_TOOL_OPTIONS=options)

    assert out == "499500\nUTC true snappy 127.0.0.1\n"
    assert (code, err.count("\n")) == (3, 1)
    assert err.startswith("txmq: Spark failed: [USER_RAISED_EXCEPTION] no such day")
    (log,) = driver.left()
    assert err.endswith(f"its log is {driver.temporary / log}\n")
    assert "\tat org.apache.spark" in (driver.temporary / log).read_text()
    assert driver.javas() == []


def test_nothing_is_left_of_a_spark_that_worked(driver):
    assert driver.run(LOCAL) == (0, "", "")
    assert driver.left() == []
    assert driver.javas() == []


def test_a_master_that_is_none_is_one_sentence(driver):
    code, _, err = driver.run("local[some]", "work")

    assert (code, err.count("\n")) == (3, 1)
    assert "Spark does not start with local[some]: SparkException: Could not parse" in err
    assert driver.javas() == []


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGTERM, 143, STOPPED),
        pytest.param(signal.SIGINT, 130, "", marks=pytest.mark.soak),
    ],
)
def test_who_is_told_to_stop_stops_and_leaves_nothing(driver, number, code, said):
    process = driver.start(LOCAL, "endless")
    assert process.stdout.readline() == "working\n"

    process.send_signal(number)

    assert driver.ended(process) == (code, "", said)
    assert driver.javas() == []
    assert driver.left() == []


def test_who_is_told_to_stop_while_java_starts_leaves_no_java(driver):
    process = driver.start(LOCAL, "nothing")
    driver.first_java()

    process.send_signal(signal.SIGINT)

    assert driver.ended(process) == (130, "", "")
    assert driver.javas() == []
    assert driver.left() == []


def test_a_java_that_is_killed_is_told_of(driver):
    process = driver.start(LOCAL, "endless")
    assert process.stdout.readline() == "working\n"

    for java in driver.javas():
        os.kill(java, signal.SIGKILL)

    code, _, err = driver.ended(process)
    assert (code, err.count("\n")) == (3, 1)
    assert "its Java process ended" in err


# A cluster


@pytest.mark.soak
def test_a_cluster_comes_to_the_same(driver):
    with standalone.cluster(memory="600m", count=1) as url:
        assert driver.run(url, "python") == (0, "6 4\n", "")
