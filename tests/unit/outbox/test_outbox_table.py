"""The names of the tables, and the statements that create them."""

import pytest

from txmq.errors import ConfigError
from txmq.outbox import Outbox


def test_a_custom_name_and_schema_apply_to_all_tables():
    outbox = Outbox("box", "bank")

    names = [table.fullname for table in outbox.tables("mysql")]

    assert names == ["bank.box", "bank.box_slot", "bank.box_relay", "bank.box_lane"]
    assert (outbox.name, outbox.channel) == ("bank.box", "box")


@pytest.mark.parametrize("name", ["", "a b", "a.b", "1st", "x" * 51, 'a"'])
def test_names_that_need_quotes_are_refused(name):
    with pytest.raises(ConfigError, match="plain name"):
        Outbox(name)
    with pytest.raises(ConfigError, match="plain name"):
        Outbox("box", name)


def test_each_database_gets_statements_of_its_own_dialect():
    said = {kind: "\n".join(Outbox().ddl(kind)) for kind in ("postgresql", "mysql", "sqlite")}

    assert 'lane TEXT COLLATE "C"' in said["postgresql"]
    assert "GENERATED ALWAYS AS IDENTITY" in said["postgresql"]
    assert "autovacuum_vacuum_threshold" in said["postgresql"]
    assert "txmq_outbox_lane" in said["mysql"]
    assert "body MEDIUMBLOB" in said["mysql"]
    assert "AUTOINCREMENT" in said["sqlite"]
    assert "txmq_outbox_lane" not in said["postgresql"] + said["sqlite"]
    assert Outbox().ddl("mariadb") == Outbox().ddl("mysql")


def test_an_unsupported_dialect_is_refused():
    with pytest.raises(ConfigError, match="oracle"):
        Outbox().ddl("oracle")
