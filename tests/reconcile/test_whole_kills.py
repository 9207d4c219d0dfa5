"""If any process is killed while a day is reconciled again, the former result stays in force, and
the next run has the result of an undisturbed one.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.reconcile import standalone
from tests.reconcile.whole_stage import WEDNESDAY, Stage
from tests.servers.serving import CHECKOUT

DRIVER, WORKER, SERVER = 8, 6, 6
"""The points at which each of them is killed."""
END_S = 600

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]


class Night:
    """A day with a result in force, and rules that give another one."""

    def __init__(self, stage):
        self.stage = stage
        self.former = stage.results().current(WEDNESDAY)

    @classmethod
    def set_up(cls, home):
        stage = Stage.set_up(home)
        stage.first_day()
        ended(started(stage))
        rules = stage.home / "recon.toml"
        rules.write_text(f'version = "2"\n{rules.read_text()}')
        return cls(stage)

    def copy(self, home):
        return Night(self.stage.copy(home))

    def see_former(self):
        assert self.stage.results().current(WEDNESDAY) == self.former

    def see_whole(self, expected):
        results = self.stage.results()
        done = results.current(WEDNESDAY)
        results.verify(done)
        assert (done.run_id, done.result) == (expected.run_id, expected.result)
        assert not list(self.stage.directory.glob("results/.drafts/*"))


def started(stage, *where):
    """A run of the day that has begun."""
    program = [sys.executable, "-m", "txmq", "reconcile", "--date", str(WEDNESDAY)]
    how = ["--config", stage.home / "recon.toml", *where]
    return subprocess.Popen(
        [*program, *how], cwd=CHECKOUT, env={**os.environ, "SPARK_LOCAL_IP": standalone.HOST},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(running, code=0):
    _, err = running.communicate(timeout=END_S)
    assert running.returncode == code, err
    return err


def killed_at(seconds, running, victim):
    """The exit code and errors of a run; a process is killed at a moment, or at the run's end."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        running.wait(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    _, err = running.communicate(timeout=END_S)
    return running.returncode, err


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    return Night.set_up(tmp_path_factory.mktemp("night") / "home")


@pytest.fixture(scope="module")
def undisturbed(night, tmp_path_factory):
    """The result without any kill, and how many seconds it takes."""
    home = night.copy(tmp_path_factory.mktemp("undisturbed") / "home")
    begun = time.monotonic()
    ended(started(home.stage))
    return home.stage.results().current(WEDNESDAY), time.monotonic() - begun


def moments(seconds, count):
    return [seconds * (number + 1) / (count + 1) for number in range(count)]


def java_of(pid):
    """The Java that a run has started, or the run itself before that."""
    seen = subprocess.run(["pgrep", "-P", str(pid), "java"], stdout=subprocess.PIPE, check=False)
    return int(seen.stdout.split()[0]) if seen.stdout else pid


def test_a_killed_driver_leaves_the_former_result(night, undisturbed, tmp_path):
    expected, seconds = undisturbed
    home = night.copy(tmp_path / "home")
    for number, moment in enumerate(moments(seconds, DRIVER)):
        running = started(home.stage)
        threading.Event().wait(moment)
        victim = java_of(running.pid) if number % 2 else running.pid
        code, err = killed_at(0, running, victim)
        assert code in (-signal.SIGKILL, 3), err
        home.see_former()

    ended(started(home.stage))
    home.see_whole(expected)


def test_a_run_survives_a_killed_worker(night, undisturbed, tmp_path):
    expected, seconds = undisturbed
    for number, moment in enumerate(moments(seconds, WORKER)):
        home = night.copy(tmp_path / str(number))
        with standalone.cluster(cores=1, memory="700m") as (url, workers):
            running = started(home.stage, "--master", url, "--memory", "600m")
            code, err = killed_at(moment, running, workers[number % 2].pid)
            assert code == 0, err
        home.see_whole(expected)


def test_a_killed_connect_server_leaves_the_former_result(night, undisturbed, tmp_path):
    expected, seconds = undisturbed
    home = night.copy(tmp_path / "home")
    for moment in moments(seconds / 2, SERVER):
        with standalone.connect_server() as (url, server):
            code, err = killed_at(moment, started(home.stage, "--remote", url), server.pid)
        assert code == 3, err
        home.see_former()

    with standalone.connect_server() as (url, _):
        ended(started(home.stage, "--remote", url))
    home.see_whole(expected)
