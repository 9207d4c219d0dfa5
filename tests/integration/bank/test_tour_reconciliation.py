"""What the tour's reconciliation needs, what it writes, and how it reports a failed run."""

import asyncio
import io

from rich.console import Console

from examples.bank_transfer.tour.programs import Program
from examples.bank_transfer.tour.reconciliation import RULES, reconcile, written
from examples.bank_transfer.tour.world import World
from txmq.reconcile.rules_file import read_rules

JAVA_THAT_FAILS = """#!/bin/sh
[ "$1" = -version ] && echo 'openjdk version "17.0.1"' && exit 0
exit 1
"""


def left(directory, icbc="sqlite:///kept/icbc.db", ccb="sqlite:///kept/ccb.db"):
    """What a tour has left there."""
    idle = Program("idle", "idle", [], directory / "idle.log")
    return World("abc", icbc, ccb, "", idle, idle, idle, "", "", directory)


def reconciled(world):
    console = Console(file=io.StringIO(), width=80)
    return asyncio.run(reconcile(world, 1.0, console)), console.file.getvalue()


def test_without_java_one_sentence_says_so_and_nothing_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    agrees, said = reconciled(left(tmp_path))

    assert agrees is None
    assert said.startswith("the ledgers are not reconciled: Spark needs Java 17 or later")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_failed_reconciliation_does_not_agree(tmp_path, monkeypatch, capfd):
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA_THAT_FAILS)
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))

    agrees, _ = reconciled(left(tmp_path))

    assert agrees is False
    assert "txmq: " in capfd.readouterr().err


def test_rules_still_find_their_files_after_a_move(tmp_path):
    rules, variables = written(left(tmp_path))
    elsewhere = tmp_path / "elsewhere" / rules.name
    elsewhere.parent.mkdir()
    rules.rename(elsewhere)

    read = read_rules(elsewhere, variables)

    assert variables == {}
    assert [bank.database for bank in read.bank] == [
        f"sqlite:///{elsewhere.parent / name}" for name in ("icbc.db", "ccb.db")
    ]
    assert read.log.directory == str(elsewhere.parent / "broker")


def test_a_password_is_passed_in_a_variable_and_not_written(tmp_path):
    urls = [f"postgresql+psycopg://bank:secret@db/{name}" for name in ("icbc", "ccb")]

    rules, variables = written(left(tmp_path, *urls))

    assert "secret" not in rules.read_text()
    assert [bank.database for bank in read_rules(rules, variables).bank] == urls


def test_the_example_rules_can_be_read():
    databases = dict.fromkeys(("ICBC_DATABASE", "CCB_DATABASE"), "postgresql:///x")

    read = read_rules(RULES, {**databases, "BROKER_DATA": "data"})

    assert [bank.name for bank in read.bank] == ["icbc", "ccb"]
    assert read.day.grace_ms == 0
