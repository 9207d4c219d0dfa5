"""A real broker inside a test process, on free ports: the code, log and wire of ``txmq serve``.

In asyncio tests::

    async with embedded() as broker:
        ...  # broker.names is what clients need

In plain tests, or for clients that run in their own threads::

    with BrokerThread() as broker:
        ...  # broker.names, broker.address

Both start in a few hundredths of a second and leave nothing behind.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Self, TypeAlias

from msgspec.structs import replace

from txmq.errors import UsageError
from txmq.settings.loading import load
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings

__all__ = ["BrokerThread", "embedded", "settings_for_test"]

_FREE_PORT: Final = "127.0.0.1:0"
_START_S: Final = 10.0
_STOP_S: Final = 30.0


GivenSettings: TypeAlias = BrokerSettings | Mapping[str, object] | None
"""Settings, or values by their keys in a file: ``{"transaction.check_interval": "1s"}``."""


def settings_for_test(data: str, settings: GivenSettings = None) -> BrokerSettings:
    """Settings for a broker that serves one test, on free ports and in its own directory.

    Unless whole settings are given, it answers sends before the disk confirms.

    Raises:
        ConfigError: A key is unknown, or a value is invalid.
    """
    if isinstance(settings, BrokerSettings):
        base = settings
    else:
        values = {"store.flush": "async"} | dict(settings or {})
        base = load(BrokerSettings, arguments=[f"{key}={value}" for key, value in values.items()])
    return replace(base, data=data, listen=_FREE_PORT, names_listen=_FREE_PORT)


@asynccontextmanager
async def embedded(settings: GivenSettings = None) -> AsyncIterator[Broker]:
    """A broker in the running event loop, with its own name server and directory.

    Raises:
        ConfigError: A setting is invalid.
        StoreError: Its directory cannot be used.
    """
    with tempfile.TemporaryDirectory(prefix="txmq-") as data:
        async with Broker(settings_for_test(data, settings)) as broker:
            yield broker


class BrokerThread:
    """A broker in a thread, for tests that are not asynchronous."""

    def __init__(self, settings: GivenSettings = None) -> None:
        self._settings = settings
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txmq-broker", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leave: asyncio.Event | None = None
        self._error: BaseException | None = None
        self.address: str = ""
        self.names: str = ""

    def __enter__(self) -> Self:
        """Start, and return once clients can connect.

        Raises:
            UsageError: It does not start; the cause is attached.
        """
        self._thread.start()
        if not self._ready.wait(_START_S) or self._error is not None:
            raise UsageError("the broker did not start") from self._error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._loop is not None
        assert self._leave is not None
        self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._error = error
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._leave = asyncio.get_running_loop(), asyncio.Event()
        async with embedded(self._settings) as broker:
            self.address, self.names = broker.address, broker.names
            self._ready.set()
            await self._leave.wait()
