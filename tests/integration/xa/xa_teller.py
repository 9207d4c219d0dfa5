"""Runs tellers of two banks, each in a process that kills itself at a point it is told.

As those of one bank do; here the points are the lines of the story, and each of them is told, so
that nobody who asks for all points forgets one.
"""

import contextlib
from dataclasses import dataclass, field

from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.integration.transaction.crash_bank import Order
from tests.integration.transaction.crash_teller import Detour, Plan, Teller, doing, main
from txmq import TransactionManager, XAResource

__all__ = ["XAPlan", "words"]


@dataclass
class XAPlan(Plan):
    """What a teller of two banks does."""

    url: str = ""
    urls: dict[str, str] = field(default_factory=dict)
    confirm_timeout: float = 10.0
    names: str = ""
    group: str = ""
    topic: str = ""


def words(name, order_id, amount=1):
    """What each bank does for a transfer."""
    sign = "-" if name == "icbc" else "+"
    yield f"INSERT INTO entry VALUES ('{order_id}', {amount})"
    yield f"UPDATE account SET balance = balance {sign} {amount}"


class XATeller(Teller):
    """One process's work."""

    def step(self, record):
        xid, *rest = record.args
        is_step = len(rest) > 1
        if is_step and rest[0] == 1:
            self.say(xid=xid)
        label = f"step {rest[0]}" if is_step else str(rest[0])
        order = doing.get()
        if order is not None and self._plan.point == "none, but tell":
            self.say(label=label)
        self.reached(label)
        return False

    @contextlib.asynccontextmanager
    async def source(self):
        async with contextlib.AsyncExitStack() as stack:
            engines = {}
            for name, url in self._plan.urls.items():
                if self._plan.kind.endswith("async"):
                    engines[name] = create_async_engine(url)
                    stack.push_async_callback(engines[name].dispose)
                else:
                    engines[name] = create_engine(url)
                    stack.callback(engines[name].dispose)
            resource = XAResource(engines, confirm_timeout=self._plan.confirm_timeout)
            stack.callback(resource.close)
            yield resource

    def function(self, manager):
        def plain(sessions, order):
            for name, session in sessions.items():
                for statement in words(name, order.id):
                    session.execute(text(statement))

        async def awaited(sessions, order):
            for name, session in sessions.items():
                for statement in words(name, order.id):
                    await session.execute(text(statement))

        return awaited if self._plan.kind.endswith("async") else plain

    async def work(self):
        plan = self._plan
        async with self.source() as resource:
            manager = TransactionManager(
                plan.group, plan.names, resource, network=Detour(plan.ways)
            )
            async with manager:
                transfer = manager.transactional(topic=plan.topic, keys=lambda order: order.id)
                order = Order(plan.target)
                doing.set(order)
                outcome = await transfer(self.function(manager))(order)
                self.say(state=outcome.state.name, problem=str(outcome.problem or ""))


if __name__ == "__main__":
    main(XAPlan, XATeller)
