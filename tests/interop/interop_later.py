"""Shared by tests of delayed and repeated messages: senders, consumers, and the time at which each
handling must have been.
Processes tell their own time, which is this machine's. A message is stored after it was offered and
before it was acknowledged, and so is a message that is sent back after its handling began.
"""

import os

from tests.interop.interop_stage import names

SOAK = 5 if os.environ.get("TXMQ_SOAK") else 1
"""How much more is sent, and how much longer is worked, in a soak."""

ROUNDING_MS = 2
"""What may be lost where times are told in whole milliseconds, twice."""

LATE_MS = 900
"""How late anything may be, on a machine that is busy with other things: less than the second that
lies between the levels where they are told apart by time.
"""


class Exchange:
    """One topic, with a sender of each client; what it sends has its client's name for a tag."""

    def __init__(self, stage, clients, *flags, tell=()):
        self.stage = stage
        self.clients = clients
        self.topic = stage.topic()
        told = [flag for name in tell for flag in ("--tell", name)]
        self._flags = (*told, *flags)
        self.consumers = []
        self.senders = [stage.sender(client, self.topic) for client in clients]
        self.lines = []
        self._tags = {}

    def listen(self, client, group, tags="*"):
        """Start a consumer of a group."""
        consumer = self.stage.consumer(client, self.topic, group, *self._flags, tags=tags)
        self.consumers.append(consumer)
        self._tags[consumer.label] = tags

    def listen_all(self):
        """Start a consumer of each client, each in a group of its own."""
        for client in self.clients:
            self.listen(client, self.stage.group())

    def send(self, make):
        """Send what is made of the name of each sender's client."""
        batches = [
            [{**line, "tags": client.name} for line in make(client.name)] for client in self.clients
        ]
        for sender, lines in zip(self.senders, batches, strict=True):
            sender.write(lines)
        for sender, lines in zip(self.senders, batches, strict=True):
            self.stage.wait_sent(sender, lines)
            self.lines += lines

    def wanted(self, consumer):
        """The messages that are for a consumer."""
        tags = self._tags[consumer.label]
        return [line for line in self.lines if tags in ("*", line["tags"])]

    def wait(self, times=1):
        """Wait until each group has handled its messages ``times`` times."""
        for consumer in self.consumers:
            keys = names(self.wanted(consumer))
            self.stage.wait(
                lambda: all(len(handlings(consumer, key)) >= times for key in keys),  # noqa: B023
                f"{consumer.label} to handle {len(keys)} messages {times} times",
            )

    def leave(self):
        """All consumers go."""
        for consumer in self.consumers:
            consumer.leave()

    def sent(self, key):
        """The acknowledgement that the sender of a message received."""
        (event,) = [event for sender in self.senders for event in sender.sent if is_of(event, key)]
        return event


def is_of(event, key):
    return event["keys"] == key


def handlings(consumer, key):
    """Each time that a consumer handled a message, in that order."""
    return [event for event in consumer.handled if is_of(event, key)]


def assert_in_time(handled_ms, since_ms, until_ms, wait_ms, what):
    """A message that was sent between two moments was handled neither early nor late."""
    early = since_ms + wait_ms - handled_ms
    assert early <= ROUNDING_MS, f"{what}: {early:.0f} ms too early"
    late = handled_ms - until_ms - wait_ms
    assert late < LATE_MS, f"{what}: {late:.0f} ms too late"
