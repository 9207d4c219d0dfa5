"""DelayConsumer: be called with messages once their time has come.

Nothing tells such a consumer from any other.
"""

from __future__ import annotations

from time import strftime

from examples.rocketmq_tour.program import Until, run_consumer
from txmq import ConsumerSettings, PushConsumer, ReceivedMessage, StartFrom

__all__ = ["consume"]

SETTINGS = ConsumerSettings(start=StartFrom.FIRST)


async def consume(names: str, until: Until) -> None:
    """Show each message, and how long it was on its way."""
    consumer = PushConsumer("cg-delay", names, SETTINGS)

    @consumer.on("TopicB")
    async def show(message: ReceivedMessage) -> None:
        waited_s = (message.stored_ms - message.born_ms) / 1000
        print(f"consumed at {strftime('%M:%S')}, {waited_s:.3f} s after it was sent: {message}")
        until.saw(1)

    async with consumer:
        print("consumer started")
        await until.over()


if __name__ == "__main__":
    run_consumer(consume)
