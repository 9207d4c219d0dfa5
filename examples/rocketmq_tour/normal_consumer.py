"""NormalConsumer: consume every message of a topic, from the first on."""

from __future__ import annotations

from examples.rocketmq_tour.program import Until, run_consumer
from txmq import ConsumerSettings, PushConsumer, ReceivedMessage, StartFrom

__all__ = ["consume"]

SETTINGS = ConsumerSettings(start=StartFrom.FIRST)


async def consume(names: str, until: Until) -> None:
    """Show each message."""
    consumer = PushConsumer("cg", names, SETTINGS)

    @consumer.on("testTopic")
    async def show(message: ReceivedMessage) -> None:
        print(message)
        until.saw(1)

    async with consumer:
        print("consumer started")
        await until.over()


if __name__ == "__main__":
    run_consumer(consume)
