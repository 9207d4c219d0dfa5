"""Guarded functions called by other libraries, which read signatures and pass arguments.

The callers here imitate FastStream and Celery, so that neither has to be installed.
"""

import asyncio
import inspect
import json
import typing
from dataclasses import dataclass

import pytest

from tests.unit.idempotent.memory_guard import MemoryGuard
from txmq.errors import KeyConflict, KeyInProgress
from txmq.idempotent import idempotent


@dataclass
class Order:
    id: str
    amount: int


class Subscriber:
    """Decodes arguments by the annotations of a handler, and passes them by name."""

    def __init__(self):
        self.handler = None
        self.acknowledged = []

    def __call__(self, handler):
        assert inspect.iscoroutinefunction(handler)
        self.handler = handler
        self.wanted = {
            name: typing.get_type_hints(handler)[name]
            for name in inspect.signature(handler).parameters
        }
        return handler

    async def deliver(self, body):
        (name,) = self.wanted
        await self.handler(**{name: self.wanted[name](**json.loads(body))})
        self.acknowledged.append(body)


class Tasks:
    """Calls a task with the arguments that were queued, and acknowledges it late."""

    def __init__(self, retries):
        self.retries = retries
        self.left = []

    def task(self, function):
        self.function = function
        return function

    def delay(self, *args, **kwargs):
        self.left.append((args, kwargs))

    def work(self):
        args, kwargs = self.left[0]
        for again in range(self.retries + 1):
            try:
                said = self.function(*args, **kwargs)
            except KeyInProgress:
                if again == self.retries:
                    raise
            else:
                self.left.pop(0)
                return said
        raise AssertionError("it was tried at least once")


def test_a_guarded_function_works_with_a_caller_that_reads_annotations():
    guard = MemoryGuard(is_blocking=False, has_session=True)
    subscriber, work = Subscriber(), []

    @subscriber
    @idempotent(guard, key=lambda order: order.id, payload=lambda order: str(order.amount))
    async def pay(session: list[str], order: Order) -> None:
        session.append(order.id)
        work.append(order)

    async def story():
        tea = json.dumps({"id": "tea", "amount": 3})
        for _ in range(3):
            await subscriber.deliver(tea)
        with pytest.raises(KeyConflict):
            await subscriber.deliver(json.dumps({"id": "tea", "amount": 4}))

    asyncio.run(story())
    assert work == [Order("tea", 3)]
    assert len(subscriber.acknowledged) == 3


def test_a_guarded_function_works_with_a_task_queue_that_acknowledges_late():
    guard = MemoryGuard(has_session=True)
    tasks, work = Tasks(retries=2), []

    @tasks.task
    @idempotent(
        guard,
        key=lambda order_id, amount: order_id,
        payload=lambda order_id, amount: str(amount),
        keeps_result=True,
        scope="pay",
    )
    def pay(session: list[str], order_id: str, amount: int) -> int:
        session.append(order_id)
        work.append(order_id)
        return amount

    tasks.delay("a", 5)
    tasks.delay("a", amount=5)
    assert [tasks.work(), tasks.work()] == [5, 5]
    with guard.attempt("b", scope="pay", payload="7"):
        tasks.delay("b", 7)
        with pytest.raises(KeyInProgress):
            tasks.work()
    assert tasks.left == [(("b", 7), {})]
    assert work == ["a"]
    assert len(guard.seen) == 2 + 1 + 3
