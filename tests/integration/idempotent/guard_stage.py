"""A stage for guards: a topic in which every message comes several times, and a group of consumers
that are killed again and again.
"""

import asyncio
import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from dataclasses import asdict

from tests.faults.broken_guards import MarkedFirst
from tests.faults.guard_driver import POINTS, Plan
from tests.servers.database_server import die_with_us
from tests.servers.serving import environment
from tests.traffic.effects import SECRET
from txmq import Message, Producer, ProducerSettings
from txmq.client import Admin, Session
from txmq.idempotent import TokenGuard

__all__ = ["Group", "deaths", "overdriven"]

CONSUMERS, QUEUES, TIMES = 8, 16, 5
LEVEL_S = 0.2
LEVELS = f"delay.levels={' '.join([f'{int(LEVEL_S * 1000)}ms'] * 18)}"
"""What a broker is told, so that whatever comes again comes soon. After 16 times it is a dead
letter, so leases have to be shorter than that takes."""
QUIET_S = 4 * LEVEL_S
SILENT_S = 60


class Group:
    """The process that runs the consumers, and what they have said."""

    def __init__(self, folder, plan):
        self._log = folder / f"{plan.group}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.guard_driver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(),
                cwd=folder,
                start_new_session=True,
                preexec_fn=die_with_us,
            )
        self._process.stdin.write(json.dumps(asdict(plan)).encode() + b"\n")
        self._process.stdin.flush()
        self.words = defaultdict(Counter)
        """What was said, by its first word."""
        self.handled = set()
        """Deliveries: a key, and which of its messages."""
        self.count = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            word, _, rest = line.decode().strip().partition(" ")
            self.words[word][rest] += 1
            if word in ("first", "again"):
                self.handled.add(rest)
            self.count += 1

    def see_that_it_lives(self):
        assert set(self.words["ended"]) <= {str(-signal.SIGKILL)}, self.tail()
        assert self._process.poll() is None, self.tail()

    def tail(self):
        return self._log.read_text()[-3000:]

    def close(self):
        # All are in a session of their own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()
        self._reader.join()
        self._process.stdout.close()


def deaths(seed, keys, each):
    """Which keys die at which point: ``each`` of the first that reach it."""
    chance = random.Random(seed)
    # Every key reaches all points, or was killed together with another one.
    return {point: sorted(chance.sample(range(keys // 2), each)) for point in POINTS}


async def fill(broker, topic, keys, seed):
    """Send each message several times, in an order by lot."""
    tokens = TokenGuard(MarkedFirst(None), secret=SECRET)
    issued = [tokens.issue() for _ in range(keys)]
    messages = [
        Message(
            topic=topic,
            body=f"tea {number}".encode(),
            keys=(f"order-{number}",),
            properties={"copy": str(copy), "token": issued[number]},
        )
        for number in range(keys)
        for copy in range(TIMES)
    ]
    random.Random(seed).shuffle(messages)
    async with Session(broker.names) as session:
        await Admin(session).create_topic(topic, QUEUES)
    settings = ProducerSettings(linger=0.005)
    async with Producer(f"{topic}-shop", broker.names, settings) as producer:
        for begin in range(0, len(messages), 1000):
            await asyncio.gather(
                *[producer.send(message) for message in messages[begin : begin + 1000]]
            )


def is_consumed(broker, group, topic):
    """Whether the group has acknowledged all messages that it has now."""
    retries = f"%RETRY%{group}"
    return broker.all_committed(group, topic, QUEUES) and (
        not broker.knows(retries) or broker.all_committed(group, retries, 1)
    )


async def until_consumed(broker, running, group, topic, count):
    """Wait until the group has handled and acknowledged everything, and long enough has passed
    that no delayed message can still come.
    """
    loop = asyncio.get_running_loop()
    heard, was, is_quiet = loop.time(), -1, False
    while not is_quiet or loop.time() - heard < QUIET_S:
        await asyncio.sleep(0.05)
        running.see_that_it_lives()
        is_quiet = len(running.handled) == count and await asyncio.to_thread(
            is_consumed, broker, group, topic
        )
        if running.count != was:
            heard, was = loop.time(), running.count
        assert loop.time() - heard < SILENT_S, f"nothing happens any more: {running.tail()}"


def overdriven(broker, folder, effects, *, is_async, keys, each, seed=7, **planned):
    """Have every message come several times to consumers that are killed; returns the group.

    Args:
        each: How many are killed at each point.
        planned: What else stands in the plan.
    """
    name = secrets.token_hex(4)
    topic, group = f"orders-{name}", f"billing-{name}"
    url = effects.url
    if is_async and url.get_backend_name() == "sqlite":
        url = url.set(drivername="sqlite+aiosqlite")
    asyncio.run(fill(broker, topic, keys, seed))
    plan = Plan(
        url=url.render_as_string(hide_password=False),
        is_async=is_async,
        names=broker.names,
        group=group,
        topic=topic,
        consumers=CONSUMERS,
        deaths=deaths(seed, keys, each),
        **planned,
    )
    with contextlib.closing(Group(folder, plan)) as running:
        asyncio.run(until_consumed(broker, running, group, topic, keys * TIMES))
    assert not broker.knows(f"%DLQ%{group}"), running.tail()
    return running
