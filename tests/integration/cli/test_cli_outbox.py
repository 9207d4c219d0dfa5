"""``txmq outbox``: operators and the rows of relays, in SQLite and in PostgreSQL."""

import json

import pytest
from sqlalchemy import create_engine, text

from txmq import Message, Outbox
from txmq.outbox.table import create_outbox


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request, tmp_path):
    """The URL of a database without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'shop.db'}"
        return
    with request.getfixturevalue("postgres").database() as url:
        yield url.render_as_string(hide_password=False)


@pytest.fixture
def database(empty):
    url = empty
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


def test_outbox_rows_are_listed_and_filtered(outbox):
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
    newest = json.loads(outbox("list", "--match", "c-1", "--sort", "-row", "--json"))
    assert [row["id"] for row in newest] == [2, 1]


def test_outbox_status_counts_waiting_blocked_and_put_aside_rows(outbox):
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
    printed = outbox("skip", "3", "--reason", "no such topic, T-4713", "--yes")

    assert printed == "row 3 is put aside; undo it with: txmq outbox retry 3\n"
    assert states(outbox) == {1: "waiting", 2: "waiting", 3: "put aside"}
    assert "no such topic, T-4713" in outbox("list", "--failed")
    assert "has no row 3 that waits" in outbox("skip", "3", "--reason", "x", "--yes", code=1)
    assert outbox("retry", "3") == "relays try 1 row again\n"
    assert states(outbox)[3] == "waiting"
    assert "has no row 1 that was put aside" in outbox("retry", "1", code=1)
    assert "--reason must not be empty" in outbox("skip", "1", "--reason", " ", code=2)


def test_a_database_without_an_outbox_says_how_to_create_one(txmq, empty):
    result = txmq("outbox", "list", "--database", empty)

    assert result.exit_code == 1
    assert "txmq schema create outbox" in result.stderr


def test_outbox_commands_work_in_a_named_schema(txmq, postgres):
    with postgres.database() as url:
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text("CREATE SCHEMA shop"))
        create_outbox(engine, schema="shop")
        with engine.begin() as connection:
            Outbox(schema="shop").add(connection, Message(topic="Orders", body=b"tea"))
        engine.dispose()
        where = ("--database", url.render_as_string(hide_password=False), "--schema", "shop")

        assert txmq("outbox", "skip", "1", "--reason", "test", "--yes", *where).exit_code == 0
        (row,) = json.loads(txmq("outbox", "list", "--json", *where).stdout)
        assert (row["state"], row["problem"]) == ("put aside", "test")
        assert txmq("outbox", "retry", "1", *where).stdout == "relays try 1 row again\n"
