"""Posted requests: written together, in order, bounded, and each with an answer or an error."""

import asyncio

import pytest

from tests.unit.remoting.remoting_stage import Desk, Stage, echo, in_world
from txmq.errors import ConnectionLost, RequestTimeout
from txmq.limits import PUSH_BACKLOG_BYTES
from txmq.protocol import command as commands

CODE = 10


class Ear:
    """A waiter that notes what it is told."""

    def __init__(self):
        self.told = []

    def answered(self, answer):
        self.told.append(answer.body)

    def failed(self, problem):
        self.told.append(type(problem))


def post(client, world, body, timeout_s=5.0):
    ear, opaque = Ear(), client.number()
    frame = commands.encode(CODE, opaque, body=body)
    split = len(frame) - len(body)
    client.post(opaque, ear, world.now() + timeout_s, frame[:split], frame[split:])
    return opaque, ear


def watched(client):
    writes = []
    write = client._transport.write
    client._transport.write = lambda data: writes.append(len(data)) or write(data)
    return writes


@in_world
async def test_requests_posted_in_one_turn_are_written_together_and_each_answered(world):
    async with Stage(world, echo) as stage:
        client = await stage.connect()
        writes = watched(client)

        ears = [post(client, world, b"%d" % n)[1] for n in range(5)]
        assert writes == []
        await asyncio.sleep(1)

        assert len(writes) == 1
        assert [ear.told for ear in ears] == [[b"%d" % n] for n in range(5)]
        assert len(client._exchange.waiting) == 0


@in_world
async def test_requests_that_are_not_urgent_are_written_with_posted_ones(world):
    async with Stage(world, echo) as stage:
        client = await stage.connect()
        writes = watched(client)

        asked = [
            asyncio.ensure_future(client.ask(CODE, body=body, timeout_s=5.0, is_urgent=False))
            for body in (b"first", b"second")
        ]
        _, ear = post(client, world, b"third")
        found = [answer.body for answer in await asyncio.gather(*asked)]

        assert len(writes) == 1
        assert found == [b"first", b"second"]
        assert ear.told == [b"third"]


@in_world
async def test_a_request_that_is_not_urgent_still_has_a_deadline(world):
    async with Stage(world, Desk()) as stage:
        client = await stage.connect()
        begun = world.now()

        with pytest.raises(RequestTimeout):
            await client.request(CODE, timeout_s=2.0, is_urgent=False)

        assert world.now() - begun == pytest.approx(2.0)


@in_world
async def test_a_long_turn_is_written_in_portions_and_in_order(world):
    desk = Desk()
    async with Stage(world, desk) as stage:
        client = await stage.connect()
        writes = watched(client)

        for n in range(100):
            post(client, world, b"%d" % n)
        post(client, world, bytes(100_000))
        portions = len(writes)
        await asyncio.sleep(1)

        assert portions > 5
        assert [request.body for _, request in desk.asked[:100]] == [b"%d" % n for n in range(100)]
        assert len(desk.asked) == 101


@in_world
async def test_posted_and_awaited_requests_share_numbers_and_deadlines(world):
    desk = Desk()
    async with Stage(world, desk) as stage:
        client = await stage.connect()
        began = world.now()
        _, late = post(client, world, b"late", 1.0)
        asking = asyncio.ensure_future(client.ask(CODE, body=b"asked", timeout_s=3.0))
        _, good = post(client, world, b"good", 2.0)
        await asyncio.sleep(0.5)
        assert len({request.opaque for _, request in desk.asked}) == 3

        desk.answer([request.body for _, request in desk.asked].index(b"good"))
        with pytest.raises(RequestTimeout):
            await asking

        assert (late.told, good.told) == ([RequestTimeout], [b"good"])
        assert world.now() - began == pytest.approx(3.0, abs=1e-3)


@in_world
async def test_a_posted_request_that_is_broken_off_gets_no_answer(world):
    async with Stage(world, echo) as stage:
        client = await stage.connect()
        opaque, ear = post(client, world, b"x")

        client.break_off(opaque)
        client.break_off(opaque)
        await asyncio.sleep(10)

        assert (ear.told, len(client._exchange.waiting)) == ([], 0)


@in_world
async def test_a_lost_connection_fails_posted_requests_once_and_refuses_new_ones(world):
    async with Stage(world, Desk()) as stage:
        client = await stage.connect()
        _, ear = post(client, world, b"x")
        await asyncio.sleep(0.1)

        client.abort()
        await asyncio.sleep(0.1)

        assert ear.told == [ConnectionLost]
        with pytest.raises(ConnectionLost):
            post(client, world, b"y")
        with pytest.raises(ConnectionLost):
            client.post(0, None, 0.0, b"y")
        await client.writable()


@in_world
async def test_requests_posted_before_a_close_are_still_sent(world):
    desk = Desk()
    async with Stage(world, desk) as stage:
        client = await stage.connect()
        post(client, world, b"last words")
        client.close()
        await asyncio.sleep(1)

        assert [request.body for _, request in desk.asked] == [b"last words"]


@in_world
async def test_a_peer_that_posts_much_is_not_cut_off_and_gets_its_answers(world):
    """Both sides have written more than the other takes in at once."""
    async with Stage(world, echo) as stage:
        client = await stage.connect()
        size = 1 << 20
        count = 2 * PUSH_BACKLOG_BYTES // size

        ears = [post(client, world, bytes(size), 1000.0)[1] for _ in range(count)]
        client.ask(CODE, timeout_s=1000.0).close()
        await asyncio.sleep(50)

        assert [len(ear.told[0]) for ear in ears] == [size] * count
        assert client.is_open


@in_world
async def test_a_sender_can_wait_until_its_backlog_is_written(world):
    async with Stage(world, echo) as stage:
        client = await stage.connect()
        assert not client.is_backed_up
        await client.writable()
        for _ in range(8):
            push = commands.encode(CODE, 0, body=bytes(1 << 20), flag=commands.ONEWAY)
            client.post(0, None, 0.0, push)
        await asyncio.sleep(0)
        assert client.is_backed_up
        waiting = [asyncio.ensure_future(client.writable()) for _ in range(3)]
        await asyncio.sleep(0)

        waiting[0].cancel()
        await asyncio.gather(*waiting[1:])

        assert not client.is_backed_up
