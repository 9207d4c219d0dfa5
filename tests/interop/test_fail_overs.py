"""A broker set whose leaders die or stand still, under the C++ client, ali-ons and ours at once."""

import signal
import statistics
import time

from tests.interop.interop_stage import QUEUES, letters
from tests.interop.interop_together import PlaySet, played
from tests.soak import count
from tests.traffic.set_traffic import Traffic

LEASE_S = 2
LATE_S = 100  # a C++ client asks for the route every 30 s
SETTINGS = (
    f"replication.lease={LEASE_S}",
    "transaction.timeout=1s",
    "transaction.check_interval=1s",
)
IN_HAND = 20
BUSY_S = 3
"""What a machine may take longer that runs other tests at the same time."""


class Writer:
    """A sender that always has some messages in hand."""

    def __init__(self, process, prefix):
        self.process = process
        self.prefix = prefix
        self.lines = []

    def go_on(self):
        missing = IN_HAND - (len(self.lines) - len(self.process.acknowledged))
        if missing > 0:
            more = letters(f"{self.prefix}-{len(self.lines)}", missing)
            self.lines += more
            self.process.write(more)

    def positions(self):
        """Where each message was stored, in the order of the acknowledgements."""
        return [(event["keys"], event["queue_offset"]) for event in self.process.sent]


@played(("cpp", "ons"), broker=PlaySet(settings=SETTINGS))
def test_three_clients_keep_working_through_many_fail_overs(stage, *clients):
    members = stage.broker.members
    stage.broker = members.wait_in_sync(2)
    topic = stage.topic()
    consumers = [stage.consumer(client, topic, stage.retried_group()) for client in clients]
    writers = [Writer(stage.sender(client, topic, pace_ms=20), client.name) for client in clients]
    with Traffic(members.names.names, topic) as ours:
        times = [fail_over(members, writers, ours, number) for number in range(count(5, 20))]
    print(f"seconds without a leader: median {statistics.median(times):.2f}, {max(times):.2f}")
    stage.broker = members.wait_in_sync(2)
    for writer in writers:
        stage.wait_sent(writer.process, writer.lines, LATE_S)
    ours.check(stage.broker)
    queues = {
        (text.removeprefix("body of "), offset): queue
        for queue in range(QUEUES)
        for offset, text in ours.all_of(stage.broker, queue).items()
    }
    for writer in writers:
        assert_in_order((queues.get(place), place[1]) for place in writer.positions())
    lines = [line for writer in writers for line in writer.lines]
    for consumer in consumers:
        stage.wait_handled([consumer], lines, LATE_S)


def fail_over(members, writers, ours, number):
    """Returns the seconds without a leader."""
    for writer in writers:
        writer.go_on()
    ours.wait_for_more()
    leader, end = members.wait_in_sync(2), (signal.SIGKILL, signal.SIGSTOP)[number % 2]
    leader.signal(end)
    begun = time.monotonic()
    members.wait_for_leader(leader)
    took = time.monotonic() - begun
    assert took < LEASE_S + 2 + BUSY_S, f"{took:.1f} s without a leader\n{members.told()}"
    if end is signal.SIGSTOP:
        ours.wait_for_more()
        leader.signal(signal.SIGCONT)
    else:
        leader.process.wait()
        leader.start()
    return took


def assert_in_order(places):
    """In each queue, messages lie in the order of their acknowledgements."""
    last = {}
    for queue, offset in places:
        assert queue is not None, f"nothing of this sender is at {offset}"
        assert offset > last.get(queue, -1), f"{queue}/{offset} was acknowledged late"
        last[queue] = offset
