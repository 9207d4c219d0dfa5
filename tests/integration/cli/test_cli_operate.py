"""The commands of operators against one real broker."""

import json

import pytest

from txmq_broker.testing import BrokerThread


@pytest.fixture(scope="module")
def broker():
    with BrokerThread() as running:
        yield running


@pytest.fixture
def run(txmq, broker):
    """Run a command at the broker; returns what it printed, or its complaint."""

    def ask(*words, code=0, **more):
        result = txmq(*words, "--names", broker.names, **more)
        assert result.exit_code == code, result.output
        return result.stderr if code else result.stdout

    return ask


@pytest.fixture
def rows(run):
    return lambda *words: json.loads(run(*words, "--json"))


@pytest.fixture
def rounds(monkeypatch):
    """End each --watch with Ctrl-C after so many rounds, and let none of them pause."""

    def end_after(count):
        pauses = []

        def pause(seconds):
            pauses.append(seconds)
            if len(pauses) == count:
                raise KeyboardInterrupt

        monkeypatch.setattr("time.sleep", pause)
        return pauses

    return end_after


# Brokers


def test_a_broker_shows_what_it_does(run, rows):
    run("topic", "create", "Figures", "--queues", 1)
    run("message", "send", "Figures", "x")

    shown = run("broker", "status")
    (found,) = rows("broker", "status")

    assert "messages in today" in shown
    assert "open transactions" in shown
    assert found["broker"] == "broker-a"
    assert int(found["figures"]["msgPutTotalTodayNow"]) > 0
    assert "putMessageTimesTotal" in run("broker", "status", "--all")
    assert "broker 'broker-b' is unknown" in run("broker", "status", "--broker", "broker-b", code=2)


def test_a_watch_goes_on_until_it_is_interrupted(run, rounds):
    pauses = rounds(3)
    lines = run("broker", "status", "--watch", "--every", "5s", "--json").splitlines()

    assert [json.loads(line)[0]["broker"] for line in lines] == ["broker-a"] * 3
    assert pauses == [5.0] * 3
    assert "not 'soon'" in run("broker", "status", "--watch", "--every", "soon", code=2)
    assert "50ms or more" in run("broker", "status", "--watch", "--every", "0", code=2)


def test_a_watch_outlives_a_broker_that_is_away(txmq, broker, rounds):
    rounds(2)
    result = txmq("broker", "status", "--watch", "--names", "127.0.0.1:1")

    assert result.exit_code == 0
    assert result.stderr.count("start a broker with: txmq serve") == 2


def test_settings_are_read_and_changed(run, rows):
    assert rows("broker", "config", "get", "deleteWhen") == [
        {"broker": "broker-a", "setting": "deleteWhen", "value": "04"}
    ]
    assert run("broker", "config", "set", "deleteWhen", "05") == "deleteWhen is 05 at broker-a\n"
    assert rows("broker", "config", "get", "deleteWhen")[0]["value"] == "05"

    refused = run("broker", "config", "set", "brokerIP1", "10.0.0.5", code=1)
    assert "brokerIP1 cannot be changed while this broker runs" in refused
    assert "change the others in the broker's file, and restart it" in refused
    assert "cannot be 'soon'" in run("broker", "config", "set", "deleteWhen", "soon", code=1)
    unknown = run("broker", "config", "get", "deleteWen", code=1)
    assert "the nearest name is 'deleteWhen'" in unknown
    assert "or write --all" in run("broker", "config", "get", code=2)


def test_a_list_matches_sorts_and_pages(run, rows):
    every = ("broker", "config", "get", "--all")
    hours = rows(*every, "--match", "reservedtime")
    sizes = [row["value"] for row in rows(*every, "--match", "DISK", "--sort", "-value")]

    assert [row["setting"] for row in hours] == ["fileReservedTime"]
    assert [int(size) for size in sizes if size.isdecimal()] == [90, 85, 75]
    assert len(rows(*every, "--limit", 4, "--page", 2)) == 4
    assert rows(*every)[4:8] == rows(*every, "--limit", 4, "--page", 2)
    assert "page 2 of" in run(*every, "--limit", 4, "--page", 2)
    assert run(*every, "--match", "no such text") == "no row matches\n"
    assert "no column 'valve'; the nearest name is 'value'" in run(
        *every, "--sort", "valve", code=2
    )
