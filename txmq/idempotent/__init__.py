"""Guards: what a message or a call stands for is done once, however often it comes.

::

    @consumer.on("transfer", group="ccb-credit")
    @idempotent(UniqueKeyTable(engine), key=lambda message: message.key)
    def transfer_in(session, message):
        ...

:mod:`verdict` is what guards say, :mod:`guard` how one stands in front of a function. The guards:
:mod:`unique_key` in the function's own database transaction, :mod:`redis` beside it, :mod:`version`
in the row that is changed, :mod:`token` for calls that are no messages. Each is imported when it is
first asked for: whoever uses one needs no library of another's.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from txmq.errors import ConfigError

if TYPE_CHECKING:
    from txmq.idempotent.done import Done
    from txmq.idempotent.guard import Attempt, Guard, PlainGuard, SessionGuard, idempotent
    from txmq.idempotent.keys import redelivery_horizon_s
    from txmq.idempotent.redis import RedisGuard
    from txmq.idempotent.token import TokenGuard
    from txmq.idempotent.unique_key import UniqueKeyTable
    from txmq.idempotent.verdict import Verdict
    from txmq.idempotent.version import VersionGuard

__all__ = [
    "Attempt",
    "Done",
    "Guard",
    "PlainGuard",
    "RedisGuard",
    "SessionGuard",
    "TokenGuard",
    "UniqueKeyTable",
    "Verdict",
    "VersionGuard",
    "idempotent",
    "redelivery_horizon_s",
]

_ROOMS: Final = {
    "Attempt": "guard",
    "Done": "done",
    "Guard": "guard",
    "PlainGuard": "guard",
    "RedisGuard": "redis",
    "SessionGuard": "guard",
    "TokenGuard": "token",
    "UniqueKeyTable": "unique_key",
    "Verdict": "verdict",
    "VersionGuard": "version",
    "idempotent": "guard",
    "redelivery_horizon_s": "keys",
}

_EXTRAS: Final = {"sqlalchemy": "sql", "psycopg": "sql", "redis": "redis"}


def __getattr__(name: str) -> object:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = globals()[name] = getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
    except ModuleNotFoundError as problem:
        if problem.name not in _EXTRAS:
            raise
        extra = _EXTRAS[problem.name]
        raise ConfigError(f"{problem.name} is missing: pip install 'txmq[{extra}]'") from problem
    return found


def __dir__() -> list[str]:
    return __all__
