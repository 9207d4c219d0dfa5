"""SQLAlchemy statements compiled for a driver that runs them directly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sqlalchemy.engine import Dialect

__all__ = ["Forms"]


class _Form(NamedTuple):
    words: str
    values: Mapping[str, object]
    makers: Mapping[str, Callable[[object], object]]
    """Converts a value of the application's own types for the driver."""


class Forms:
    """Compiled statements; each is compiled once.

    Args:
        dialect: The SQL dialect.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._done: dict[Any, _Form] = {}

    def of(self, statement: Any, values: dict[str, object]) -> tuple[str, Any]:
        """A compiled statement and its values; ``None`` for a text."""
        if isinstance(statement, str):
            return statement, None
        form = self._done.get(statement)
        if form is None:
            form = self._done[statement] = self._form(statement)
        given = {**form.values, **values}
        for name, made in form.makers.items():
            given[name] = made(given[name])
        return form.words, given

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
