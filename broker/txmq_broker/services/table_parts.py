"""Encodes large tables in parts, so that the event loop can serve others in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec

from txmq.protocol.bodies import Body

__all__ = ["AT_ONCE", "rows_in_parts", "table_in_parts"]

AT_ONCE: Final = 2_000
"""Rows of a table that are encoded in one go: less than a millisecond."""


def table_in_parts(empty: Body, rows: Iterable[tuple[str, object]]) -> Iterator[bytes]:
    """The bytes of a body with a table.

    Args:
        empty: The body with an empty table.
        rows: The rows of the table.
    """
    before, _, behind = empty.write().partition(b"{}")
    yield before
    yield from rows_in_parts(rows)
    yield behind


def rows_in_parts(rows: Iterable[tuple[str, object]]) -> Iterator[bytes]:
    """The bytes of a table alone."""
    left, separator = iter(rows), b"{"
    while some := dict(islice(left, AT_ONCE)):
        yield separator + msgspec.json.encode(some)[1:-1]
        separator = b","
    yield b"}" if separator == b"," else b"{}"
