"""A canary that shows, mostly without a round trip, whether a PostgreSQL transaction is still the
same.

libpq knows the status of its connection. It does not notice if the application ends the transaction
by a statement of its own, and begins another. So the canary flips a setting until our transaction
ends. The server reports every change of this setting to its clients, and a transaction that has
begun ignores it. While the flipped value shows, our transaction lasts; otherwise the database is
asked.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import text

__all__ = ["SAME", "TRANSACTION", "TURN", "Canary"]

_SETTING: Final = "default_transaction_read_only"

TURN: Final = (
    f"set_config('{_SETTING}', CASE current_setting('{_SETTING}') WHEN 'on' THEN 'off' "
    "ELSE 'on' END, true) IS NOT NULL"
)
"""Flips the setting until the transaction ends; a condition that is always true."""

TRANSACTION: Final = "txid_current()"
"""Identifies a transaction as long as it lasts, also inside of savepoints, whose rows carry another
number."""

SAME: Final = text(f"SELECT 1 WHERE {TRANSACTION} = :transaction")
"""A row, if the transaction is still that one."""


class Canary:
    """The canary of one connection.

    Args:
        connection: psycopg's, of either version, outside of a transaction or at its beginning.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._before = self._now()
        self._known: str | None = None
        self._is_turned = False

    def know(self) -> None:
        """The setting is flipped: remember its value."""
        self._is_turned, self._known = True, self._now()

    def is_sure(self) -> bool:
        """Whether the transaction is the same as ever.

        If not, it may still be the same: a function may have set the value back, and a pooler that
        shares servers may show what another client has set.
        """
        if not self._is_turned:
            return True  # No guard row depends on it.
        return self._known not in (None, self._before) and self._now() == self._known

    def _now(self) -> str | None:
        try:
            shown: str | None = self._connection.info.parameter_status(_SETTING)
        except Exception:  # noqa: BLE001 - it is closed, and its next statement says so better
            return None
        return shown
