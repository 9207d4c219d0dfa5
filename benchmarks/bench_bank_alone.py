"""One bank of the example as a process: ICBC makes transfers for a while, each time a line on stdin
says so; CCB credits, and says so into a pipe that ICBC reads.

    bench_bank_alone.py icbc NAMES DATABASE PIPE OTHER_DATABASE
    bench_bank_alone.py ccb NAMES DATABASE PIPE

A line is a way, how many transfers at once, and for how long; the answer is one line of JSON. A
transfer is over when its credit is committed, and the next one begins. Where the way has ".watched"
behind it, the figures include where the time went; that costs a log record for each step.

All times are those of the machine's monotonic clock, which both processes share.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import os
import random
import statistics
import sys
import time

import uvloop
from bench_bank import ACCOUNTS, AMOUNT, PATIENCE_S

from examples.bank_transfer import ccb, icbc
from examples.bank_transfer.books import State
from examples.bank_transfer.databases import async_engine
from examples.bank_transfer.orders import ADVICES, TRANSFERS, Order
from examples.bank_transfer.steps import LOGGERS, Steps
from examples.bank_transfer.ways import Way, xa
from txmq import Client

now = time.monotonic
WALL_S = time.time() - time.monotonic()
"""What the broker's clock is ahead of ours; it says when it has stored a message."""
STORED, CALLED, SAID, TOLD, CONFIRMED = 4, 5, 6, 8, 9
PREPARED = "all branches are prepared, and the decision is claimed"
CLAIMED = "the decision is claimed: commit"


class Stamps(Steps):
    """When each step of each transaction was taken, while a turn is watched."""

    def __init__(self):
        super().__init__(is_on=False)
        self.taken = {}
        self.xids = {}

    def emit(self, record):
        # Steps have their numbers there, what happens within them its text.
        self.taken.setdefault(record.xid, {})[record.args[1]] = now()

    def belong(self, transfer, xid, **how):
        del how
        self.xids[transfer] = xid

    def of(self, transfer):
        return self.taken.get(self.xids.get(transfer), {})

    @contextlib.contextmanager
    def watching(self, is_on):
        loggers = [logging.getLogger(name) for name in LOGGERS] if is_on else []
        self.taken.clear()
        self.xids.clear()
        for logger in loggers:
            logger.setLevel(logging.DEBUG)
            logger.addHandler(self)
        yield
        for logger in loggers:
            logger.removeHandler(self)
            logger.setLevel(logging.NOTSET)


class Story:
    """What is known of one transfer."""

    def __init__(self):
        self.requested = now()
        self.answered = self.written = self.stored = self.called = self.credited = None
        self.settled = None
        self.is_credited, self.is_settled = asyncio.Event(), asyncio.Event()

    def credit(self, stored, called, credited):
        if not self.is_credited.is_set():  # Any message may come again, even in a later turn.
            self.stored, self.called, self.credited = stored, called, credited
            self.is_credited.set()

    def settle(self, at):
        if not self.is_settled.is_set():
            self.settled = at
            self.is_settled.set()


class Window:
    """The time that counts: from when each of those at work has made one transfer, for so long at
    least, until as many again were made.
    """

    def __init__(self, at_once, seconds):
        self.at_once, self.seconds = at_once, seconds
        self.total = self.counted = 0
        self.begun = self.ended = None
        self.cpu_s = time.process_time()

    def goes_on(self):
        """One more is credited; whether others shall follow."""
        self.total += 1
        if self.begun is not None:
            self.counted += self.ended is None
            if now() >= self.begun + self.seconds and self.counted >= self.at_once:
                self.ended = self.ended or now()
        elif self.total >= self.at_once:
            self.begun = now()
        return self.ended is None

    def has(self, at):
        return self.begun < at <= self.ended

    def per_s(self, count):
        return count / (self.ended - self.begun)


def stamped(idempotent, tell):
    """Guards functions as ``idempotent`` does, and tells when each message was handled."""

    def guarding(*args, **named):
        guard = idempotent(*args, **named)

        def decorate(function):
            guarded = guard(function)

            async def handle(message):
                called = now()
                said = await guarded(message)
                tell(message, called, now())
                return said

            return handle

        return decorate

    return guarding


class Paying:
    """ICBC, and the transfers that it makes on demand."""

    def __init__(self):
        self.stories, self.stamps = {}, Stamps()
        self.ids = map("t-{}".format, itertools.count(1))
        icbc.idempotent = stamped(icbc.idempotent, self.settled)
        self.book = xa.credit
        xa.credit = self.written

    def settled(self, message, called, settled):
        del called
        if (story := self.stories.get(message.key)) is not None:
            story.settle(settled)

    async def written(self, session, order, now_ms, **named):
        """The last thing that the function over both databases does."""
        await self.book(session, order, now_ms, **named)
        self.stories[order.id].written = now()

    def listen(self, pipe):
        """Hear of credits."""
        rest = b""

        def readable():
            nonlocal rest
            *lines, rest = (rest + os.read(pipe, 65536)).split(b"\n")
            for line in lines:
                transfer, *times = line.decode().split()
                if (story := self.stories.get(transfer)) is not None:
                    story.credit(*map(float, times))

        asyncio.get_running_loop().add_reader(pipe, readable)

    async def transfer(self, bank, way):
        payer, payee = (random.randrange(ACCOUNTS) for _ in range(2))
        order = Order(next(self.ids), f"A-{payer}", f"B-{payee}", AMOUNT)
        story = self.stories[order.id] = Story()
        booked = await bank.transfer(order, way)
        story.answered = now()
        if booked.state is not (State.SETTLED if way is Way.XA else State.SENT):
            raise RuntimeError(f"{order.id} was to be made: {booked}")
        if way is Way.XA:
            story.credit(None, None, story.answered)
            story.settle(story.answered)
        await story.is_credited.wait()

    async def run(self, bank, way, at_once, seconds, is_watched):
        self.stories.clear()
        window = Window(at_once, seconds)

        async def work():
            while True:
                await self.transfer(bank, way)
                if not window.goes_on():
                    return

        with self.stamps.watching(is_watched):
            async with asyncio.timeout(PATIENCE_S + seconds), asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(work())
            async with asyncio.timeout(PATIENCE_S):
                for story in self.stories.values():
                    await story.is_settled.wait()
        return self.figures(way, window, is_watched)

    def figures(self, way, window, is_watched):
        counted = {of: story for of, story in self.stories.items() if window.has(story.credited)}
        settled = sum(window.has(story.settled) for story in self.stories.values())
        found = {
            "total": window.total,
            "cpu_s": time.process_time() - window.cpu_s,
            "credited_per_s": window.per_s(len(counted)),
            "settled_per_s": window.per_s(settled),
            "credited_ms": [ms(story.requested, story.credited) for story in counted.values()],
            "answered_ms": [ms(story.requested, story.answered) for story in counted.values()],
        }
        if is_watched:
            parts = [PARTS[way](story, self.stamps.of(of)) for of, story in counted.items()]
            found["parts_ms"] = {
                name: statistics.median(part[name] for part in parts) for name in parts[0]
            }
            # Each transfer counts the same, also one that the machine was slow with.
            shares = [shares_of(part) for part in parts]
            found["shares"] = {
                name: statistics.fmean(share[name] for share in shares) for name in shares[0]
            }
        return found


def ms(begun, ended):
    return (ended - begun) * 1000


def shares_of(parts):
    """Which share of the time from request to credit each part took."""
    there = {name: part for name, part in parts.items() if not name.startswith("beside_")}
    return {name: figure / sum(there.values()) for name, figure in there.items()}


def parts_of_half(story, taken):
    """CCB sees the message once the broker has heard the END; the END's answer is beside that."""
    return {
        "half_message": ms(story.requested, taken[STORED]),
        "local_transaction": ms(taken[STORED], taken[SAID]),
        "end_and_delivery": ms(taken[SAID], story.called),
        "credit": ms(story.called, story.credited),
        "beside_end": ms(taken[TOLD], taken[CONFIRMED]),
        "beside_end_to_delivery": ms(taken[CONFIRMED], story.called),
        "beside_advice": ms(story.credited, story.settled),
    }


def parts_of_outbox(story, taken):
    """When it was stored the broker says, in whole milliseconds."""
    del taken
    return {
        "local_transaction": ms(story.requested, story.answered),
        "relay": ms(story.answered, story.stored),
        "delivery": ms(story.stored, story.called),
        "credit": ms(story.called, story.credited),
        "beside_advice": ms(story.credited, story.settled),
    }


def parts_of_xa(story, taken):
    """The function's part has the beginning in both databases."""
    return {
        "half_message": ms(story.requested, taken[STORED]),
        "function": ms(taken[STORED], story.written),
        "prepare": ms(story.written, taken[PREPARED]),
        "claim": ms(taken[PREPARED], taken[CLAIMED]),
        "end": ms(taken[CLAIMED], taken[CONFIRMED]),
        "commit_prepared": ms(taken[CONFIRMED], story.answered),
    }


PARTS = {Way.HALF: parts_of_half, Way.OUTBOX: parts_of_outbox, Way.XA: parts_of_xa}


async def orders():
    """Each line of stdin."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield line.split()


async def pay(names, database, pipe, other_database):
    paying = Paying()
    async with contextlib.AsyncExitStack() as opening:
        engines = [async_engine(url) for url in (database, other_database)]
        for engine in engines:
            opening.push_async_callback(engine.dispose)
        paying.listen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
        client = await opening.enter_async_context(Client(names))
        for topic in (TRANSFERS, ADVICES):
            await client.admin.create_topic(topic)
        bank = icbc.ICBC(engines[0], client, steps=paying.stamps, ccb=engines[1])
        await opening.enter_async_context(bank)
        print("ready", flush=True)
        async for asked, at_once, seconds in orders():
            way, _, watched = asked.partition(".")
            found = await paying.run(bank, Way(way), int(at_once), float(seconds), bool(watched))
            print(json.dumps(found), flush=True)


async def be_paid(names, database, pipe):
    driver = os.open(pipe, os.O_WRONLY)

    def tell(message, called, credited):
        stored = message.stored_ms / 1000 - WALL_S
        os.write(driver, f"{message.key} {stored} {called} {credited}\n".encode())

    ccb.idempotent = stamped(ccb.idempotent, tell)
    engine = async_engine(database)
    async with Client(names) as client, ccb.open_ccb(engine, client):
        print("ready", flush=True)
        async for _ in orders():
            pass
    await engine.dispose()


def main():
    bank, *rest = sys.argv[1:]
    uvloop.run(pay(*rest) if bank == "icbc" else be_paid(*rest))  # As their programs do.


if __name__ == "__main__":
    main()
