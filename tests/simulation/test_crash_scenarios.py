"""Named crashes at critical points. Every checker judges each of them too."""

import asyncio

import pytest

from tests.simulation.checkers import liveness, recovery
from tests.simulation.history import Acknowledged, Down, Recovered, Refused
from tests.simulation.mix import kib
from tests.simulation.play import play
from txmq.errors import Effect
from txmq.testing import Loss


def cut(broker, loss):
    """A function that cuts a broker's power from inside."""

    def go_dark():
        broker.is_wanted = False
        broker.machine.crash(loss)

    return go_dark


@pytest.mark.fault("P10")
@pytest.mark.parametrize("loss", [Loss.NOTHING, Loss.EVERYTHING, Loss.TAIL, Loss.PAGES])
def test_a_send_cut_between_write_and_sync_is_in_doubt_and_can_be_repeated(loss):
    """The message was written and not answered; it may be stored or not, and can be sent again."""

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
def test_a_send_cut_between_sync_and_answer_is_stored(loss):
    """The message is durable and not answered; sent again it is stored twice with one id."""

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
def test_a_batch_torn_by_a_crash_is_stored_whole_or_not_at_all(loss):
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
def test_a_crash_while_spans_of_several_files_are_synced_loses_no_acknowledged_send(loss):
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
def test_a_crash_with_a_second_span_behind_a_running_sync_loses_nothing(loss, is_second_safe):
    """A second span is written into another file while the disk syncs the first."""

    async def act(play):
        play.broker.disk.slow_sync(0.5)
        first = asyncio.create_task(play.attempt())
        await asyncio.sleep(0.1)
        many = [asyncio.create_task(play.attempt()) for _ in range(24)]

        assert isinstance(await first, Acknowledged)
        if is_second_safe:
            done, _ = await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)
            assert all(isinstance(send.result(), Acknowledged) for send in done)
        await play.broker.crash(loss)

        await asyncio.gather(*many)
        await play.back()
        await play.deliver()

    play(act, seeds=1, segment=kib(4096), body_max=900_000, groups=0)


def test_a_crash_while_indexes_are_saved_leaves_no_torn_chunk_in_use():
    """A crash takes some pages of large chunks; an incomplete chunk is never used."""

    async def act(play):
        for _ in range(6):
            for _ in range(8):
                await play.deliver(play.compose(20))
            await play.broker.crash(Loss.PAGES)
            await play.back()
            await play.marks()

    play(act, seeds=2, checkpoint=kib(12), segment=kib(256), body_max=20, groups=0)


def test_a_crash_during_recovery_is_recovered():
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
def test_a_power_cut_at_every_step_of_a_busy_broker_is_recovered(loss):
    """At any disk operation: new files, index chunks, tables, spans."""

    async def act(play):
        for step in range(1, 31):
            play.broker.wire.before(step, cut(play.broker, loss))
            while play.broker.machine.is_up:
                await play.attempt(play.compose(1 + step % 3))
            await play.back()

    play(act, seeds=1, segment=kib(2), checkpoint=kib(1), body_max=600, recovery_chance=1.0)


def test_with_async_flush_a_kill_loses_no_acknowledged_message():
    async def act(play):
        for _ in range(10):
            for _ in range(5):
                assert isinstance(await play.attempt(), Acknowledged)
            await play.broker.kill()
            await play.back()

    play(act, is_sync=False, segment=kib(2), checkpoint=kib(1))


@pytest.mark.parametrize("loss", [Loss.EVERYTHING, Loss.TAIL, Loss.PAGES])
def test_with_async_flush_a_power_cut_loses_only_the_newest_messages(loss):
    """A prefix of the stored messages is left intact; the indexes know nothing more."""

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
def test_an_orderly_stop_answers_the_sends_under_way():
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


def test_producers_continue_with_the_second_broker_while_the_first_is_down():
    """Producers that name no queue use the other broker; the first returns with its messages."""

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
