"""``txmq schema`` against SQLite; against PostgreSQL its parts are tested with the resources."""

import sqlite3
import sys

import pytest


@pytest.fixture
def database(tmp_path):
    return f"sqlite:///{tmp_path}/bank.db"


def tables(tmp_path):
    connection = sqlite3.connect(tmp_path / "bank.db")
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    return names


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


def test_create_refuses_a_fence_of_an_unknown_version(txmq, database, tmp_path):
    assert txmq("schema", "create", "--database", database).exit_code == 0
    connection = sqlite3.connect(tmp_path / "bank.db")
    connection.execute("UPDATE txmq_fence_mark SET version = 7")
    connection.commit()
    connection.close()

    result = txmq("schema", "create", "--database", database)

    assert result.exit_code == 1
    assert "version 7" in result.stderr


def test_the_printed_fence_statements_make_the_same_tables_as_create(txmq, database, tmp_path):
    printed = txmq("schema", "sql", "--dialect", "sqlite").stdout
    connection = sqlite3.connect(tmp_path / "bank.db")
    connection.executescript(printed)
    connection.close()

    assert " exists in" in txmq("schema", "create", "--database", database).stdout


def test_create_makes_all_requested_tables(txmq, database, tmp_path):
    first = txmq("schema", "create", "done", "fence", "--done", "seen", "--database", database)
    second = txmq("schema", "create", "done", "--done", "seen", "--database", database)

    assert (first.exit_code, second.exit_code) == (0, 0), first.stderr + second.stderr
    assert "seen is created in sqlite:" in first.stdout
    assert "txmq_fence is created in sqlite:" in first.stdout
    assert "seen exists in sqlite:" in second.stdout
    assert {"txmq_fence", "seen", "seen_time"} <= tables(tmp_path)


def test_the_printed_statements_create_the_done_table(txmq, database, tmp_path):
    printed = txmq("schema", "sql", "done", "--dialect", "sqlite").stdout
    connection = sqlite3.connect(tmp_path / "bank.db")
    connection.executescript(printed)
    connection.close()

    made = txmq("schema", "create", "done", "--database", database)

    assert "txmq_done exists" in made.stdout


def test_clean_removes_old_rows_of_the_done_table(txmq, database, tmp_path):
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


def test_clean_refuses_an_age_within_the_redelivery_horizon(txmq, database):
    assert txmq("schema", "create", "done", "--database", database).exit_code == 0
    command = ["schema", "clean", "--older-than", "3d", "--database", database]

    refused, known = txmq(*command), txmq(*command, "--horizon", "2d")

    assert (refused.exit_code, known.exit_code) == (2, 0)
    assert "still needed" in refused.stderr


def test_clean_without_a_done_table_says_how_to_create_it(txmq, database):
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
def test_invalid_schema_options_are_refused_in_one_line(txmq, words, complaint):
    result = txmq("schema", *words)

    assert result.exit_code == 2, result.output
    assert complaint in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_create_at_an_unreachable_database_exits_1(txmq):
    result = txmq("schema", "create", "--database", "postgresql://nobody@127.0.0.1:1/none")

    assert result.exit_code == 1
    assert "could not be made" in result.stderr


def test_errors_do_not_show_the_database_password(txmq):
    url = "postgresql://u:secret@127.0.0.1:1/none"

    assert "secret" not in txmq("schema", "create", "--database", url).output


def test_create_makes_an_outbox(txmq, database, tmp_path):
    first = txmq("schema", "create", "outbox", "--database", database, "--outbox", "box")
    second = txmq("schema", "create", "outbox", "--database", database, "--outbox", "box")

    assert "box is created in sqlite:" in first.stdout, first.stderr
    assert "box exists in sqlite:" in second.stdout
    assert {"box", "box_slot", "box_relay", "box_read"} <= tables(tmp_path)
    assert "txmq_fence" not in tables(tmp_path)


def test_create_names_missing_slots_of_an_outbox_made_by_the_printed_statements(
    txmq, database, tmp_path
):
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

    result = txmq("schema", "create", "--database", f"{scheme}://user@host/bank")

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"txmq: the database's driver {driver} is not installed: {install}\n"
