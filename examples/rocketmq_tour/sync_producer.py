"""SyncProducer: send a message, wait until it is stored, send the next."""

from __future__ import annotations

from examples.rocketmq_tour.program import run_producer
from txmq import Message, Producer, ProducerSettings

__all__ = ["produce"]

SETTINGS = ProducerSettings(retries=3, timeout="20s")


async def produce(names: str) -> None:
    """Send 100 messages, one after the other."""
    async with Producer("pg", names, SETTINGS) as producer:
        for i in range(100):
            message = Message(
                topic="testTopic",
                tags="testTag",
                keys=(f"key-{i}",),
                body=f"Hi,RocketMQ Test {i}".encode(),
            )
            result = await producer.send(message)
            print(result)


if __name__ == "__main__":
    run_producer(produce)
