"""OrderedProducer: the messages of one order go to one queue, so they stay in order."""

from __future__ import annotations

from collections.abc import Sequence

from examples.rocketmq_tour.program import run_producer
from txmq import Message, Producer, ProducerSettings, Queue

__all__ = ["produce"]

SETTINGS = ProducerSettings(timeout="20s")


def queue_of(queues: Sequence[Queue], message: Message, order_id: int) -> Queue:
    """The queue of an order."""
    del message
    return queues[order_id % len(queues)]


async def produce(names: str) -> None:
    """Send 100 messages, each to the queue of its order."""
    async with Producer("pg", names, SETTINGS) as producer:
        for order_id in range(100):
            body = f"Hi, Ordered Msg {order_id}".encode()
            message = Message(topic="testTopic", tags="TagA", body=body)
            result = await producer.send_to(message, queue_of, order_id)
            print("result:", result)


if __name__ == "__main__":
    run_producer(produce)
