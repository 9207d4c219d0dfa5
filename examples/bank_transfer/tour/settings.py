"""The settings of the tour."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.bank_transfer.ways import Way
from txmq.errors import ConfigError

__all__ = ["TourSettings"]

ACCOUNTS_MIN: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TourSettings:
    """The size of the tour, and its accidents.

    Raises:
        ConfigError: A value is invalid.
    """

    transfers: int = 400
    accounts: int = 200
    """At both banks together, half of them at each."""
    rate: float = 0.0
    """The most transfers a second; 0 means no limit."""
    concurrent: int = 16
    """Customers who wait for an answer at once."""
    seed: int = 0
    """Decides all orders, which program is killed when, and which messages come twice."""
    kills: int = 1
    """How often each program is killed."""
    copies: int = 20
    """How many messages are delivered once more than they were sent."""
    ways: tuple[Way, ...] = ()
    """How transfers are made; empty means all ways that the databases allow."""
    postgres: str = ""
    """The URL of a PostgreSQL server for two new databases; empty means SQLite."""
    redis: str = ""
    """The URL of a Redis in front of the tables of finished work."""
    directory: Path | None = None
    """Where to keep books, logs and messages; without it they are removed."""
    is_reconciled: bool = True
    """Reconcile the ledgers at the end, if the machine has Java."""
    patience_s: float = 60.0
    """How long no state may change, after all orders have their answer."""

    def __post_init__(self) -> None:
        """Check the values."""
        least = {"transfers": 1, "accounts": ACCOUNTS_MIN, "concurrent": 1, "kills": 0, "copies": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ConfigError(f"{name} is at least {bound}, not {getattr(self, name)}")
        if not 0 <= self.rate < float("inf"):
            raise ConfigError(f"rate is at least 0 and finite, not {self.rate}")
        if not self.patience_s > 0:
            raise ConfigError(f"patience_s is more than 0, not {self.patience_s}")
        if Way.XA in self.ways and not self.postgres:
            raise ConfigError("XA needs PostgreSQL for both banks: give --postgres URL")

    @property
    def chosen_ways(self) -> tuple[Way, ...]:
        """The ways of transfers."""
        return self.ways or (
            (Way.HALF, Way.OUTBOX, Way.XA) if self.postgres else (Way.HALF, Way.OUTBOX)
        )
