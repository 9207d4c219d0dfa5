"""Networks, peers and clocks that misbehave, each by name. Every checker looks at each, too."""

import asyncio

import pytest

from tests.simulation.history import Acknowledged, Began, Committed, Pulled, Refused
from tests.simulation.nemesis import SlowReader
from tests.simulation.play import play
from txmq.errors import Effect


def consumer(play):
    (only,) = play.stage.consumers
    return only


@pytest.mark.parametrize("one_way", ["", "to the broker", "from the broker"])
def test_a_partition_during_a_long_poll(one_way):
    """What arrives meanwhile reaches the consumer once and in order after it heals."""

    async def act(play):
        ends = [consumer(play).name, play.broker.name]
        if one_way == "from the broker":
            ends.reverse()
        await play.deliver()
        await asyncio.sleep(1)
        play.world.network.partition(*ends, one_way=bool(one_way))
        for _ in range(5):
            await play.deliver()
        await asyncio.sleep(20)
        play.world.network.heal()
        await asyncio.sleep(30)

        pulls = [event for event in play.seen(Pulled) if event.group == "group-0"]
        offsets = [copy.offset for event in pulls for copy in event.copies]
        assert offsets == list(range(6))

    play(act, hold_s=18.0)


def test_a_long_poll_is_woken_by_what_it_waits_for():
    async def act(play):
        await asyncio.sleep(3)
        for _ in range(5):
            sent_at = play.world.now()
            await play.deliver()
            await asyncio.sleep(0.5)
            got_at = play.seen(Pulled)[-1].at
            assert got_at - sent_at < 0.05
            await asyncio.sleep(7)

    # Held for a time drawn by lot up to the most; the pauses between two holds are short.
    play(act, hold_s=1000.0)


@pytest.mark.fault("N2")
def test_replies_that_are_lost_leave_the_producer_in_doubt_and_the_message_in_place():
    """Requests arrive, answers do not."""

    async def act(play):
        send = play.compose()
        await play.deliver()
        play.world.network.partition(play.broker.name, "sender", one_way=True)

        ended = await play.attempt(send)

        assert isinstance(ended, Refused)
        assert ended.effect is Effect.MAYBE
        play.world.network.heal()
        assert await play.stored(send) == 1

    play(act)


@pytest.mark.fault("N4")
def test_clients_that_know_their_brokers_go_on_while_the_name_server_is_away():
    """For ten minutes nobody answers questions about routes."""

    async def act(play):
        await play.deliver()
        await play.stage.names[0].kill()

        for _ in range(20):
            await asyncio.sleep(30)
            assert isinstance(await play.attempt(), Acknowledged)

        play.stage.names[0].start()

    play(act, names=1, seeds=1)


def test_a_broker_cut_off_from_its_name_server_is_known_again_when_it_heals():
    async def act(play):
        names = play.stage.names[0].name
        play.world.network.partition(play.broker.name, names)
        await asyncio.sleep(200)
        assert await play.admin.cluster() == []
        play.world.network.heal()
        await asyncio.sleep(40)
        assert [each.name for each in await play.admin.cluster()] == [play.broker.name]

    play(act, names=1, seeds=1)


@pytest.mark.fault("T1")
@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_the_broker_s_clock_jumps(jump_s):
    """Times of storing never go back, and nothing that waits is hurried or forgotten."""

    async def act(play):
        await play.deliver()
        await asyncio.sleep(1)
        play.broker.machine.clock.jump(jump_s)
        for _ in range(5):
            sent_at = play.world.now()
            await play.deliver()
            await asyncio.sleep(0.5)
            assert play.seen(Pulled)[-1].at - sent_at < 0.4
        await play.broker.kill()
        await play.back()
        await play.deliver()

    play(act, hold_s=18.0)


@pytest.mark.fault("T2")
def test_the_producer_s_clock_is_wrong_by_a_day():
    async def act(play):
        for jump_s in (86400.0, -2 * 86400.0):
            play.sender.machine.clock.jump(jump_s)
            await play.deliver()
        got = await play.admin.pull(play.queue, 0)
        first, second = got.messages
        assert second.born_ms < first.born_ms
        assert second.stored_ms >= first.stored_ms

    play(act)


@pytest.mark.fault("N8")
def test_a_peer_that_does_not_read_costs_nobody_else_anything():
    """What it asked for stays within bounds, and the others are served as before."""

    async def act(play):
        for _ in range(20):
            await play.deliver(play.compose(20))
        readers = []
        for number in range(5):
            machine = play.world.machine(f"slow-{number}")
            reader = SlowReader([play.queue], 500)
            await machine.network.connect(lambda reader=reader: reader, play.broker.name, 10911)
            readers.append(reader)
        for _ in range(20):
            at = play.world.now()
            assert isinstance(await play.attempt(), Acknowledged)
            assert play.world.now() - at < 0.1
            await asyncio.sleep(0.5)
        for reader in readers:
            reader.leave(read_on=False)

    play(act, seeds=1, body_max=4000)


@pytest.mark.fault("N11")
def test_a_broker_that_stood_still_answers_what_came_meanwhile():
    """A stopped process, or one whose loop was blocked."""

    async def act(play):
        await play.deliver()
        play.broker.machine.pause()
        sends = [asyncio.create_task(play.attempt()) for _ in range(5)]
        await asyncio.sleep(2)
        play.broker.machine.resume()
        ended = await asyncio.gather(*sends)
        assert all(isinstance(each, Acknowledged) for each in ended)

    play(act)


def test_a_message_given_up_by_its_sender_may_still_arrive():
    """The request waits in a system whose broker stands still, longer than its sender does."""

    async def act(play):
        await play.deliver()
        play.broker.machine.pause()
        send = play.compose()
        ended = await play.attempt(send)
        assert isinstance(ended, Refused)
        assert ended.effect is Effect.MAYBE
        play.broker.machine.resume()
        await asyncio.sleep(1)
        assert await play.stored(send) == 1

    play(act)


def test_a_consumer_that_comes_back_goes_on_from_what_it_committed():
    async def act(play):
        for _ in range(20):
            await play.deliver()
            await asyncio.sleep(0.5)
        committed = play.seen(Committed)[-1].offset
        consumer(play).crash()
        await asyncio.sleep(1)
        consumer(play).start()
        await asyncio.sleep(5)
        assert play.seen(Began)[-1].offset == committed > 0
        assert play.seen(Pulled)[-1].next_offset == 20

    play(act)
