"""FilterBySQLConsumer: be called with the messages whose age lies between two others.

The broker must accept conditions: start it with ``--set filter.sql=true``, or in RocketMQ's words
``enablePropertyFilter=true``.
"""

from __future__ import annotations

import time

from examples.rocketmq_tour.program import Until, run_consumer
from txmq import ConsumerSettings, PushConsumer, ReceivedMessage, StartFrom

__all__ = ["consume"]

SETTINGS = ConsumerSettings(start=StartFrom.FIRST)


async def consume(names: str, until: Until) -> None:
    """Show each message."""
    consumer = PushConsumer("cg-sql", names, SETTINGS)

    @consumer.on("TopicTest", sql="age between 0 and 6")
    async def show(message: ReceivedMessage) -> None:
        print("time:", time.strftime("%M:%S"))
        print("message:", message)
        until.saw(1)

    async with consumer:
        print("consumer started")
        await until.over()


if __name__ == "__main__":
    run_consumer(consume)
