"""``txmq outbox``: an operator and the rows that relays work on, in SQLite."""

import json

import pytest
from sqlalchemy import create_engine, text

from txmq import Message, Outbox
from txmq.outbox.schema import create_outbox


@pytest.fixture
def database(tmp_path):
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = create_engine(url)
    create_outbox(engine)
    outbox = Outbox()
    with engine.begin() as connection:
        for body in (b"tea", b"\xff"):
            outbox.add(connection, Message(topic="Orders", body=body, keys=("17",)), lane="c-1")
        outbox.add(connection, Message(topic="Nosuch", body=b"x"))
        connection.execute(text("UPDATE txmq_outbox SET problem = 'TopicNotFound' WHERE id = 3"))
    engine.dispose()
    return url


@pytest.fixture
def outbox(txmq, database):
    def run(*words, code=0):
        result = txmq("outbox", *words, "--database", database)
        assert result.exit_code == code, result.output
        return result.stderr if code else result.stdout

    return run


def states(outbox):
    return {row["id"]: row["state"] for row in json.loads(outbox("list", "--json"))}


def test_the_rows_are_listed(outbox):
    rows = json.loads(outbox("list", "--json"))

    assert [(row["id"], row["lane"], row["state"]) for row in rows] == [
        (1, "c-1", "waiting"),
        (2, "c-1", "waiting"),
        (3, None, "blocked"),
    ]
    assert [row["id"] for row in json.loads(outbox("list", "--failed", "--json"))] == [3]
    assert [row["id"] for row in json.loads(outbox("list", "--lane", "c-1", "--json"))] == [1, 2]
    assert "the next ones: --after 2" in outbox("list", "--limit", "2")
    assert outbox("list", "--after", "3") == "no rows\n"


def test_the_lag_is_shown(outbox):
    shown = json.loads(outbox("status", "--json"))
    numbers = [shown[name] for name in ("waiting", "blocked", "blocked_lanes", "put_aside")]
    assert numbers == [3, 1, 0, 0]
    outbox("skip", "1", "--reason", "x", "--yes")
    assert json.loads(outbox("status", "--json"))["put_aside"] == 1
    assert "1 row, 0 lanes" in outbox("status")


def test_a_row_is_shown_with_its_message(outbox):
    assert json.loads(outbox("show", "1", "--json"))["body"] == "tea"
    assert json.loads(outbox("show", "2", "--json"))["body_base64"] == "/w=="
    assert "TopicNotFound" in outbox("show", "3")
    assert "has no row 9; list the rows with: txmq outbox list" in outbox("show", "9", code=1)


def test_a_row_is_put_aside_and_tried_again(outbox):
    said = outbox("skip", "3", "--reason", "no such topic, T-4713", "--yes")

    assert said == "row 3 is put aside; undo it with: txmq outbox retry 3\n"
    assert states(outbox) == {1: "waiting", 2: "waiting", 3: "put aside"}
    assert "no such topic, T-4713" in outbox("list", "--failed")
    assert "has no row 3 that waits" in outbox("skip", "3", "--reason", "x", "--yes", code=1)
    assert outbox("retry", "3") == "relays try 1 row again\n"
    assert states(outbox)[3] == "waiting"
    assert "has no row 1 that was put aside" in outbox("retry", "1", code=1)
    assert "--reason must not be empty" in outbox("skip", "1", "--reason", " ", code=2)


def test_a_database_without_an_outbox_says_how_to_create_one(txmq, tmp_path):
    result = txmq("outbox", "list", "--database", f"sqlite:///{tmp_path / 'empty.db'}")

    assert result.exit_code == 1
    assert "txmq schema create outbox" in result.stderr
