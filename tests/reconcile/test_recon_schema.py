"""Results in a database: runs are whole or absent, and the current one of a day is marked."""

import sqlite3
from contextlib import closing
from datetime import date

import pytest
from msgspec.structs import replace
from sqlalchemy import create_engine, inspect, select, text

from tests.reconcile import breaks
from tests.reconcile.test_rules import RULES
from txmq.errors import ConfigError, DatabaseFailed
from txmq.reconcile.results import Results
from txmq.reconcile.rules import Recon
from txmq.reconcile.rules_file import read_rules
from txmq.reconcile.schema import ReconSchema
from txmq.reconcile.summary import Proof

DAY = date(2026, 11, 20)
NAMES = {"runs", "items", "proofs", "totals", "signoffs"}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'recon.db'}"
        return
    server = request.getfixturevalue("postgres")
    with server.database() as database:
        yield database.render_as_string(hide_password=False)


@pytest.fixture
def schema(url):
    opened = ReconSchema(Recon(url))
    yield opened
    opened.close()


@pytest.fixture
def engine(url):
    opened = create_engine(url)
    yield opened
    opened.dispose()


@pytest.fixture
def rows(engine):
    """Reads the rows of a table."""

    def rows(table, *columns):
        chosen = [table.c[column] for column in columns] or [table]
        with engine.connect() as connection:
            found = connection.execute(select(*chosen).order_by(*table.primary_key.columns))
            return [tuple(item) for item in found]

    return rows


def row(number, **changes):
    facts = breaks.transfer(f"icbc/{number}", "parked")
    life = {
        "break_id": f"{number:016x}", "was": None, "status": "new", "first_seen": "2026-11-20",
        "age_days": 0, "bucket": "0", "history": "", "explained_by": None, "explanation": None,
    }  # fmt: skip
    return facts | life | changes


def test_a_run_is_written_with_its_items_proofs_and_totals(schema, rows):
    plain = breaks.run(DAY, parked=2)
    proof = Proof(
        "conservation", None, None, "CNY", 2**40, 2**40 + 3, False, "what is in transit",
        first_seen="2026-11-19", is_open=True, by_items=1, by_person=1, explained_by="Ann",
        explanation="a fee", until="2026-11-30",
    )  # fmt: skip
    result = replace(plain.result, proofs=(proof,), why=("two", "sentences"))
    run = replace(plain, result=result, result_digest=result.digest)

    keys = ["icbc/0", "icbc/1", "icbc/2"]
    schema.write(run, iter(breaks.items(dict.fromkeys(keys, "parked"), DAY).to_pylist()))

    about = ("run_id", "is_current", "why", "transfers", "breaks", "match_rate", "result_digest")
    expected = (run.run_id, True, "two\nsentences", 12, 2, pytest.approx(10 / 12), result.digest)
    assert rows(schema.runs, *about) == [expected]
    assert rows(schema.proofs) == [
        (run.run_id, 0, "conservation", None, None, "CNY", 2**40, 2**40 + 3, False,
         "what is in transit", "2026-11-19", True, 1, 1, "Ann", "a fee", "2026-11-30"),
    ]  # fmt: skip
    assert rows(schema.totals, "number", "class_", "group", "at_risk") == [
        (0, "parked", "break", 200), (1, "matched", "agreed", 0),
    ]  # fmt: skip
    found = rows(schema.items, "break_id", "key", "class", "group", "is_late", "payee", "reason")
    assert sorted(found) == sorted(
        (breaks.break_id(key), key, "parked", "break", False, "bob", None) for key in keys
    )
    assert rows(schema.signoffs) == []


def test_tables_are_in_a_schema_or_have_a_prefix(schema, engine):
    schema.write(breaks.run(DAY), [])
    schema.write(breaks.run(DAY), [])

    there = inspect(engine)
    if engine.dialect.name == "postgresql":
        assert set(there.get_table_names("recon")) == NAMES
    else:
        assert set(there.get_table_names()) == {f"recon_{name}" for name in NAMES}


def test_a_run_replaces_its_own_rows_and_becomes_the_current_run(schema, rows):
    first, second = breaks.run(DAY), breaks.run(DAY, "b" * 16)
    other = breaks.run(date(2026, 11, 19), "c" * 16)
    for item in (other, first, second, second):
        schema.write(item, [row(1), row(2)])
    schema.write(second, [row(3)])

    assert rows(schema.runs, "run_id", "is_current") == [
        ("a" * 16, False), ("b" * 16, True), ("c" * 16, True),
    ]  # fmt: skip
    found = rows(schema.items, "run_id", "key")
    assert [key for run, key in found if run == "b" * 16] == ["icbc/3"]
    assert len(found) == 5

    schema.write(first, [])
    is_current = dict(rows(schema.runs, "run_id", "is_current"))
    assert is_current["a" * 16]
    assert not is_current["b" * 16]


def test_a_run_is_written_whole_or_not_at_all(schema, rows):
    run = breaks.run(DAY)
    schema.write(run, [row(1)])

    def broken():
        yield from (row(index) for index in range(2_500))
        yield row(1)  # The same break twice.

    with pytest.raises(DatabaseFailed, match="tables of recon could not be written"):
        schema.write(breaks.run(DAY, "b" * 16), broken())
    with pytest.raises(ZeroDivisionError):
        schema.write(run, (row(index // 0) for index in range(2)))

    assert rows(schema.runs, "run_id", "is_current") == [(run.run_id, True)]
    assert rows(schema.items, "run_id", "key") == [(run.run_id, "icbc/1")]


def test_items_of_several_batches_are_all_written(schema, rows):
    taken = []

    def generated_rows():
        for index in range(2_345):
            taken.append(index)
            yield row(index)

    schema.write(breaks.run(DAY), generated_rows())
    assert len(rows(schema.items, "key")) == len(taken) == 2_345


def test_signatures_are_written_and_outlive_their_runs(schema, rows, tmp_path):
    run, results = breaks.run(DAY), Results(tmp_path)
    schema.write(run, [])
    for role, name in (("preparer", "Ann"), ("reviewer", "Bo")):
        signed = results.sign(role, run, name, 5, "seen")
        schema.sign(replace(run, sign_off=signed))
    schema.write(breaks.run(DAY, "b" * 16, parked=1), [])
    schema.write(run, [])

    about = ("result_digest", "run_id", "business_date", "preparer", "reviewer", "reviewed_note")
    assert rows(schema.signoffs, *about) == [
        (run.result_digest, run.run_id, "2026-11-20", "Ann", "Bo", "seen")
    ]
    schema.sign(run)
    assert len(rows(schema.signoffs)) == 1


def test_a_role_that_may_not_create_a_schema_uses_an_existing_one(postgres):
    with postgres.database() as url:
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text("DROP ROLE IF EXISTS clerk"))
            connection.execute(text("CREATE ROLE clerk LOGIN"))
            connection.execute(text("CREATE SCHEMA books AUTHORIZATION clerk"))
        of_clerk = url.set(username="clerk", password=None).render_as_string(hide_password=False)
        books, others = (ReconSchema(Recon(of_clerk, name)) for name in ("books", "others"))
        try:
            books.write(breaks.run(DAY), [row(1)])
            with pytest.raises(DatabaseFailed, match="permission denied"):
                others.write(breaks.run(DAY), [])
        finally:
            books.close()
            others.close()
            with engine.begin() as connection:
                connection.execute(text("DROP OWNED BY clerk CASCADE"))
                connection.execute(text("DROP ROLE clerk"))
            engine.dispose()


def test_a_database_that_cannot_be_opened_is_reported(tmp_path):
    schema = ReconSchema(Recon(f"sqlite:///{tmp_path / 'none' / 'recon.db'}"))

    with pytest.raises(DatabaseFailed, match="unable to open"):
        schema.write(breaks.run(DAY), [])
    schema.close()


def test_a_schema_name_that_needs_quotes_or_an_unknown_database_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="not a plain name"):
        ReconSchema(Recon("sqlite://", schema='re"con'))
    with pytest.raises(ConfigError, match="oracle"):
        ReconSchema(Recon("oracle://bank"))


def test_results_can_be_read_with_plain_sql(tmp_path):
    path = tmp_path / "recon.db"
    schema = ReconSchema(Recon(f"sqlite:///{path}"))
    schema.write(breaks.run(DAY), [row(1), row(2, status="open")])
    schema.close()

    asked = (
        "SELECT status, count(*) FROM recon_items JOIN recon_runs USING (run_id) "
        "WHERE is_current AND business_date = '2026-11-20' GROUP BY status ORDER BY status"
    )
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(asked).fetchall() == [("new", 1), ("open", 1)]


def test_the_recon_section_of_the_rules_does_not_change_their_digest(tmp_path):
    path = tmp_path / "recon.toml"
    path.write_text(RULES)
    plain = read_rules(path)
    path.write_text(f'{RULES}\n[recon]\ndatabase = "sqlite:///recon.db"')
    rules = read_rules(path)

    assert plain.recon is None
    assert rules.recon == Recon(f"sqlite:///{tmp_path.resolve() / 'recon.db'}", "recon")
    assert rules.digest == plain.digest
    path.write_text(f'{RULES}\n[recon]\ndatabase = "sqlite://"\nschema = "a b"')
    with pytest.raises(ConfigError, match="schema"):
        read_rules(path)


def test_a_table_of_an_older_version_gets_its_missing_columns(schema, engine, rows):
    schema.write(breaks.run(DAY), [])
    name = "recon.proofs" if engine.dialect.name == "postgresql" else "recon_proofs"
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {name} DROP COLUMN until"))

    schema.write(breaks.run(DAY), [])

    assert rows(schema.proofs, "until") == []
