"""DelayProducer: send messages that are delivered after a delay.

How much time is what the broker's table has for the message's level: 10 seconds for level 3.
"""

from __future__ import annotations

from time import strftime

from examples.rocketmq_tour.program import run_producer
from txmq import Message, Producer, ProducerSettings

__all__ = ["produce"]

SETTINGS = ProducerSettings(timeout="20s")


async def produce(names: str) -> None:
    """Send 100 messages that come 10 seconds later."""
    async with Producer("pg", names, SETTINGS) as producer:
        for i in range(100):
            body = f"Hi, Delay Msg {i}".encode()
            message = Message(topic="TopicB", tags="TagB", body=body, delay_level=3)
            result = await producer.send(message)
            print(f"sent at {strftime('%M:%S')}: {result}")


if __name__ == "__main__":
    run_producer(produce)
