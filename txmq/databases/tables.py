"""txmq's tables in application databases: names, text columns, DDL and compiled statements."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sqlalchemy import Table, Text
from sqlalchemy.dialects import mysql as _mysql
from sqlalchemy.dialects import postgresql as _postgresql
from sqlalchemy.dialects import sqlite as _sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable, DDLElement

from txmq.databases.adapter import StatementResult
from txmq.databases.dialects import kind_of
from txmq.errors import ConfigError

__all__ = [
    "DIALECTS",
    "Forms",
    "any_text",
    "create_command",
    "plain_names",
    "plain_text",
    "statements",
]

DIALECTS: Final[Mapping[str, type[Dialect]]] = MappingProxyType(
    {
        "postgresql": _postgresql.dialect,
        "mysql": _mysql.dialect,
        "sqlite": _sqlite.dialect,
    }
)

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,49}")


def plain_names(*names: str | None) -> None:
    """Reject names of tables or schemas that need quotes in some database.

    Raises:
        ConfigError: A name needs quotes in some database.
    """
    for name in names:
        if name is not None and not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} is not a plain name of a table or schema: use letters, digits and _"
            )


def create_command(what: str, table: Table) -> str:
    """The command that creates a table, with its names."""
    named = "" if table.name == f"txmq_{what}" else f" --{what} {table.name}"
    placed = "" if table.schema is None else f" --schema {table.schema}"
    return f"txmq schema create {what}{named}{placed} --database URL"


def plain_text(chars: int) -> Any:
    """An ASCII text column, compared byte by byte.

    Ids that differ only in case are different ids, and a collation update cannot corrupt a primary
    key.
    """
    return _text(_mysql.VARCHAR(chars, charset="ascii", collation="ascii_bin"))


def any_text(chars: int) -> Any:
    """A Unicode text column, compared byte by byte; MySQL ignores trailing spaces."""
    return _text(_mysql.VARCHAR(chars, charset="utf8mb4", collation="utf8mb4_bin"))


def _text(of_mysql: Any) -> Any:
    found = Text().with_variant(Text(collation="C"), "postgresql")
    return found.with_variant(of_mysql, "mysql", "mariadb")


def statements(tables: Iterable[Table], dialect: str) -> list[str]:
    """The statements that make tables, for ``postgresql``, ``mysql`` or ``sqlite``.

    Raises:
        ConfigError: The dialect is not supported.
    """
    spoken, every = DIALECTS[kind_of(dialect)](), list(tables)
    made: list[DDLElement] = [CreateTable(table) for table in every]
    # Sort by name, because a table's indexes are a set.
    made += [
        CreateIndex(index)
        for table in every
        for index in sorted(table.indexes, key=lambda index: str(index.name))
    ]
    lines = [str(ddl.compile(dialect=spoken)).strip().replace("\t", "    ") for ddl in made]
    return [re.sub(r" +$", "", line, flags=re.MULTILINE) for line in lines]


class _Form(NamedTuple):
    words: str
    values: Mapping[str, object]
    makers: Mapping[str, Callable[[object], object]]
    """By name, converts a value of the application's own type for the driver."""


class Forms:
    """Compiled statements; each is compiled once.

    Args:
        dialect: The SQL dialect.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._done: dict[Any, _Form] = {}

    def of(self, statement: Any, values: dict[str, object]) -> tuple[str, Any]:
        """A compiled statement and its values; for a text, the values are ``None``."""
        if isinstance(statement, str):
            return statement, None
        form = self._done.get(statement)
        if form is None:
            form = self._done[statement] = self._form(statement)
        given = {**form.values, **values}
        for name, made in form.makers.items():
            given[name] = made(given[name])
        return form.words, given

    def run(self, cursor: Any, statement: Any, values: dict[str, object]) -> StatementResult:
        """Run a statement with a blocking cursor."""
        cursor.execute(*self.of(statement, values))
        rows = cursor.fetchall() if cursor.description else []
        return StatementResult(cursor.rowcount, [tuple(row) for row in rows])

    def _form(self, statement: Any) -> _Form:
        compiled = statement.compile(
            dialect=self._dialect, compile_kwargs={"render_postcompile": True}
        )
        makers = {
            name: made
            for name, bind in compiled.binds.items()
            if (made := bind.type.dialect_impl(self._dialect).bind_processor(self._dialect))
        }
        return _Form(str(compiled), compiled.params, makers)
