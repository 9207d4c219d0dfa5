"""Databases that neither guards nor resources can use."""

import pytest
from sqlalchemy import NullPool, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import sessionmaker

from txmq import SQLResource
from txmq.errors import ConfigError
from txmq.idempotent import UniqueKeyTable


@pytest.mark.parametrize(
    "path", ["", "/", "/:memory:", "/file::memory:?uri=true", "/file:a?mode=memory&uri=true"]
)
def test_an_in_memory_database_of_sqlite_is_refused_by_name(path):
    url = f"sqlite://{path}"
    with pytest.raises(ConfigError, match="in-memory SQLite database.*as in sqlite:///bank.db"):
        SQLResource(create_engine(url, poolclass=NullPool))
    with pytest.raises(ConfigError, match="in-memory SQLite database"):
        UniqueKeyTable(sessionmaker(create_engine(url, poolclass=NullPool)))


def test_an_in_memory_database_of_aiosqlite_is_refused():
    with pytest.raises(ConfigError, match="in-memory SQLite database"):
        SQLResource(create_async_engine("sqlite+aiosqlite://"))
