"""The disk: like a directory while all goes well, and what a crash may and may not take."""

import asyncio
import errno
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.running import run_by
from txmq.runtime.disk import LocalDisk
from txmq.testing import (
    Loss,
    MemoryDisk,
    PowerCut,
    SeededEntropy,
    StaleHandleError,
    power_cuts,
    simulate,
)

PAGE = 4096
small = settings(max_examples=150, deadline=None)
long = settings(max_examples=60, deadline=None)


# --- while all goes well ---


positions = st.integers(0, 3 * PAGE)
steps = st.one_of(
    st.tuples(st.just("write"), positions, st.binary(max_size=2 * PAGE)),
    st.tuples(st.just("truncate"), positions),
    st.tuples(st.just("read"), positions, st.integers(0, 2 * PAGE)),
    st.tuples(st.just("sync")),
)


@long
@given(st.lists(steps, max_size=12))
def test_a_memory_file_reads_and_writes_like_a_real_one(tmp_path_factory, steps):
    real = LocalDisk(tmp_path_factory.mktemp("disk")).open("a/b", create=True)
    ours = MemoryDisk().open("a/b", create=True)

    for name, *arguments in steps:
        assert getattr(ours, name)(*arguments) == getattr(real, name)(*arguments)
        assert ours.size() == real.size()
    assert ours.read(0, 10 * PAGE) == real.read(0, 10 * PAGE)
    real.close()


@pytest.fixture(params=["memory", "directory"])
def disk(request, tmp_path):
    return MemoryDisk() if request.param == "memory" else LocalDisk(tmp_path)


def test_names_lists_the_entries_of_a_folder(disk):
    for path in ("log/0", "log/1", "queue/a/0", "checkpoint"):
        disk.open(path, create=True).close()
    disk.replace("settings", b"one")
    disk.remove("log/1")

    assert disk.names("") == disk.names(".") == ["checkpoint", "log", "queue", "settings"]
    assert disk.names("log") == disk.names("log/") == ["0"]
    assert disk.names("queue") == ["a"]
    assert disk.names("nowhere") == []
    disk.remove("queue/a/0")
    assert disk.names("queue/a") == []
    assert disk.names("queue") == ["a"]


def test_opening_a_missing_file_or_a_folder_fails(disk):
    disk.open("folder/file", create=True).close()

    with pytest.raises(FileNotFoundError):
        disk.open("nothing")
    with pytest.raises(IsADirectoryError):
        disk.open("folder")
    disk.remove("nothing")


def test_replace_writes_the_whole_new_content(disk):
    disk.replace("a/b", b"a long first version")
    disk.replace("a/b", b"short")

    assert disk.open("a/b").read(0, 100) == b"short"
    assert disk.names("a") == ["b"]


def test_replace_keeps_the_previous_file_under_a_second_name(disk):
    for version in (b"one", b"two", b"three"):
        disk.replace("a/b", version, keep="a/b.old")

    assert disk.open("a/b").read(0, 100) == b"three"
    assert disk.open("a/b.old").read(0, 100) == b"two"
    assert disk.names("a") == ["b", "b.old"]


@pytest.mark.parametrize("count", [1, 3, 1100])
def test_a_write_of_several_pieces_joins_them(disk, count):
    pieces = [b"%d," % number * 50 for number in range(count)]
    file = disk.open("f", create=True)

    file.write(5, bytearray(b"first,"), *pieces)

    written = b"".join(pieces)
    assert file.read(0, file.size()) == bytes(5) + b"first," + written


def test_a_partial_vectored_write_is_completed(tmp_path, monkeypatch):
    file = LocalDisk(tmp_path).open("f", create=True)
    pwritev = os.pwritev

    def write_some(descriptor, pieces, position):
        return pwritev(descriptor, [pieces[0], pieces[1][:2]], position)

    monkeypatch.setattr(os, "pwritev", write_some)
    file.write(3, b"one", b"two", b"three")

    assert file.read(0, 100) == bytes(3) + b"onetwothree"


def test_a_closed_file_refuses_all_operations(disk):
    file = disk.open("f", create=True)
    file.close()
    file.close()

    for use in (lambda: file.read(0, 1), lambda: file.write(0, b"x"), file.size):
        with pytest.raises(OSError, match="Bad file"):
            use()


def test_a_held_lock_cannot_be_taken_again(disk):
    lock = disk.lock()
    with pytest.raises(BlockingIOError):
        disk.lock()
    assert disk.names("") == ["lock"]

    lock.release()
    lock.release()

    disk.lock().release()


# --- crashes ---


@st.composite
def histories(draw):
    """Appends, overwrites, syncs and cuts, as a list of functions of a file."""
    moves = []
    for _ in range(draw(st.integers(1, 10))):
        kind = draw(st.sampled_from(["append", "append", "overwrite", "sync", "truncate"]))
        data = draw(st.binary(min_size=1, max_size=64)) * draw(st.sampled_from([1, 40, 200]))
        where = draw(st.floats(0, 1))
        moves.append((kind, data, where))
    return moves


def play(disk, moves):
    """Do the moves; return the promised value of every byte, or None if it may have any value."""
    file = disk.open("log", create=True)
    promised = []
    for kind, data, where in moves:
        size = file.size()
        if kind == "sync":
            file.sync()
            promised = list(file.read(0, size))
        elif kind == "truncate":
            cut = int(size * where)
            file.truncate(cut)
            promised[cut:] = [None] * len(promised[cut:])
        else:
            start = size if kind == "append" else int(size * where)
            file.write(start, data)
            end = min(start + len(data), len(promised))
            promised[start:end] = [None] * max(0, end - start)
    return promised


@small
@given(histories(), st.integers(0, 2**32), st.sampled_from(Loss))
def test_synced_bytes_that_are_not_overwritten_survive_a_crash(moves, seed, loss):
    disk = MemoryDisk()
    promised = play(disk, moves)
    while promised and promised[-1] is None:
        promised.pop()  # a cut that was not synced may hold or not

    disk.crash(SeededEntropy(seed), loss)

    found = disk.open("log").read(0, 1 << 20)
    assert len(found) >= len(promised)
    for position, byte in enumerate(promised):
        assert byte is None or found[position] == byte, position


@small
@given(histories(), st.integers(0, 2**32))
def test_a_crash_with_one_seed_has_one_outcome_and_a_second_changes_nothing(moves, seed):
    outcomes = []
    for _ in range(2):
        disk = MemoryDisk()
        play(disk, moves)
        disk.crash(SeededEntropy(seed))
        outcomes.append(disk.open("log").read(0, 1 << 20))
        disk.crash(SeededEntropy(seed + 1))
        outcomes.append(disk.open("log").read(0, 1 << 20))

    assert len(set(outcomes)) == 1


@small
@given(histories(), st.integers(0, 2**32))
def test_changes_to_a_clone_do_not_affect_the_original(moves, seed):
    disk = MemoryDisk()
    play(disk, moves)
    before, durable = disk.open("log").read(0, 1 << 20), disk.durable("log")

    twin = disk.clone()
    twin.crash(SeededEntropy(seed), Loss.EVERYTHING)
    twin.open("log").write(0, b"something else")

    assert disk.open("log").read(0, 1 << 20) == before
    assert disk.durable("log") == durable


def test_a_crash_loses_all_unsynced_bytes_or_none_as_asked():
    for loss, expected in ((Loss.EVERYTHING, b"synced"), (Loss.NOTHING, b"synced and written")):
        disk = MemoryDisk()
        file = disk.open("f", create=True)
        file.write(0, b"synced")
        file.sync()
        file.write(6, b" and written")

        disk.crash(loss=loss)

        assert disk.open("f").read(0, 100) == expected


def test_a_torn_tail_can_be_cut_at_every_byte():
    record = bytes(range(1, 41))
    found = set()
    for seed in range(1000):
        disk = MemoryDisk()
        file = disk.open("f", create=True)
        file.write(0, b"first")
        file.write(5, record)
        disk.crash(SeededEntropy(seed), Loss.TAIL)
        found.add(disk.open("f").read(0, 100))

    assert found == {b"first" + record[:cut] for cut in range(41)}


def test_unsynced_pages_may_be_lost_kept_zeroed_torn_or_garbage():
    fates = set()
    for seed in range(200):
        disk = MemoryDisk()
        file = disk.open("f", create=True)
        file.write(0, b"\1" * 100)
        file.sync()
        file.write(100, b"\2" * (3 * PAGE))
        disk.crash(SeededEntropy(seed), Loss.PAGES)
        content = disk.open("f").read(0, 5 * PAGE)
        assert content[:100] == b"\1" * 100
        page = content[PAGE : 2 * PAGE]
        fates.add(
            "lost" if not page
            else "kept" if page == b"\2" * PAGE
            else "zeros" if not any(page)
            else "torn or short" if set(page) <= {0, 2}
            else "garbage"
        )  # fmt: skip
    assert fates == {"lost", "kept", "zeros", "torn or short", "garbage"}


def test_a_synced_page_that_is_partly_overwritten_keeps_the_rest():
    outcomes = set()
    for seed in range(100):
        disk = MemoryDisk()
        file = disk.open("f", create=True)
        file.write(0, b"s" * 300)
        file.sync()
        file.write(100, b"new" * 10)
        file.write(300, b"tail")
        disk.crash(SeededEntropy(seed), Loss.PAGES)
        content = disk.open("f").read(0, PAGE)
        assert content[:100] == b"s" * 100
        assert content[130:300] == b"s" * 170
        outcomes.add(content[100:130])
    assert len(outcomes) > 10
    assert {b"new" * 10, b"s" * 30, bytes(30)} <= outcomes


def test_a_file_that_grows_after_a_crash_is_filled_with_zeros():
    for seed in range(100):
        disk = MemoryDisk()
        disk.open("f", create=True).write(0, b"x" * 1000)
        disk.crash(SeededEntropy(seed))
        file = disk.open("f")
        size = file.size()
        file.write(2000, b"y")
        assert file.read(size, 2000 - size) == bytes(2000 - size)


def test_created_replaced_and_removed_names_are_durable():
    disk = MemoryDisk()
    disk.open("made", create=True)
    disk.replace("put", b"whole")
    disk.replace("put", b"whole again")
    disk.open("gone", create=True)
    disk.remove("gone")
    disk.crash(loss=Loss.EVERYTHING)

    assert disk.names("") == ["made", "put"]
    assert disk.open("put").read(0, 100) == b"whole again"


def test_replace_leaves_the_old_or_the_new_file_after_any_crash():
    disk = MemoryDisk()
    disk.replace("settings", b"old")
    found = set()
    for event, point in power_cuts(disk, lambda disk: disk.replace("settings", b"new!")):
        for seed in range(20):
            after = point.clone()
            after.crash(SeededEntropy(seed))
            content = after.open("settings").read(0, 100)
            found.add(content)
            assert content == b"new!" if event is None else content in (b"old", b"new!")
            assert set(after.names("")) <= {"settings", "settings.new"}
            after.replace("settings", b"once more")
            assert after.open("settings").read(0, 100) == b"once more"
    assert found == {b"old", b"new!"}


@pytest.mark.parametrize("loss", [Loss.EVERYTHING, Loss.PAGES, Loss.TAIL, Loss.NOTHING])
def test_a_create_or_remove_before_its_folder_sync_may_be_lost(loss):
    def work(disk):
        disk.open("made", create=True)
        disk.remove("gone")

    disk = MemoryDisk()
    disk.open("gone", create=True)
    points = [point for event, point in power_cuts(disk, work) if event][1::2]
    found = []
    for point in points:
        outcomes = set()
        for seed in range(30):
            after = point.clone()
            after.crash(SeededEntropy(seed), loss)
            outcomes.add(" ".join(after.names("")))
        found.append(outcomes)

    old = [{"gone"}, {"gone made"}]
    new = [{"gone made"}, {"made"}]
    both = [{"gone", "gone made"}, {"gone made", "made"}]
    assert found == {Loss.EVERYTHING: old, Loss.PAGES: both}.get(loss, new)


def test_power_cuts_yields_a_disk_before_every_operation():
    def work(disk):
        file = disk.open("f", create=True)
        file.write(0, b"one")
        file.sync()
        file.truncate(2)
        disk.remove("f")

    points = list(power_cuts(MemoryDisk(), work))

    assert [event and (event.kind, event.path) for event, _ in points] == [
        ("create", "f"),
        ("sync folder", "f"),
        ("write", "f"),
        ("sync", "f"),
        ("truncate", "f"),
        ("remove", "f"),
        ("sync folder", "f"),
        None,
    ]
    assert points[3][1].durable("f") == b""
    assert points[4][1].durable("f") == b"one"


def test_a_hook_can_stop_the_writer():
    disk = MemoryDisk()
    file = disk.open("f", create=True)

    def stop(event):
        if event.kind == "write":
            raise PowerCut

    disk.on_write = stop
    with pytest.raises(PowerCut):
        file.write(0, b"never")
    assert disk.open("f").size() == 0


def test_old_handles_are_stale_after_a_crash():
    disk = MemoryDisk()
    file, lock = disk.open("f", create=True), disk.lock()
    disk.crash()

    for use in (lambda: file.write(0, b"x"), lambda: file.read(0, 1), file.sync, file.size):
        with pytest.raises(StaleHandleError):
            use()
    file.close()
    held = disk.lock()
    lock.release()
    with pytest.raises(BlockingIOError):
        disk.lock()
    held.release()


def test_a_disk_with_a_successor_refuses_all_operations():
    disk = MemoryDisk()
    file = disk.open("f", create=True)
    successor = disk.successor()

    uses = (
        lambda: file.write(0, b"x"),
        lambda: disk.open("f"),
        lambda: disk.replace("f", b"x"),
        lambda: disk.remove("f"),
        lambda: disk.lock(),
    )
    for use in uses:
        with pytest.raises(PowerCut):
            use()
    assert successor.open("f").size() == 0


# --- failures ---


def test_a_full_disk_takes_what_fits():
    disk = MemoryDisk()
    disk.capacity = 3 * PAGE
    file = disk.open("f", create=True)
    file.write(0, b"x" * 100)

    with pytest.raises(OSError, match="No space left") as caught:
        file.write(100, b"y" * (4 * PAGE))

    assert caught.value.errno == errno.ENOSPC
    assert file.read(0, 5 * PAGE) == b"x" * 100 + b"y" * (3 * PAGE - 100)
    assert disk.space() == (3 * PAGE, 3 * PAGE)
    file.write(0, b"overwriting needs no space")
    with pytest.raises(OSError, match="No space left"):
        disk.replace("g", b"z")
    disk.capacity = 4 * PAGE
    file.write(3 * PAGE, b"fits again")
    disk.remove("f")
    assert disk.space().used <= PAGE


def test_a_replace_on_a_full_disk_leaves_the_old_file_and_uses_no_space():
    disk = MemoryDisk()
    disk.replace("f", b"old")
    disk.capacity = 2 * PAGE

    with pytest.raises(OSError, match="No space left"):
        disk.replace("f", b"x" * (2 * PAGE), keep="f.old")

    assert disk.names("") == ["f"]
    assert disk.open("f").read(0, 10) == b"old"
    assert disk.space().used == PAGE


def test_a_preallocated_hole_takes_no_space():
    disk = MemoryDisk()
    disk.capacity = 2 * PAGE
    file = disk.open("f", create=True)
    file.truncate(1 << 30)

    assert disk.space().used == 0
    assert file.read((1 << 30) - 10, 100) == bytes(10)


def test_a_failed_sync_loses_its_pages_for_good():
    disk = MemoryDisk()
    file = disk.open("f", create=True)
    file.write(0, b"doomed" * PAGE)
    disk.fail_next_sync()
    with pytest.raises(OSError, match="Input/output"):
        file.sync()

    file.sync()  # claims to be fine
    assert file.read(0, 6) == b"doomed"
    disk.crash(loss=Loss.EVERYTHING)

    assert not any(disk.open("f").read(0, 10 * PAGE))


def test_data_written_again_after_a_failed_sync_can_be_synced():
    disk = MemoryDisk()
    file = disk.open("f", create=True)
    file.write(0, b"written twice")
    disk.fail_next_sync(times=2)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
    file.write(0, b"written twice")
    file.sync()
    disk.crash(loss=Loss.EVERYTHING)

    assert disk.open("f").read(0, 100) == b"written twice"


def test_writes_and_reads_fail_as_ordered_until_repair():
    disk = MemoryDisk(SeededEntropy(5))
    file = disk.open("f", create=True)
    disk.fail_writes(times=1)
    with pytest.raises(OSError, match="Input/output"):
        file.write(0, b"x" * 1000)
    assert set(file.read(0, 1000)) <= {ord("x")}

    disk.fail_writes(error=errno.EROFS)
    for use in (lambda: file.truncate(0), lambda: disk.open("g", create=True)):
        with pytest.raises(OSError, match="Read-only"):
            use()
    disk.fail_reads(times=1)
    with pytest.raises(OSError, match="Input/output"):
        file.read(0, 1)
    disk.repair()
    file.write(0, b"fine")
    assert file.read(0, 4) == b"fine"


def test_a_flipped_bit_stays_flipped():
    disk = MemoryDisk()
    file = disk.open("f", create=True)
    file.write(0, b"abc")
    file.sync()

    disk.flip_bit("f", 1, 0)
    disk.crash(loss=Loss.PAGES)
    file = disk.open("f")

    assert file.read(0, 3) == disk.durable("f") == b"acc"
    disk.crash()
    assert disk.open("f").read(0, 3) == b"acc"
    with pytest.raises(FileNotFoundError):
        disk.flip_bit("nothing", 0)


def test_a_lost_tail_is_replaced_by_zeros_when_the_file_grows():
    disk = MemoryDisk()
    file = disk.open("f", create=True)
    file.write(0, b"abcdef")
    file.sync()

    disk.cut_tail("f", 2)
    assert file.read(0, 6) == disk.durable("f") == b"ab"
    file.write(4, b"x")
    file.sync()
    disk.crash(loss=Loss.EVERYTHING)
    assert disk.durable("f") == b"ab\0\0x"
    with pytest.raises(FileNotFoundError):
        disk.cut_tail("nothing", 0)


# --- slow syncs ---


@run_by(simulate, 1)
async def test_a_slow_sync_does_not_cover_bytes_written_while_it_runs(world, /):
    disk = MemoryDisk()
    disk.slow_sync(2.0)
    file = disk.open("f", create=True)
    file.write(0, b"before")
    sync = asyncio.ensure_future(disk.sync_soon([file]))
    await asyncio.sleep(1)
    file.write(6, b" while it ran")
    assert disk.durable("f") == b""
    await sync
    assert world.now() == 2
    assert disk.durable("f") == b"before"
    await disk.sync_soon([file])
    assert disk.durable("f") == b"before while it ran"


@run_by(simulate, 1)
async def test_syncs_run_one_after_another(world, /):
    disk = MemoryDisk()
    disk.slow_sync(1.0)
    file = disk.open("f", create=True)
    await asyncio.gather(*(disk.sync_soon([file]) for _ in range(5)))
    assert world.now() == 5


@run_by(simulate, 1)
async def test_other_disk_work_waits_for_running_syncs(world, /):
    disk = MemoryDisk()
    disk.slow_sync(1.0)
    file = disk.open("f", create=True)
    sync = asyncio.ensure_future(disk.sync_soon([file]))
    await disk.run_soon(lambda: disk.replace("g", b"x"))
    assert world.now() == 2
    assert sync.done()
    assert disk.durable("g") == b"x"


@run_by(simulate, 1)
async def test_a_quick_sync_is_not_undone_by_a_slow_sync_that_began_earlier(world, /):
    disk = MemoryDisk()
    disk.slow_sync(1.0)
    file = disk.open("f", create=True)
    file.write(0, b"old")
    slow = asyncio.ensure_future(disk.sync_soon([file]))
    await asyncio.sleep(0.5)
    file.write(0, b"new")
    file.sync()
    await slow
    assert disk.durable("f") == b"new"


@run_by(simulate, 1)
async def test_a_slow_sync_can_fail_or_be_cut_by_a_crash(world, /):
    disk = MemoryDisk()
    disk.slow_sync(1.0, 3.0)
    file = disk.open("f", create=True)
    file.write(0, b"x")
    disk.fail_next_sync()
    with pytest.raises(OSError, match="Input/output"):
        await disk.sync_soon([file])
    file.write(0, b"y")
    sync = asyncio.ensure_future(disk.sync_soon([file]))
    await asyncio.sleep(0.5)
    disk.crash(loss=Loss.EVERYTHING)
    with pytest.raises(StaleHandleError):
        await sync
    assert not any(disk.durable("f"))
