"""The flusher in virtual time: when sends are answered, and what a failing disk does."""

import asyncio
import errno
import math
from functools import wraps

import pytest

from tests.unit.store.press import Peer, Press, turns
from tests.unit.store.shelf import Shelf, Sizes
from txmq.errors import BrokerBusy, ServiceUnavailable, SyncFailed, TxmqError
from txmq.testing import Loss, MemoryDisk, SeededEntropy, simulate
from txmq_broker.core.statistics import BOUNDS_S
from txmq_broker.services import flusher as flushing

ASYNC = Sizes(flush="async")
BIG = b"x" * 1500


def in_virtual_time(scenario):
    """Run a coroutine test in its own world."""

    @wraps(scenario)
    def test(**given):
        async def run(world):
            await scenario(**given)

        simulate(run, 0, timeout=600.0)

    return test


@pytest.fixture
def disk():
    return MemoryDisk()


def syncs(disk):
    """A list that receives the path of every sync that begins."""
    paths = []
    disk.on_write = lambda event: paths.append(event.path) if event.kind == "sync" else None
    return paths


# --- turns ---


@in_virtual_time
async def test_sends_of_one_turn_share_one_write_one_sync_and_one_reply_write(disk):
    async with Press(disk) as press:
        press.send(b"first")
        await asyncio.sleep(1)
        synced = syncs(disk)
        writes = press.peer.writes

        for number in range(20):
            press.send(b"%d" % number)
        await asyncio.sleep(1)

        assert press.bodies_acknowledged()[1:] == [b"%d" % number for number in range(20)]
        assert len(press.spans) == 2
        assert len(synced) == 1
        assert press.peer.writes == writes + 1


@in_virtual_time
async def test_blocking_peers_end_up_sharing_every_sync(disk):
    disk.slow_sync(0.001)
    async with Press(disk) as press:
        peers = [Peer(press) for _ in range(8)]
        loop = asyncio.get_running_loop()

        def send_again(peer):
            if len(press.sent) < 2500:
                press.send(b"", peer=peer)

        for peer in peers:
            read = peer.connection.send

            def send(*frames, peer=peer, read=read):
                read(*frames)
                loop.call_soon(send_again, peer)

            peer.connection.send = send
        press.send(b"", peer=peers[0])
        await turns()
        for peer in peers[1:]:
            press.send(b"", peer=peer)
        await asyncio.sleep(10)

        assert len(press.acknowledged) == 2500
        sizes = [len(span.staged) for span in press.spans]
        assert max(sizes[:70]) < 8, "two groups took turns"
        assert set(sizes[-80:-2]) == {8}


@in_virtual_time
async def test_every_peer_is_answered_in_the_order_it_asked(disk):
    async with Press(disk) as press:
        peers = [Peer(press) for _ in range(3)]
        for number in range(30):
            press.send(b"%d" % number, peer=peers[number * 7 % 3])
            if number % 11 == 10:
                await turns()
        await asyncio.sleep(1)

        assert len(press.acknowledged) == 30
        for peer in range(3):
            mine = [placed.offset for placed in press.acknowledged if placed.offset * 7 % 3 == peer]
            assert mine == sorted(mine)


@in_virtual_time
async def test_messages_are_acknowledged_and_visible_only_after_the_sync(disk):
    disk.slow_sync(1.0)
    async with Press(disk) as press:
        press.send(b"one")
        await asyncio.sleep(0.9)
        assert press.acknowledged == []
        assert press.shelf.bodies() == {}

        await asyncio.sleep(0.2)

        assert press.bodies_acknowledged() == [b"one"]
        assert press.shelf.bodies() == {0: b"one"}
        twin = disk.clone()
        twin.crash(loss=Loss.EVERYTHING)
        assert Shelf(twin).bodies() == {0: b"one"}


@in_virtual_time
async def test_messages_sent_during_a_sync_are_answered_after_the_next_one(disk):
    disk.slow_sync(1.0)
    async with Press(disk) as press:
        press.send(b"one")
        await asyncio.sleep(0.5)
        press.send(b"two")
        await turns()
        press.send(b"three")
        await asyncio.sleep(0.6)
        assert press.bodies_acknowledged() == [b"one"]

        await asyncio.sleep(1.0)

        assert press.bodies_acknowledged() == [b"one", b"two", b"three"]
        assert [len(span.staged) for span in press.spans] == [1, 2], "one write for what waited"


def counted(histogram):
    """The durations of a histogram, by the bound of their bucket."""
    bounds = (*BOUNDS_S, math.inf)
    return {bound: count for bound, count in zip(bounds, histogram.counts, strict=True) if count}


@in_virtual_time
async def test_send_times_measure_from_arrival_to_answer(disk):
    disk.slow_sync(0.4)
    async with Press(disk) as press:
        press.send(b"one")
        await asyncio.sleep(0.1)
        press.send(b"two")
        press.send_oneway(b"three")
        await asyncio.sleep(0.2)
        press.send(b"four")
        await asyncio.sleep(1.0)

        # The second sync begins at 0.4 and ends at 0.8; its messages came from 0.1 on.
        assert counted(press.flusher.send_times) == {0.5: 1, 1.0: 3}
        assert press.flusher.send_times.sum_s == pytest.approx(0.4 + 3 * (0.8 - 0.25))
        assert counted(press.flusher.sync_times) == {0.5: 2}
        assert press.flusher.sync_times.sum_s == pytest.approx(0.8)


@in_virtual_time
async def test_a_turn_without_messages_does_not_lengthen_the_next_send_time(disk):
    disk.slow_sync(0.2)
    async with Press(disk) as press:
        press.flusher.turn_ms()
        await asyncio.sleep(5.0)
        press.send(b"one")
        await asyncio.sleep(1.0)

        assert press.flusher.send_times.sum_s == pytest.approx(0.2)


@in_virtual_time
async def test_a_message_that_the_disk_refuses_counts_in_no_histogram(disk):
    async with Press(disk) as press:
        disk.fail_writes(times=1, error=errno.ENOSPC)
        press.send(b"one")
        await asyncio.sleep(1.0)
        press.send(b"two")
        await asyncio.sleep(1.0)

        assert press.refused
        assert sum(press.flusher.send_times.counts) == len(press.acknowledged) == 1


@in_virtual_time
async def test_with_async_flush_an_answer_leaves_when_the_turn_ends(disk):
    disk.slow_sync(60.0)
    async with Press(disk, ASYNC) as press:
        press.send(b"one")
        assert press.acknowledged == []

        await turns(2)

        assert press.bodies_acknowledged() == [b"one"]
        assert press.shelf.bodies() == {0: b"one"}


@in_virtual_time
async def test_with_async_flush_the_log_is_synced_after_the_interval(disk):
    async with Press(disk, ASYNC) as press:
        press.send(b"one")
        await asyncio.sleep(0.4)
        assert press.store.log.durable == 0

        await asyncio.sleep(0.2)

        assert press.store.log.durable == press.store.log.end > 0
        synced = syncs(disk)
        await asyncio.sleep(5)
        assert synced == []


@in_virtual_time
async def test_a_one_way_message_is_stored_without_an_answer(disk):
    async with Press(disk) as press:
        press.send_oneway(b"one")
        await asyncio.sleep(1)

        assert press.shelf.bodies() == {0: b"one"}
        assert press.codes == []


@in_virtual_time
async def test_a_turn_in_which_nothing_is_staged_writes_nothing(disk):
    async with Press(disk) as press:
        events = disk.events
        press.flusher.turn_ms()
        await asyncio.sleep(1)

        assert disk.events == events
        await press.flusher.drain()


@in_virtual_time
async def test_a_large_turn_is_written_in_parts(disk, monkeypatch):
    monkeypatch.setattr(flushing, "SPAN_BYTES_MAX", 1000)
    async with Press(disk) as press:
        for number in range(30):
            press.send(b"%d" % number * 50)
        await asyncio.sleep(1)

        assert len(press.acknowledged) == 30
        assert len(press.spans) > 3
        for span in press.spans:
            assert span.end - span.staged[0][1] <= 1000 + 250
        assert press.shelf.bodies() == {n: b"%d" % n * 50 for n in range(30)}


@in_virtual_time
async def test_with_async_flush_a_large_turn_is_answered_in_parts(disk):
    async with Press(disk, ASYNC) as press:
        body = b"x" * 150_000
        for _ in range(3):
            press.send(body)
        assert press.acknowledged == []

        press.send(body)
        assert press.bodies_acknowledged() == [body] * 3

        await turns(2)
        assert press.bodies_acknowledged() == [body] * 4
        assert len(press.spans) == 2


@in_virtual_time
async def test_a_large_turn_of_one_way_messages_is_written_in_parts(disk, monkeypatch):
    monkeypatch.setattr(flushing, "SPAN_BYTES_MAX", 1000)
    async with Press(disk) as press:
        for number in range(30):
            press.send_oneway(b"%d" % number * 50)
        await asyncio.sleep(1)

        assert len(press.spans) > 3
        for span in press.spans:
            assert span.end - span.staged[0][1] <= 1000 + 250
        assert len(press.shelf.bodies()) == 30


@in_virtual_time
async def test_messages_of_one_turn_share_a_timestamp_that_never_goes_back(disk):
    async with Press(disk) as press:
        times = []
        for jump in (0, -3600, 7200, -3600, 1):
            press.clock.jump(jump)
            times += [press.flusher.turn_ms(), press.flusher.turn_ms()]
            press.send(b"x")
            await asyncio.sleep(0.01)

        assert times[::2] == times[1::2] == sorted(times[::2])
        queue = press.store.find_queue("T", 0)
        assert [press.store.stored_ms(queue, number) for number in range(5)] == times[::2]


@in_virtual_time
async def test_a_disconnected_peer_does_not_affect_other_peers(disk):
    async with Press(disk) as press:
        gone = Peer(press)
        press.send(b"one", peer=gone)
        press.send(b"two")
        gone.connection.connection_lost(None)
        await asyncio.sleep(1)

        assert press.bodies_acknowledged() == [b"two"]
        assert len(press.shelf.bodies()) == 2


# --- refusing ---


@in_virtual_time
async def test_sends_are_refused_while_a_sync_is_stuck(disk):
    disk.slow_sync(10.0)
    async with Press(disk) as press:
        press.send(b"one")
        await asyncio.sleep(0.9)
        press.send(b"two")
        await asyncio.sleep(0.2)

        with pytest.raises(BrokerBusy, match="PCBUSY"):
            press.send(b"three")

        await asyncio.sleep(10)
        press.disk.slow_sync(0.1)
        await asyncio.sleep(11)
        press.send(b"four")
        await asyncio.sleep(1)
        assert press.bodies_acknowledged() == [b"one", b"two", b"four"]


@in_virtual_time
async def test_sends_are_refused_while_too_many_bytes_wait_for_the_disk(disk, monkeypatch):
    monkeypatch.setattr(flushing, "UNSYNCED_BYTES_MAX", 4000)
    disk.slow_sync(0.5)
    async with Press(disk) as press:
        refused = 0
        for _ in range(9):
            try:
                press.send(b"x" * 1000)
            except BrokerBusy:
                refused += 1
            await turns()
        await asyncio.sleep(5)

        assert refused == press.flusher.figures()["busy_refused"] == 5
        assert len(press.acknowledged) == 4
        press.send(b"again")
        await asyncio.sleep(1)
        assert len(press.acknowledged) == 5


@in_virtual_time
async def test_a_send_that_is_not_admitted_is_refused_before_it_is_staged(disk):
    async with Press(disk) as press:
        press.admission.set_cause("disk", "it is full")

        with pytest.raises(ServiceUnavailable, match="it is full"):
            press.send(b"one")
        assert str(press.flusher.refusal()) == "it is full"
        assert press.flusher.figures()["sends_refused"] == 1

        # Decisions are still accepted.
        assert press.flusher.decision_ms() > 0
        assert press.flusher.figures()["sends_refused"] == 1

        press.admission.clear_cause("disk")
        press.send(b"two")
        await asyncio.sleep(1)
        assert press.shelf.bodies() == {0: b"two"}


# --- writes that fail ---


@pytest.mark.parametrize("sizes", [Sizes(), ASYNC], ids=["sync", "async"])
@in_virtual_time
async def test_a_failed_write_refuses_only_the_sends_of_its_turn(disk, sizes):
    disk.slow_sync(0.2)
    async with Press(disk, sizes) as press:
        press.send(b"before")
        await turns()
        press.send(b"lost")
        press.send(b"lost too", number=1)
        # With "sync" the high-water mark of the earlier sends is written first; it may fail.
        times = 2 if sizes.flush == "sync" else 1
        disk.fail_writes(times=times, error=errno.ENOSPC)
        await asyncio.sleep(0.3)  # virtual; the write waits for the running sync
        assert [placed.body for placed in press.refused] == [b"lost", b"lost too"]
        press.send(b"after")
        await asyncio.sleep(2)

        assert press.bodies_acknowledged() == [b"before", b"after"]
        assert press.codes.count(ServiceUnavailable.code) == 2
        assert press.shelf.bodies() == {0: b"before", 1: b"after"}
        assert press.shelf.bodies(number=1) == {}
        assert press.fatal == []


@in_virtual_time
async def test_a_drain_ends_even_if_its_write_fails(disk):
    async with Press(disk) as press:
        press.send(b"lost")
        disk.fail_writes(times=1)

        await press.flusher.drain()

        assert [placed.body for placed in press.refused] == [b"lost"]


# --- syncs that fail ---


@in_virtual_time
async def test_a_failed_sync_stops_the_broker_and_acknowledges_nothing(disk):
    async with Press(disk) as press:
        press.send(b"before")
        await asyncio.sleep(1)
        disk.slow_sync(0.5)
        press.send(b"one")
        await turns()
        press.send(b"two")
        disk.fail_next_sync()

        await asyncio.sleep(60)

        assert [type(problem) for problem in press.fatal] == [SyncFailed]
        assert press.bodies_acknowledged() == [b"before"]
        assert press.refused == []
        with pytest.raises(ServiceUnavailable, match="disk failed"):
            press.send(b"three")
        await press.flusher.drain()
        assert press.shelf.bodies() == {0: b"before"}


@in_virtual_time
async def test_messages_staged_when_a_sync_fails_are_not_written(disk):
    disk.slow_sync(0.05)
    async with Press(disk) as press:
        press.send(b"one")
        await turns()
        disk.fail_next_sync()
        await asyncio.sleep(0.1)
        end = press.store.log.end
        assert len(press.fatal) == 1
        press.shelf.put(b"two")

        await press.flusher.drain()

        assert press.store.log.end == end


@in_virtual_time
async def test_with_async_flush_a_failed_sync_stops_the_broker_too(disk):
    async with Press(disk, ASYNC) as press:
        press.send(b"one")
        await turns()
        disk.fail_next_sync()
        await asyncio.sleep(60)

        assert [type(problem) for problem in press.fatal] == [SyncFailed]
        with pytest.raises(ServiceUnavailable):
            press.send(b"two")


@in_virtual_time
async def test_a_failed_sync_in_a_checkpoint_stops_the_broker(disk):
    async with Press(disk, Sizes(checkpoint_every=100)) as press:
        press.send(b"one")
        await turns(2)
        disk.slow_sync(0.5)
        await asyncio.sleep(0.1)  # the log is synced, its index is not
        press.send(b"two")
        await turns()
        disk.fail_next_sync()

        await asyncio.sleep(60)

        assert [type(problem) for problem in press.fatal] == [SyncFailed]
        assert "indexes" in str(press.fatal[0])
        # The log's own sync succeeded after the failure, but nobody knows what it covered.
        assert press.bodies_acknowledged() == [b"one"]


@in_virtual_time
async def test_an_unexpected_error_in_the_flusher_stops_the_broker(disk):
    async with Press(disk) as press:

        def fail(span):
            raise RuntimeError("a fault in a pull")

        press.on_published = fail
        press.send(b"one")
        await asyncio.sleep(1)

        assert "a fault in a pull" in str(press.fatal[0])
        with pytest.raises(ServiceUnavailable):
            press.send(b"two")


# --- checkpoints ---


@in_virtual_time
async def test_checkpoints_are_made_under_load(disk):
    disk.slow_sync(0.01, 0.05)
    async with Press(disk, Sizes(checkpoint_every=1000)) as press:
        for number in range(60):
            press.send(b"%d" % number * 100, number=number % 3, keys="K")
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)
        before = press.shelf.everything(), press.shelf.found_by_key("K")
        twin = disk.clone()

        again = Shelf(twin)
        assert (again.everything(), again.found_by_key("K")) == before
        assert again.recovery.scanned_bytes < 2000


@in_virtual_time
async def test_after_a_drain_a_restart_scans_and_cuts_nothing(disk):
    disk.slow_sync(0.3)
    for sizes in (Sizes(), ASYNC):
        async with Press(disk, sizes) as press:
            for number in range(7):
                press.send(b"%d" % number + BIG)
                await turns(1)

            await press.flusher.drain()

            assert len(press.acknowledged) == 7
        disk.crash(loss=Loss.EVERYTHING)
        again = Shelf(disk)
        assert again.recovery.scanned_bytes == again.recovery.cut_bytes == 0
        assert len(again.bodies()) % 7 == 0
        again.close()


@pytest.mark.parametrize("flush", ["sync", "async"])
@in_virtual_time
async def test_messages_sent_during_a_drain_are_stored_and_answered(disk, flush):
    disk.slow_sync(0.05, 0.2)
    async with Press(disk, Sizes(checkpoint_every=1000, flush=flush)) as press:

        async def go_on_sending():
            for number in range(60):
                press.send(b"%d" % number * 200)
                await asyncio.sleep(0.1)

        sending = asyncio.create_task(go_on_sending())
        while not sending.done():
            await press.flusher.drain()
            await asyncio.sleep(0.03)
        await sending
        await press.flusher.drain()

        assert press.fatal == []
        assert len(press.acknowledged) == 60
        assert Shelf(disk.clone()).bodies() == press.shelf.bodies()
        assert len(press.shelf.bodies()) == 60


@in_virtual_time
async def test_failing_index_writes_delay_no_send_and_are_retried(disk):
    attempts = []

    def refuse(event):
        if event.path.startswith("index/") and event.kind == "write":
            attempts.append(asyncio.get_running_loop().time())
            raise OSError(errno.ENOSPC, "No space left on device")

    disk.on_write = refuse
    async with Press(disk, Sizes(checkpoint_every=500)) as press:
        for number in range(300):
            press.send(b"%d" % number * 10)
            await asyncio.sleep(0.05)

        assert len(press.acknowledged) == 300
        assert 2 <= len(attempts) <= 4
        assert press.fatal == []

        disk.on_write = None
        await asyncio.sleep(flushing.CHECKPOINT_RETRY_S)
        press.send(b"last")
        await asyncio.sleep(1)
        assert Shelf(disk.clone()).recovery.scanned_bytes == 0
        assert len(press.shelf.bodies()) == 301


@in_virtual_time
async def test_with_async_flush_a_checkpoint_syncs_the_log_before_the_index(disk):
    disk.slow_sync(0.01, 0.1)
    sizes = Sizes(flush="async", flush_interval=30.0, checkpoint_every=1500)
    points = []
    disk.on_write = lambda event: points.append(disk.clone())
    async with Press(disk, sizes) as press:
        for number in range(40):
            press.send(b"%d" % number * 150)
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)
    assert any(twin.names("index") for twin in points)

    for number, twin in enumerate(points[::3]):
        twin.crash(SeededEntropy(number), (Loss.PAGES, Loss.TAIL, Loss.EVERYTHING)[number % 3])
        found = Shelf(twin).bodies()
        assert found == {number: b"%d" % number * 150 for number in range(len(found))}


# --- the end ---


@in_virtual_time
async def test_a_stop_during_a_sync_sends_no_answer_and_loses_no_acknowledged_message(disk):
    async with Press(disk) as press:
        press.send(b"one")
        await asyncio.sleep(1)
        disk.slow_sync(5.0)
        press.send(b"two")
        await asyncio.sleep(1)

        await press.flusher.stop()
        await asyncio.sleep(10)

        assert press.bodies_acknowledged() == [b"one"]
        assert press.fatal == []
    assert Shelf(disk).bodies()[0] == b"one"


@in_virtual_time
async def test_a_stop_just_after_a_sync_sends_no_answer_and_writes_nothing(disk):
    async with Press(disk) as press:
        synced = asyncio.get_running_loop().create_future()
        disk.sync_soon = lambda files: synced
        press.send(b"one")
        await turns()
        press.send(b"two")
        await turns()
        end = press.store.log.end

        synced.set_result(None)
        await press.flusher.stop()
        await turns()

        assert press.acknowledged == []
        assert press.store.log.end == end
        assert press.fatal == []


@in_virtual_time
async def test_the_high_water_mark_is_written_after_the_answers_or_by_a_stop(disk):
    async with Press(disk) as press:
        marks, high_water = [], press.store.log.high_water
        press.on_published = lambda span: marks.append(high_water.mark)
        press.send(b"one")
        await asyncio.sleep(1)
        assert marks[0].end < high_water.mark.end == press.store.log.end

        def stop(_):
            # Between the answers and the mark, as another callback of the loop could.
            with pytest.raises(StopIteration):
                press.flusher.stop().send(None)
            marks.append(high_water.mark)

        synced = asyncio.get_running_loop().create_future()
        disk.sync_soon = lambda files: synced
        press.send(b"two")
        await turns()
        synced.add_done_callback(stop)
        first = high_water.mark
        synced.set_result(None)
        await turns()

        assert marks[1:] == [first, high_water.mark]
        assert high_water.mark.end == press.store.log.end
        assert press.bodies_acknowledged() == [b"one", b"two"]


@in_virtual_time
async def test_a_drain_that_timed_out_can_be_followed_by_a_stop(disk):
    async with Press(disk, Sizes(checkpoint_every=100)) as press:
        press.send(b"one")
        await turns(2)
        disk.slow_sync(60.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await press.flusher.drain()
    again = Shelf(disk)
    again.add(b"two")
    again.restart()
    assert list(again.bodies().values())[-1] == b"two"


# --- everything at once ---


@pytest.mark.parametrize("seed", range(12))
def test_every_send_gets_one_answer_that_matches_the_store(seed):
    async def scenario(world):
        chance = world.entropy
        disk = MemoryDisk(chance.fork("disk"))
        disk.slow_sync(0.0, 0.05)
        async with Press(disk, Sizes(checkpoint_every=3000)) as press:
            peers = [Peer(press) for _ in range(4)]
            busy = 0
            for number in range(250):
                try:
                    body = b"%d" % number * chance.below(300)
                    press.send(body, "TU"[chance.below(2)], chance.below(2), peers[number % 4])
                except TxmqError:
                    busy += 1
                if chance.chance(0.05):
                    disk.fail_writes(times=1 + chance.below(3), error=errno.ENOSPC)
                if chance.chance(0.3):
                    await asyncio.sleep(chance.fraction() / 20)
            disk.repair()
            await press.flusher.drain()

            assert press.fatal == []
            assert len(press.acknowledged) + len(press.refused) + busy == 250
            assert press.refused
            stored = {}
            for placed in press.acknowledged:
                stored.setdefault((placed.topic, placed.number), {})[placed.offset] = placed.body
            for (topic, number), messages in stored.items():
                assert press.shelf.bodies(topic, number) == messages
        disk.crash(loss=Loss.EVERYTHING)
        again = Shelf(disk)
        for (topic, number), messages in stored.items():
            assert again.bodies(topic, number) == messages

    simulate(scenario, seed)
