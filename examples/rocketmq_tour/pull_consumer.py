"""ConsumerPullTest: pull queue by queue, and keep the offsets in the program."""

from __future__ import annotations

from examples.rocketmq_tour.program import Until, run_consumer
from txmq import PullConsumer, PullOutcome, Queue

__all__ = ["consume"]

TOPIC = "TOPIC_TEST"
HOLD_S = 1.0
"""How long the broker waits for a message if a queue has no more; 20 s in the Java program."""


async def read_to_end(consumer: PullConsumer, queue: Queue, offset: int, until: Until) -> int:
    """Show the messages of a queue from an offset on; returns the next offset."""
    while not until.is_over:
        pulled = await consumer.pull(queue, offset, 32, hold=HOLD_S)
        offset = pulled.next_offset
        if pulled.outcome is PullOutcome.FOUND:
            for message in pulled.messages:
                print(message.body.decode(errors="replace"))
            until.saw(len(pulled.messages))
        elif pulled.outcome is PullOutcome.EMPTY:
            break
    return offset


async def consume(names: str, until: Until) -> None:
    """Go through the queues of a topic, again and again."""
    offsets: dict[Queue, int] = {}
    async with PullConsumer("ConsumerPullTest", names) as consumer:
        while not until.is_over:
            for queue in await consumer.queues_of(TOPIC):
                if queue not in offsets:
                    print("Consume from the queue:", queue)
                start = offsets.get(queue, 0)
                offsets[queue] = await read_to_end(consumer, queue, start, until)
    print("consumer stopped")


if __name__ == "__main__":
    run_consumer(consume)
