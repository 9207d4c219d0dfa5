"""What an extract leaves behind that does not come to its end."""

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.extracts import DAY, bank_of, book, no_log, rules_of, taken
from txmq.reconcile.extract.extraction import extract_day

ROOT = Path(__file__).parents[2]
DYING = """
import os, signal, sys
import msgspec
from tests.extracts import DAY
from txmq.reconcile.extract.extraction import extract_day
from txmq.reconcile.rules import Rules
rules = msgspec.json.decode(sys.argv[1], type=Rules)
extract_day(rules, DAY, take_log=lambda *_: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.fixture
def rules(tmp_path):
    with book("sqlite", None, tmp_path) as bank:
        bank.journal([{"amount": -1}, {"amount": 1, "id": 2}])
        yield rules_of(tmp_path, bank_of(bank))


def begun(rules):
    """Extracts that have no name yet."""
    return list(Path(rules.directory, "extracts", DAY.isoformat()).glob(".*.writing"))


def test_what_a_killed_one_has_left_goes_with_the_next(rules):
    command = [sys.executable, "-c", DYING, msgspec.json.encode(rules)]
    died = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    (left,) = begun(rules)
    assert list(left.rglob("*.parquet"))

    manifest, folder = taken(rules)

    assert begun(rules) == []
    assert {path.name for path in folder.parent.iterdir()} == {manifest.extract_id}


def test_what_cannot_be_opened_is_in_nobodys_way(rules):
    taken(rules)
    odd = Path(rules.directory, "extracts", DAY.isoformat(), ".txmq-odd.writing")
    odd.symlink_to(odd)

    taken(rules)

    assert begun(rules) == [odd]


def test_one_that_fails_leaves_nothing(rules):
    def fail(*_):
        raise RuntimeError("the log is away")

    with pytest.raises(RuntimeError, match="the log is away"):
        extract_day(rules, DAY, take_log=fail)

    assert begun(rules) == []


def test_one_that_is_under_way_is_left_alone(rules):
    def while_another_runs(*asked):
        (mine,) = begun(rules)
        other, _ = taken(rules)
        assert begun(rules) == [mine]
        assert list(mine.rglob("*.parquet"))
        others.append(other)
        return no_log(*asked)

    others = []
    manifest = extract_day(rules, DAY, take_log=while_another_runs)

    assert others == [manifest]
    assert begun(rules) == []
