"""Queues that change hands while their messages are handled: a real broker, a simulated world."""

import asyncio
from collections import Counter

import pytest
from msgspec.structs import replace

from tests.unit.client.pull_stage import SOON, TOPIC, staged, until
from tests.unit.idempotent.memory_guard import MemoryGuard
from txmq.client.consume import PushConsumer
from txmq.idempotent import idempotent
from txmq.message import Queue

GROUP = "ccb"
ORDERLY = replace(SOON, is_orderly=True)
KEYS = ["t-0", "t-1"]


class Credits:
    """What the members of one group were given, and what they booked in one database."""

    def __init__(self, stage, *, guarded):
        self.stage = stage
        self.guard = MemoryGuard(is_blocking=False)
        self.guarded = guarded
        self.given = []
        self.booked = []

    def member(self, name, settings, *, takes_s=0.0):
        """A consumer whose handler waits ``takes_s`` between looking and booking."""
        consumer = PushConsumer(GROUP, self.stage.broker.names, settings, *self.stage.ports(name))

        async def credit(message):
            await asyncio.sleep(takes_s)
            self.booked.append(message.key)

        once = idempotent(self.guard, key=lambda message: message.key, scope="")(credit)

        @consumer.on(TOPIC)
        async def take(message):
            if message.key not in self.booked:
                self.given.append((message.key, name))
            await (once if self.guarded else credit)(message)

        return consumer

    def takers(self, key):
        """The members that were given a transfer before anybody had booked it."""
        return {name for given, name in self.given if given == key}


def held(consumer):
    """Its queues of the topic, without those of its group's retries."""
    return [queue for queue in consumer.queues if queue.topic == TOPIC]


@pytest.mark.fault("N9")
@pytest.mark.parametrize(
    ("settings", "is_cut_off", "takes_s"),
    [(SOON, False, 20.0), (SOON, True, 200.0), (ORDERLY, True, 200.0)],
    ids=["another joins", "cut off", "cut off in order"],
)
@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "bare"])
@staged
async def test_a_queue_held_by_two_members_for_a_moment_credits_each_transfer_once(
    stage, guarded, settings, is_cut_off, takes_s
):
    """Without a guard the same handover books twice, so both members really had the message."""

    bank = Credits(stage, guarded=guarded)
    await stage.topic(len(KEYS))
    for number, key in enumerate(KEYS):
        await stage.send(Queue(TOPIC, "broker-a", number), 1, keys=(key,))
    async with bank.member("slow", settings, takes_s=takes_s):
        await until(lambda: len(bank.given) == len(KEYS))
        if is_cut_off:
            stage.world.network.partition("slow", "server")
        async with bank.member("quick", settings):
            await asyncio.sleep(takes_s - 10)
            stage.world.network.heal()
            await asyncio.sleep(2 * takes_s)

    shared = {key for key in KEYS if bank.takers(key) == {"slow", "quick"}}
    assert shared
    assert Counter(bank.booked) == {key: 1 if guarded or key not in shared else 2 for key in KEYS}


@pytest.mark.fault("N11")
@staged
async def test_a_member_paused_for_five_seconds_keeps_its_queues(stage):
    """As when a handler blocks the event loop: the broker does not notice."""

    bank = Credits(stage, guarded=False)
    await stage.topic(len(KEYS))
    one, two = bank.member("one", SOON), bank.member("two", SOON)
    machine, is_over = stage.world.machine("one"), asyncio.Event()

    async def take_part():
        async with one:
            await is_over.wait()

    running = machine.run(take_part())
    async with two:
        await until(lambda: len(held(one)) == len(held(two)) == 1)
        before = one.queues, two.queues
        machine.pause()
        for number, key in enumerate(KEYS):
            await stage.send(Queue(TOPIC, "broker-a", number), 1, keys=(key,))
        await asyncio.sleep(5)
        assert bank.takers("t-0") | bank.takers("t-1") == {"two"}
        machine.resume()
        await until(lambda: len(bank.booked) == len(KEYS), within_s=1.0)
        await asyncio.sleep(60)
        assert (one.queues, two.queues) == before
        is_over.set()
        await running
    assert sorted(bank.booked) == KEYS
