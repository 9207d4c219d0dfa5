"""BatchConsumer: be called with up to 10 messages at once, fetched up to 40 at once.

A stock broker gives at most 32 messages for one fetch, and so does ours.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from examples.rocketmq_tour.program import Until, run_consumer
from txmq import ConsumerSettings, PushConsumer, ReceivedMessage, StartFrom

__all__ = ["consume"]

SETTINGS = ConsumerSettings(start=StartFrom.FIRST, batch_max=10, pull_batch=40)


async def consume(names: str, until: Until) -> None:
    """Show each batch."""
    consumer = PushConsumer("cg-batch", names, SETTINGS)

    @consumer.on_batch("TopicA")
    async def show(messages: Sequence[ReceivedMessage]) -> None:
        print(f"a batch of {len(messages)}")
        for message in messages:
            print("time:", time.strftime("%M:%S"))
            print("message:", message)
        until.saw(len(messages))

    async with consumer:
        print("consumer started")
        await until.over()


if __name__ == "__main__":
    run_consumer(consume)
