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
from tests.servers.serving import CHECKOUT, free_port
from txmq.errors import ConfigError, ReconcileRefused
from txmq.reconcile.spark import open_spark

pytestmark = pytest.mark.timeout(480)

LOCAL = "local[2]"
END_SECONDS = 200
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

    def left_after_java(self):
        """The files that are left. Java ends by itself, a moment after its Python."""
        self.wait_until(lambda: not self.javas())
        return sorted(item.name for item in (*self.here.iterdir(), *self.temporary.iterdir()))

    def wait_until(self, condition):
        pause = threading.Event()
        for _ in range(END_SECONDS * 20):
            if condition():
                return
            pause.wait(0.05)
        raise AssertionError("not in time")


@pytest.fixture
def driver(tmp_path):
    return Driver(tmp_path)


# What is refused


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (None, "/bin/java: No such file or directory"),
        (
            "echo 'Error: LinkageError: compiled by a more recent Java' >&2; exit 1",
            "Error: LinkageError: compiled by a more recent Java",
        ),
    ],
)
def test_without_a_suitable_java_the_error_says_how_to_get_one(driver, script, why):
    if script is not None:
        java = driver.here / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)

    code, out, err = driver.run(LOCAL, "work", JAVA_HOME=str(driver.here))

    assert (code, out, err.count("\n")) == (3, "", 1)
    assert err.startswith("txmq: Spark does not start with local[2]: ")
    assert f"{why}; Spark needs Java 17 or later (Debian: apt install" in err


@pytest.mark.parametrize(("scheme", "name"), [("spark", "master"), ("sc", "remote")])
def test_an_address_where_nothing_runs_is_refused_at_once(scheme, name):
    place = f"{scheme}://127.0.0.1:{free_port()}"

    with (
        pytest.raises(ReconcileRefused, match=f"{place} does not answer"),
        open_spark(**{name: place}),
    ):
        pass


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"master": "spark://nowhere"}, "write spark://host:7077"),
        ({"remote": "local"}, "write sc://host:15002"),
        ({"jars": [Path("driver.jar")]}, "jar driver.jar does not exist"),
        ({"remote": "sc://spark", "cores": 2}, "leave out --master, --cores"),
    ],
)
def test_invalid_options_are_refused(wrong, said):
    with pytest.raises(ConfigError, match=said), open_spark(**wrong):
        pass


# A real Spark


def test_success_is_quiet_and_failure_gives_one_sentence_and_a_log(driver):
    options = f"-Dsomebody=else {os.environ['JAVA_TOOL_OPTIONS']}"
    code, out, err = driver.run(LOCAL, "work", "broken", JAVA_TOOL_OPTIONS=options)

    assert out == "499500\nUTC true snappy localhost\n"
    assert (code, err.count("\n")) == (3, 1)
    assert err.startswith("txmq: Spark failed: [USER_RAISED_EXCEPTION] no such day")
    (log,) = driver.left_after_java()
    assert err.endswith(f"its log is {driver.temporary / log}\n")
    assert "\tat org.apache.spark" in (driver.temporary / log).read_text()


def test_a_successful_spark_leaves_nothing_behind(driver):
    assert driver.run(LOCAL) == (0, "", "")
    assert driver.left_after_java() == []


def test_an_invalid_master_is_refused_in_one_sentence(driver):
    code, _, err = driver.run("local[some]", "work")

    assert (code, err.count("\n")) == (3, 1)
    assert "Spark does not start with local[some]: SparkException: Could not parse" in err
    driver.left_after_java()


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGTERM, 143, STOPPED),
        pytest.param(signal.SIGINT, 130, "", marks=pytest.mark.soak),
    ],
)
def test_a_signal_stops_the_run_and_leaves_nothing_behind(driver, number, code, said):
    process = driver.start(LOCAL, "endless")
    assert process.stdout.readline() == "working\n"

    process.send_signal(number)

    assert driver.ended(process) == (code, "", said)
    assert driver.left_after_java() == []


def test_a_signal_while_java_starts_leaves_no_java_process(driver):
    process = driver.start(LOCAL, "nothing")
    driver.wait_until(driver.javas)

    process.send_signal(signal.SIGINT)

    assert driver.ended(process) == (130, "", "")
    assert driver.left_after_java() == []


def test_the_progress_bar_counts_tasks_and_the_spark_ui_names_the_stage(driver):
    code, out, err = driver.run(LOCAL, "watched", "refused")

    assert out.splitlines()[-1] == "match FAILED"
    assert (code, err.count("\n")) == (3, 1)
    assert err.startswith("txmq: Spark failed: ValueError: no such bank; its log is ")


def test_a_killed_java_is_reported(driver):
    process = driver.start(LOCAL, "endless")
    assert process.stdout.readline() == "working\n"

    for java in driver.javas():
        os.kill(java, signal.SIGKILL)

    code, _, err = driver.ended(process)
    assert (code, err.count("\n")) == (3, 1)
    assert "txmq: Spark failed: it has ended; " in err


# A cluster


@pytest.mark.soak
def test_a_standalone_cluster_runs_python_functions(driver):
    with standalone.cluster(memory="600m", count=1) as (url, _):
        assert driver.run(url, "python", SPARK_LOCAL_IP=standalone.HOST) == (0, "4\n", "")


@pytest.mark.soak
def test_over_connect_a_command_ends_soon_after_its_server(driver):
    with standalone.connect_server() as (url, server):
        assert driver.run(url, "work", "python") == (
            0,
            "499500\nUTC true snappy 127.0.0.1\n4\n",
            "",
        )
        process = driver.start(url, "endless")
        assert process.stdout.readline() == "working\n"

        server.kill()

        code, _, err = driver.ended(process)
    assert (code, err.splitlines()[1:]) == (3, [])
    assert err.startswith("txmq: Spark failed: it has ended; ")
