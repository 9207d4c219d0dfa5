"""FilterByTagConsumer: consume the messages of two tags; the broker does not send the others."""

from __future__ import annotations

import time

from examples.rocketmq_tour.program import Until, run_consumer
from txmq import ConsumerSettings, PushConsumer, ReceivedMessage, StartFrom

__all__ = ["consume"]

SETTINGS = ConsumerSettings(start=StartFrom.FIRST)


async def consume(names: str, until: Until) -> None:
    """Show each message."""
    consumer = PushConsumer("cg-tags", names, SETTINGS)

    @consumer.on("TopicTest", tags="myTagA || myTagB")
    async def show(message: ReceivedMessage) -> None:
        print("time:", time.strftime("%M:%S"))
        print("message:", message)
        until.saw(1)

    async with consumer:
        print("consumer started")
        await until.over()


if __name__ == "__main__":
    run_consumer(consume)
