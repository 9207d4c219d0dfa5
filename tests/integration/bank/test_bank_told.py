"""Command lines that cannot be carried out: one sentence says why, without a traceback."""

import asyncio
import sys

import pytest

from examples.bank_transfer import accounts
from examples.bank_transfer.__main__ import CANNOT_RUN, main
from examples.bank_transfer.tour.programs import NotStarted, Program
from examples.bank_transfer.tour.run import first

NOBODY = "redis://127.0.0.1:1/0"


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            ["icbc", "--database", "icbc.db"],
            "the URL is not one of a database; write postgresql://",
        ),
        (["icbc", "--database", "mysql://a/b"], "PostgreSQL or SQLite, not in mysql"),
        (["icbc", "--database", "sqlite:///nowhere/b.db", "--ccb", "sqlite://"], "by XA need"),
        (["--postgres", "banks"], "is not one of a database"),
        (["--redis", "banks"], "is not one of a Redis; write one like redis://"),
        (["--redis", NOBODY], "no Redis answers: "),
        (["--way", "xa"], "give --postgres URL"),
        (["--transfers", "0"], "transfers is at least 1"),
    ],
)
def test_arguments_that_cannot_run_are_refused_in_one_line(told, words, capsys):
    assert main(told) == CANNOT_RUN

    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_an_unknown_way_is_refused_with_the_known_ways(capsys):
    with pytest.raises(SystemExit):
        main(["--way", "letter"])

    assert "(choose from 'half', 'outbox', 'xa')" in capsys.readouterr().err


def open_accounts(monkeypatch, database, *named):
    monkeypatch.setattr(sys, "argv", ["accounts", "--database", database, *named])
    accounts.main()


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (["ICBC-A"], "write NUMBER=AMOUNT"),
        (["ICBC-A="], "is not an amount; write one like 10,000.00"),
        (["icbc-a=1"], "is not an account number"),
        (["capital=1"], "is not an account number"),
        (["=1"], "is not an account number"),
        (["ICBC-A=1", "ICBC-A=2"], "named twice"),
    ],
)
def test_an_invalid_account_is_not_opened(monkeypatch, tmp_path, named, words):
    with pytest.raises(SystemExit) as ended:
        open_accounts(monkeypatch, f"sqlite:///{tmp_path / 'icbc.db'}", *named)

    assert str(ended.value).startswith("no account was opened: ")
    assert words in str(ended.value)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_account_stays_as_it_is(monkeypatch, tmp_path, capsys):
    database = f"sqlite:///{tmp_path / 'icbc.db'}"

    open_accounts(monkeypatch, database, "ICBC-A=1")
    open_accounts(monkeypatch, database, "ICBC-A=2", "ICBC-B=3")

    assert capsys.readouterr().out.splitlines() == [
        "opened ICBC-A with 1.00 CNY",
        "ICBC-A exists already, and stays as it is",
        "opened ICBC-B with 3.00 CNY",
    ]


def test_the_first_error_is_found_in_nested_exception_groups():
    wrong = NotStarted("the broker is not ready")

    assert first(ExceptionGroup("", [ExceptionGroup("", [wrong]), ValueError()])) is wrong
    assert first(wrong) is wrong


def test_a_program_that_ends_at_once_says_why(tmp_path, caplog):
    log = tmp_path / "log"
    program = Program("ICBC", "examples.bank_transfer", ["icbc", "--database", "none"], log)

    with pytest.raises(NotStarted, match="ICBC is not ready: icbc cannot run: the URL is not one"):
        asyncio.run(program.start())

    assert not program.is_running
    assert caplog.records == []  # Nobody waited twice for the same process.
