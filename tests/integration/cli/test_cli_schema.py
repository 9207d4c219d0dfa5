"""``txmq schema`` against SQLite; against PostgreSQL its parts are tested with the resources."""

import sqlite3
import sys
from contextlib import closing

import pytest


@pytest.fixture
def database(tmp_path):
    return f"sqlite:///{tmp_path}/bank.db"


@pytest.fixture
def create(txmq, database):
    """Run ``txmq schema create ...`` on the database; returns what it printed."""

    def run(*words, code=0):
        result = txmq("schema", "create", *words, "--database", database)
        assert result.exit_code == code, result.output
        return result.stderr if code else result.stdout

    return run


@pytest.fixture
def sql(tmp_path):
    """Run SQL in the database; returns the rows of the last statement."""

    def run(*scripts):
        with closing(sqlite3.connect(tmp_path / "bank.db")) as connection:
            for script in scripts[:-1]:
                connection.executescript(script)
            rows = connection.execute(scripts[-1]).fetchall()
            connection.commit()
        return rows

    return run


@pytest.fixture
def tables(sql):
    return lambda: {name for (name,) in sql("SELECT name FROM sqlite_master")}


def test_create_makes_the_fence_once(txmq, create, database, tables):
    asynchronous = database.replace("sqlite:", "sqlite+aiosqlite:")

    assert "txmq_fence is created in sqlite:" in create()
    again = txmq("schema", "create", "--database", asynchronous)
    assert again.exit_code == 0, again.stderr
    assert "txmq_fence exists in sqlite:" in again.stdout
    assert {"txmq_fence", "txmq_fence_mark", "txmq_fence_created"} <= tables()


def test_create_completes_a_half_made_fence(create, sql):
    create()
    sql("DROP TABLE txmq_fence_mark")

    assert "is created" in create()


def test_create_refuses_a_fence_of_an_unknown_version(create, sql):
    create()
    sql("UPDATE txmq_fence_mark SET version = 7")

    assert "version 7" in create(code=1)


@pytest.mark.parametrize(("words", "table"), [((), "txmq_fence"), (("done",), "txmq_done")])
def test_the_printed_statements_make_the_same_tables_as_create(txmq, create, sql, words, table):
    sql(txmq("schema", "sql", *words, "--dialect", "sqlite").stdout, "SELECT 1")

    assert f"{table} exists in" in create(*words)


def test_create_makes_all_requested_tables(create, tables):
    first = create("done", "fence", "--done", "seen")

    assert "seen is created in sqlite:" in first
    assert "txmq_fence is created in sqlite:" in first
    assert "seen exists in sqlite:" in create("done", "--done", "seen")
    assert {"txmq_fence", "seen", "seen_time"} <= tables()


def test_clean_removes_old_rows_of_the_done_table(txmq, create, sql, database):
    create("done")
    now = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
    for key, days in (("old", 8), ("young", 6)):
        sql(f"INSERT INTO txmq_done VALUES ('s', '{key}', '', NULL, {now} - {days * 86_400_000})")

    cleaned = txmq("schema", "clean", "--older-than", "7d", "--database", database)

    assert cleaned.stdout == "1 row removed from txmq_done\n"
    assert sql("SELECT done_key FROM txmq_done") == [("young",)]


def test_clean_refuses_an_age_within_the_redelivery_horizon(txmq, create, database):
    create("done")
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


def test_create_at_an_unreachable_database_exits_1_and_hides_its_password(txmq):
    result = txmq("schema", "create", "--database", "postgresql://u:secret@127.0.0.1:1/none")

    assert result.exit_code == 1
    assert "could not be made" in result.stderr
    assert "secret" not in result.output


def test_create_makes_an_outbox(create, tables):
    assert "box is created in sqlite:" in create("outbox", "--outbox", "box")
    assert "box exists in sqlite:" in create("outbox", "--outbox", "box")
    assert {"box", "box_slot", "box_relay", "box_read"} <= tables()
    assert "txmq_fence" not in tables()


def test_create_names_missing_slots_of_an_outbox_made_by_the_printed_statements(txmq, create, sql):
    printed = txmq("schema", "sql", "outbox", "--dialect", "sqlite").stdout
    sql(printed, "DELETE FROM txmq_outbox_slot WHERE slot = 1")

    assert "63 rows, not 64" in create("outbox", code=1)


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
