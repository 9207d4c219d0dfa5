"""AsyncProducer: send without waiting, and be called when each message is stored.

The Java program must sleep before it closes its producer, or messages are lost. Here the end of
``async with`` waits for the answers.
"""

from __future__ import annotations

import asyncio

from examples.rocketmq_tour.program import run_producer
from txmq import Message, Producer, ProducerSettings, SendResult

__all__ = ["produce"]

SETTINGS = ProducerSettings(retries_nowait=0, queues_of_new_topics=2, timeout="20s")


def show(sent: asyncio.Future[SendResult]) -> None:
    """Called when the broker has answered, or will not."""
    error = sent.exception()
    if error is None:
        print("result:", sent.result())
    else:
        print("failed:", error)


async def produce(names: str) -> None:
    """Send 100 messages at once."""
    async with Producer("pg", names, SETTINGS) as producer:
        for i in range(100):
            message = Message(
                topic="testTopic",
                tags="testAsyncTag",
                keys=(f"key-{i}",),
                body=f"Hi,RocketMQ Async Test {i}".encode(),
            )
            producer.send_nowait(message).add_done_callback(show)


if __name__ == "__main__":
    run_producer(produce)
