"""Whatever gives connections to a database, and the door for it."""

from __future__ import annotations

import sys
from typing import Any

from txmq.databases.alchemy import alchemy_door
from txmq.databases.door import Door
from txmq.databases.postgres import psycopg_door
from txmq.errors import ConfigError

__all__ = ["door_of"]


def door_of(source: Any) -> Door[Any]:
    """How the sessions of a source are opened.

    Raises:
        ConfigError: It gives none, or some that cannot be used.
    """
    door = alchemy_door(source) or psycopg_door(source) or _django_door(source)
    if door is None:
        raise ConfigError(
            f"{type(source).__name__} gives no sessions: give an engine, a sessionmaker, a pool of "
            "psycopg's, or a function that connects"
        )
    return door


def _django_door(source: Any) -> Door[Any] | None:
    # Whoever has one of Django's connections has imported it, and nobody else needs to have it.
    if "django.db" not in sys.modules:
        return None
    from txmq.databases.django import django_door

    return django_door(source)
