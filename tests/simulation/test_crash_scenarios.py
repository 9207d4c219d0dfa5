"""Crashes at the places where they hurt, each by name. Every checker looks at each of them, too."""

import asyncio

import pytest

from tests.simulation.checkers import liveness, recovery
from tests.simulation.history import Acknowledged, Down, Recovered, Refused
from tests.simulation.mix import kib
from tests.simulation.play import play
from txmq.errors import Effect
from txmq.testing import Loss


def cut(broker, loss):
    """What cuts a broker's power from inside."""

    def go_dark():
        broker.is_wanted = False
        broker.machine.crash(loss)

    return go_dark


@pytest.mark.fault("P10")
@pytest.mark.parametrize("loss", [Loss.NOTHING, Loss.EVERYTHING, Loss.TAIL, Loss.PAGES])
def test_a_crash_between_write_and_sync(loss):
    """It was written and the sender has no reply; it may be there or not, and can be sent again."""

    async def act(play):
        await play.deliver()
        send = play.compose()
        play.broker.wire.before(1, cut(play.broker, loss), "sync")

        ended = await play.attempt(send)

        assert isinstance(ended, Refused)
        assert ended.effect is Effect.MAYBE
        await play.back()
        if loss in (Loss.NOTHING, Loss.EVERYTHING):
            assert await play.stored(send) == (loss is Loss.NOTHING)
        await play.deliver(play.compose())

    play(act)


@pytest.mark.fault("P11")
@pytest.mark.parametrize("loss", [Loss.EVERYTHING, Loss.PAGES])
def test_a_crash_between_sync_and_answer(loss):
    """It is durable and the sender has no reply; sent again it is there twice, with one id."""

    async def act(play):
        send = play.compose()
        play.broker.wire.after_sync(1, cut(play.broker, loss))

        ended = await play.attempt(send)

        assert isinstance(ended, Refused)
        await play.back()
        assert await play.stored(send) == 1
        await play.deliver(send, 1)
        assert await play.stored(send) == 2

    play(act)


@pytest.mark.fault("S1", "S2")
@pytest.mark.parametrize("loss", [Loss.TAIL, Loss.PAGES])
def test_a_torn_span_is_there_whole_or_not_at_all(loss):
    """A batch is one span; a crash that tears it takes all of it."""

    async def act(play):
        await play.deliver(play.compose(3))
        torn = play.compose(5)
        play.broker.wire.before(1, cut(play.broker, loss), "sync")

        await play.attempt(torn)

        await play.back()
        assert await play.stored(torn) in (0, 5)

    # Spans of several pages, so that their head may be whole and their end not.
    play(act, seeds=12, body_max=4000)


@pytest.mark.parametrize("loss", [Loss.EVERYTHING, Loss.PAGES])
def test_a_crash_while_spans_in_several_files_wait_for_the_disk(loss):
    """One sync covers the end of a file, whole files, and the beginning of another."""

    async def act(play):
        for _ in range(6):
            play.broker.disk.slow_sync(0.1)
            sends = []
            for _ in range(15):
                sends.append(asyncio.create_task(play.attempt()))
                await asyncio.sleep(0.02)
            await play.broker.crash(loss)
            await asyncio.gather(*sends)
            await play.back()
        assert play.seen(Acknowledged)

    play(act, seeds=5, segment=kib(1), body_max=400)


@pytest.mark.parametrize("loss", [Loss.EVERYTHING, Loss.PAGES])
@pytest.mark.parametrize("is_second_safe", [True, False])
def test_a_crash_after_more_than_a_span_holds_came_during_one_sync(loss, is_second_safe):
    """Then a second span is written while the disk is at work on the first, into another file."""

    async def act(play):
        play.broker.disk.slow_sync(0.5)
        first = asyncio.create_task(play.attempt())
        await asyncio.sleep(0.1)
        many = [asyncio.create_task(play.attempt()) for _ in range(24)]

        assert isinstance(await first, Acknowledged)
        if is_second_safe:
            done, _ = await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)
            assert all(isinstance(each.result(), Acknowledged) for each in done)
        await play.broker.crash(loss)

        await asyncio.gather(*many)
        await play.back()
        await play.deliver()

    play(act, seeds=1, segment=kib(4096), body_max=900_000, groups=0)


def test_a_crash_while_indexes_are_saved():
    """Chunks of several pages, of which a crash takes some: none is believed that is not whole."""

    async def act(play):
        for _ in range(6):
            for _ in range(8):
                await play.deliver(play.compose(20))
            await play.broker.crash(Loss.PAGES)
            await play.back()
            await play.marks()

    play(act, seeds=2, checkpoint=kib(12), segment=kib(256), body_max=20, groups=0)


def test_a_crash_in_the_middle_of_recovery():
    """The power goes again at each of the first steps of a broker that comes back."""

    async def act(play):
        for step in range(1, 7):
            await play.deliver(play.compose(3))
            play.broker.wire.before(1, cut(play.broker, Loss.PAGES), "sync")
            await play.attempt()
            play.broker.start()
            await asyncio.sleep(0)
            play.broker.wire.before(step, cut(play.broker, Loss.ANY))
            await asyncio.sleep(1)
            if play.broker.machine.is_up:
                await play.broker.crash(Loss.ANY)
            play.broker.machine.restart()
            play.stage.examine(play.broker, play.world.entropy, lost_power=True)
            await play.back()
        assert len(play.seen(Recovered)) == 6

    play(act, recovery_chance=1.0, segment=kib(2), checkpoint=kib(1))


@pytest.mark.fault("S4", "S5")
@pytest.mark.parametrize("loss", [Loss.EVERYTHING, Loss.TAIL, Loss.PAGES])
def test_the_power_goes_at_every_step_of_a_busy_broker(loss):
    """New files, index chunks, tables, spans: whatever the disk is about to do."""

    async def act(play):
        for step in range(1, 31):
            play.broker.wire.before(step, cut(play.broker, loss))
            while play.broker.machine.is_up:
                await play.attempt(play.compose(1 + step % 3))
            await play.back()

    play(act, seeds=1, segment=kib(2), checkpoint=kib(1), body_max=600, recovery_chance=1.0)


def test_kill_9_takes_nothing_from_a_broker_that_does_not_wait_for_the_disk():
    async def act(play):
        for _ in range(10):
            for _ in range(5):
                assert isinstance(await play.attempt(), Acknowledged)
            await play.broker.kill()
            await play.back()

    play(act, is_sync=False, segment=kib(2), checkpoint=kib(1))


@pytest.mark.parametrize("loss", [Loss.EVERYTHING, Loss.TAIL, Loss.PAGES])
def test_a_power_cut_takes_only_the_newest_of_a_broker_that_does_not_wait_for_the_disk(loss):
    """What is left is what was stored first, and it is whole; the indexes know nothing more."""

    async def act(play):
        for _ in range(8):
            for _ in range(6):
                await play.deliver(play.compose(2))
                await asyncio.sleep(0.1)
            before = await play.marks()
            await play.broker.crash(loss)
            play.broker.machine.restart()
            play.stage.examine(play.broker, play.world.entropy, lost_power=True)
            await play.back()
            after = await play.marks()
            assert after == before[: len(after)]

    play(
        act,
        checkers=(recovery, liveness),
        is_sync=False,
        segment=kib(4),
        checkpoint=kib(1),
        body_max=600,
        groups=0,
        recovery_chance=1.0,
    )


@pytest.mark.fault("N10")
def test_an_orderly_stop_answers_what_it_has_taken():
    """A send under way when the broker is told to stop is stored and acknowledged."""

    async def act(play):
        play.broker.disk.slow_sync(0.3)
        under_way = asyncio.create_task(play.attempt())
        await asyncio.sleep(0.05)

        await play.broker.stop()

        assert isinstance(await under_way, Acknowledged)
        assert play.seen(Down)[-1].how == "stopped"
        await play.back()

    play(act)


def test_two_brokers_one_dies():
    """Producers that name no queue go on with the other; what the first has, comes back with it."""

    async def act(play):
        first, second = play.stage.brokers
        topic = play.queue.topic
        for _ in range(10):
            await play.deliver(play.compose(topic=topic))
        await first.crash(Loss.ANY)
        before = len(play.seen(Acknowledged))

        for _ in range(6):
            await play.deliver(play.compose(topic=topic))

        later = play.seen(Acknowledged)[before:]
        assert {event.queue.broker for event in later} == {second.name}
        assert not first.machine.is_up
        await play.back()

    play(act, brokers=2, names=1)
