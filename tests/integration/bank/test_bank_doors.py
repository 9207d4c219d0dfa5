"""Requests over IPv6, characters that a database refuses, and Ctrl-C."""

import signal
import subprocess
import sys
from http import HTTPStatus

import pytest

from tests.integration.bank.conftest import BankProcess
from tests.servers.serving import CHECKOUT, environment

NOTHING = "%00"
LISTENER = [sys.executable, "-u", "-m", "examples.bank_transfer.listener"]


@pytest.fixture
def ccb(stage, tmp_path, postgres):
    """A further CCB: on PostgreSQL, and on IPv6."""
    with postgres.database() as url:
        database = url.render_as_string(hide_password=False)
        made = BankProcess("ccb", tmp_path, stage.broker.names, database)
        made.address = made.address.replace("127.0.0.1", "[::1]")
        made.start()
        yield made
        made.close()


def test_a_bank_on_ipv6_answers_requests_with_null_characters(ccb, http):
    where = f"http://{ccb.address}"
    assert http.get(f"{where}/api/health").json() == {"state": "well"}

    assert http.get(f"{where}/teller?after={NOTHING}").status_code == HTTPStatus.OK
    switched = http.post(f"{where}/teller/accounts", data={"number": "\0", "wanted": "open"})
    assert switched.status_code == HTTPStatus.NOT_FOUND
    assert http.get(f"{where}/api/accounts/{NOTHING}").status_code == HTTPStatus.NOT_FOUND
    assert http.get(f"{where}/api/transfers/{NOTHING}").status_code == HTTPStatus.NOT_FOUND


def test_ctrl_c_ends_the_listener_without_a_traceback(stage):
    arguments = ["--database", stage.icbc.database, "--names", stage.broker.names]
    with subprocess.Popen(
        [*LISTENER, *arguments, "--tags", "TAGC", "--payer", "ICBC-001", "--payee", "CCB-001"],
        cwd=CHECKOUT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        try:
            assert any("waiting to be asked" in line for line in running.stdout)
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=20)
        finally:
            running.kill()

    assert running.returncode == 130
    assert said == ""
