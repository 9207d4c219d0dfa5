"""A log from before spans had epochs: broker and tools read it, and new spans have epochs."""

import pytest

from tests.faults.old_spans import in_old_form
from tests.unit.offline.test_inspection import hard, inspect, repair
from tests.unit.store.shelf import Shelf, rewrite
from txmq.errors import CorruptRecord
from txmq.protocol.span import DecisionKind, ends_in, heads_in, read_head
from txmq_broker.offline.inspection.log_records import LogRecord, Selection, select
from txmq_broker.store.log.reader import LogReader
from txmq_broker.store.log.spans import heads_of


def old_log():
    """A disk with three files of the old form, and no index."""
    shelf = Shelf()
    shelf.prepare(b"half", unique="h")
    shelf.flush()
    shelf.decide("h", DecisionKind.COMMITTED)
    shelf.flush()
    shelf.add(*[b"%d " % number + b"." * 700 for number in range(12)], keys="k")
    shelf.add_together(b"a", b"b", b"c")
    everything = shelf.everything()
    shelf.close()
    disk = shelf.disk.clone()
    for path in shelf.log_files():
        start = int(path.removeprefix("log/").removesuffix(".log"))
        rewrite(disk, path, in_old_form(shelf.contents(path), start))
    return disk, everything


def grown():
    """The same log, followed by spans of epochs 0 and 5."""
    disk, _ = old_log()
    shelf = Shelf(disk)
    shelf.add(b"no copies")
    shelf.store.log.epoch = 5
    shelf.add(b"a leader")
    return shelf


def heads_in_all(shelf):
    segments = shelf.store.log.segments
    return [head for extent in segments.extents() for head in heads_of(segments, extent)]


def epochs_of(shelf):
    return [head.epoch for head in heads_in_all(shelf)]


def test_heads_of_the_old_form_are_read_with_epoch_0():
    disk, _ = old_log()
    data = Shelf(disk).contents("log/00000000000000000000.log")

    assert data[4:8] == b"txmq"
    found = list(heads_in(data, 0))
    assert len(found) > 3
    assert {head.epoch for head in found} == {0}
    assert [head.position + head.size for head in found] == list(ends_in(data, 0))
    assert read_head(data, 0, 0) == found[0]


def test_an_old_log_is_opened_completely_and_continued_with_epochs():
    disk, everything = old_log()
    shelf = Shelf(disk)
    assert shelf.everything() == everything
    old = len(epochs_of(shelf))

    shelf = grown()

    assert epochs_of(shelf) == [0] * (old + 1) + [5]
    everything = shelf.everything()
    shelf.restart()
    assert shelf.everything() == everything
    shelf.restart_cleanly()
    assert shelf.everything() == everything


def test_tools_verify_and_show_a_log_of_both_forms():
    shelf = grown()
    shelf.close()

    findings, summary = inspect(shelf.disk.clone())

    assert hard(findings) == []
    assert summary.epoch == 5
    reader = LogReader(shelf.disk, shelf.store.log.segments.log_id)
    reader.open()
    records = list(select(reader, Selection()))
    reader.close()
    assert all(isinstance(record, LogRecord) for record in records)
    assert [record.epoch for record in records[-2:]] == [0, 5]


@pytest.mark.parametrize("number", [3, 6])
def test_damage_in_a_log_of_both_forms_is_found_and_cut(number):
    shelf = grown()
    starts = [head.position for head in heads_in_all(shelf)]
    segment = shelf.store.log.file_at(starts[number])
    shelf.close()
    disk = shelf.disk.clone()
    for path in shelf.index_files():
        disk.remove(path)
    disk.flip_bit(f"log/{segment:020d}.log", starts[number] - segment + 70)
    with pytest.raises(CorruptRecord, match="found it whole"):
        Shelf(disk.clone())

    findings, _ = inspect(disk)

    (found,) = (finding for finding in findings if finding.kind == "span-damaged")
    assert found.position == starts[number]
    repair(disk)
    shelf = Shelf(disk)
    kept = [(head.position, head.epoch) for head in heads_in_all(shelf)]
    assert kept[:number] == [(position, 0) for position in starts[:number]]
    assert shelf.bodies()
