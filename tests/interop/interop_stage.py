"""Owns the vocabulary of the interop tests: a stage with a broker, topics, senders and consumers.

Waiting is always for a fact, with a deadline; a client that dies while a test waits ends the wait.
"""

import collections
import hashlib
import itertools
import re
import time

from tests.interop.interop_clients import ClientProcess, TopicSender, news

QUEUES = 4
WAIT_SECONDS = 40
POLL_SECONDS = 0.05  # for facts that only the broker knows
SETTLED_ROUNDS = 5
CHECKS = 3

# Settings of a broker that asks about half messages soon, and soon gives up.
ASKS_SOON = (
    "transaction.timeout=1s",
    "transaction.check_interval=1s",
    f"transaction.check_max={CHECKS}",
)


def letter(keys, body=None, tags=None, shard=None, **rest):
    """One message for a sender; its keys are its name in every assertion. Beside what is named it
    may have `properties`, and a delay `level` or a moment to come, `deliver_at_ms`.
    """
    line = {"keys": keys, "body": body or f"body of {keys}", "tags": tags, "shard": shard}
    return {**line, **rest}


def packet(keys, body, **rest):
    """The same with bytes for a body."""
    return {**letter(keys, **rest), "body_hex": body.hex()}


def half(keys, local, holds=False, **rest):
    """A half message, and what its local transaction comes to, when let go if it holds."""
    return {**letter(keys, **rest), "local": local, "holds": holds}


def letters(prefix, count, **rest):
    return [letter(f"{prefix}-{number}", **rest) for number in range(count)]


def names(lines):
    return [line["keys"] for line in lines]


def digest(body):
    return hashlib.sha256(body.encode()).hexdigest()


def digest_of(line):
    """The digest that a consumer reports for this message's body."""
    if "body_hex" in line:
        return hashlib.sha256(bytes.fromhex(line["body_hex"])).hexdigest()
    return digest(line["body"])


numbers = itertools.count()  # shared by all stages: test names may agree where they are cut


class Stage:
    """The broker of one test and the clients that the test started; it may share senders."""

    def __init__(self, broker, folder, name, senders=None):
        self.broker = broker
        self.folder = folder
        self.name = re.sub(r"[^A-Za-z0-9]+", "-", name)[:60].strip("-")
        self.processes = []
        self.senders = senders
        self.shared = []

    # -- actors ------------------------------------------------------------------------------

    def topic(self, queues=QUEUES):
        topic = f"{self.name}-{next(numbers)}"
        self.broker.create_topic(topic, queues)
        self.wait(lambda: self.broker.knows(topic), f"the name server to route {topic}")
        return topic

    def group(self):
        return f"{self.name}-group-{next(numbers)}"

    def retried_group(self):
        """A group whose retry topic is there before its first member, as when others were before.

        A C++ member that has no route to it at its start asks for one only some 10 s later.
        """
        group = self.group()
        retries = f"%RETRY%{group}"
        self.broker.create_topic(retries, queues=1)
        self.wait(lambda: self.broker.knows(retries), f"the name server to route {retries}")
        return group

    def sender(self, client, topic, verb="send", *flags, pace_ms=0):
        if self.senders and client.name != "txmq" and not flags and not pace_ms:
            process = self.senders.started(client, verb)
            self.shared.append(process)
            self.wait(lambda: process.ready, f"{process.label} to start")
            return TopicSender(process, topic)
        group = f"{self.name}-producer"
        return self._run(client, topic, group, verb, "--pace-ms", str(pace_ms), *flags)

    def consumer(self, client, topic, group, *flags, tags="*"):
        return self._run(client, topic, group, "consume", "--tags", tags, *flags)

    def transactor(self, client, topic, group, checks="UNKNOWN", *flags):
        """A producer of half messages that the broker knows by its heartbeat once this returns."""
        opening = letter(f"opening-{next(numbers)}")
        flags = ("--checks", checks, *flags)
        return self._run(client, topic, group, "transact", *flags, first=[opening])

    def _run(self, client, topic, group, verb, *rest, first=()):
        label = f"{client.name}-{verb}-{next(numbers)}"
        common = ["--names", self.broker.names, "--topic", topic, "--group", group]
        process = ClientProcess(client, self.folder, label, [verb, *common, *rest])
        self.processes.append(process)
        process.write(first)
        self.wait(lambda: process.ready, f"{label} to start")
        return process

    def close(self):
        for process in self.processes:
            process.close()

    # -- waiting -----------------------------------------------------------------------------

    def wait(self, fact, what, seconds=WAIT_SECONDS):
        """Return the fact's first true value; fail with everything known after the deadline."""
        deadline = time.monotonic() + seconds
        while not (value := fact()):
            self._check_alive(what)
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {seconds} s for {what}\n{self.report()}")
            with news:
                news.wait(POLL_SECONDS)
        return value

    def _check_alive(self, what):
        for process in (*self.processes, *self.shared):
            if not process.leaving and process.process.poll() is not None:
                complaints = process.complaints()
                raise AssertionError(f"{process.label} died, waiting for {what}\n{complaints}")

    def report(self):
        parts = [f"broker log:\n{self.broker.tail()}"]
        for process in (*self.processes, *self.shared):
            counts = {kind: len(events) for kind, events in process.events.items()}
            refusals = process.events["refused"][-3:]
            parts.append(f"{process.label}: {counts} {refusals}\n{process.complaints()}")
        return "\n".join(parts)

    def wait_sent(self, sender, lines, seconds=WAIT_SECONDS):
        wanted = set(names(lines))
        self.wait(
            lambda: wanted <= set(sender.acknowledged), f"{len(wanted)} acknowledgements", seconds
        )

    def wait_handled(self, consumers, lines, seconds=WAIT_SECONDS):
        """Every message was handled by somebody, at least once."""
        wanted = set(names(lines))

        def missing():
            return wanted.difference(*(consumer.handled_keys for consumer in consumers))

        try:
            self.wait(lambda: not missing(), f"{len(wanted)} messages to be handled", seconds)
        except AssertionError as error:
            raise AssertionError(f"missed {sorted(missing())[:10]}\n{error}") from error

    def wait_committed(self, group, topic, queues=QUEUES):
        """The group's offsets in the broker stand at the end of every queue."""
        self.wait(
            lambda: self.broker.all_committed(group, topic, queues), "offsets to be committed"
        )

    def wait_checked(self, sender, keys, times=1):
        """The checks that a producer received for a message, once there are ``times``."""

        def checks():
            found = [event for event in sender.checked if event["keys"] == keys]
            return found if len(found) >= times else None

        return self.wait(checks, f"{times} checks of {keys}")

    # -- actions -----------------------------------------------------------------------------

    def send(self, sender, lines):
        sender.write(lines)
        self.wait_sent(sender, lines)
        return lines

    def settle(self, sender, members):
        """Wait until each member owns its share of the queues, and no other.

        A queue that changes hands is for a moment read by both owners; that is how the protocol
        works, and no fault. So probes go round until several rounds in a row were split as the
        clients' average allocation demands, each probe handled once. The earlier of those rounds
        are looked at again at the end, when a second owner would have shown itself.
        """
        rounds = collections.deque(maxlen=SETTLED_ROUNDS)
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            probes = self.send(sender, letters(f"probe-{next(numbers)}", QUEUES))
            self.wait_handled(members, probes)
            rounds.append(probes)
            even = all(shares_are_even(members, lines) for lines in rounds)
            if even and len(rounds) == SETTLED_ROUNDS:
                return
        raise AssertionError(f"the queues were not shared out\n{self.report()}")


def shares(members, lines):
    """Queue ids by member, for these messages."""
    wanted = set(names(lines))
    return [
        [event["queue_id"] for event in member.handled if event["keys"] in wanted]
        for member in members
    ]


def shares_are_even(members, lines):
    """Each queue once in all, and no member holds more than one queue more than another."""
    split = shares(members, lines)
    sizes = [len(share) for share in split]
    return sorted(itertools.chain(*split)) == list(range(QUEUES)) and max(sizes) - min(sizes) <= 1


def times_handled(consumers, lines):
    """How often each of these messages was handled, over all consumers."""
    wanted = set(names(lines))
    keys = itertools.chain(*(consumer.handled_keys for consumer in consumers))
    return collections.Counter(key for key in keys if key in wanted)


def assert_once(consumers, lines):
    times = times_handled(consumers, lines)
    assert {key: times[key] for key in names(lines) if times[key] != 1} == {}
