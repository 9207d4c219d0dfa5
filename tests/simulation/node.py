"""A broker or a name server on a machine of its own: started, brought down, started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tests.simulation.history import Down, History, Serving
from txmq.errors import CorruptRecord, DamagedFile, StoreError
from txmq.runtime.disk import File
from txmq.testing import DiskEvent, Loss, Machine, MachineCrashedError, MemoryDisk, World
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings
from txmq_broker.names.server import NameServer

__all__ = ["BrokerNode", "NamesNode", "Tripwire"]

START_AGAIN_S = 2.0
"""How long after an end that nobody wanted the program is started again, as by an init system."""


class Tripwire:
    """A broker's disk, which may bring something about before an operation or after a sync.

    It is the :class:`txmq.runtime.Disk` of one life of a machine, passed through.
    """

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self._after_sync: Callable[[], None] | None = None
        self.open, self.names, self.replace = disk.open, disk.names, disk.replace
        self.remove, self.space, self.lock = disk.remove, disk.space, disk.lock
        self.run_soon = disk.run_soon

    def before(self, countdown: int, does: Callable[[], None], kind: str = "") -> None:
        """Do something before the n-th operation from now, optionally of one kind."""
        left = countdown

        def watch(event: DiskEvent) -> None:
            nonlocal left
            left -= event.kind == kind or not kind
            if left <= 0:
                self._disk.on_write = None
                does()

        self._disk.on_write = watch

    def after_sync(self, countdown: int, does: Callable[[], None]) -> None:
        """Do something after the n-th sync from now, before anybody was told of it."""
        left = countdown

        def watch() -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                self._after_sync = None
                does()

        self._after_sync = watch

    def clear(self) -> None:
        """Let nothing happen any more."""
        self._disk.on_write = self._after_sync = None

    def sync_soon(self, files: Sequence[File]) -> asyncio.Future[None]:
        """See :meth:`txmq.runtime.Disk.sync_soon`."""
        return asyncio.ensure_future(self._sync(files))

    async def _sync(self, files: Sequence[File]) -> None:
        await self._disk.sync_soon(files)
        if self._after_sync is not None:
            self._after_sync()


class Node:
    """A machine with one program that is meant to run."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.machine: Machine = world.machine(name)
        self.is_wanted = False
        self._leave = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Run the program, after a crash on the machine's next life; nothing if it runs."""
        if self._keeper is not None and not self._keeper.done():
            return
        if not self.machine.is_up:
            self.machine.restart()
        self.is_wanted = True
        self._leave.clear()
        self._keeper = asyncio.create_task(self._keep(), name=f"keeper of {self.name}")

    async def stop(self) -> None:
        """Let the program end by itself, as on SIGTERM."""
        self.is_wanted = False
        self._leave.set()
        if self._keeper is not None:
            await self._keeper

    async def kill(self) -> None:
        """Kill the program as ``kill -9`` does."""
        self.is_wanted = False
        self.machine.kill()
        await self.gone()

    async def crash(self, loss: Loss) -> None:
        """Cut the power."""
        self.is_wanted = False
        self.machine.crash(loss)
        await self.gone()

    async def gone(self) -> None:
        """Wait until nothing runs any more."""
        if self._keeper is not None:
            await self._keeper

    async def _keep(self) -> None:
        while True:
            try:
                await self.machine.run(self._serve(), name=self.name)
            except MachineCrashedError:
                self._went_down("crash")
                return
            except (CorruptRecord, DamagedFile):
                raise
            except (OSError, StoreError) as problem:
                # It could not start or stop in order, perhaps because the disk is full.
                self.world.trace.record("ended by an error", self.name, repr(problem))
                self._went_down(f"ended by {problem!r}")
            if not self.is_wanted:
                return
            await asyncio.sleep(START_AGAIN_S)
            if not self.is_wanted or not self.machine.is_up:
                return

    def _serve(self) -> Coroutine[Any, Any, None]:
        raise NotImplementedError

    def _went_down(self, how: str) -> None:
        """Something ended the program from outside."""


class NamesNode(Node):
    """A name server of its own."""

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.machine.address}:9876"

    async def _serve(self) -> None:
        machine = self.machine
        async with NameServer(machine.network, machine.clock, machine.disk) as server:
            await server.open(machine.address, 9876)
            await self._leave.wait()


class BrokerNode(Node):
    """A broker, with its own name server where its settings say so."""

    def __init__(
        self,
        world: World,
        name: str,
        settings: Callable[[Machine], BrokerSettings],
        history: History,
    ) -> None:
        super().__init__(world, name)
        self.settings = settings(self.machine)
        self.history = history
        self.lives = 0
        self.is_serving = False
        self.on_serving: Callable[[BrokerNode], None] = _nothing
        self.wire: Tripwire | None = None
        self.broker: Broker | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.settings.listen

    @property
    def disk(self) -> MemoryDisk:
        """The disk of the machine's present life, with its faults."""
        return self.machine.disk

    async def _serve(self) -> None:
        machine = self.machine
        self.wire = Tripwire(machine.disk)
        self.wire.clear()
        broker = Broker(
            self.settings,
            clock=machine.clock,
            network=machine.network,
            disk=self.wire,
            entropy=machine.entropy,
        )
        async with broker:
            self.broker = broker
            self.lives += 1
            self.is_serving = True
            self.history.add(Serving(self.world.now(), self.name))
            self.on_serving(self)
            leaving = asyncio.create_task(self._leave.wait())
            failing = asyncio.create_task(broker.stopped.wait())
            await asyncio.wait((leaving, failing), return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            failing.cancel()
            # It accepts nothing from here on; what it still does belongs to its life.
        how = "stopped" if broker.failure is None else f"failed: {broker.failure}"
        self._went_down(how, kept=broker.failure is None and not broker.offsets.unsaved)

    def _went_down(self, how: str, *, kept: bool = False) -> None:
        self.broker = None
        if self.is_serving:
            self.is_serving = False
            self.history.add(Down(self.world.now(), self.name, how, kept))


def _nothing(node: BrokerNode) -> None:
    pass
