"""FilterByTagProducer: messages with three different tags."""

from __future__ import annotations

from examples.rocketmq_tour.program import run_producer
from txmq import Message, Producer, ProducerSettings

__all__ = ["produce"]

SETTINGS = ProducerSettings(timeout="20s")
TAGS = ("myTagA", "myTagB", "myTagC")


async def produce(names: str) -> None:
    """Send 10 messages, with one tag after the other."""
    async with Producer("pg", names, SETTINGS) as producer:
        for i in range(10):
            body = f"Hi Filter Tag Msg {i}".encode()
            tag = TAGS[i % len(TAGS)]
            result = await producer.send(Message(topic="TopicTest", tags=tag, body=body))
            print("result:", result)


if __name__ == "__main__":
    run_producer(produce)
