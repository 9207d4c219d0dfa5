"""Messages of one shard stay in order while members join, leave and are killed.

The C++ client's orderly consumer and ours lock their queues at the broker, and share groups here.
No message of a shard is begun with before the one before it is done, by whomever. Where one of ours
follows one of ours, nothing is handled twice either. With the C++ client it may be, and that is its
own doing: it gives a queue up without waiting for its handler, so that the next member begins with
that very message; and it looks where to begin, and fetches, before it has the lock, so that it
repeats what its predecessor did meanwhile.

ali-ons has no orderly consumer and locks nothing. It handles a queue one message at a time, and
while a queue changes hands two members may work on it; what is kept is that no message is handled
for the first time before the one that was sent before it. It cannot share a group with orderly
members: it would not wait for them.
"""

import itertools
import signal
import sys
import threading
import time
from pathlib import Path

from tests.interop.interop_clients import news
from tests.interop.interop_later import SOAK
from tests.interop.interop_stage import letter
from tests.interop.interop_together import PlayBroker, played
from tests.servers.serving import BrokerProcess

CITIES = ["lisbon", "oslo", "quito", "tunis", "xian", "lima", "riga", "bern"]
PACE_MS = 8
WORK_MS = 20  # so that the busiest queue, with three of the shards, has hardly a pause
SOME = 20 * SOAK
"""So many messages show that a member works, or still does."""


class BrokerAhead(BrokerProcess):
    """A broker whose clock can be set ahead, so that a dead member's locks run out."""

    def command(self):
        data = f"data={self.folder / 'data'}"
        listen = [f"listen={self.address}", f"names_listen={self.names}"]
        launcher = Path(__file__).parent / "broker_ahead.py"
        return [sys.executable, str(launcher), data, *listen, f"store.flush={self.flush}"]

    def set_ahead(self):
        self.process.send_signal(signal.SIGUSR1)


AHEAD = PlayBroker("async", program=BrokerAhead)


class Crew:
    """The members of one group, of the kinds that it is told, in the order they come."""

    def __init__(self, stage, topic, *kinds, locks=True):
        self.stage, self.topic, self.kinds, self.locks = stage, topic, kinds, locks
        self.group = stage.group()
        self.members = []

    def __str__(self):
        return " ".join(kind.name for kind in self.kinds)

    def join(self):
        """The next member comes."""
        flags = ["--work-ms", str(WORK_MS), *(["--orderly"] if self.locks else [])]
        kind = self.kinds[len(self.members)]
        self.members.append(self.stage.consumer(kind, self.topic, self.group, *flags))

    def is_ours(self, number):
        return self.kinds[number].name == "txmq"

    def kill(self, number):
        """Kill a member in the middle of a message; returns the message's key, and the time."""
        member = self.members[number]
        while True:
            count = len(member.handled)
            self.stage.wait(
                lambda count=count: len(member.handled) > count, f"{member.label} to begin"
            )
            member.process.send_signal(signal.SIGSTOP)
            begun = member.handled[-1]
            # On a busy machine this process may look so late that the message is done.
            if now_ms() - begun["at_ms"] < WORK_MS:
                break
            member.process.send_signal(signal.SIGCONT)
        member.kill()
        return begun["keys"], now_ms()

    @property
    def handled(self):
        """All handled messages in order of time, with the member's number."""
        events = [
            (event["at_ms"], number, event)
            for number, member in enumerate(self.members)
            for event in member.handled
        ]
        return sorted(events, key=lambda entry: entry[:2])


def now_ms():
    return time.time_ns() / 1e6


class Traffic:
    """Messages of all shards in turn, which do not stop while members come and go."""

    def __init__(self, stage, client, topic):
        self.stage = stage
        self.sender = stage.sender(client, topic, "send-orderly", pace_ms=PACE_MS)
        self.lines = []
        self._is_over = False
        self._thread = threading.Thread(target=self._feed, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        with news:
            self._is_over = True
            news.notify_all()
        self._thread.join()

    def _feed(self):
        for turn in itertools.count():
            lines = [letter(f"{city} {turn}", shard=city) for city in CITIES]
            self.lines += lines
            self.sender.write(lines)
            with news:
                news.wait_for(lambda: self._is_over or self._is_hungry())
            if self._is_over:
                return

    def _is_hungry(self):
        return len(self.lines) - len(self.sender.events["sent"]) < len(CITIES)

    def until_all_work(self, members):
        """Wait until each of them has handled some more."""
        goals = [(member, len(member.handled) + SOME) for member in members]
        self.stage.wait(
            lambda: all(len(member.handled) >= goal for member, goal in goals), "members to work"
        )

    def keys(self, city):
        return [line["keys"] for line in self.lines if line["shard"] == city]


def crews_of(stage, cpp, ons, ours):
    topic = stage.topic()
    return [
        Crew(stage, topic, cpp, cpp, ours),
        Crew(stage, topic, ours, ours, cpp),
        Crew(stage, topic, ours, cpp, ours),
        Crew(stage, topic, ons, ons, ons, locks=False),
    ]


@played(("cpp", "ons", "ours"), broker=AHEAD)
def test_shards_stay_in_order_while_members_join_and_leave(stage, cpp, ons, ours):
    crews = crews_of(stage, cpp, ons, ours)
    with Traffic(stage, ours, crews[0].topic) as traffic:
        for _ in range(3):
            for crew in crews:
                crew.join()
            traffic.until_all_work([crew.members[-1] for crew in crews])
        for crew in crews:
            crew.members[1].leave()
        traffic.until_all_work([crew.members[0] for crew in crews])
    finish(stage, traffic, crews)

    for crew in crews:
        assert_in_order(crew, traffic)


@played(("cpp", "ons", "ours"), broker=AHEAD)
def test_shards_stay_in_order_when_members_are_killed(stage, cpp, ons, ours):
    """The dead one's queues stay locked until its locks run out, after a minute; a soak lets that
    pass.
    """
    crews = crews_of(stage, cpp, ons, ours)
    broker = stage.broker
    with Traffic(stage, ours, crews[0].topic) as traffic:
        for crew in [*crews, *crews]:
            crew.join()
        traffic.until_all_work([member for crew in crews for member in crew.members])
        deaths = [crew.kill(1) for crew in crews]
        stage.wait(
            lambda: all(len(broker.members(crew.group)) == 1 for crew in crews), "the dead to go"
        )
        traffic.until_all_work([crew.members[0] for crew in crews])
        until_ms = now_ms()
    if SOAK == 1:
        broker.set_ahead()
    finish(stage, traffic, crews)

    for crew, (key, killed_ms) in zip(crews, deaths, strict=True):
        assert_in_order(crew, traffic)
        assert key in crew.members[0].handled_keys, f"{crew}: {key} was half done"
        if crew.locks:
            theirs = {event["queue_id"] for event in crew.members[1].handled[-SOME:]}
            between = [entry for entry in crew.handled if killed_ms < entry[0] < until_ms]
            assert between, crew
            assert not [event for *_, event in between if event["queue_id"] in theirs], crew


def finish(stage, traffic, crews):
    """Wait until all messages are handled, and let all members leave."""
    for crew in crews:
        stage.wait_handled(crew.members, traffic.lines, seconds=120)
        for member in crew.members:
            if not member.leaving:
                member.leave()


def assert_in_order(crew, traffic):
    """Nothing is missing, and no message was begun before an earlier one of its shard."""
    for city in CITIES:
        keys = traffic.keys(city)
        handled = [entry for entry in crew.handled if entry[2]["keys"].split()[0] == city]
        assert list(dict.fromkeys(event["keys"] for *_, event in handled)) == keys, crew
        if crew.locks:
            for before, after in itertools.pairwise(handled):
                assert_in_turn(before, after, crew)


def assert_in_turn(before, after, crew):
    """One after the other; only a member that takes over may begin further back."""
    (began_ms, member, event), (next_ms, next_member, next_event) = before, after
    step = int(next_event["keys"].split()[1]) - int(event["keys"].split()[1])
    is_done = next_ms - began_ms >= WORK_MS - 1
    what = f"{crew}: {event['keys']} by {member}, {next_event['keys']} by {next_member}"
    assert step == 1 or (step < 1 and member != next_member), what
    assert is_done or step < 1, what
    if crew.is_ours(member) and not crew.members[member].was_killed:
        assert is_done, what
        assert step == 1 or not crew.is_ours(next_member), what
