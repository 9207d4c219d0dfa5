"""Sessions of visitors: unpredictable, bounded, and ended in time."""

from txmq.console import sessions
from txmq.console.sessions import (
    FAILURES_MAX,
    PERIOD_S,
    SESSION_S,
    UNUSED_S,
    LoginAttempts,
    SessionTable,
)
from txmq.runtime.entropy import SystemEntropy
from txmq.security.signatures import Credentials

ANN = Credentials(access_key="ann-key", secret_key="ann-secret")


def test_a_session_is_found_only_by_its_id():
    table = SessionTable(SystemEntropy())
    session = table.open(ANN, "ann", 0)

    assert table.find(session.id, 1) is session
    assert table.find(session.token, 1) is None
    assert table.find("", 1) is None
    assert len({session.id, session.token}) == 2
    assert min(len(session.id), len(session.token)) == 64


def test_the_repr_of_a_session_hides_id_token_and_secret():
    session = SessionTable(SystemEntropy()).open(ANN, "ann", 0)

    shown = repr(session)
    assert session.id not in shown
    assert session.token not in shown
    assert "ann-secret" not in shown


def test_an_unused_session_expires_even_if_its_page_polls():
    table = SessionTable(SystemEntropy())
    used, polled = table.open(ANN, "ann", 0), table.open(ANN, "ann", 0)

    assert table.find(used.id, UNUSED_S - 1) is used
    assert table.find(polled.id, UNUSED_S - 1, is_poll=True) is polled

    assert table.find(used.id, UNUSED_S + 1) is used
    assert table.find(polled.id, UNUSED_S + 1) is None


def test_a_session_in_use_expires_after_half_a_day():
    table = SessionTable(SystemEntropy())
    session = table.open(ANN, "ann", 0)
    at_s = 0.0
    while at_s + UNUSED_S / 2 < SESSION_S:
        at_s += UNUSED_S / 2
        assert table.find(session.id, at_s) is session

    assert table.find(session.id, SESSION_S) is None
    table.expire(SESSION_S)
    assert (len(table), table.accounts()) == (0, set())


def test_too_many_sessions_end_the_one_unused_for_longest(monkeypatch):
    monkeypatch.setattr(sessions, "CONSOLE_SESSIONS_MAX", 2)
    table = SessionTable(SystemEntropy())
    first, second = table.open(None, "a", 0), table.open(None, "b", 1)
    table.find(first.id, 2)

    third = table.open(None, "c", 3)

    assert len(table) == 2
    assert table.find(second.id, 3) is None
    assert table.find(first.id, 3) is first
    assert table.find(third.id, 3) is third


def test_too_many_failed_logins_block_only_their_address_for_a_while():
    attempts = LoginAttempts()
    for at_s in range(FAILURES_MAX):
        assert attempts.is_allowed("10.0.0.1", at_s)
        attempts.note_failure("10.0.0.1", at_s)

    assert not attempts.is_allowed("10.0.0.1", FAILURES_MAX)
    assert attempts.is_allowed("10.0.0.2", FAILURES_MAX)
    assert attempts.is_allowed("10.0.0.1", FAILURES_MAX + PERIOD_S)
