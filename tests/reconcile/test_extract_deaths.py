"""What an unfinished extract leaves behind."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from txmq.errors import ReconcileRefused
from txmq.reconcile.storage import LocalFolder

ROOT = Path(__file__).parents[2]
DYING = """
import os, signal, sys
from txmq.reconcile.storage import LocalFolder
with LocalFolder(sys.argv[1]).staging() as (draft, _):
    draft.replace("rows", b"some")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home").mkdir()
    return LocalFolder(tmp_path / "home")


def begun(home):
    """Extracts that have no name yet."""
    return list(home.local.glob(".drafts/*"))


def complete(home):
    with home.staging() as (draft, _):
        draft.replace("last", b"all")
        home.at("done").take(draft, last="last")


def test_the_next_extract_removes_what_a_killed_extract_left(home):
    command = [sys.executable, "-c", DYING, str(home)]
    died = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    (left,) = begun(home)
    assert list(left.iterdir())

    complete(home)

    assert {path.name for path in home.local.iterdir()} == {"done", "lock"}


def test_a_failed_extract_leaves_nothing(home):
    with pytest.raises(RuntimeError, match="the log is away"), home.staging():
        raise RuntimeError("the log is away")

    assert begun(home) == []


def test_an_extract_in_progress_is_left_alone(home):
    with home.staging() as (mine, _):
        mine.replace("rows", b"some")
        with pytest.raises(ReconcileRefused, match="another run works in .*: wait until it has"):
            complete(home)
        assert mine.read("rows") == b"some"

    assert begun(home) == []
