"""Keeps a number of child processes running: starts, restarts, drains and replaces them.

It does not know what its children do. A child opens a
:class:`~txmq.runtime.parent_link.ParentLink`, and reports that it has loaded its program and that
it is ready. If the supervisor dies, its children notice it and end in order.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from txmq.runtime.backoff import Backoff
from txmq.runtime.child_process import ChildCommand, ChildEnd, ChildProcess
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.parent_link import (
    ChildNotice,
    ContentNotice,
    FailedNotice,
    LoadedNotice,
    ReadyNotice,
)
from txmq.runtime.tasks import Tasks, Threads

__all__ = ["ChildSlot", "Supervisor", "SupervisorEnd", "SupervisorListener", "SupervisorSettings"]

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.25
LONGEST_PAUSE_S: Final = 15.0
"""The first and the longest pause before a dead child is restarted."""

SETTLED_S: Final = 30.0
"""A child that was ready for this long resets the count of deaths in a row."""

REPORT_S: Final = 1.0
"""How long a report may take; a child whose event loop is blocked sends none."""


class SupervisorEnd(Enum):
    """Why a supervisor ended."""

    DRAINED = "all processes finished their work"
    CUT = "a process did not finish its work in order"
    REFUSED = "the program cannot be started"
    GAVE_UP = "a process died again and again"


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorSettings:
    """How children are started and ended."""

    processes: int = 1
    drain_s: float = 30.0
    """How long a child may take to finish its work, before it is killed."""
    deaths_max: int = 5
    """Deaths of one child in a row before the supervisor gives up; 0 means never. It goes on as
    long as another child is ready."""
    waits_for_change: bool = False
    """Whether a child that cannot start, or dies too often, waits for
    :meth:`Supervisor.replace_all`."""


class SupervisorListener(Protocol):
    """A program's reactions to the events of its children."""

    def loaded(self, description: str) -> None:
        """The first child has loaded the program, after a start or a replacement."""
        ...

    def all_ready(self) -> None:
        """All children are ready, after a start or a replacement."""
        ...

    def died(self, number: int, end: ChildEnd, pause_s: float | None) -> None:
        """A child ended without being asked to.

        Args:
            number: Its number.
            end: How it ended.
            pause_s: Seconds until another child takes its place; ``None`` if none will by itself.
        """
        ...

    def ended(self, end: ChildEnd) -> None:
        """A child has ended, whether it was asked to or not."""
        ...


class ChildSlot:
    """The place of one child, which is refilled when the child ends."""

    def __init__(self, number: int, backoff: Backoff) -> None:
        self.number = number
        self.backoff = backoff
        self.child: ChildProcess | None = None
        self.deaths = 0
        self.restarts = 0
        self.is_replacing = False
        self.may_start = asyncio.Event()
        """Set to cut a pause short."""
        self.changed = asyncio.Event()
        """Set whenever the child starts, is ready or ends."""

    @property
    def is_ready(self) -> bool:
        """Whether its child works."""
        return self.child is not None and self.child.is_ready


class Supervisor:
    """Keeps children running until :meth:`stop`.

    Args:
        command: How to start the child of a number.
        settings: The number of children, and the limits.
        listener: Receives the events.
        clock: The source of time.
        entropy: The source of randomness.
        on_content: Called with a child's number and any content that it sends to the program.
    """

    def __init__(
        self,
        command: Callable[[int], ChildCommand],
        settings: SupervisorSettings,
        listener: SupervisorListener,
        clock: Clock,
        entropy: Entropy,
        on_content: Callable[[int, bytes], None] | None = None,
    ) -> None:
        self._command = command
        self._on_content = on_content
        self.settings = settings
        self._listener = listener
        self._clock = clock
        self.slots = [
            ChildSlot(number, Backoff(entropy, FIRST_PAUSE_S, LONGEST_PAUSE_S))
            for number in range(1, settings.processes + 1)
        ]
        self._threads = Threads("txmq-child", settings.processes)
        self._tasks = Tasks()
        self._roll: asyncio.Task[None] | None = None
        self._loaded = asyncio.Event()
        self._over = asyncio.Event()
        self._end: SupervisorEnd | None = None
        self._reason = ""
        self._was_ready = self._is_announced = False
        self.is_stopping = False

    @property
    def reason(self) -> str:
        """Why it gave up; empty otherwise."""
        return self._reason

    @property
    def restarts(self) -> int:
        """The number of children that have replaced another."""
        return sum(slot.restarts for slot in self.slots)

    @property
    def children(self) -> list[ChildProcess]:
        """The children that run now."""
        return [slot.child for slot in self.slots if slot.child is not None]

    async def run(self) -> SupervisorEnd:
        """Keep the children running until all have ended, after :meth:`stop`."""
        keepers = [
            self._tasks.start(self._keep(slot), f"process {slot.number}") for slot in self.slots
        ]
        try:
            await self._over.wait()
            self.stop()
            await asyncio.wait(keepers)
        finally:
            for child in self.children:
                child.kill()
            await self._tasks.stop()
            self._threads.close()
        return self._end or SupervisorEnd.DRAINED

    # What the program asks for

    def stop(self) -> None:
        """Ask all children to finish their work and end."""
        self.is_stopping = True
        if self._roll is not None:
            self._roll.cancel()
        for child in self.children:
            child.stop(self.settings.drain_s)
        for slot in self.slots:
            slot.may_start.set()
        self._loaded.set()
        self._over.set()

    def kill(self) -> None:
        """End all children at once."""
        self.stop()
        self._end = SupervisorEnd.CUT
        for child in self.children:
            child.kill()

    def roll(self) -> None:
        """Replace the children one at a time, each after the previous replacement is ready."""
        if self.is_stopping or (self._roll is not None and not self._roll.done()):
            return
        self._roll = self._tasks.start(self._replace_one_by_one(), "rolling restart")

    async def _replace_one_by_one(self) -> None:
        self._is_announced = False
        for slot in self.slots:
            restarts = slot.restarts
            self._replace(slot)
            while slot.restarts == restarts or not slot.is_ready:
                if slot.restarts > restarts and slot.deaths:
                    log.error(
                        "process %d does not start again; the others keep running as they are",
                        slot.number,
                    )
                    return
                slot.changed.clear()
                await slot.changed.wait()
        self._announce()

    def replace_all(self) -> None:
        """Replace all children at once, and start those that wait for a change."""
        self._loaded.clear()
        self._is_announced = False
        for slot in self.slots:
            self._replace(slot)

    def _replace(self, slot: ChildSlot) -> None:
        slot.backoff.reset()
        slot.deaths = 0
        slot.may_start.set()
        if slot.child is not None and not slot.child.is_stopping:
            slot.is_replacing = True
            slot.child.stop(self.settings.drain_s)

    async def reports(self, within_s: float = REPORT_S) -> dict[int, bytes]:
        """A report of each child that has sent one, by its number."""
        children = self.children
        found = await asyncio.gather(*[child.ask(within_s) for child in children])
        return {
            child.number: report for child, report in zip(children, found, strict=True) if report
        }

    # One slot

    async def _keep(self, slot: ChildSlot) -> None:
        is_first = True
        while not self.is_stopping:
            if slot.number > 1:
                # Let one child find out whether the program loads, so that errors appear once.
                await self._loaded.wait()
                if self.is_stopping:
                    return
            slot.may_start.clear()
            slot.restarts += not is_first
            is_first = False
            end = await self._run_child(slot)
            self._listener.ended(end)
            if self.is_stopping:
                self._note_cut(end)
                return
            if slot.is_replacing:
                slot.is_replacing = False
                continue
            pause_s = self._pause_after(slot, end)
            if not self._over.is_set():
                self._listener.died(slot.number, end, pause_s)
            await self._pause(slot, pause_s)

    async def _run_child(self, slot: ChildSlot) -> ChildEnd:
        child = ChildProcess(
            slot.number, self._command(slot.number), self._threads, self._clock, self._notice
        )
        try:
            await child.start()
        except OSError as error:
            failure = FailedNotice("unavailable", f"the system starts no process: {error}")
            return ChildEnd(1, failure, None, was_killed=False, report=b"")
        slot.child = child
        slot.changed.set()
        if self.is_stopping:
            child.stop(self.settings.drain_s)
        try:
            return await child.wait()
        finally:
            slot.child = None
            slot.changed.set()

    async def _pause(self, slot: ChildSlot, pause_s: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await slot.may_start.wait()

    def _pause_after(self, slot: ChildSlot, end: ChildEnd) -> float | None:
        """How long to wait before the next start; ``None`` until something changes."""
        if end.ready_s is not None and end.ready_s >= SETTLED_S:
            slot.deaths = 0
            slot.backoff.reset()
        if end.failure is not None:
            if end.failure.kind == "unavailable":
                return slot.backoff.next_pause()
            if self.settings.waits_for_change:
                return None
            if not self._was_ready:
                self._give_up(SupervisorEnd.REFUSED, end.failure.reason)
                return None
        if end.code == 0 and end.ready_s is not None:
            return 0.0  # A signal ended this child alone, and it finished its work.
        slot.deaths += 1
        slot.changed.set()
        return None if self._dies_too_often(slot, end) else slot.backoff.next_pause()

    def _dies_too_often(self, slot: ChildSlot, end: ChildEnd) -> bool:
        """Whether the slot stays empty after too many deaths; the supervisor may then give up."""
        most = self.settings.deaths_max
        if not most or slot.deaths < most or any(other.is_ready for other in self.slots):
            return False
        if not self.settings.waits_for_change:
            times = "once" if most == 1 else f"{slot.deaths} times in a row"
            self._give_up(
                SupervisorEnd.GAVE_UP, f"process {slot.number} died {times}, the last time: {end}"
            )
        return True

    def _give_up(self, end: SupervisorEnd, reason: str) -> None:
        self._end, self._reason = end, reason
        self._over.set()

    def _note_cut(self, end: ChildEnd) -> None:
        # A child that is still loading has no handler for SIGTERM yet, and no work to lose.
        is_in_order = end.code in {0, -signal.SIGTERM} and not end.was_killed
        if not is_in_order and end.failure is None and self._end is None:
            self._end = SupervisorEnd.CUT

    def _notice(self, child: ChildProcess, notice: ChildNotice) -> None:
        slot = self.slots[child.number - 1]
        if isinstance(notice, ContentNotice):
            if self._on_content is not None:
                self._on_content(child.number, bytes(notice.content))
            return
        if isinstance(notice, LoadedNotice) and not self._loaded.is_set():
            self._loaded.set()
            self._listener.loaded(notice.description)
        elif isinstance(notice, ReadyNotice):
            self._was_ready = True
            slot.changed.set()
            is_rolling = self._roll is not None and not self._roll.done()
            if not is_rolling:
                self._announce()

    def _announce(self) -> None:
        if not self._is_announced and all(slot.is_ready for slot in self.slots):
            self._is_announced = True
            self._listener.all_ready()
