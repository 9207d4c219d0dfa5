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
def test_messages_sent_during_a_partition_reach_a_long_poll_once_in_order(one_way):
    """Messages sent during the partition reach the consumer once, in order, after it heals."""

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


def test_a_long_poll_is_woken_by_a_new_message():
    async def act(play):
        await asyncio.sleep(3)
        for _ in range(5):
            sent_at = play.world.now()
            await play.deliver()
            await asyncio.sleep(0.5)
            got_at = play.seen(Pulled)[-1].at
            assert got_at - sent_at < 0.05
            await asyncio.sleep(7)

    # Held for a random time up to the maximum; the pauses between two holds are short.
    play(act, hold_s=1000.0)


@pytest.mark.fault("N2")
def test_a_send_with_a_lost_reply_is_in_doubt_and_its_message_stored():
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
def test_clients_keep_sending_while_the_name_server_is_down():
    """For ten minutes no route request is answered."""

    async def act(play):
        await play.deliver()
        await play.stage.names[0].kill()

        for _ in range(20):
            await asyncio.sleep(30)
            assert isinstance(await play.attempt(), Acknowledged)

        play.stage.names[0].start()

    play(act, names=1, seeds=1)


def test_a_broker_registers_again_after_a_partition_from_its_name_server():
    async def act(play):
        names = play.stage.names[0].name
        play.world.network.partition(play.broker.name, names)
        await asyncio.sleep(200)
        assert await play.admin.cluster() == []
        play.world.network.heal()
        await asyncio.sleep(40)
        assert [broker.name for broker in await play.admin.cluster()] == [play.broker.name]

    play(act, names=1, seeds=1)


@pytest.mark.fault("T1")
@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_messages_are_delivered_at_once_after_the_brokers_clock_jumps(jump_s):
    """Store times never go back, and no waiting request is rushed or forgotten."""

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
def test_a_producers_wrong_clock_does_not_affect_the_times_of_storing():
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
def test_a_peer_that_does_not_read_does_not_slow_down_others():
    """Memory for its answers is bounded, and other clients are served as before."""

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
def test_a_broker_that_was_paused_answers_the_sends_that_arrived():
    """A stopped process, or one whose loop was blocked."""

    async def act(play):
        await play.deliver()
        play.broker.machine.pause()
        sends = [asyncio.create_task(play.attempt()) for _ in range(5)]
        await asyncio.sleep(2)
        play.broker.machine.resume()
        ended = await asyncio.gather(*sends)
        assert all(isinstance(event, Acknowledged) for event in ended)

    play(act)


def test_a_message_whose_sender_gave_up_may_still_be_stored():
    """The request waits at a paused broker for longer than its sender waits."""

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


def test_a_restarted_consumer_resumes_from_its_committed_offset():
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
