"""Half messages and their decisions in the log: prepared, decided, read, and found again."""

import errno

import pytest

from tests.running import run_by
from tests.soak import count
from tests.unit.store.press import Press
from tests.unit.store.shelf import START_MS, Shelf, Sizes
from txmq.errors import CorruptRecord, DiskFull, WriteFailed
from txmq.protocol import record as records
from txmq.protocol.span import Decision, DecisionKind, DecisionSource
from txmq.protocol.topics import HALF_TOPIC, OP_TOPIC, PARKED_TOPIC
from txmq.testing import Loss, MemoryDisk, SeededEntropy, simulate
from txmq_broker.config import RetentionSettings
from txmq_broker.services.housekeeping import retention_verdict as retain
from txmq_broker.store.half_store import RecentDecision
from txmq_broker.store.log.commit_log import PATH as HIGH_WATER
from txmq_broker.store.pending_transactions import transaction_key

COMMITTED, ROLLED_BACK, PARKED = (
    DecisionKind.COMMITTED,
    DecisionKind.ROLLED_BACK,
    DecisionKind.PARKED,
)
IN_PLACE = Sizes(segment_size=64 << 20)
"""There is always room for a marker in its half message's file."""

COPIED = Sizes(segment_size=1 << 20)
"""The file counts as nearly full from its first byte on, so commits write their messages again."""

ENDS = [COMMITTED, ROLLED_BACK, PARKED]
BIG = b"x" * 1550


@pytest.fixture(params=[IN_PLACE, COPIED], ids=["in place", "copied"])
def shelf(request):
    return Shelf(sizes=request.param)


def prepare(shelf, *uniques, topic="T", **given):
    """Half messages, each in a span of its own."""
    found = []
    for unique in uniques:
        found.append(
            shelf.prepare(unique.encode(), topic, unique=unique, keys=f"k{unique}", **given)
        )
        shelf.flush()
    return found


def decide(shelf, unique, kind, reason=""):
    shelf.decide(unique, kind, reason)
    shelf.flush()


def told(shelf, halves=()):
    """Everything that clients and operators can see."""
    store = shelf.store
    queues = {
        place: (low, high, bodies)
        for place, (low, high, bodies) in shelf.everything().items()
        if high
    }
    keys = {half: shelf.found_by_key(f"k{half}") for half in halves}
    records_ = {
        place: [
            store.record_bytes(queue.read(at, 1)[0][0])
            for at in range(queue.min_offset, queue.max_offset)
        ]
        for place, queue in shelf.queues().items()
        if queue.max_offset
    }
    return queues, keys, records_, shelf.transactions()


def decisions(shelf):
    """What the op queue says of each half message, newest last."""
    found = {}
    queue = shelf.store.halves.op_queue
    for at in range(queue.min_offset, queue.max_offset):
        ((position, size, _, _),) = queue.read(at, 1)
        decision = Decision.unpack(shelf.store.read(position, size), position)
        assert decision.offset == at
        found.setdefault(decision.half_position, []).append(decision.kind)
    return found


def is_sound(shelf):
    """Every visible message has its marker, every marker that commits has its message, and what has
    no marker is open.
    """
    halves = shelf.bodies(HALF_TOPIC)
    decided = decisions(shelf)
    visible = [body for place in ("T", "U") for body in shelf.bodies(place).values()]
    parked = list(shelf.bodies(PARKED_TOPIC).values())
    is_open = {body: half for half, body in shelf.transactions().values()}
    for at, body in halves.items():
        ((position, *_),) = shelf.store.halves.half_queue.read(at, 1)
        kinds = decided.get(position, [])
        assert sum(kind is not PARKED for kind in kinds) <= 1
        assert visible.count(body) == kinds.count(COMMITTED)
        assert parked.count(body) == kinds.count(PARKED)
        assert (body in is_open) == (COMMITTED not in kinds and ROLLED_BACK not in kinds)
        if body in is_open:
            assert is_open[body].is_parked == (PARKED in kinds)


@pytest.fixture
def small_margin(monkeypatch):
    """Files of 4096 bytes have room for markers, too."""
    monkeypatch.setattr("txmq_broker.store.half_store.SPAN_BYTES_MAX", 300)


# --- decided ---


def test_an_undecided_half_message_is_only_in_the_half_queue(shelf):
    shelf.add(b"zero")

    (half,) = prepare(shelf, "a")

    assert shelf.bodies() == {0: b"zero"}
    assert shelf.bodies(HALF_TOPIC) == {0: b"a"}
    assert shelf.found_by_key("ka") == shelf.found_by_key("a") == []
    assert shelf.store.halves.half_of(0, half.position) == (half, "a")
    assert shelf.store.halves.half_of(0, half.position + 1) is None
    assert shelf.store.halves.decision_on(half) is None
    assert shelf.store.halves.sent_at(half.position) == ("a", "T", b"a")
    record = shelf.store.halves.record_of(half)
    assert (record.topic, record.body, record.sys_flag & 0xC) == ("T", b"a", 0)


def test_a_committed_message_is_queued_in_the_order_of_commits(shelf):
    (half,) = prepare(shelf, "a", tag="t")
    shelf.add(b"between")

    decide(shelf, "a", COMMITTED)

    shelf.add(b"after")
    assert shelf.bodies() == {0: b"between", 1: b"a", 2: b"after"}
    queue = shelf.store.find_queue("T", 0)
    ((position, *_),) = queue.read(1, 1)
    data = shelf.store.record_bytes(position)
    assert shelf.found_by_key("ka") == shelf.found_by_key("a") == [b"a"]
    shown, _ = records.unpack(data)
    assert (shown.queue_offset, shown.position, shown.sys_flag & 0xC) == (1, position, 8)
    assert shown.prepared_position == half.position
    assert shown.stored_ms == shelf.store.stored_ms(queue, 1) == START_MS + 2
    assert shelf.transactions() == {}
    assert decisions(shelf) == {half.position: [COMMITTED]}
    assert shelf.store.halves.find_done(transaction_key("a")) == RecentDecision(
        0, half.position, COMMITTED
    )


def test_a_rolled_back_message_is_in_no_queue_and_found_by_no_key(shelf):
    (half,) = prepare(shelf, "a")
    decide(shelf, "a", ROLLED_BACK)

    assert shelf.add(b"next")[0].offset == 0
    assert shelf.bodies() == {0: b"next"}
    assert shelf.found_by_key("ka") == []
    assert shelf.transactions() == {}
    assert decisions(shelf) == {half.position: [ROLLED_BACK]}
    assert shelf.store.halves.decision_on(half).kind is ROLLED_BACK


@pytest.mark.parametrize("kind", [COMMITTED, ROLLED_BACK])
def test_a_parked_message_is_shown_to_operators_and_can_still_be_decided(shelf, kind):
    (half,) = prepare(shelf, "a")

    decide(shelf, "a", PARKED)

    assert shelf.bodies() == {}
    assert shelf.bodies(PARKED_TOPIC) == {0: b"a"}
    assert shelf.found_by_key("ka") == shelf.found_by_key("ka", PARKED_TOPIC) == []
    ((open_half, _),) = shelf.transactions().values()
    assert open_half.is_parked
    assert shelf.store.halves.decision_on(half).kind is PARKED

    decide(shelf, "a", kind, "ann: seen in the books")

    assert list(shelf.bodies().values()) == ([b"a"] if kind is COMMITTED else [])
    assert decisions(shelf) == {half.position: [PARKED, kind]}
    found = shelf.store.halves.decision_on(half)
    assert (found.kind, found.reason) == (kind, "ann: seen in the books")
    assert shelf.store.halves.pending.parked == 0


def test_the_queue_of_decisions_shows_who_decided_what_and_why():
    shelf = Shelf(sizes=IN_PLACE)
    (half,) = prepare(shelf, "a")
    decide(shelf, "a", ROLLED_BACK, "ann: never paid")

    ((position, *_),) = shelf.store.find_queue(OP_TOPIC, 0).read(0, 1)
    shown, _ = records.unpack(shelf.store.record_bytes(position))

    assert (shown.body, shown.prepared_position) == (b"0", half.position)
    assert shown.property_map() == {
        "TAGS": "d", "TXMQ_DECISION": "ROLLED_BACK", "TXMQ_SOURCE": "PRODUCER",
        "TXMQ_REASON": "ann: never paid",
    }  # fmt: skip


def test_a_commit_in_place_and_a_copied_commit_deliver_the_same_bytes(small_margin):
    shown = []
    for fillers in (0, 2):
        shelf = Shelf()
        (half,) = prepare(shelf, "a", tag="t")
        for _ in range(fillers):
            shelf.add(BIG, topic="Fill")
        shelf.store.log.last_ms = START_MS + 100
        decide(shelf, "a", COMMITTED)
        ((position, *_),) = shelf.store.find_queue("T", 0).read(0, 1)
        is_here = shelf.store.halves.decision_on(half).queue_offset == 0
        assert is_here == (not fillers), "this one is about both forms"
        data = bytearray(shelf.store.record_bytes(position))
        assert int.from_bytes(data[28:36], "big") == position
        data[28:36] = bytes(8)
        shown.append(data)
        shelf.close()

    assert shown[0] == shown[1]


def test_a_commit_in_a_later_file_copies_the_half_message_into_it(small_margin):
    shelf = Shelf()
    (half,) = prepare(shelf, "a")
    shelf.add(*[BIG] * 4, topic="Fill")

    decide(shelf, "a", COMMITTED)

    ((position, *_),) = shelf.store.find_queue("T", 0).read(0, 1)
    assert position >= shelf.store.log.segments.starts[-1] > half.position
    plain = shelf.store.read(position, 4096)
    assert records.unpack(plain)[0].body == b"a"
    assert shelf.found_by_key("ka") == [b"a"]


def test_a_marker_and_its_half_message_are_always_in_one_file(small_margin):
    """Otherwise deleting old files would remove the body of a visible message."""
    shelf = Shelf()
    for number in range(60):
        prepare(shelf, f"{number}")
        decide(shelf, f"{number}", COMMITTED)
        shelf.add(b"." * (37 * number % 500), topic="Fill")
    assert len(shelf.log_files()) > 4

    forms = set()
    for number in range(60):
        half, _ = shelf.store.halves.half_of(
            number, shelf.store.halves.half_queue.read(number, 1)[0][0]
        )
        decision = shelf.store.halves.decision_on(half)
        ((position, *_),) = shelf.store.find_queue("T", 0).read(number, 1)
        forms.add(decision.queue_offset >= 0)
        if decision.queue_offset >= 0:
            assert shelf.store.log.file_at(position) == shelf.store.log.file_at(half.position)
    assert forms == {True, False}
    assert shelf.bodies() == {number: b"%d" % number for number in range(60)}


@run_by(simulate, 1)
async def test_decisions_during_refusals_stay_in_the_file_of_their_half_message(
    world, /, monkeypatch
):
    """What is staged behind a marker must not push it into the next file."""
    monkeypatch.setattr("txmq_broker.store.half_store.SPAN_BYTES_MAX", 1000)
    monkeypatch.setattr("txmq_broker.services.flusher.SPAN_BYTES_MAX", 1000)

    async with Press(MemoryDisk()) as press:
        shelf = press.shelf
        early = [f"{number}" for number in range(8)]
        for unique in early:
            shelf.prepare(b"." * 200, "Early", unique=unique)
            shelf.flush()
        shelf.add(BIG, topic="Fill")
        (half,) = prepare(shelf, "z")
        press.admission.set_cause("disk", "the disk is full")
        for unique in ("z", *early):
            press.flusher.decision_ms()
            shelf.decide(unique, COMMITTED)
        await press.flusher.drain()

        decision = shelf.store.halves.decision_on(half)
        ((marker, *_),) = shelf.store.find_queue("T", 0).read(0, 1)
        assert decision.queue_offset == 0, "it was committed in place"
        assert shelf.store.log.file_at(marker) == shelf.store.log.file_at(half.position)
        assert len(shelf.bodies("Early")) == 8


def test_messages_staged_after_a_marker_never_push_it_into_another_file(small_margin):
    shelf = Shelf()
    (half,) = prepare(shelf, "a")

    shelf.decide("a", COMMITTED)
    for _ in range(6):
        shelf.put(BIG, "Fill")
    shelf.flush()

    ((marker, *_),) = shelf.store.find_queue("T", 0).read(0, 1)
    assert shelf.store.halves.decision_on(half).queue_offset == 0, "it was committed in place"
    assert shelf.store.log.file_at(marker) == shelf.store.log.file_at(half.position)
    shelf.add(BIG, topic="Fill")
    assert shelf.store.log.segments.starts[-1] > marker, "the file is long enough now"


def test_prepares_and_decisions_can_share_one_span():
    for sizes in (IN_PLACE, COPIED):
        shelf = Shelf(sizes=sizes)
        prepare(shelf, "a", "b", "c")
        shelf.put(b"zero")
        shelf.decide("a", COMMITTED)
        shelf.put(b"two")
        shelf.decide("b", ROLLED_BACK)
        shelf.prepare(b"d", unique="d")
        shelf.decide("c", PARKED)
        shelf.put(b"three")
        shelf.flush()

        before = told(shelf, "abcd")
        assert shelf.bodies() == {0: b"zero", 1: b"a", 2: b"two", 3: b"three"}
        assert list(shelf.transactions()) == ["c", "d"]
        shelf.restart()
        assert told(shelf, "abcd") == before
        is_sound(shelf)


# --- found again ---


def story(shelf):
    """Half messages with every outcome, step by step; tests look at the store after each step."""
    yield "zero", lambda: shelf.add(b"zero")
    for unique in "abcdef":
        yield f"prepare {unique}", lambda unique=unique: prepare(shelf, unique)
    yield "commit a", lambda: decide(shelf, "a", COMMITTED)
    yield "roll back b", lambda: decide(shelf, "b", ROLLED_BACK, "why: not")
    yield "park c", lambda: decide(shelf, "c", PARKED)
    yield "park d", lambda: decide(shelf, "d", PARKED)
    yield "commit c", lambda: decide(shelf, "c", COMMITTED)
    yield "plain", lambda: shelf.add(b"plain", keys="k")
    yield "commit e", lambda: decide(shelf, "e", COMMITTED)


@pytest.mark.parametrize("at", [None, 4, 7, 9, 10, 12, 14])
def test_a_reopened_store_shows_the_same_transactions(shelf, at):
    for number, (_, step) in enumerate(story(shelf)):
        step()
        if number == at:
            shelf.checkpoint()
    before = told(shelf, "abcdef")
    assert list(shelf.transactions()) == ["d", "f"]
    is_sound(shelf)

    for again in (shelf.restart, shelf.restart, shelf.restart_cleanly, shelf.restart_cleanly):
        again()
        assert told(shelf, "abcdef") == before
        is_sound(shelf)
    decide(shelf, "d", ROLLED_BACK)
    decide(shelf, "f", COMMITTED)
    after = told(shelf, "abcdef")
    assert shelf.transactions() == {}
    shelf.restart()
    assert told(shelf, "abcdef") == after


@pytest.mark.fault("P12")
@pytest.mark.parametrize("is_indexed", [False, True], ids=["all scanned", "begin indexed"])
def test_a_log_cut_at_any_byte_keeps_each_decision_with_its_effects(shelf, is_indexed):
    looks, ends, marks = [], [], None
    for number, (name, step) in enumerate(story(shelf)):
        step()
        if name == "prepare f":
            marks = number
            if is_indexed:
                shelf.checkpoint()
        looks.append(told(shelf, "abcdef"))
        ends.append(shelf.store.log.end)
    shelf.close()
    path = shelf.log_files()[0]

    # Each field of a record is longer than a step or next to an end.
    lengths = {*range(ends[marks], ends[-1], count(7, 1))}
    lengths |= {end + more for end in ends[marks:] for more in (-2, -1, 0, 1, 2)}
    for length in sorted(lengths & {*range(ends[marks], ends[-1])}):
        disk = shelf.disk.clone()
        disk.remove(HIGH_WATER)  # What is cut was never durable.
        file = disk.open(path)
        file.truncate(length)
        file.sync()
        again = Shelf(disk, shelf.sizes)

        kept = sum(end <= length for end in ends) - 1
        assert told(again, "abcdef") == looks[kept], length
        if length in ends or length + 1 in ends:
            is_sound(again)
            for unique in list(again.transactions()):
                decide(again, unique, COMMITTED)
            is_sound(again)
            after = told(again, "abcdef")
            again.restart()
            assert told(again, "abcdef") == after
        again.close()


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_keeps_synced_decisions_and_splits_none(seed, small_margin):
    shelf = Shelf()
    chance = SeededEntropy(seed)
    durable = {}
    for number in range(40):
        unique = f"{number}"
        shelf.prepare(b"%d" % number + b"." * chance.below(300), unique=unique)
        shelf.put(b"plain %d" % number)
        shelf.flush()
        for open_unique in list(shelf.transactions()):
            if chance.chance(0.3):
                shelf.decide(open_unique, ENDS[chance.below(2)])
            elif chance.chance(0.1) and not shelf.transactions()[open_unique][0].is_parked:
                shelf.decide(open_unique, PARKED)
        shelf.flush()
        if chance.chance(0.1):
            shelf.checkpoint()
        durable = decisions(shelf)
    for open_unique in list(shelf.transactions()):
        shelf.decide(open_unique, COMMITTED)
        shelf.store.write()

    shelf.disk.crash(SeededEntropy(seed), Loss.PAGES)
    again = Shelf(shelf.disk)

    is_sound(again)
    decided = decisions(again)
    assert {
        half: kinds[: len(durable[half])] for half, kinds in decided.items() if half in durable
    } == (durable)
    before = told(again)
    again.restart_cleanly()
    assert told(again) == before


@pytest.mark.fault("P13")
@pytest.mark.parametrize(
    "which",
    [slice(None), slice(1), slice(-1, None), slice(1, None, 2)],
    ids=["all", "first", "last", "odd"],
)
def test_without_index_files_all_transactions_are_rebuilt_from_the_log(which, small_margin):
    shelf = Shelf()
    for number in range(40):
        prepare(shelf, f"{number}")
        shelf.add(b"." * 150, topic="Fill")
        if number % 3 == 0:
            decide(shelf, f"{number}", COMMITTED)
        if number > 10 and number % 3 == 0:
            decide(shelf, f"{number - 10}", PARKED)
        if number > 20 and number % 4 == 1:
            key = transaction_key(f"{number - 20}")
            if key in shelf.store.halves.pending:
                decide(shelf, f"{number - 20}", ROLLED_BACK)
        if number % 7 == 0:
            shelf.checkpoint()
    shelf.checkpoint()
    names = [f"{number}" for number in range(40)]
    before = told(shelf, names)
    assert len(shelf.index_files()) > 4
    shelf.close()
    for path in shelf.index_files()[which]:
        shelf.disk.remove(path)

    shelf.open()

    assert told(shelf, names) == before
    is_sound(shelf)
    shelf.restart()
    assert told(shelf, names) == before
    shelf.restart_cleanly()
    assert told(shelf, names) == before


# --- checkpoints ---


@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.parametrize("when", ["before the draft", "before it is confirmed", "after"])
def test_a_decision_during_a_checkpoint_is_neither_lost_nor_repeated(shelf, kind, when):
    prepare(shelf, "a", "b")
    stretch = shelf.store.checkpoints.next_range()
    if when == "before the draft":
        decide(shelf, "a", kind)
    pending = shelf.store.checkpoints.begin(stretch)
    if when == "before it is confirmed":
        decide(shelf, "a", kind)
    shelf.confirm(pending)
    if when == "after":
        decide(shelf, "a", kind)
    before = told(shelf, "ab")
    assert ("a" in shelf.transactions()) == (kind is PARKED)

    shelf.restart()
    assert told(shelf, "ab") == before
    has_copy = kind is PARKED or (kind is COMMITTED and shelf.sizes is COPIED)
    assert shelf.recovery.records == 1 + has_copy, "the marker, and what follows from it"
    shelf.restart_cleanly()
    assert told(shelf, "ab") == before
    assert shelf.recovery[:3] == (0, 0, 0)
    is_sound(shelf)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_transaction_open_in_one_chunk_is_closed_by_a_later_chunk(shelf, is_restarted):
    prepare(shelf, "a", "b", "c", "d")
    shelf.checkpoint()
    for unique, kind in (("a", COMMITTED), ("b", ROLLED_BACK), ("c", PARKED)):
        if is_restarted:
            shelf.restart()
        decide(shelf, unique, kind)
    shelf.checkpoint()
    if is_restarted:
        shelf.restart()
    decide(shelf, "c", COMMITTED)
    shelf.checkpoint()
    before = told(shelf, "abcd")

    shelf.restart()

    assert shelf.recovery[:3] == (0, 0, 0)
    assert told(shelf, "abcd") == before
    assert list(shelf.transactions()) == ["d"]
    is_sound(shelf)


def test_a_scanned_half_message_is_saved_in_the_next_chunk():
    shelf = Shelf(sizes=IN_PLACE)
    prepare(shelf, "a", "b", "c")
    decide(shelf, "a", PARKED)
    shelf.restart()
    decide(shelf, "b", ROLLED_BACK)
    before = told(shelf, "abc")

    for _ in range(3):
        shelf.restart_cleanly()

        assert shelf.recovery[:3] == (0, 0, 0)
        assert told(shelf, "abc") == before


@pytest.mark.parametrize("is_indexed", [True, False])
def test_open_transactions_in_scanned_files_stay_open(small_margin, is_indexed):
    shelf = Shelf()
    for number in range(12):
        prepare(shelf, f"{number}")
        shelf.add(BIG, topic="Fill")
    decide(shelf, "2", COMMITTED)
    decide(shelf, "3", PARKED)
    if is_indexed:
        shelf.checkpoint()
    before = told(shelf)

    for _ in range(3):
        shelf.restart()

        assert told(shelf) == before
        assert len(shelf.transactions()) == 11


def test_a_chunk_whose_write_failed_is_written_completely_later():
    shelf = Shelf(sizes=IN_PLACE)
    prepare(shelf, "a", "b")
    shelf.disk.fail_writes(times=1, error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        shelf.begin_checkpoint()
    decide(shelf, "a", ROLLED_BACK)
    shelf.checkpoint()

    shelf.restart()

    assert shelf.recovery[:3] == (0, 0, 0)
    assert list(shelf.transactions()) == ["b"]


# --- writes that fail ---


@pytest.mark.parametrize(("error", "problem"), [(errno.ENOSPC, DiskFull), (errno.EIO, WriteFailed)])
def test_a_failed_write_takes_back_half_messages_and_decisions(shelf, error, problem):
    prepare(shelf, "a", "b", "c")
    shelf.add(b"zero")
    before = told(shelf, "abcd")
    halves = shelf.store.halves
    offsets = {place: queue.next_offset for place, queue in shelf.queues().items()}
    shelf.prepare(b"d", unique="d", group="nobody else's")
    shelf.decide("a", COMMITTED)
    shelf.decide("b", ROLLED_BACK)
    shelf.decide("c", PARKED)
    assert halves.opening.keys() == {transaction_key("d")}
    assert halves.closing == {transaction_key("a"): COMMITTED, transaction_key("b"): ROLLED_BACK}
    assert halves.parking == {transaction_key("c")}

    shelf.disk.fail_writes(times=1, error=error)
    with pytest.raises(problem):
        shelf.store.write()

    assert (halves.opening, halves.closing, halves.parking) == ({}, {}, set())
    assert [group for _, group, *_ in halves.pending.owners.values()] == ["P"]
    assert (
        offsets.items()
        <= {place: queue.next_offset for place, queue in shelf.queues().items()}.items()
    )
    assert told(shelf, "abcd") == before
    assert halves.find_done(transaction_key("a")) is None

    decide(shelf, "a", ROLLED_BACK)
    decide(shelf, "b", COMMITTED)
    decide(shelf, "c", PARKED)
    prepare(shelf, "d")
    after = told(shelf, "abcd")
    assert shelf.bodies() == {0: b"zero", 1: b"b"}
    is_sound(shelf)
    shelf.restart()
    assert told(shelf, "abcd") == after


def test_a_failed_span_takes_back_only_its_own_decisions():
    shelf = Shelf(sizes=IN_PLACE)
    prepare(shelf, "a", "b")
    shelf.decide("a", COMMITTED)
    span = shelf.store.write()
    shelf.decide("b", COMMITTED)
    shelf.disk.fail_writes(times=1)
    with pytest.raises(WriteFailed):
        shelf.store.write()

    assert shelf.store.halves.closing == {transaction_key("a"): COMMITTED}
    shelf.publish(span)
    assert shelf.bodies() == {0: b"a"}
    assert list(shelf.transactions()) == ["b"]
    decide(shelf, "b", COMMITTED)
    assert shelf.bodies() == {0: b"a", 1: b"b"}


def test_half_messages_and_decisions_are_invisible_until_published():
    shelf = Shelf(sizes=IN_PLACE)
    half = shelf.prepare(b"a", unique="a")
    assert shelf.transactions() == {}
    span = shelf.store.write()
    assert shelf.transactions() == {}
    assert shelf.store.halves.half_of(0, half.position) is None
    shelf.publish(span)
    shelf.decide("a", COMMITTED)
    span = shelf.store.write()
    assert shelf.bodies() == {}
    assert shelf.found_by_key("a") == []
    assert list(shelf.transactions()) == ["a"]
    assert shelf.store.halves.decision_on(half) is None
    shelf.publish(span)
    assert shelf.bodies() == {0: b"a"}
    assert shelf.found_by_key("a") == [b"a"]


# --- old files ---


@pytest.mark.fault("S14")
def test_an_open_or_parked_transaction_keeps_its_file_and_later_ones():
    shelf = Shelf()
    prepare(shelf, "a", "b")
    shelf.add(*[BIG] * 8, topic="Fill")
    decide(shelf, "a", PARKED)
    shelf.checkpoint()
    always = RetentionSettings(keep=60, delete_at="5")

    def to_delete():
        pinned = shelf.store.halves.pending.pinned()
        files = shelf.store.checkpoints.completed_files()
        assert len(files) >= 3
        return retain(always, files, START_MS * 2, 5, 0.99, pinned).delete

    assert to_delete() == 0
    decide(shelf, "b", COMMITTED)
    assert to_delete() == 0
    shelf.restart_cleanly()
    assert to_delete() == 0
    decide(shelf, "a", ROLLED_BACK)
    shelf.checkpoint()
    assert to_delete() >= 3


def test_a_message_committed_from_a_deleted_file_survives_the_deletion():
    shelf = Shelf()
    (half,) = prepare(shelf, "a")
    prepare(shelf, "b")
    decide(shelf, "b", ROLLED_BACK)
    shelf.add(*[BIG] * 4, topic="Fill")
    decide(shelf, "a", COMMITTED)
    shelf.checkpoint()
    before = shelf.bodies(), shelf.found_by_key("ka")
    assert before == ({0: b"a"}, [b"a"])

    shelf.drop_first_file()

    assert shelf.floors[HALF_TOPIC] == {0: 2}
    assert shelf.floors[OP_TOPIC] == {0: 1}
    for again in (lambda: None, shelf.restart, shelf.restart_cleanly):
        again()
        assert (shelf.bodies(), shelf.found_by_key("ka")) == before
        halves = shelf.store.halves
        assert (halves.half_queue.min_offset, halves.half_queue.max_offset) == (2, 2)
        assert (halves.op_queue.min_offset, halves.op_queue.max_offset) == (1, 2)
        assert halves.half_of(half.offset, half.position) is None
        assert halves.sent_at(half.position) is None
        # The decision is still shown after its half message was deleted.
        assert shelf.bodies(OP_TOPIC) == {1: b"0"}
    (later,) = prepare(shelf, "c")
    assert later.offset == 2
    decide(shelf, "c", COMMITTED)
    assert shelf.bodies() == {0: b"a", 1: b"c"}


def test_deleting_files_removes_halves_markers_and_messages_together(small_margin):
    shelf = Shelf()
    for number in range(30):
        prepare(shelf, f"{number}")
        decide(shelf, f"{number}", COMMITTED if number % 2 else ROLLED_BACK)
        shelf.add(b"." * 200, topic="Fill")
    shelf.checkpoint()
    whole = shelf.bodies()

    while len(shelf.log_files()) > 1:
        shelf.drop_first_file()

        kept = shelf.bodies()
        assert kept == {at: whole[at] for at in range(15 - len(kept), 15)}
        for at, body in kept.items():
            assert shelf.found_by_key(f"k{int(body)}") == [body], at
        shelf.bodies(OP_TOPIC)
        before = told(shelf)
        for path in shelf.index_files():
            shelf.disk.remove(path)
        shelf.restart()
        assert told(shelf) == before
        shelf.restart_cleanly()
    assert shelf.transactions() == {}
    assert shelf.store.halves.half_queue.max_offset == 30


def test_a_half_message_committed_after_its_topic_was_deleted_is_shown():
    shelf = Shelf(sizes=IN_PLACE)
    shelf.add(b"zero")
    prepare(shelf, "a")
    shelf.forget("T")

    decide(shelf, "a", COMMITTED)

    assert shelf.bodies() == {1: b"a"}
    for again in (shelf.restart, shelf.restart_cleanly):
        again()
        assert shelf.bodies() == {1: b"a"}


def test_a_committed_message_of_a_deleted_topic_stays_hidden():
    shelf = Shelf(sizes=IN_PLACE)
    prepare(shelf, "a", "b")
    decide(shelf, "a", COMMITTED)
    shelf.forget("T")
    decide(shelf, "b", COMMITTED)

    for again in (lambda: None, shelf.restart, shelf.restart_cleanly):
        again()
        assert shelf.bodies() == {1: b"b"}
        assert shelf.found_by_key("ka") == []
        assert shelf.found_by_key("kb") == [b"b"]


# --- damage ---


@pytest.mark.fault("S3")
def test_a_flipped_bit_in_a_half_message_or_its_marker_is_reported(shelf):
    (half,) = prepare(shelf, "a")
    decide(shelf, "a", COMMITTED)
    shelf.restart_cleanly()
    path = shelf.log_files()[0]
    ((marker, size, _, _),) = shelf.store.find_queue(OP_TOPIC, 0).read(0, 1)
    lies_at = {
        HALF_TOPIC: range(half.position, half.position + half.size),
        OP_TOPIC: range(marker, marker + size),
        # A copy is a message like any other.
        "T": () if shelf.sizes is COPIED else (*range(half.position, half.position + half.size),
                                         *range(marker, marker + size)),
    }  # fmt: skip

    for topic, places in lies_at.items():
        for place in places:
            disk = shelf.disk.clone()
            disk.flip_bit(path, place, place % 8)
            again = Shelf(disk, shelf.sizes)
            assert again.recovery[:3] == (0, 0, 0)
            with pytest.raises(CorruptRecord):
                again.bodies(topic)
            again.close()


def test_a_damaged_half_message_is_neither_shown_nor_copied_by_a_commit():
    shelf = Shelf(sizes=COPIED)
    (half,) = prepare(shelf, "a")
    prepare(shelf, "b")
    shelf.disk.flip_bit(shelf.log_files()[0], half.position + 88)

    with pytest.raises(CorruptRecord, match="a half message differs.*cannot be committed"):
        shelf.decide("a", COMMITTED)
    with pytest.raises(CorruptRecord, match="a half message differs"):
        shelf.store.halves.record_of(half)
    assert not shelf.store.log.staged
    assert shelf.store.halves.closing == {}
    decide(shelf, "b", COMMITTED)
    assert shelf.bodies() == {0: b"b"}
    decide(shelf, "a", ROLLED_BACK)
    assert list(shelf.transactions()) == []


def test_a_damaged_half_message_is_parked_without_its_copy_also_after_a_restart():
    shelf = Shelf(sizes=IN_PLACE)
    (half,) = prepare(shelf, "a")
    prepare(shelf, "b")
    shelf.restart_cleanly()
    shelf.disk.flip_bit(shelf.log_files()[0], half.position + 88)

    decide(shelf, "a", PARKED)
    decide(shelf, "b", PARKED)
    shelf.restart()
    pending = shelf.store.halves.pending
    assert pending.parked == 2
    assert [shelf.bodies(PARKED_TOPIC)[0]] == [b"b"]
    decide(shelf, "a", ROLLED_BACK)
    assert pending.parked == 1


def test_an_open_half_message_with_a_damaged_body_is_open_after_a_restart():
    shelf = Shelf(sizes=IN_PLACE)
    (half,) = prepare(shelf, "a")
    prepare(shelf, "b")
    shelf.restart_cleanly()
    shelf.disk.flip_bit(shelf.log_files()[0], half.position + 88)

    shelf.restart()
    again = shelf.store.halves.pending.find(transaction_key("a"))
    assert (again.offset, again.position, again.checksum) == (0, half.position, half.checksum)
    assert (again.group, again.queue.topic, again.is_parked) == ("P", "T", False)
    with pytest.raises(CorruptRecord, match="a half message differs"):
        shelf.store.halves.record_of(again)
    decide(shelf, "b", COMMITTED)
    assert shelf.bodies() == {0: b"b"}


@pytest.mark.parametrize("inside", [0, 4, 15, 27, 39, 87, -1], ids=str)
def test_a_half_message_with_unreadable_fields_is_parked_after_a_restart(inside, caplog):
    shelf = Shelf(sizes=IN_PLACE)
    prepare(shelf, "b")
    (half,) = prepare(shelf, "a")
    shelf.restart_cleanly()
    place = half.position + (inside if inside >= 0 else half.size - 20)
    shelf.disk.flip_bit(shelf.log_files()[0], place)

    shelf.restart()
    pending = shelf.store.halves.pending
    key = pending.key_at(half.position)
    assert (len(pending), pending.parked, list(pending.parked_keys())) == (2, 1, [key])
    assert "neither its topic nor its producer is known" in caplog.text
    operator = DecisionSource.OPERATOR
    with pytest.raises(CorruptRecord, match="cannot be committed"):
        shelf.store.halves.decide(
            [(key, *pending.read(key), COMMITTED, operator, b"")], shelf.next_ms()
        )
    decide(shelf, "b", COMMITTED)
    assert shelf.bodies() == {0: b"b"}
    shelf.store.halves.decide(
        [(key, *pending.read(key), ROLLED_BACK, operator, b"")], shelf.next_ms()
    )
    shelf.restart_cleanly()
    assert len(shelf.store.halves.pending) == 0


def test_only_positions_that_a_queue_knows_show_a_record():
    shelf = Shelf(sizes=IN_PLACE)
    body = Decision(COMMITTED, DecisionSource.PRODUCER, 0, 36, 0, 0, 5).pack()
    shelf.prepare(body, unique="a")
    shelf.flush()
    decide(shelf, "a", COMMITTED)
    shelf.add(body)
    known = {
        queue.read(at, 1)[0][0]
        for queue in shelf.queues().values()
        for at in range(queue.max_offset)
    }

    for position in range(-1, shelf.store.log.end + 100):
        found = shelf.store.record_bytes(position)
        assert (found is not None) == (position in known), position
