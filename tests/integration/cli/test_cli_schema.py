"""``txmq schema`` against SQLite; against PostgreSQL its parts are tested with the resources."""

import sqlite3
import sys

import pytest


@pytest.fixture
def database(tmp_path):
    return f"sqlite:///{tmp_path}/bank.db"


def tables(tmp_path):
    connection = sqlite3.connect(tmp_path / "bank.db")
    found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    return found


def test_create_makes_the_fence_once(txmq, database, tmp_path):
    first = txmq("schema", "create", "--database", database)
    second = txmq(
        "schema", "create", "--database", database.replace("sqlite:", "sqlite+aiosqlite:")
    )

    assert (first.exit_code, second.exit_code) == (0, 0), first.stderr + second.stderr
    assert "txmq_fence is created in sqlite:" in first.stdout
    assert "txmq_fence exists in sqlite:" in second.stdout
    assert {"txmq_fence", "txmq_fence_mark", "txmq_fence_created"} <= tables(tmp_path)


def test_create_completes_a_half_made_fence(txmq, database, tmp_path):
    assert txmq("schema", "create", "--database", database).exit_code == 0
    connection = sqlite3.connect(tmp_path / "bank.db")
    connection.execute("DROP TABLE txmq_fence_mark")
    connection.close()

    assert "is created" in txmq("schema", "create", "--database", database).stdout


def test_create_says_why_a_fence_cannot_be_used(txmq, database, tmp_path):
    assert txmq("schema", "create", "--database", database).exit_code == 0
    connection = sqlite3.connect(tmp_path / "bank.db")
    connection.execute("UPDATE txmq_fence_mark SET version = 7")
    connection.commit()
    connection.close()

    result = txmq("schema", "create", "--database", database)

    assert result.exit_code == 1
    assert "version 7" in result.stderr


def test_the_statements_make_the_same_tables(txmq, database, tmp_path):
    printed = txmq("schema", "sql", "--dialect", "sqlite").stdout
    connection = sqlite3.connect(tmp_path / "bank.db")
    connection.executescript(printed)
    connection.close()

    assert " exists in" in txmq("schema", "create", "--database", database).stdout


def test_create_makes_what_is_asked_for(txmq, database, tmp_path):
    first = txmq("schema", "create", "done", "fence", "--done", "seen", "--database", database)
    second = txmq("schema", "create", "done", "--done", "seen", "--database", database)

    assert (first.exit_code, second.exit_code) == (0, 0), first.stderr + second.stderr
    assert "seen is created in sqlite:" in first.stdout
    assert "txmq_fence is created in sqlite:" in first.stdout
    assert "seen exists in sqlite:" in second.stdout
    assert {"txmq_fence", "seen", "seen_time"} <= tables(tmp_path)


def test_the_statements_of_what_is_done_make_it(txmq, database, tmp_path):
    printed = txmq("schema", "sql", "done", "--dialect", "sqlite").stdout
    connection = sqlite3.connect(tmp_path / "bank.db")
    connection.executescript(printed)
    connection.close()

    made = txmq("schema", "create", "done", "--database", database)

    assert "txmq_done exists" in made.stdout


def test_what_was_done_long_ago_is_cleaned(txmq, database, tmp_path):
    assert txmq("schema", "create", "done", "--database", database).exit_code == 0
    connection = sqlite3.connect(tmp_path / "bank.db")
    now = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
    for key, days in (("old", 8), ("young", 6)):
        connection.execute(
            f"INSERT INTO txmq_done VALUES ('s', '{key}', '', NULL, {now} - {days * 86_400_000})"
        )
    connection.commit()

    cleaned = txmq("schema", "clean", "--older-than", "7d", "--database", database)

    assert cleaned.stdout == "1 row removed from txmq_done\n"
    assert connection.execute("SELECT done_key FROM txmq_done").fetchall() == [("young",)]
    connection.close()


def test_but_not_what_can_come_again(txmq, database):
    assert txmq("schema", "create", "done", "--database", database).exit_code == 0
    command = ["schema", "clean", "--older-than", "3d", "--database", database]

    refused, known = txmq(*command), txmq(*command, "--horizon", "2d")

    assert (refused.exit_code, known.exit_code) == (2, 0)
    assert "still needed" in refused.stderr


def test_cleaning_what_is_not_there_says_how_to_make_it(txmq, database):
    refused = txmq("schema", "clean", "--older-than", "7d", "--database", database)

    assert refused.exit_code == 1
    assert "txmq schema create done" in refused.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["clean", "--older-than", "long", "--database", "sqlite://"], "such as 20s"),
        (["create", "--database", "bank"], "such as postgresql://user@host/database"),
        (["create", "--database", "oracle://x"], "oracle"),
        (["create", "--database", "mysql+missing://x"], ""),
        (["sql", "--dialect", "oracle"], "oracle"),
        (["sql", "--dialect", "sqlite", "--fence", "a b"], "not a plain name"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(txmq, words, complaint):
    result = txmq("schema", *words)

    assert result.exit_code == 2, result.output
    assert complaint in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_database_that_is_not_there(txmq):
    result = txmq("schema", "create", "--database", "postgresql://nobody@127.0.0.1:1/none")

    assert result.exit_code == 1
    assert "could not be made" in result.stderr


def test_a_password_is_not_shown(txmq):
    url = "postgresql://u:secret@127.0.0.1:1/none"

    assert "secret" not in txmq("schema", "create", "--database", url).output


def test_create_makes_an_outbox(txmq, database, tmp_path):
    first = txmq("schema", "create", "outbox", "--database", database, "--outbox", "box")
    second = txmq("schema", "create", "outbox", "--database", database, "--outbox", "box")

    assert "box is created in sqlite:" in first.stdout, first.stderr
    assert "box exists in sqlite:" in second.stdout
    assert {"box", "box_slot", "box_relay", "box_read"} <= tables(tmp_path)
    assert "txmq_fence" not in tables(tmp_path)


def test_the_statements_of_an_outbox_make_it(txmq, database, tmp_path):
    printed = txmq("schema", "sql", "outbox", "--dialect", "sqlite").stdout
    connection = sqlite3.connect(tmp_path / "bank.db")
    connection.executescript(printed)
    connection.execute("DELETE FROM txmq_outbox_slot WHERE slot = 1")
    connection.commit()
    connection.close()

    result = txmq("schema", "create", "outbox", "--database", database)

    assert result.exit_code == 1
    assert "63 rows, not 64" in result.stderr


BETTER = "pip install mysqlclient, or pip install pymysql and write mysql+pymysql://"


@pytest.mark.parametrize(
    ("scheme", "driver", "install"),
    [("mysql", "MySQLdb", BETTER), ("mysql+pymysql", "pymysql", "pip install pymysql")],
)
def test_a_missing_driver_is_named_with_its_package(txmq, monkeypatch, scheme, driver, install):
    monkeypatch.setitem(sys.modules, driver, None)

    found = txmq("schema", "create", "--database", f"{scheme}://user@host/bank")

    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr == f"txmq: the database's driver {driver} is not installed: {install}\n"
