"""Named scenarios of disks that fail, fill up, slow down or lie. Every checker judges each too."""

import asyncio
import errno

import pytest

from tests.simulation.history import Acknowledged, Down, Refused
from tests.simulation.mix import kib
from tests.simulation.play import play
from tests.simulation.workload import AUTO_TOPIC
from txmq.errors import Effect, InternalError, ServiceUnavailable
from txmq.testing import Loss
from txmq.testing.pages import PAGE


@pytest.mark.fault("S7")
def test_a_full_disk_refuses_sends_until_there_is_room_again():
    """No restart is needed, and no refused message is stored."""

    async def act(play):
        await play.deliver()
        disk = play.broker.disk
        disk.capacity = disk.space().used
        refusals = [await play.attempt(play.compose(20)) for _ in range(8)]
        assert all(isinstance(refusal, Refused) for refusal in refusals)
        assert all(refusal.effect is Effect.NONE for refusal in refusals)
        assert all("ServiceUnavailable" in refusal.reason for refusal in refusals)
        got = await play.admin.pull(play.queue, 0)
        assert got.messages[0].offset == 0

        disk.capacity = None

        assert isinstance(await play.attempt(), Acknowledged)
        assert play.broker.lives == 1

    play(act, body_max=2000)


def fill_up(disk):
    disk.capacity = disk.space().used


def refuse_writes(disk):
    disk.fail_writes(error=errno.ENOSPC)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("ends_room", [fill_up, refuse_writes])
def test_a_broker_starts_serves_and_stops_on_a_full_disk(ends_room, is_killed):
    """Even if a kill left indexes to write, or the disk refuses to overwrite."""

    async def act(play):
        for _ in range(12):
            await play.deliver(play.compose(4))
        await play.admin.commit_offset("somebody", play.queue, 1)
        for committed in (2, 3):
            ends_room(play.broker.disk)
            if is_killed:
                await play.broker.kill()
            else:
                await play.broker.stop()
                assert play.seen(Down)[-1].how == "stopped"
            ends_room(play.broker.disk)
            lives = play.broker.lives
            await play.back()
            assert play.broker.lives == lives + 1

            for offset in (0, 47):
                got = await play.admin.pull(play.queue, offset)
                assert got.messages[0].offset == offset
            await play.admin.commit_offset("somebody", play.queue, committed)
            assert await play.admin.committed_offset("somebody", play.queue) == committed
            refused = await play.attempt(play.compose(20))
            assert isinstance(refused, Refused)
            assert refused.effect is Effect.NONE
            assert "the disk is full" in refused.reason
            assert not (await play.admin.pull(play.queue, 48)).found

        play.broker.disk.repair()
        play.broker.disk.capacity = None
        await play.deliver()
        assert (await play.admin.pull(play.queue, 48)).messages[0].offset == 48
        await play.broker.crash(Loss.EVERYTHING)
        await play.back()

    play(act, seeds=2, segment=kib(4), checkpoint=kib(1), body_max=600)


def test_a_full_disk_refuses_topic_and_group_changes_with_a_reason(caplog):
    """And a topic whose deletion was refused keeps its messages."""

    async def act(play):
        await play.deliver()
        refuse_writes(play.broker.disk)
        with pytest.raises(InternalError, match="the groups could not be saved: .*No space"):
            await play.admin.create_group("new")
        with pytest.raises(ServiceUnavailable, match="the topic could not be deleted: .*No space"):
            await play.admin.delete_topic(play.queue.topic)
        assert (await play.admin.pull(play.queue, 0)).found

        play.broker.disk.repair()
        await play.broker.stop()
        await play.back()
        assert (await play.admin.pull(play.queue, 0)).found
        assert "new" in await play.admin.groups()

    play(act, seeds=1)
    assert "Traceback" not in caplog.text


def test_a_disk_that_fills_up_at_the_start_of_a_log_file_loses_nothing():
    async def act(play):
        disk = play.broker.disk
        for room in range(12):
            disk.capacity = disk.space().used + room * PAGE // 4
            for _ in range(3):
                await play.attempt(play.compose(2))
            disk.capacity = None
            await play.deliver()
        await play.broker.kill()
        await play.back()

    play(act, segment=kib(4), checkpoint=kib(1), body_max=3000)


@pytest.mark.fault("S9")
def test_a_read_only_disk_refuses_sends_and_serves_stored_messages():
    async def act(play):
        await play.deliver()
        play.broker.disk.fail_writes(error=errno.EROFS)
        ended = await play.attempt()
        assert isinstance(ended, Refused)
        assert ended.effect is Effect.NONE
        assert (await play.admin.pull(play.queue, 0)).found

        play.broker.disk.repair()

        assert isinstance(await play.attempt(), Acknowledged)

    play(act)


@pytest.mark.fault("S6")
def test_a_failed_sync_stops_the_broker_and_acknowledges_nothing():
    """The content of the disk is unknown, and the next sync would falsely succeed."""

    async def act(play):
        await play.deliver()
        play.broker.disk.fail_next_sync()

        sends = [play.compose() for _ in range(5)]
        ended = await asyncio.gather(*[play.attempt(attempt) for attempt in sends])

        assert all(isinstance(attempt, Refused) for attempt in ended)
        assert all(attempt.effect is Effect.MAYBE for attempt in ended)
        (down,) = play.seen(Down)
        assert down.how.startswith("failed: the disk could not make the log durable")
        await play.back()
        await play.deliver()

    play(act)


@pytest.mark.fault("S6")
def test_after_a_failed_sync_a_restart_syncs_what_it_reads_from_the_cache():
    """The kernel takes the pages for clean although the disk never had them.

    The broker that starts next reads them from the cache; what it then shows must be durable.
    """

    async def act(play):
        for _ in range(10):
            await play.deliver()
            play.broker.wire.before(1, play.broker.disk.fail_next_sync, "sync")
            await play.attempt(play.compose(3))
            await asyncio.sleep(0.1)
            assert not play.broker.is_serving
            await play.back()
            await play.deliver()
            await play.broker.crash(Loss.EVERYTHING)
            await play.back()

    # Bodies of several pages: a page that is written again afterwards is saved by that.
    play(act, segment=kib(64), checkpoint=kib(1024), body_max=12_000)


def test_after_a_failed_index_sync_a_restart_does_not_trust_the_cache():
    """The same for the indexes: a chunk that only the cache has must not be built upon."""

    async def act(play):
        for _ in range(6):
            await play.deliver(play.compose(3))
            # A checkpoint follows the spans: its sync is the third from here, after two log syncs.
            play.broker.wire.before(3, play.broker.disk.fail_next_sync, "sync")
            for _ in range(3):
                await play.attempt(play.compose(3))
            play.broker.wire.clear()
            play.broker.disk.repair()
            await play.back()
            await play.deliver()
            await play.broker.crash(Loss.PAGES)
            await play.back()

    play(act, segment=kib(64), checkpoint=kib(1), body_max=600, recovery_chance=1.0)


def test_an_idle_broker_has_synced_all_its_files():
    """Log, indexes and tables are synced; a power cut would lose nothing."""

    async def act(play):
        for _ in range(10):
            await play.deliver(play.compose(8))
        await play.admin.commit_offset("somebody", play.queue, 1)
        await asyncio.sleep(10)

        disk = play.broker.disk
        paths = [f"{f}/{name}" for f in ("log", "index", "config") for name in disk.names(f)]
        assert len(paths) > 10
        for path in paths:
            file = disk.open(path)
            assert file.read(0, file.size()) == disk.durable(path), path
            file.close()

    play(act, segment=kib(4), checkpoint=kib(1), body_max=2000)


@pytest.mark.fault("S10")
def test_sends_are_refused_as_busy_while_a_sync_takes_too_long():
    """Once a sync takes too long, sends are refused at once, and none of them is stored."""

    async def act(play):
        await play.deliver()
        play.broker.disk.slow_sync(2.5)
        first = asyncio.create_task(play.attempt())
        await asyncio.sleep(1.5)

        at = play.world.now()
        refused = [await play.attempt() for _ in range(3)]

        assert play.world.now() - at < 0.1
        assert all("BrokerBusy" in refusal.reason for refusal in refused)
        assert all(refusal.effect is Effect.NONE for refusal in refused)
        play.broker.disk.slow_sync(0.001)
        assert isinstance(await first, Acknowledged)
        assert isinstance(await play.attempt(), Acknowledged)

    play(act)


def test_a_topic_that_cannot_be_saved_takes_no_messages():
    """Otherwise a restart would lose the topic and its messages."""

    async def act(play):
        play.broker.disk.fail_writes(1)
        send = play.compose(topic=AUTO_TOPIC)
        ended = await play.attempt(send)
        assert isinstance(ended, Refused)

        await play.deliver(send, 1)
        await play.broker.stop()

        await play.back()
        assert play.broker.broker.topics.by_name.get(AUTO_TOPIC) is not None

    play(act, is_auto_created=True)


def test_a_broker_stops_in_order_even_if_its_tables_cannot_be_saved():
    async def act(play):
        await play.deliver()
        await play.admin.commit_offset("somebody", play.queue, 1)
        play.broker.disk.fail_writes(error=errno.EROFS)

        await play.broker.stop()

        assert play.seen(Down)[-1].how == "stopped"
        play.broker.disk.repair()
        await play.back()

    play(act)
