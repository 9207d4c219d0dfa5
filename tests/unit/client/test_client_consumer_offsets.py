"""Where a consumer keeps its offsets: at brokers, or in a file of its own."""

import asyncio

import pytest

from tests.running import in_loop, run_by
from txmq.client.consume.offset_store import BrokerOffsets, FileOffsets
from txmq.errors import ConfigError, InternalError, RequestTimeout
from txmq.message import Queue

A, B = Queue("T", "broker-a", 0), Queue("T", "broker-b", 1)


class Calls:
    """Keeps offsets in a table, as a broker does."""

    def __init__(self):
        self.table = {}
        self.said = []
        self.broken = set()

    async def committed_offset(self, group, queue):
        if queue in self.broken:
            raise RequestTimeout("no answer")
        return self.table.get(queue)

    async def commit_offset(self, group, queue, offset):
        self.said.append((queue, offset))
        await asyncio.sleep(0)
        if queue in self.broken:
            raise InternalError("not now")
        self.table[queue] = offset


def offsets():
    calls = Calls()
    return BrokerOffsets("g", calls), calls


@run_by(in_loop)
async def test_noted_offsets_are_saved_once():
    kept, calls = offsets()
    kept.note(A, 5)
    kept.note(A, 7)
    kept.note(B, 1)
    assert await kept.save() is None
    assert await kept.save() is None
    assert calls.said == [(A, 7), (B, 1)]
    assert await kept.load(A) == 7


@run_by(in_loop)
async def test_the_offset_of_a_single_queue_can_be_saved():
    kept, calls = offsets()
    kept.note(A, 5)
    kept.note(B, 1)
    await kept.save(B)
    await kept.save(Queue("T", "never noted", 0))
    assert calls.said == [(B, 1)]


@run_by(in_loop)
async def test_a_failed_save_is_repeated_and_other_queues_are_saved():
    kept, calls = offsets()
    calls.broken = {A}
    kept.note(A, 5)
    kept.note(B, 1)
    assert isinstance(await kept.save(), InternalError)
    assert calls.table == {B: 1}
    calls.broken = set()
    assert await kept.save() is None
    assert calls.table == {A: 5, B: 1}
    assert calls.said == [(A, 5), (B, 1), (A, 5)]


@run_by(in_loop)
async def test_a_forgotten_queue_is_not_saved_again():
    kept, calls = offsets()
    calls.broken = {A}
    kept.note(A, 5)
    await kept.save()
    kept.forget(A)
    calls.broken = set()
    await kept.save()
    assert not calls.table
    # Nor does it assume that the broker still has the offset saved before.
    kept.note(A, 5)
    await kept.save()
    assert calls.table == {A: 5}


@run_by(in_loop)
async def test_many_queues_are_saved():
    kept, calls = offsets()
    for number in range(1000):
        kept.note(Queue("T", "b", number), number)
    await kept.save()
    assert len(calls.table) == 1000


@run_by(in_loop)
async def test_a_file_keeps_offsets_across_a_restart(tmp_path):
    folder = tmp_path / "some" / "where"
    kept = FileOffsets(folder, "g")
    assert await kept.load(A) is None
    kept.note(A, 5)
    kept.note(B, 1)
    kept.forget(A)  # It may come back.
    assert await kept.save() is None
    again = FileOffsets(folder, "g")
    assert (await again.load(A), await again.load(B)) == (5, 1)
    assert [path.name for path in folder.iterdir()] == ["g.json"]


@run_by(in_loop)
async def test_a_failed_write_of_the_offset_file_is_repeated(tmp_path):
    kept = FileOffsets(tmp_path / "free", "g")
    kept.note(A, 5)
    (tmp_path / "free").write_text("in the way")
    assert await kept.save() is not None
    (tmp_path / "free").unlink()
    assert await kept.save() is None
    assert await FileOffsets(tmp_path / "free", "g").load(A) == 5


@pytest.mark.parametrize(
    "text", ["nonsense", "{}", '{"offsets": [[1, 2]]}', '{"offsets": 7}', "[]", None]
)
def test_a_file_that_holds_no_offsets_or_is_a_folder_is_refused(tmp_path, text):
    path = tmp_path / "g.json"
    path.mkdir() if text is None else path.write_text(text)

    with pytest.raises(ConfigError):
        FileOffsets(tmp_path, "g")


@run_by(in_loop)
async def test_groups_with_similar_names_have_separate_offset_files(tmp_path):
    groups = ["a|b", "a_b", "a|b_c", "a_b|c"]
    for offset, group in enumerate(groups):
        kept = FileOffsets(tmp_path, group)
        assert await kept.load(A) is None
        kept.note(A, offset)
        assert await kept.save() is None
    found = [await FileOffsets(tmp_path, group).load(A) for group in groups]
    assert found == [0, 1, 2, 3]
    assert len(list(tmp_path.iterdir())) == 4


@run_by(in_loop)
async def test_an_offset_file_with_the_old_name_is_still_read(tmp_path):
    (tmp_path / "a_b.json").write_text('{"offsets": [["T", "b", 0, 7]]}')
    kept = FileOffsets(tmp_path, "a|b")
    assert await kept.load(Queue("T", "b", 0)) == 7
    kept.note(Queue("T", "b", 0), 8)
    assert await kept.save() is None
    assert await FileOffsets(tmp_path, "a|b").load(Queue("T", "b", 0)) == 8
    # The old file stays, because it may belong to the other group.
    assert await FileOffsets(tmp_path, "a_b").load(Queue("T", "b", 0)) == 7


@run_by(in_loop)
async def test_a_save_in_progress_uses_offsets_noted_or_forgotten_since_it_began():
    kept, calls = offsets()
    queues = [Queue("T", "b", number) for number in range(100)]
    for queue in queues:
        kept.note(queue, 5)
    saving = asyncio.create_task(kept.save())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 0 < len(calls.said) < 99
    kept.note(queues[98], 1)
    kept.forget(queues[99])
    await saving
    assert calls.table[queues[98]] == 1
    assert queues[99] not in calls.table
