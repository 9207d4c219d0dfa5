"""The fence's tables and statements, as each database gets them."""

import re
from pathlib import Path

import pytest
from sqlalchemy import MetaData
from sqlalchemy.dialects import mysql, postgresql, sqlite

from txmq.databases.dialects import doubts, kind_of, set_lock_timeout
from txmq.databases.guarded_transaction import drive
from txmq.errors import ConfigError
from txmq.transaction.resources import Fence, check_horizon

PAGE = Path(__file__).parents[4] / "docs/howto/fence.md"
SPOKEN = {"postgresql": postgresql, "mysql": mysql, "sqlite": sqlite}


def words(statement):
    return " ".join(statement.split())


def test_the_documentation_shows_the_statements_that_are_run():
    shown = re.search(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]

    assert words(shown) == words(
        "".join(f"{statement};\n" for statement in Fence().ddl("postgresql"))
    )


@pytest.mark.parametrize("kind", SPOKEN)
def test_a_claim_is_one_statement_that_reads_the_mark(kind):
    said = words(str(Fence().claims[kind].compile(dialect=SPOKEN[kind].dialect())))

    assert said.startswith("INSERT INTO txmq_fence (xid, outcome, owner, created_ms) SELECT")
    assert "FROM txmq_fence_mark WHERE txmq_fence_mark.identity" in said
    assert ("ON CONFLICT DO NOTHING" in said) == (kind != "mysql")


def test_mysql_reads_an_outcome_with_a_shared_lock():
    fence = Fence()

    assert "LOCK IN SHARE MODE" in str(fence.outcome_now.compile(dialect=mysql.dialect()))


def test_mysql_compares_ids_byte_for_byte():
    assert "xid VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin" in Fence().ddl("mysql")[0]
    assert Fence().ddl("mariadb") == Fence().ddl("mysql")


def test_the_tables_can_be_part_of_an_applications_metadata():
    metadata = MetaData()
    Fence("fence", "tx", metadata)

    assert set(metadata.tables) == {"tx.fence", "tx.fence_mark"}


@pytest.mark.parametrize("name", ["", "fence; DROP TABLE x", "1st", "f" * 51, "fence-1"])
def test_table_names_that_need_quotes_are_refused(name):
    with pytest.raises(ConfigError):
        Fence(name)
    with pytest.raises(ConfigError):
        Fence(schema=name or " ")


def test_an_unsupported_dialect_is_refused():
    with pytest.raises(ConfigError, match="oracle"):
        Fence().ddl("oracle")
    assert kind_of("mariadb") == "mysql"


def test_the_check_horizon_follows_from_the_settings_of_checks():
    assert check_horizon() == 16 * 60 + 60 + 60 + 60
    seen = check_horizon(timeout=6, check_interval=10, check_max=3, longest_local=5, clocks_apart=1)
    assert seen == 52


def test_mysql_has_no_lock_timeout_shorter_than_a_second():
    set_both = "SET SESSION innodb_lock_wait_timeout = {0}, lock_wait_timeout = {0}"
    assert set_lock_timeout("mysql", 200) == set_both.format(1)
    assert set_lock_timeout("mysql", 3000) == set_both.format(3)
    assert set_lock_timeout("postgresql", 200) == "SET LOCAL lock_timeout = 200"


@pytest.mark.fault("D2")
@pytest.mark.parametrize(
    ("kind", "said", "is_kept"),
    [
        ("postgresql", ("on", False), True),
        ("postgresql", ("remote_apply", False), True),
        ("postgresql", ("local", False), True),
        ("postgresql", ("off", False), False),
        ("postgresql", ("on", True), False),
        ("mysql", (1, 0, 0), True),
        ("mysql", (1, 1, 1), True),
        ("mysql", (1, 1, 0), False),
        ("mysql", (3, 1, 0), True),
        ("mysql", (2, 0, 0), False),
        ("mysql", (0, 1, 1), False),
        ("sqlite", (2, "wal"), True),
        ("sqlite", (1, "wal"), False),
        ("sqlite", (1, "delete"), True),
        ("sqlite", (0, "memory"), False),
    ],
)
def test_commits_that_a_crash_could_lose_are_doubted(kind, said, is_kept):
    assert (doubts(kind, said) is None) is is_kept


def test_a_coroutine_that_never_waits_is_driven_to_its_end():
    async def seven():
        return 7

    async def waits():
        await Pause()

    class Pause:
        def __await__(self):
            yield

    assert drive(seven()) == 7
    with pytest.raises(AssertionError):
        drive(waits())
