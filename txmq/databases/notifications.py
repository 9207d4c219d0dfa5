"""Receive PostgreSQL's NOTIFY over a separate psycopg connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

__all__ = ["LISTENING_PROBLEMS", "likeness", "listen"]

LISTENING_PROBLEMS: Final = (psycopg.Error, OSError)

LOOK_S: Final = 10.0
"""How often it checks that the connection is alive."""


async def likeness(session: Any) -> str | None:
    """The parameters to open another connection like a session's; ``None`` if it is not
    psycopg's.
    """
    found: Any = session
    if isinstance(session, AsyncSession):
        raw = await (await session.connection()).get_raw_connection()
        found = raw.driver_connection
    elif isinstance(session, Session):
        found = session.connection().connection.driver_connection
    if not isinstance(found, psycopg.Connection | psycopg.AsyncConnection):
        return None
    known = found.info
    return make_conninfo(known.dsn, **({"password": known.password} if known.password else {}))


async def listen(like: str, channel: str, heard: Callable[[], None]) -> None:
    """Call a function at each NOTIFY of a channel, and once at the beginning.

    The connection stays outside transactions, so it does not hold back VACUUM.

    Args:
        like: The result of :func:`likeness`.
        channel: The channel.
        heard: The function to call; one call may cover several notifications.

    Raises:
        Exception: One of :data:`LISTENING_PROBLEMS`; the connection failed or was lost.
    """
    connection = await psycopg.AsyncConnection.connect(like, autocommit=True)
    try:
        await connection.execute(SQL("LISTEN {}").format(Identifier(channel)))
        heard()
        while True:
            async for _ in connection.notifies(timeout=LOOK_S):
                heard()
            await connection.execute("SELECT 1")
    finally:
        await connection.close()
