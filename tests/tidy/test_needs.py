"""What the suite needs is one list, checked before the first test and shown in CONTRIBUTING.md."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import browser, conftest, needs
from tests.packages import Unprepared

ROOT = Path(__file__).resolve().parents[2]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"


def lacking(reason):
    def see():
        raise Unprepared(reason)

    return see


def test_the_page_for_contributors_shows_the_list():
    assert needs.table() in CONTRIBUTING.read_text(), (
        "put this into CONTRIBUTING.md: python -c 'from tests import needs; print(needs.table())'"
    )


def test_everything_that_is_missing_is_one_message_with_one_command():
    message = needs.missing(
        [
            needs.Need("Java", "Spark", "openjdk", "stops", lacking("there is none")),
            needs.Need("Redis", "guards", "redis-server", "stops", lambda: None),
            needs.Need("a client", "interop", "", "stops", lacking("npm cannot be reached")),
            needs.Need("Chromium", "pages", "chromium", "stops", lacking("it does not start")),
        ]
    )

    assert message.splitlines() == [
        "the tests need what this machine does not have:",
        "  Java, for Spark: there is none",
        "  a client, for interop: npm cannot be reached",
        "  Chromium, for pages: it does not start",
        "on Debian and Ubuntu, run as root:",
        "  apt-get update && apt-get install -y openjdk chromium",
    ]


def test_a_machine_that_has_everything_gets_no_message():
    assert needs.missing([needs.Need("Java", "Spark", "openjdk", "stops", lambda: None)]) == ""


def session(*arguments, **options):
    chosen = {"keyword": "", "markexpr": "", "collectonly": False, **options}
    asked = SimpleNamespace(dir=ROOT)
    config = SimpleNamespace(
        args=arguments, invocation_params=asked, option=SimpleNamespace(**chosen)
    )
    return SimpleNamespace(config=config)


@pytest.mark.parametrize("argument", ["tests", "tests/", ".", str(ROOT)])
def test_a_run_of_the_whole_suite_stops_before_its_first_test(monkeypatch, argument):
    monkeypatch.setattr(needs, "missing", lambda: "no Java")

    with pytest.raises(pytest.UsageError, match="no Java"):
        conftest.pytest_sessionstart(session(argument))


@pytest.mark.parametrize(
    "part",
    [
        session("tests/unit"),
        session("tests", keyword="names"),
        session("tests", markexpr="not slow"),
        session("tests", collectonly=True),
    ],
)
def test_a_run_of_a_part_checks_nothing(monkeypatch, part):
    monkeypatch.setattr(needs, "missing", lacking("nobody asks"))

    conftest.pytest_sessionstart(part)


# How Chromium is installed


@pytest.fixture
def root(monkeypatch, tmp_path):
    """A machine on which apt-get would be allowed to install."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "apt-get").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(browser, "is_on_a_terminal", lambda: False)


def programs():
    return [commands[-1][0] for commands in browser.installers()]


def test_without_a_terminal_no_system_package_is_installed_and_nobody_is_asked(root):
    assert programs() == [sys.executable]


@pytest.mark.parametrize("ci", ["1", "true"])
def test_in_ci_system_packages_are_installed_without_a_question(root, monkeypatch, ci):
    monkeypatch.setenv("CI", ci)

    assert programs() == ["apt-get", sys.executable]


@pytest.mark.parametrize(
    ("answer", "wanted"), [("y", ["apt-get"]), ("YES ", ["apt-get"]), ("", []), ("n", [])]
)
def test_on_a_terminal_a_yes_is_needed(root, monkeypatch, capsys, answer, wanted):
    monkeypatch.setattr(browser, "is_on_a_terminal", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: answer)

    assert programs() == [*wanted, sys.executable]
    assert "apt-get install -y -qq --no-install-recommends chromium" in capsys.readouterr().out


def test_a_program_in_the_background_does_not_read_its_terminal(monkeypatch):
    leader, terminal = os.openpty()
    try:
        with open(terminal, closefd=False) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())
            assert browser.is_on_a_terminal()
            monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp() + 1)
            assert not browser.is_on_a_terminal()
    finally:
        os.close(leader)
        os.close(terminal)


def test_a_chromium_that_does_not_start_is_named(monkeypatch, tmp_path):
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\necho 'cannot open libnss3.so' >&2\nexit 127\n")
    program.chmod(0o755)
    monkeypatch.setenv("TXMQ_TEST_CHROMIUM", str(program))

    with pytest.raises(Unprepared, match=r"does not start: cannot open libnss3\.so"):
        browser.working()
