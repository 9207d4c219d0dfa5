"""TransactionProducer: messages that are seen only if a local transaction commits.

The Java program shuts down at once, so that the broker has no producer to ask about TAGC.
This one waits until it has been asked: a minute, unless the broker's ``transaction.timeout`` says
otherwise.
"""

from __future__ import annotations

from examples.rocketmq_tour.program import run_producer
from examples.rocketmq_tour.transaction_listener import ICBCListener
from txmq import Message, TransactionProducer, TransactionSettings

__all__ = ["produce"]

# The thread pool of the Java program: up to five checks at once, two hundred that wait.
SETTINGS = TransactionSettings(timeout="20s", check_workers=5, check_queue=200)


async def produce(names: str) -> None:
    """Send a message that is committed, one that is rolled back, and one that is asked about."""
    listener = ICBCListener()
    async with TransactionProducer("tpg", names, listener, SETTINGS) as producer:
        for i, tag in enumerate(("TAGA", "TAGB", "TAGC")):
            message = Message(topic="TTopic", tags=tag, body=f"Hi Transaction Msg {i}".encode())
            outcome = await producer.send_in_transaction(message)
            answer = "acknowledged" if outcome.is_acknowledged else "to be asked about"
            print(f"result of {tag}: {outcome.state.name}, {answer}, xid={outcome.xid}")
        await listener.asked.wait()


if __name__ == "__main__":
    run_producer(produce)
