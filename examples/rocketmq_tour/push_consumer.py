"""ConsumerTest: a push consumer that has what it could not handle come again.

The handler says so by returning ``Later()``. Raising says the same; returning nothing says that
the message is consumed.
"""

from __future__ import annotations

from examples.rocketmq_tour.program import Until, run_consumer
from txmq import ConsumerSettings, Later, PushConsumer, ReceivedMessage, StartFrom

__all__ = ["consume"]

TOPIC = "TOPIC_TEST"
TAG = "TAG_TEST"
SETTINGS = ConsumerSettings(start=StartFrom.FIRST)


async def consume(names: str, until: Until) -> None:
    """Show each message that is text."""
    consumer = PushConsumer("ConsumerTest", names, SETTINGS)

    @consumer.on(TOPIC, tags=TAG)
    async def show(message: ReceivedMessage) -> Later | None:
        until.saw(1)
        try:
            text = message.body.decode()
        except UnicodeDecodeError as error:
            print(f"attempt {message.attempts} at {message.id} failed: {error}")
            return Later()
        print(
            f"consumed {message.id} topic: {message.topic} tag: {message.tags} "
            f"key: {message.key} message: {text}"
        )
        return None

    async with consumer:
        print(f"consumer started, topic {TOPIC}, tag {TAG}")
        await until.over()
    print("consumer stopped")


if __name__ == "__main__":
    run_consumer(consume)
