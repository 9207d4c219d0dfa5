"""ConsumerPullDemo: a task is called for each queue; the broker remembers how far it has come.

The group shares the queues, as it does with push consumers.
"""

from __future__ import annotations

from examples.rocketmq_tour.program import Until, run_consumer
from txmq import PullContext, Queue, ScheduledPull

__all__ = ["consume"]

TOPIC = "TOPIC_TEST"


async def consume(names: str, until: Until) -> None:
    """Show what each queue brings, every 10 seconds."""
    schedule = ScheduledPull("schedule_consumer", names)

    @schedule.on(TOPIC)
    async def pull(queue: Queue, context: PullContext) -> None:
        consumer = context.consumer
        offset = await consumer.committed(queue) or 0
        pulled = await consumer.pull(queue, offset, 32)
        for message in pulled.messages:
            print(message.body.decode(errors="replace"))
        consumer.note_offset(queue, pulled.next_offset)
        context.next_delay = 10.0
        until.saw(len(pulled.messages))

    async with schedule:
        print("consumer started")
        await until.over()


if __name__ == "__main__":
    run_consumer(consume)
