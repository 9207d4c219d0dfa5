"""Programs that were started in the background still react to Ctrl-C."""

import signal
import subprocess
import sys

import pytest

import txmq.cli
from examples.bank_transfer import __main__ as bank
from examples.bank_transfer import listener
from examples.rocketmq_tour import program as tour
from tests.servers.serving import CHECKOUT, environment


async def nothing(names):
    pass


MAINS = {
    "txmq": txmq.cli.main,
    "bank": bank.main,
    "listener": listener.main,
    "tour": lambda: tour.run_producer(nothing),
}


@pytest.fixture
def ignored():
    """Ignore SIGINT, as in a program that a script started with &."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", MAINS)
def test_a_program_started_in_the_background_accepts_sigint(ignored, monkeypatch, name):
    monkeypatch.setattr(sys, "argv", [name, "--help"])

    with pytest.raises(SystemExit):
        MAINS[name]()

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_installed_sigint_handler_is_kept(monkeypatch):
    before = signal.signal(signal.SIGINT, lambda *_: None)
    mine = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "argv", ["txmq", "--help"])
    try:
        with pytest.raises(SystemExit):
            txmq.cli.main()
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)


def test_programs_that_tests_start_accept_sigint_and_sigquit(ignored):
    child = (
        "import signal, subprocess, sys; import tests.conftest\n"
        "shown = 'import signal; print(signal.SIG_IGN in map(signal.getsignal, (2, 3)))'\n"
        "subprocess.run([sys.executable, '-c', shown], check=True)"
    )
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    try:
        done = subprocess.run(
            [sys.executable, "-c", child],
            env=environment(), cwd=CHECKOUT, capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGQUIT, before)

    assert (done.stdout, done.stderr) == ("False\n", "")
