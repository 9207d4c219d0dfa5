"""Runs tellers of a bank, each in a process that stops or kills itself at a point it is told.

Each line of the input is a JSON object, a :class:`Plan`. The teller runs in a fork, so that the
modules need not be loaded anew. What it says, and how it ends, is told in lines, by its process id.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import threading
from contextvars import ContextVar
from dataclasses import dataclass, field

import aiosqlite  # noqa: F401 - loaded before the first fork
import psycopg  # noqa: F401
from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.integration.transaction.crash_bank import PAYERS, Order
from txmq import SQLResource, TransactionManager
from txmq.errors import RollBack
from txmq.runtime.network import SystemNetwork

INSIDE_1, INSIDE_2, AT_COMMIT = "before it writes", "after it has written", "asks to commit"

doing: ContextVar[Order | None] = ContextVar("doing", default=None)


@dataclass
class Plan:
    """What a teller does.

    It makes the first bystander's transfer alone, and the others together with the target's.
    """

    kind: str
    url: str
    names: str
    group: str
    topic: str
    target: str | None = None
    """The transfer in whose middle something happens; without one it only answers checks."""
    bystanders: list[str] = field(default_factory=list)
    point: str = ""
    """Where: the number of a step of the story, or a point in the local transaction."""
    signal: str = "SIGKILL"
    refuses: bool = False
    """Whether the target is rolled back."""
    ways: dict[str, int] = field(default_factory=dict)
    """Ports that lie behind others."""


class Detour(SystemNetwork):
    """TCP, with some ports led through a wire that watches them."""

    def __init__(self, ways):
        self._ways = {int(port): way for port, way in ways.items()}

    async def connect(self, factory, host, port):
        return await super().connect(factory, host, self._ways.get(port, port))


class Teller:
    """One process's work."""

    def __init__(self, plan):
        self._plan = plan

    def say(self, **what):
        order = doing.get()
        line = json.dumps({"id": None if order is None else order.id, **what})
        os.write(1, f"said {line}\n".encode())

    def reached(self, point):
        """Stop or die, if this is the place."""
        order = doing.get()
        if order is not None and order.id == self._plan.target and point == self._plan.point:
            # To this thread: it must not take another step while another one is signalled.
            signal.pthread_kill(threading.get_ident(), getattr(signal, self._plan.signal))

    def step(self, record):
        """A step of the story was told."""
        xid, number, *text = record.args
        if text:  # Otherwise it is a note within a step.
            if number == 1:
                self.say(xid=xid)
            self.reached(str(number))
        return False

    @contextlib.asynccontextmanager
    async def source(self):
        url = make_url(self._plan.url)
        if self._plan.kind.endswith("async"):
            engine = create_async_engine(url)
            event.listen(engine.sync_engine, "commit", lambda _: self.reached(AT_COMMIT))
            yield engine
            await engine.dispose()
        else:
            engine = create_engine(url)
            event.listen(engine, "commit", lambda _: self.reached(AT_COMMIT))
            yield engine
            engine.dispose()

    def function(self, manager):
        """The local transaction: bank A takes the money."""

        def words(order):
            xid = manager.current().xid
            yield text(order.written(xid))
            yield text(order.taken())

        def end(order):
            self.reached(INSIDE_2)
            if self._plan.refuses and order.id == self._plan.target:
                raise RollBack("too little money")

        def plain(session, order):
            self.reached(INSIDE_1)
            for statement in words(order):
                session.execute(statement)
            end(order)

        async def awaited(session, order):
            self.reached(INSIDE_1)
            for statement in words(order):
                await session.execute(statement)
            end(order)

        return awaited if self._plan.kind.endswith("async") else plain

    async def work(self):
        plan, leaves = self._plan, asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaves.set)
        async with self.source() as source:
            manager = TransactionManager(
                plan.group, plan.names, SQLResource(source), network=Detour(plan.ways)
            )
            async with manager:
                self.say(open=True)
                if plan.target is None:
                    await leaves.wait()
                else:
                    await self.transfers(manager)

    async def transfers(self, manager):
        decorate = manager.transactional(topic=self._plan.topic, keys=lambda order: order.id)
        transfer = decorate(self.function(manager))

        async def one(name, payer):
            order = Order(name, payer)
            doing.set(order)
            try:
                outcome = await transfer(order)
            except Exception as problem:
                self.say(raised=type(problem).__name__)
            else:
                self.say(state=outcome.state.name, acknowledged=outcome.is_acknowledged)

        first, *others = self._plan.bystanders
        await asyncio.create_task(one(first, PAYERS[1]))
        beside = [one(bystander, PAYERS[1 + number % 2]) for number, bystander in enumerate(others)]
        await asyncio.gather(*beside, one(self._plan.target, PAYERS[0]))


def be(teller):
    """Be a teller."""
    story = logging.getLogger("txmq.transaction.story")
    story.setLevel(logging.DEBUG)
    story.addFilter(teller.step)
    asyncio.run(teller.work())


def tell(line):
    """Tell a whole line at once: the teller tells lines as well, over the same pipe."""
    os.write(1, f"{line}\n".encode())


def main(plan_of=Plan, teller_of=Teller):
    """One teller after the other."""
    for line in sys.stdin:
        plan = plan_of(**json.loads(line))
        child = os.fork()
        if child == 0:
            os.close(0)
            be(teller_of(plan))
            sys.exit(0)
        tell(f"pid {child}")
        while True:
            _, status = os.waitpid(child, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                break
            tell("stopped")
        tell(f"ended {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()
