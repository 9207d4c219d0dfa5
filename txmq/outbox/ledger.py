"""What a relay does in the database, each a short transaction of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar, cast

from txmq.databases import dialects
from txmq.databases.door import Borrowed, Door, drive
from txmq.databases.failures import Failure, failure, words
from txmq.databases.tables import create_command
from txmq.errors import DatabaseFailed, TableMissing, TxmqError
from txmq.limits import RELAY_THREADS, SLOTS
from txmq.outbox.lanes import Stretch
from txmq.outbox.slots import fair_share
from txmq.outbox.statements import Statements, listed, stretched
from txmq.outbox.table import Outbox
from txmq.outbox.tally import Waiting
from txmq.quantity import quantity
from txmq.runtime.threads import Threads

__all__ = ["Beat", "Ledger", "Page"]

T = TypeVar("T")

_BY_INDEX: Final = (
    "SELECT set_config('plan_cache_mode', 'force_custom_plan', true), "
    "set_config('enable_seqscan', 'off', true)"
)
"""The table is empty when plans are made, and full of what is dead when they are used."""


class Page(NamedTuple):
    """What was read."""

    rows: list[tuple[Any, ...]]
    """By their ids."""
    is_cut: bool
    """Whether there may be more."""


class Beat(NamedTuple):
    """How the slots stand."""

    held: set[int]
    living: int


class Ledger:
    """One relay's way to the outbox; every method raises what the door's library does.

    Args:
        outbox: The tables.
        door: Where they are.
        token: Who the relay is.
        lease_s: How long a lease lasts.
        answer_s: How long the database may take.
    """

    def __init__(
        self, outbox: Outbox, door: Door[Any], token: str, lease_s: float, answer_s: float
    ) -> None:
        self._outbox = outbox
        self._door = door
        self._said = Statements(outbox, door.kind)
        self._token = token
        self._lease_ms = int(lease_s * 1000)
        self._answer_s = answer_s
        self._threads = Threads("txmq-relay", RELAY_THREADS)
        self._running: dict[asyncio.Future[object], None] = {}
        self._counting: asyncio.Future[object] | None = None
        self.problems: tuple[type[Exception], ...] = (
            *door.problems,
            DatabaseFailed,
            TimeoutError,
        )

    async def close(self) -> None:
        """Wait for what threads still do, and let them end, where there are any."""
        if self._running:
            await asyncio.wait(list(self._running), timeout=self._answer_s)
        self._threads.close()

    async def verify(self) -> None:
        """See that the tables are there.

        Raises:
            TableMissing: They are not, or not all of them.
            DatabaseFailed: The database does not answer.
        """
        name = self._outbox.name
        hint = f"`{create_command('outbox', self._outbox.rows)}` makes it"
        try:
            found = await self.run(self._count_slots)
        except self.problems as problem:
            if failure(problem) in {Failure.MISSING, Failure.CHANGED}:
                raise TableMissing(f"{name} is not there: {words(problem)}; {hint}") from problem
            raise DatabaseFailed(f"{name} cannot be read: {words(problem)}") from problem
        if found != SLOTS:
            raise TableMissing(f"{name} has {quantity(found, 'slot')}, not {SLOTS}; {hint}")

    async def _count_slots(self, borrowed: Borrowed[Any]) -> int:
        await borrowed.ask(self._said["forward"], slots=self._list([]), low=0, count=1, bytes=1)
        await borrowed.ask(self._said["living"], lease_ms=self._lease_ms)
        return int((await borrowed.ask(self._said["slots"])).rows[0][0])

    # Reading

    async def forward(self, slots: Sequence[int], low: int, count: int, size: int) -> Page:
        """Rows of some slots from an id on; so many at most, and about so many bytes."""
        values = {"slots": self._list(slots), "low": low}
        return await self._read("forward", count, size, **values)

    async def sweep(
        self,
        slots: Sequence[int],
        low: int,
        high: int,
        known: Collection[int],
        behind: list[str],
        count: int,
        size: int,
    ) -> Page:
        """Rows between two ids, but for those that are known, and those of some lanes."""
        return await self._read(
            "sweep", count, size, slots=self._list(slots), low=low, high=high,
            known=self._list(known), behind=json.dumps(behind),
        )  # fmt: skip

    async def lanes(self, asked: Sequence[Stretch], high: int, count: int, size: int) -> Page:
        """Rows of some lanes, from where each is known up to an id."""
        return await self._read("lanes", count, size, asked=stretched(asked), high=high)

    async def _read(self, name: str, count: int, size: int, **values: object) -> Page:
        async def read(borrowed: Borrowed[Any]) -> Page:
            if self._door.kind == "postgresql":
                await borrowed.ask(_BY_INDEX)
            found = await borrowed.ask(self._said[name], count=count, bytes=size, **values)
            # A rollback would have psycopg forget what the service has prepared on its connection.
            await borrowed.commit(is_last=True)
            there = found.rows[0][-1] if found.rows else 0
            return Page(found.rows, there >= count or len(found.rows) < there)

        return await self.run(read)

    # Finishing

    async def remove(self, ids: Sequence[int]) -> int:
        """Delete rows of our slots; returns how many there were."""

        async def remove(borrowed: Borrowed[Any]) -> int:
            await self._see_what_is_committed(borrowed)
            if self._door.kind == "postgresql":
                await borrowed.ask(_BY_INDEX)
            done = await borrowed.ask(self._said["remove"], ids=self._list(ids), token=self._token)
            await borrowed.commit(is_last=True)
            return done.changed

        return await self.run(remove)

    async def put_aside(self, row_id: int, problem: str) -> bool:
        """Mark a row of ours as one that nobody takes; whether it was still ours."""
        return await self._mark("put_aside", row_id, problem)

    async def note(self, row_id: int, problem: str) -> bool:
        """Say of a row of ours why it waits."""
        return await self._mark("note", row_id, problem)

    async def _mark(self, name: str, row_id: int, problem: str) -> bool:
        async def mark(borrowed: Borrowed[Any]) -> bool:
            await self._see_what_is_committed(borrowed)
            done = await borrowed.ask(
                self._said[name], id=row_id, problem=problem, token=self._token
            )
            await borrowed.commit(is_last=True)
            return done.changed > 0

        return await self.run(mark)

    # Slots

    async def beat(self) -> Beat:
        """Say that we are here, renew what we have, and take as many slots as are free and fair."""
        ours = {"token": self._token, "lease_ms": self._lease_ms}

        async def beat(borrowed: Borrowed[Any]) -> Beat:
            await self._see_what_is_committed(borrowed)
            seen = await borrowed.ask(self._said["seen"], token=self._token)
            if not seen.changed:
                await borrowed.ask(self._said["join"], token=self._token)
            await borrowed.ask(self._said["bury"], lease_ms=self._lease_ms)
            await borrowed.ask(self._said["renew"], **ours)
            asked = await borrowed.ask(self._said["living"], lease_ms=self._lease_ms)
            living = int(asked.rows[0][0])
            held = await self._held(borrowed)
            missing = fair_share(living) - len(held)
            if missing > 0:
                free = await borrowed.ask(self._said["free"], token=self._token, count=missing)
                if free.rows:
                    slots = self._list([each[0] for each in free.rows])
                    await borrowed.ask(self._said["lease"], slots=slots, **ours)
                    held = await self._held(borrowed)
            await borrowed.commit(is_last=True)
            return Beat(held, living)

        return await self.run(beat)

    async def _held(self, borrowed: Borrowed[Any]) -> set[int]:
        found = await borrowed.ask(self._said["held"], token=self._token)
        return {int(each[0]) for each in found.rows}

    async def release(self, slots: Collection[int], *, leaves: bool = False) -> None:
        """Let go of some slots, and with ``leaves`` be no relay any more."""

        async def release(borrowed: Borrowed[Any]) -> None:
            await self._see_what_is_committed(borrowed)
            await borrowed.ask(self._said["release"], slots=self._list(slots), token=self._token)
            if leaves:
                await borrowed.ask(self._said["leave"], token=self._token)
            await borrowed.commit(is_last=True)

        await self.run(release)

    # Figures

    async def waiting(self) -> Waiting:
        """What is in the outbox now."""

        async def count(borrowed: Borrowed[Any]) -> Waiting:
            rows, oldest_ms, failed = (await borrowed.ask(self._said["waiting"])).rows[0]
            await borrowed.commit(is_last=True)  # As for what is read.
            age_s = max(0.0, float(oldest_ms or 0) / 1000)
            return Waiting(rows=int(rows), oldest_s=age_s, failed=int(failed))

        if not self._door.is_blocking:
            return await self.run(count)
        # Where many rows take long to count, those who ask shall not have all the threads.
        if self._counting is None or self._counting.done():
            self._counting = self._begun(self._in_session(count))
        return cast(Waiting, await self._answered(self._counting))

    # How all of it is done

    async def run(self, work: Callable[[Borrowed[Any]], Coroutine[Any, Any, T]]) -> T:
        """Do something in a transaction of its own, which is committed by nobody else."""
        done = self._in_session(work)
        if self._door.is_blocking:
            return cast(T, await self._answered(self._begun(done)))
        async with asyncio.timeout(self._answer_s):
            return await done

    def _begun(self, work: Coroutine[Any, Any, object]) -> asyncio.Future[object]:
        running = self._threads.run(lambda: drive(work))
        self._running[running] = None
        running.add_done_callback(self._has_run)
        return running

    async def _answered(self, running: asyncio.Future[object]) -> object:
        async with asyncio.timeout(self._answer_s):
            # A thread cannot be cut off, and has a connection that is not ours to forget.
            return await asyncio.shield(running)

    def _has_run(self, running: asyncio.Future[object]) -> None:
        del self._running[running]
        if not running.cancelled():
            running.exception()  # Perhaps nobody waits for it any more.

    async def _in_session(self, work: Callable[[Borrowed[Any]], Coroutine[Any, Any, T]]) -> T:
        try:
            async with self._opened() as borrowed:
                return await work(borrowed)
        except Exception as problem:
            if isinstance(problem, (*self.problems, TxmqError)):
                raise
            # A source may do anything for a connection, such as ask somebody for a password.
            why = f"{type(problem).__name__}: {words(problem)}"
            raise DatabaseFailed(f"the database cannot be asked: {why}") from problem

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Borrowed[Any]]:
        borrowed = await self._door.open()
        try:
            yield borrowed
        finally:
            await borrowed.close()

    async def _see_what_is_committed(self, borrowed: Borrowed[Any]) -> None:
        """Whatever the application has chosen for its own transactions."""
        if (level := dialects.ISOLATION.get(self._door.kind)) is not None:
            await borrowed.ask(level)

    def _list(self, numbers: Collection[int]) -> str:
        return listed(self._door.kind, numbers)
