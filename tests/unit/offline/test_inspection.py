"""What an inspection finds in directories that were damaged on purpose, and what repairs do."""

import random

import pytest

from tests.unit.store.shelf import LOG, Shelf, rewrite
from txmq.errors import CorruptRecord, ForeignFile, LogTooShort
from txmq.protocol.checked_body import pack
from txmq.protocol.span import HEAD_BYTES, Decision, DecisionKind, DecisionSource, head
from txmq.testing import SeededEntropy
from txmq_broker.offline.inspection.directory_inspection import Inspection
from txmq_broker.offline.inspection.log_records import Selection, select
from txmq_broker.offline.inspection.repair import Cut, RemoveIndex, plan
from txmq_broker.store.log.reader import Gap, LogReader

BIG = b"x" * 700
TABLES = ["topics", "topics-changes", "groups", "offsets", "floors"]
NOW_MS = 1_700_000_000_123


def inspect(disk):
    """The findings of a directory and their summary."""
    if not disk.names("config"):
        add_tables(disk)
    inspection = Inspection(disk)
    return list(inspection.findings()), inspection.summary


def add_tables(disk):
    """Save the tables that a broker with many topics has, all of them empty."""
    for name in TABLES:
        text = b'{"hasChanges":true}' if name == "topics" else b"{}"
        for path in (f"config/{name}.json", f"config/{name}.json.old"):
            rewrite(disk, path, pack(f"{name}.json", f"{LOG:016x}", text))


def hard(findings):
    """The findings that are damage or loss."""
    return [finding for finding in findings if finding.severity != "note"]


def only(findings):
    (found,) = findings
    return found


@pytest.fixture(scope="module")
def filled():
    """Five files of messages and transactions, all indexed, as a clean stop leaves them."""
    shelf = Shelf()
    for number in range(12):
        shelf.put(b"%d" % number + BIG, keys=f"k{number}", unique=f"u{number}", tag="pay")
        shelf.put(b"other %d" % number, "Other", number % 2)
        shelf.flush()
        shelf.prepare(b"half", unique=f"h{number}")
        shelf.flush()
        if number % 3:
            shelf.decide(
                f"h{number}", DecisionKind.COMMITTED if number % 2 else DecisionKind.ROLLED_BACK
            )
        if number == 9:
            shelf.decide(f"h{number}", DecisionKind.PARKED)
        shelf.flush()
    shelf.checkpoint()
    shelf.close()
    add_tables(shelf.disk)
    return shelf


def starts(disk):
    """Whether a broker starts on a copy of the disk, and how far the log then reaches."""
    try:
        shelf = Shelf(disk.clone())
    except (CorruptRecord, ForeignFile, LogTooShort):
        return None
    shelf.close()
    return shelf.store.log.end


# --- nothing wrong ---


def test_a_whole_directory_has_no_findings(filled):
    findings, summary = inspect(filled.disk.clone())

    assert findings == []
    assert summary.end == filled.store.log.end
    assert (summary.messages, summary.halves) == (
        24 + 5,
        12,
    )  # 4 commits are written again, and a parked one
    assert summary.open_transactions == 4


def test_an_inspection_changes_nothing(filled):
    disk = filled.disk.clone()
    disk.flip_bit(filled.log_files()[1], 500, 3)
    disk.remove(filled.index_files()[0])
    before = {
        f"{folder}/{name}": Shelf.contents(type("D", (), {"disk": disk}), f"{folder}/{name}")
        for folder in ("log", "index")
        for name in disk.names(folder)
    }

    disk.on_write = lambda event: pytest.fail(f"it writes: {event}")
    inspect(disk)
    disk.on_write = None

    assert set(disk.names("log")) | set(disk.names("index")) == {
        path.split("/")[1] for path in before
    }


# --- every kind of damage ---


def test_a_damaged_span_is_reported_with_its_position_and_messages(filled):
    disk, path = filled.disk.clone(), filled.log_files()[1]
    start = int(path[4:24])
    disk.flip_bit(path, HEAD_BYTES + 300, 0)

    found = next(f for f in inspect(disk)[0] if f.kind == "span-damaged")

    assert (found.file, found.position, found.offset) == (path, start, 0)
    assert found.size > 700
    assert not found.refuses_start
    assert [(run.topic, run.queue) for run in found.offsets] == [("T", 0)]


def test_a_torn_tail_is_a_note_with_the_messages_it_may_have_held():
    shelf = Shelf()
    shelf.add(b"one", b"two")
    end = shelf.store.log.end
    for body in (b"three", b"four", b"five"):
        shelf.put(body)
    shelf.store.write()  # and killed before it was synced
    shelf.close()
    disk = shelf.disk.clone()
    file = disk.open(shelf.log_files()[0])
    file.truncate(file.size() - 3)

    found = only(inspect(disk)[0])

    assert (found.kind, found.severity, found.position) == ("torn-tail", "note", end)
    assert found.size == file.size() - end
    assert [(run.first, run.last) for run in found.offsets] == [(2, 3)]
    assert "flush = sync" in found.text


def test_a_gap_between_log_files_is_reported_with_both_ends(filled):
    disk, path = filled.disk.clone(), filled.log_files()[1]
    start, after = (int(name[4:24]) for name in filled.log_files()[1:3])
    disk.open(path).truncate(1000)

    found = next(f for f in inspect(disk)[0] if f.kind == "file-cut")

    assert found.file == path
    assert found.position <= start + 1000
    assert found.position + found.size == after
    assert f"ends at position {start + 1000}, and the log goes on at {after}" in found.text
    assert found.refuses_start


def test_a_missing_log_file_is_reported_with_the_messages_of_its_index(filled):
    disk, path = filled.disk.clone(), filled.log_files()[2]
    disk.remove(path)

    found = next(f for f in inspect(disk)[0] if f.kind == "log-file-missing")

    assert (found.file, found.position) == (path, int(path[4:24]))
    assert ("T", 0) in [(run.topic, run.queue) for run in found.offsets]
    assert found.remove == filled.index_files()[2]


def test_a_log_shorter_than_its_index_is_reported_with_the_missing_messages(filled):
    disk, path = filled.disk.clone(), filled.log_files()[-1]
    file = disk.open(path)
    size = file.size()
    file.truncate(0)

    found = only(hard(inspect(disk)[0]))

    assert (found.kind, found.file, found.size) == ("log-shorter", path, size)
    assert found.offsets


def test_an_index_that_disagrees_with_the_log_can_be_removed(filled):
    other = Shelf()
    other.add(b"other" + BIG)
    other.checkpoint()
    other.close()
    disk = filled.disk.clone()
    lone = Shelf(sizes=filled.sizes)
    lone.add(b"!" + BIG[1:])
    lone.checkpoint()
    lone.close()
    # The log of one broker, and the index of another with records of the same sizes.
    twin = lone.disk.clone()
    mine = Shelf()
    mine.add(b"?" + BIG[1:])
    mine.checkpoint()
    mine.close()
    rewrite(twin, lone.index_files()[0], mine.contents(mine.index_files()[0]))

    found = only(inspect(twin)[0])

    assert (found.kind, found.file) == ("index-disagrees", lone.index_files()[0])
    assert "its entry for offset 0 of T/0 is another than the log's" in found.text
    assert found.remove == found.file
    assert inspect(disk)[0] == []


def test_a_decision_without_a_half_message_is_reported():
    shelf = Shelf()
    shelf.add(b"one")
    shelf.close()
    disk, path = shelf.disk.clone(), shelf.log_files()[0]
    end = shelf.store.log.end
    marker = Decision(
        DecisionKind.COMMITTED, DecisionSource.PRODUCER, 0, HEAD_BYTES, 0, 7, NOW_MS
    ).pack()
    data = shelf.contents(path) + head(LOG, end, end, marker, 0) + marker
    rewrite(disk, path, data)

    found = next(f for f in inspect(disk)[0] if f.kind == "decision-without-half")

    assert (found.file, found.position) == (path, end + HEAD_BYTES)
    assert "no half message lies there" in found.text


def test_a_transaction_decided_twice_is_reported():
    shelf = Shelf()
    shelf.prepare(b"half", unique="h")
    shelf.flush()
    shelf.decide("h", DecisionKind.ROLLED_BACK)
    shelf.flush()
    shelf.close()
    disk, path = shelf.disk.clone(), shelf.log_files()[0]
    end = shelf.store.log.end
    marker = Decision(
        DecisionKind.ROLLED_BACK, DecisionSource.OPERATOR, 1, HEAD_BYTES, 0, -1, NOW_MS
    ).pack()
    rewrite(disk, path, shelf.contents(path) + head(LOG, end, end, marker, 0) + marker)

    found = only(inspect(disk)[0])

    assert (found.kind, found.position) == ("decision-repeated", end + HEAD_BYTES)


def test_missing_queue_offsets_are_reported_with_the_first_message_after_the_gap():
    shelf = Shelf()
    shelf.add(b"one")
    queue = shelf.store.queue("T", 0)
    queue.next_offset = 5
    (placed,) = shelf.add(b"two")
    shelf.close()

    found = only(inspect(shelf.disk.clone())[0])

    assert (found.kind, found.severity) == ("offsets-missing", "loss")
    assert found.position == placed.position
    assert [(run.first, run.last) for run in found.offsets] == [(1, 4)]


def test_an_unreadable_record_in_an_intact_span_is_reported():
    shelf = Shelf()
    shelf.add(b"one")
    shelf.close()
    disk, path = shelf.disk.clone(), shelf.log_files()[0]
    end = shelf.store.log.end
    rewrite(
        disk,
        path,
        shelf.contents(path) + head(LOG, end, end, b"nonsense" * 20, 0) + b"nonsense" * 20,
    )

    found = only(inspect(disk)[0])

    assert (found.kind, found.position) == ("record-broken", end + HEAD_BYTES)
    assert found.refuses_start
    assert found.cut_at == end


def test_files_with_unknown_names_are_notes(filled):
    disk = filled.disk.clone()
    for path in ("log/notes.txt", "log/1.log", "index/old", "config/topics.json.new"):
        rewrite(disk, path, b"?")

    findings, summary = inspect(disk)

    assert sorted(f.file for f in findings) == [
        "config/topics.json.new",
        "index/old",
        "log/1.log",
        "log/notes.txt",
    ]
    assert {f.kind for f in findings} == {"stray-file"}
    assert (summary.notes, summary.damages, summary.losses) == (4, 0, 0)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("how", ["flipped", "cut", "removed"])
def test_one_damaged_copy_of_a_table_is_replaced_by_the_other(filled, name, how):
    for path in (f"config/{name}.json", f"config/{name}.json.old"):
        disk = filled.disk.clone()
        spoil(disk, path, how)

        found = only(inspect(disk)[0])

        assert (found.kind, found.file) == ("config-damaged", path)
        assert "is whole and replaces it" in found.text
        assert not found.refuses_start


@pytest.mark.parametrize("name", TABLES)
def test_a_table_without_an_intact_copy_refuses_the_start(filled, name):
    disk = filled.disk.clone()
    spoil(disk, f"config/{name}.json", "flipped")
    spoil(disk, f"config/{name}.json.old", "cut")

    found = only(inspect(disk)[0])

    assert (found.kind, found.file) == ("config-damaged", f"config/{name}.json")
    assert found.refuses_start
    assert "--accept-loss" in found.text


def test_a_table_of_another_broker_is_reported(filled):
    disk = filled.disk.clone()
    rewrite(disk, "config/groups.json", pack("groups.json", "ab", b"{}"))

    found = only(inspect(disk)[0])

    assert (found.kind, found.file) == ("foreign-file", "config/groups.json")


def spoil(disk, path, how):
    if how == "flipped":
        disk.flip_bit(path, 20, 1)
    elif how == "cut":
        file = disk.open(path)
        file.truncate(file.size() // 2)
    else:
        disk.remove(path)


@pytest.mark.parametrize("kind", ["log", "index", "high-water", "identity"])
def test_a_file_of_another_broker_is_reported_and_refuses_the_start(filled, kind):
    other = Shelf(entropy=SeededEntropy(2))
    other.add(*[b"%d" % number + BIG for number in range(8)])
    other.checkpoint()
    other.store.note_clean_stop()
    other.close()
    disk = filled.disk.clone()
    paths = {"log": other.log_files()[0], "index": other.index_files()[0]}
    path = paths.get(kind, kind)
    rewrite(disk, path, other.contents(path))

    findings, _ = inspect(disk)

    assert (found := next(f for f in findings if f.kind == "foreign-file")).file == path
    assert "another broker" in found.text
    assert found.refuses_start
    assert starts(disk) is None
    if kind in ("log", "index"):
        repair(disk)
        assert starts(disk) is not None


def test_a_span_of_another_broker_is_reported_and_cut_by_the_repair():
    shelf = Shelf()
    shelf.add(b"one")
    shelf.close()
    end = shelf.store.log.end
    other = Shelf(entropy=SeededEntropy(2))
    other.add(b"one", b"two")
    other.close()
    disk, path = shelf.disk.clone(), shelf.log_files()[0]
    rewrite(disk, path, shelf.contents(path) + other.contents(path)[end:])

    found = only(hard(inspect(disk)[0]))

    assert (found.kind, found.position, found.cut_at) == ("foreign-span", end, end)
    repair(disk)
    assert Shelf(disk).bodies() == {0: b"one"}


@pytest.mark.parametrize("how", ["removed", "flipped"])
def test_a_damaged_or_missing_identity_file_is_rewritten(filled, how):
    disk = filled.disk.clone()
    if how == "removed":
        disk.remove("identity")
    else:
        disk.flip_bit("identity", 3, 1)

    found = only(inspect(disk)[0])

    assert (found.kind, found.file, found.refuses_start) == ("identity-damaged", "identity", False)
    assert starts(disk) == filled.store.log.end


def test_a_missing_high_water_mark_is_a_note(filled):
    disk = filled.disk.clone()
    disk.remove("high-water")

    found = only(inspect(disk)[0])

    assert (found.kind, found.severity, found.file) == ("mark-missing", "note", "high-water")


def test_a_damaged_high_water_mark_is_reported_with_its_offset():
    shelf = Shelf()
    shelf.add(b"one")
    shelf.store.note_clean_stop()
    shelf.close()
    for place in (5, 60, 300, 520):
        disk = shelf.disk.clone()
        disk.flip_bit("high-water", place, 1)

        found = only(inspect(disk)[0])

        assert (found.kind, found.offset) == ("mark-damaged", place // 512 * 512)


def test_an_accepted_loss_is_a_note(filled):
    disk = filled.disk.clone()
    disk.open(filled.log_files()[-1]).truncate(0)
    assert hard(inspect(disk)[0])
    Shelf(disk, accept_loss="the disk broke").close()

    found = only(inspect(disk)[0])

    assert (found.kind, found.severity) == ("loss-accepted", "note")
    assert "the disk broke" in found.text
    assert [item.kind for item in items(disk)][-1] == "loss"


# --- any damage ---


def test_a_flipped_bit_in_a_log_or_index_file_is_reported_with_the_file(filled):
    chance = random.Random(26)
    for path in [*filled.log_files(), *filled.index_files()]:
        size = len(filled.contents(path))
        for place in chance.sample(range(size), 25):
            disk = filled.disk.clone()
            disk.flip_bit(path, place, chance.randrange(8))

            findings = hard(inspect(disk)[0])

            assert path in [f.file for f in findings], f"bit {place} of {path}"
            if path.startswith("index"):
                assert all("makes it again" in f.text for f in findings)
            refusing = any(f.refuses_start for f in findings)
            assert refusing == (starts(disk) is None), f"bit {place} of {path}"


def test_a_file_cut_anywhere_is_inspected_and_a_refused_start_is_predicted(filled):
    chance = random.Random(27)
    for path in [*filled.log_files(), *filled.index_files()]:
        size = len(filled.contents(path))
        for place in [0, 1, HEAD_BYTES, size - 1, *chance.sample(range(size), 12)]:
            disk = filled.disk.clone()
            disk.open(path).truncate(place)

            findings, _ = inspect(disk)

            assert any(f.refuses_start for f in findings) == (starts(disk) is None), (path, place)
            if path.startswith("log"):
                assert path in [f.file for f in findings]


# --- reading on behind damage ---


def items(disk, selection=None):
    log = LogReader(disk, LOG)
    log.open()
    try:
        return list(select(log, selection or Selection()))
    finally:
        log.close()


def test_reading_continues_behind_damage_and_reports_the_gap(filled):
    disk = filled.disk.clone()
    disk.flip_bit(filled.log_files()[1], 10, 0)
    disk.flip_bit(filled.log_files()[3], HEAD_BYTES + 5, 0)
    whole = items(filled.disk)

    found = items(disk)

    gaps = [item for item in found if isinstance(item, Gap)]
    inside = [item for item in whole if any(g.position <= item.position < g.end for g in gaps)]
    assert len(gaps) == 2
    assert [item for item in found if not isinstance(item, Gap)] == [
        item for item in whole if item not in inside
    ]


def test_reading_from_a_position_begins_in_the_middle_of_a_file(filled):
    whole = items(filled.disk)
    for number in (0, 7, len(whole) // 2, len(whole) - 1):
        selection = Selection(start=whole[number].position)
        assert items(filled.disk, selection) == whole[number:]
    selection = Selection(start=whole[3].position, end=whole[9].position)
    assert items(filled.disk, selection) == whole[3:9]


def test_a_transaction_is_listed_with_its_half_message_and_decision(filled):
    found = items(filled.disk, Selection(transaction="h7"))

    assert [item.kind for item in found][:2] == ["half", "decision"]
    assert {item.unique for item in found} == {"h7"}


# --- repairs ---


def repair(disk):
    """Carry out every offered repair until there is none."""
    sides = []
    while repairs := plan(inspect(disk)[0]):
        for step in repairs:
            step.loss(disk)
            sides.append(step.carry_out(disk, NOW_MS))
    return sides


def test_a_repair_cuts_a_damaged_log_and_keeps_everything_before_the_cut():
    shelf = Shelf()
    placed = shelf.add(*[b"%d" % number + BIG for number in range(20)])
    shelf.close()
    at = 11
    disk = shelf.disk.clone()
    path = (
        f"log/{next(n for n in reversed(disk.names('log')) if int(n[:20]) < placed[at].position)}"
    )
    position = placed[at].position - HEAD_BYTES
    disk.flip_bit(path, placed[at].position - int(path[4:24]) + 90, 1)
    assert starts(disk) is None
    cut = only(plan(inspect(disk)[0]))
    assert isinstance(cut, Cut)
    assert cut.position == position
    loss = cut.loss(disk)
    assert (loss.size, loss.records) == (shelf.store.log.end - position, 8)
    assert [(run.first, run.last) for run in loss.offsets] == [(12, 19)]
    before = b"".join(shelf.contents(name) for name in shelf.log_files())

    side, accepted = repair(disk)

    assert accepted is None
    again = Shelf(disk)
    assert again.bodies() == {p.offset: p.body for p in placed[:at]}
    again.close()
    (placed_again,) = Shelf(disk).add(b"new")
    assert placed_again.offset > placed[-1].offset, "no offset is given again"
    kept = b"".join(again.contents(f"{side}/log/{name}") for name in disk.names(f"{side}/log"))
    assert len(kept) == len(before) - position
    assert sum(a != b for a, b in zip(kept, before[position:], strict=True)) == 1


def test_an_interrupted_repair_can_be_repeated(filled):
    class Interrupted(Exception):
        pass

    disk = filled.disk.clone()
    for path in filled.index_files():
        disk.remove(path)
    disk.flip_bit(filled.log_files()[1], 200, 0)
    whole = disk.clone()
    repair(whole)
    end = starts(whole)
    steps = 0
    while True:
        steps += 1
        twin, left = disk.clone(), steps

        def count(event):
            nonlocal left
            left -= 1
            if not left:
                raise Interrupted

        twin.on_write = count
        try:
            repair(twin)
        except Interrupted:
            twin.on_write = None
            repair(twin)
            assert starts(twin) >= end  # the loss may be recorded twice
        else:
            break
    assert steps > 10


def test_after_a_repair_every_damaged_directory_starts(filled):
    chance = random.Random(28)
    for path in [*filled.log_files(), *filled.index_files()]:
        size = len(filled.contents(path))
        for place in chance.sample(range(size), 6):
            for damage in ("flip", "cut", "remove"):
                disk = filled.disk.clone()
                if damage == "flip":
                    disk.flip_bit(path, place, 2)
                elif damage == "cut":
                    disk.open(path).truncate(place)
                else:
                    disk.remove(path)

                repair(disk)

                assert starts(disk) is not None, (path, place, damage)


def test_a_repair_keeps_an_index_that_the_broker_needs_to_skip_log_damage():
    shelf = Shelf()
    for body in (b"one", b"two", b"three"):
        shelf.add(body)
        shelf.checkpoint()
    shelf.close()
    disk, index = shelf.disk.clone(), shelf.index_files()[0]
    chunks = len(shelf.contents(index))
    disk.flip_bit(shelf.log_files()[0], HEAD_BYTES + 90, 0)
    disk.flip_bit(index, chunks // 3 - 5, 0)
    assert starts(disk) is not None

    findings, _ = inspect(disk)

    assert {"span-damaged", "index-damaged"} <= {f.kind for f in findings}
    assert plan(findings) == []
    disk.remove(index)
    assert starts(disk) is None


def test_a_repair_deletes_a_damaged_index(filled):
    disk, path = filled.disk.clone(), filled.index_files()[1]
    disk.flip_bit(path, 200, 0)

    found = only(plan(inspect(disk)[0]))

    assert isinstance(found, RemoveIndex)
    assert found.loss(disk) == (0, 0, [])
    repair(disk)
    assert inspect(disk)[0] == []
