"""A canary detects, mostly without a round trip, that the application ended a PostgreSQL
transaction.

libpq knows the status of its connection. It does not notice if the application ends the transaction
with its own statement and begins another. So the canary flips a setting for the duration of our
transaction. The server reports every change of this setting to the client, and the setting has no
effect on a transaction that has begun. While the client sees the flipped value, our transaction is
open; otherwise a query finds out.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["TRANSACTION", "TURN", "Canary"]

_SETTING: Final = "default_transaction_read_only"

TURN: Final = (
    f"set_config('{_SETTING}', CASE current_setting('{_SETTING}') WHEN 'on' THEN 'off' "
    "ELSE 'on' END, true) IS NOT NULL"
)
"""Flips the setting until the transaction ends; a condition that is always true."""

TRANSACTION: Final = "txid_current()"
"""Identifies a transaction while it lasts, even inside savepoints, whose rows have other
transaction ids."""


class Canary:
    """The canary of one connection.

    Args:
        connection: A psycopg connection, blocking or asyncio, outside a transaction or at the
            beginning of one.
    """

    def __init__(self, connection: Any) -> None:
        # libpq's own function costs a tenth of psycopg's. Django's psycopg2 does not expose it.
        pgconn = getattr(connection, "pgconn", None)
        self._setting: bytes | str = _SETTING if pgconn is None else _SETTING.encode()
        self._reader: Any = connection.info if pgconn is None else pgconn
        self._before = self._now()
        self._known: bytes | str | None = None
        self._is_turned = False

    def remember(self) -> None:
        """Remember the value of the flipped setting."""
        self._is_turned, self._known = True, self._now()

    def is_sure(self) -> bool:
        """Whether the transaction is certainly still the same.

        If false, it may still be the same: a function may have reset the value, or a pooler that
        shares servers may show another client's value.
        """
        if not self._is_turned:
            return True  # No guard row depends on this connection.
        return self._known not in (None, self._before) and self._now() == self._known

    def _now(self) -> bytes | str | None:
        try:
            shown: bytes | str | None = self._reader.parameter_status(self._setting)
        except Exception:  # noqa: BLE001 - it is closed, and its next statement raises a better error
            return None
        return shown
