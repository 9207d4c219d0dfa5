"""Whether a transaction of PostgreSQL's is still the same, which is seen without asking.

libpq knows how its connection stands, and not that the application has ended the transaction by
words of its own, and begun another. So a setting is turned over for as long as ours lasts, one that
the server tells its clients of whenever it changes, and that means nothing to a transaction that
has begun.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["TURN", "Shown"]

_SETTING: Final = "default_transaction_read_only"

TURN: Final = (
    f"set_config('{_SETTING}', CASE current_setting('{_SETTING}') WHEN 'on' THEN 'off' "
    "ELSE 'on' END, true) IS NOT NULL"
)
"""Turns it over until the transaction ends; a condition that holds."""


class Shown:
    """What a connection shows.

    Args:
        connection: psycopg's, of either version, outside of a transaction or at its beginning.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._before = self._now()
        self._known: str | None = None

    def know(self) -> None:
        """It was turned over. A pooler in between may not pass that on; then nothing is known."""
        now = self._now()
        self._known = None if now == self._before else now

    def has_ended(self) -> bool:
        """Whether the transaction in which it was turned over is over."""
        return self._known is not None and self._now() != self._known

    def _now(self) -> str | None:
        shown: str | None = self._connection.info.parameter_status(_SETTING)
        return shown
