"""Guards: the work of a message or a call is done once, however often it arrives.

::

    @consumer.on("transfer", group="ccb-credit")
    @idempotent(UniqueKeyTable(engine), key=lambda message: message.key)
    def transfer_in(session, message):
        ...

:mod:`guard` has the decorator and the answers of a guard. The guards:
:mod:`unique_key` in the function's own database transaction, :mod:`redis` outside it,
:mod:`version` in the row that is changed, :mod:`token` for calls instead of messages. Each is
imported on first use, so a service only needs the libraries of the guards it uses.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from txmq.settings.extras import named_extra

if TYPE_CHECKING:
    from txmq.idempotent.guard import (
        Attempt,
        Guard,
        PlainGuard,
        SessionGuard,
        Verdict,
        idempotent,
        redelivery_horizon,
    )
    from txmq.idempotent.redis import RedisGuard
    from txmq.idempotent.token import TokenGuard
    from txmq.idempotent.unique_key import DoneTable, UniqueKeyTable, create_done
    from txmq.idempotent.version import VersionGuard

__all__ = [
    "Attempt",
    "DoneTable",
    "Guard",
    "PlainGuard",
    "RedisGuard",
    "SessionGuard",
    "TokenGuard",
    "UniqueKeyTable",
    "Verdict",
    "VersionGuard",
    "create_done",
    "idempotent",
    "redelivery_horizon",
]

if find_spec("redis") is None:
    __all__[:] = [name for name in __all__ if name != "RedisGuard"]  # for `import *`

_MODULES: Final = {
    "Attempt": "guard",
    "DoneTable": "unique_key",
    "Guard": "guard",
    "PlainGuard": "guard",
    "RedisGuard": "redis",
    "SessionGuard": "guard",
    "TokenGuard": "token",
    "UniqueKeyTable": "unique_key",
    "Verdict": "guard",
    "VersionGuard": "version",
    "create_done": "unique_key",
    "idempotent": "guard",
    "redelivery_horizon": "guard",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with named_extra():
        found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return __all__
