"""FilterBySQLProducer: messages with an age as a property."""

from __future__ import annotations

from examples.rocketmq_tour.program import run_producer
from txmq import Message, Producer, ProducerSettings

__all__ = ["produce"]

SETTINGS = ProducerSettings(timeout="20s")


async def produce(names: str) -> None:
    """Send 10 messages, with the ages from 0 to 9."""
    async with Producer("pg", names, SETTINGS) as producer:
        for i in range(10):
            body = f"Hi Filter SQL Msg {i}".encode()
            message = Message(
                topic="TopicTest", tags="myTag", body=body, properties={"age": str(i)}
            )
            result = await producer.send(message)
            print("result:", result)


if __name__ == "__main__":
    run_producer(produce)
