"""BatchProducer: many messages in few requests.

The Java program brings a MessageListSplitter of its own, which cuts the list into requests of at
most 4 MiB. Here ``send_batch`` does that, and answers for each message.
"""

from __future__ import annotations

from examples.rocketmq_tour.program import run_producer
from txmq import Message, Producer, ProducerSettings

__all__ = ["produce"]

SETTINGS = ProducerSettings(timeout="20s")


async def produce(names: str) -> None:
    """Send 100 messages together."""
    messages = [
        Message(topic="TopicA", tags="TagA", body=f"Hi, Ordered Msg {i}".encode())
        for i in range(100)
    ]
    async with Producer("pg", names, SETTINGS) as producer:
        for result in await producer.send_batch(messages):
            print(result)


if __name__ == "__main__":
    run_producer(produce)
