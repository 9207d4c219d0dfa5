"""The columns of lists: their names, their texts for people, and their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = ["ListColumn"]


class ListColumn(NamedTuple):
    """A column of a list."""

    heading: str
    """Its name, for people and for ``--sort``."""
    key: str
    """Its name in rows and in JSON."""
    show: Callable[[Any], object] = lambda value: "" if value is None else value
    """The text of a value, for people."""
    order: Callable[[Any], Any] | None = None
    """What to sort by, if not by a number or by the text."""

    def value_in(self, row: Any) -> Any:
        """The value of a row, which is a mapping or an object."""
        return row[self.key] if isinstance(row, Mapping) else getattr(row, self.key)

    def sort_key(self, row: Any) -> tuple[bool, Any]:
        """A key by which rows can be sorted."""
        value = self.value_in(row)
        if self.order is not None:
            value = self.order(value)
        if isinstance(value, str) and value.isdecimal():
            value = int(value)  # Settings and figures are texts on the wire.
        if isinstance(value, int | float):
            return True, value
        return False, str(self.show(value))
