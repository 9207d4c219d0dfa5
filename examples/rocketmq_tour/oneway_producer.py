"""OnewayProducer: send without an answer of the broker."""

from __future__ import annotations

from examples.rocketmq_tour.program import run_producer
from txmq import Message, Producer, ProducerSettings

__all__ = ["produce"]

SETTINGS = ProducerSettings(timeout="20s")


async def produce(names: str) -> None:
    """Send 100 messages without confirmation."""
    async with Producer("pg", names, SETTINGS) as producer:
        for i in range(100):
            body = f"Hi,RocketMQ Oneway Test {i}".encode()
            await producer.send_oneway(Message(topic="single", tags="testTag", body=body))
    print("producer shutdown")


if __name__ == "__main__":
    run_producer(produce)
