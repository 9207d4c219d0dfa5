"""The fence's statements in the words of a driver that is used without SQLAlchemy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import Dialect

__all__ = ["Forms"]


class Forms:
    """Statements as a driver takes them; each is put into words once.

    Args:
        dialect: How it speaks.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._done: dict[Any, tuple[str, Mapping[str, object]]] = {}

    def of(self, statement: Any, values: dict[str, object]) -> tuple[str, Any]:
        """A statement, and the values for it; none for one that is a text."""
        if isinstance(statement, str):
            return statement, None
        form = self._done.get(statement)
        if form is None:
            compiled = statement.compile(
                dialect=self._dialect, compile_kwargs={"render_postcompile": True}
            )
            form = self._done[statement] = str(compiled), compiled.params
        return form[0], {**form[1], **values}
