"""Whether a transaction of PostgreSQL's is still the same, which is mostly seen without asking.

libpq knows how its connection stands, and not that the application has ended the transaction by
words of its own, and begun another. So a setting is turned over for as long as ours lasts, one that
the server tells its clients of whenever it changes, and that means nothing to a transaction that
has begun. As long as it shows, nothing has ended; where it does not, the database is asked.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import text

__all__ = ["SAME", "TRANSACTION", "TURN", "Shown"]

_SETTING: Final = "default_transaction_read_only"

TURN: Final = (
    f"set_config('{_SETTING}', CASE current_setting('{_SETTING}') WHEN 'on' THEN 'off' "
    "ELSE 'on' END, true) IS NOT NULL"
)
"""Turns it over until the transaction ends; a condition that holds."""

TRANSACTION: Final = "txid_current()"
"""By what a transaction is known for as long as it lasts, and none after it; also inside of
savepoints, whose rows are known by another number."""

SAME: Final = text(f"SELECT 1 WHERE {TRANSACTION} = :transaction")
"""A row, if it is still that one."""


class Shown:
    """What a connection shows.

    Args:
        connection: psycopg's, of either version, outside of a transaction or at its beginning.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._before = self._now()
        self._known: str | None = None
        self._is_turned = False

    def know(self) -> None:
        """It was turned over."""
        self._is_turned, self._known = True, self._now()

    def is_sure(self) -> bool:
        """Whether the transaction is the same as ever.

        Otherwise it may be so all the same: a function can have set it back, and a pooler that
        gives its servers to many may show what another client has set.
        """
        if not self._is_turned:
            return True  # Nobody has a row in it that could get lost.
        return self._known not in (None, self._before) and self._now() == self._known

    def _now(self) -> str | None:
        try:
            shown: str | None = self._connection.info.parameter_status(_SETTING)
        except Exception:  # noqa: BLE001 - it is closed, and its next statement says so better
            return None
        return shown
