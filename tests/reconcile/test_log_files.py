"""A log is read up to its last whole span, and damage is refused with its position."""

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults.old_spans import in_old_form
from tests.reconcile.log_stage import Taken, delete_when_opened, dump, order, read_log
from tests.unit.store.shelf import LOG, START_MS, Shelf, Sizes
from txmq.errors import ReconcileRefused
from txmq.protocol.checked_body import pack
from txmq.protocol.span import HEAD_BYTES, AcceptedLoss, DecisionKind, head, name_of
from txmq.reconcile.log.files import LogStretch, open_log
from txmq.reconcile.log.source import raw_records
from txmq.reconcile.rules import DayWindow
from txmq.runtime.disk import LocalDisk

ROOM = Sizes(segment_size=64 << 20)
"""All in one file, and decisions lie in that of their half messages."""
SMALL = Sizes(segment_size=2000)
COUNT = 40


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def open_shelf(data):
    made = []

    def make(sizes):
        made.append(Shelf(LocalDisk(str(data)), sizes))
        return made[-1]

    yield make
    for shelf in made:
        shelf.close()


def fill(shelf, count=COUNT, first=0):
    for number in range(first, first + count):
        shelf.put(order(str(number)), "Transfers", unique=f"u{number}")
        shelf.flush()


@pytest.fixture
def in_files(open_shelf, data):
    """A log in five files."""
    shelf = open_shelf(SMALL)
    fill(shelf)
    assert len(files(data)) == 5
    return shelf


@pytest.fixture
def in_a_file(open_shelf):
    """The same in one file."""
    shelf = open_shelf(ROOM)
    fill(shelf)
    return shelf


def files(data):
    return sorted((data / "log").iterdir())


def is_refused(text, *what, **how):
    with pytest.raises(ReconcileRefused, match=text):
        Taken(*what, **how)
    return True


def keys(taken):
    return [int(message["key"].removeprefix("icbc/")) for message in taken.messages]


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def test_a_log_of_several_files_is_read_completely(data, in_files):
    taken = Taken(data)

    assert keys(taken) == list(range(COUNT))
    assert taken.log.watermark == sum(file.stat().st_size for file in files(data))
    assert [message["position"] for message in taken.messages] == [
        record.position for record in read_log(data)
    ]


def test_a_log_from_before_spans_had_epochs_is_read_like_any_other(data, in_files):
    new = Taken(data)
    for path in files(data)[:-1]:
        path.write_bytes(in_old_form(path.read_bytes(), int(path.stem)))

    old = Taken(data, stretch_bytes=500)

    assert old.messages == new.messages


def test_files_from_before_the_day_are_not_read(data, in_files):
    before = files(data)[2]
    flip(before, 108)  # This file is not read.
    window = DayWindow(START_MS + 30, START_MS + 35)

    taken = Taken(data, window)

    assert keys(taken) == list(range(30, 35))
    assert is_refused(f"{before.name} is damaged at position", data)


def test_a_day_that_begins_before_the_log_is_refused(data, in_files):
    in_files.checkpoint()
    in_files.drop_first_file()
    first_ms = next(read_log(data)).stored_ms

    assert is_refused(
        "begins too late: records of the day before position",
        data,
        DayWindow(first_ms, first_ms + 5),
    )
    taken = Taken(data, DayWindow(first_ms + 1, first_ms + 5))
    assert len(taken.messages) == 4


def test_a_file_may_begin_with_an_accepted_loss(data):
    """Its time is that of the loss, whatever the bytes are where a message has one."""
    (data / "log").mkdir()
    loss = AcceptedLoss(START_MS, 900, "a disk was lost", {"Transfers": {0: 7}}).pack()
    path = data / "log" / f"{name_of(1000)}.log"
    path.write_bytes(head(LOG, 1000, 0, loss, 0) + loss)
    at = 1000 + path.stat().st_size
    path.write_bytes(path.read_bytes() + head(LOG, at, 0, loss, 0) + loss)

    with open_log(data, START_MS + 1) as log:
        assert [opened.file.first_ms for opened in log.opened] == [START_MS]
    with pytest.raises(ReconcileRefused, match="begins too late"), open_log(data, START_MS):
        pass


def test_an_open_file_is_read_even_after_it_is_deleted(data, in_files):
    in_files.checkpoint()
    with open_log(data, START_MS + 1) as log:
        oldest = log.opened[0]
        in_files.drop_first_file()
        assert not oldest.file.path.exists()

        found = list(log.records())

    assert len(found) == COUNT


def test_records_of_a_file_deleted_during_the_run_are_taken(data, in_files, monkeypatch):
    delete_when_opened(monkeypatch, files(data)[0])

    taken = Taken(data)

    assert keys(taken) == list(range(COUNT))


def test_a_file_that_is_deleted_before_its_task_begins_is_named(data, in_files, monkeypatch):
    oldest = files(data)[0]
    delete_when_opened(monkeypatch, oldest)

    assert is_refused(f"{oldest.name} was deleted by the broker before", data, stretch_bytes=900)


def test_a_directory_without_a_log_is_refused(tmp_path):
    assert is_refused("is not a broker's directory: it has no folder log", tmp_path)


def test_a_missing_file_in_the_middle_of_the_log_is_refused(data, in_files):
    gone = files(data)[3]
    gone.unlink()

    assert is_refused(f"the log continues at .*{int(files(data)[3].stem)}", data)


@pytest.mark.parametrize("left", [1, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 7, -1])
def test_an_incomplete_last_span_is_left_out_until_it_is_whole(data, in_a_file, left):
    (file,) = files(data)
    end = file.stat().st_size
    fill(in_a_file, 1, COUNT)
    content = file.read_bytes()
    cut = end + left if left > 0 else len(content) - 1
    file.write_bytes(content[:cut])

    taken = Taken(data)
    file.write_bytes(content)
    later = Taken(data)

    assert keys(taken) == list(range(COUNT))
    assert taken.log.watermark == end
    assert keys(later) == list(range(COUNT + 1))
    assert later.log.watermark == len(content)


@pytest.mark.parametrize("at", [3, 7, 20, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 60, 150])
def test_a_flipped_bit_is_refused_with_its_position(data, in_a_file, at):
    (file,) = files(data)
    bad = list(read_log(data))[10].position - HEAD_BYTES
    flip(file, bad + at)

    told = f"{file.name} is damaged at position {bad}: "
    assert is_refused(told, data)
    with pytest.raises(ReconcileRefused, match=told):
        list(read_log(data))


def test_damage_at_the_end_of_an_inner_file_is_no_torn_tail(data, in_files):
    second = files(data)[1]
    flip(second, second.stat().st_size - 1)

    assert is_refused(f"{second.name} is damaged at .*the log continues at", data)


def test_an_empty_new_file_is_ignored(data, in_a_file):
    """A write failed there, but reached the previous file after all."""
    (file,) = files(data)
    between = list(read_log(data))[20].position - HEAD_BYTES
    (data / "log" / f"{name_of(between)}.log").touch()

    assert keys(Taken(data)) == list(range(COUNT))


def test_an_unreadable_offsets_file_is_refused(data, in_a_file):
    (data / "config").mkdir()
    (data / "config/offsets.json").write_text('{"offsetTable": {"T@g": {"0"')

    assert is_refused(r"offsets\.json cannot be read", data)


def save_names(data, *topics, groups=("ccb",)):
    """The tables of topics and groups, as the broker saves them."""
    (data / "config").mkdir(exist_ok=True)
    for name, table in (
        ("topics", {"topicConfigTable": {topic: {"topicName": topic} for topic in topics}}),
        ("groups", {"subscriptionGroupTable": {group: {"groupName": group} for group in groups}}),
    ):
        path = data / f"config/{name}.json"
        path.write_bytes(pack(path.name, "", json.dumps(table).encode()))


def test_an_unknown_topic_or_group_of_the_log_is_refused(data, in_a_file):
    save_names(data, "Transfers", "Other")
    assert keys(Taken(data)) == list(range(COUNT))

    save_names(data, "Transfer", "Other")
    assert is_refused("no topic 'Transfers'; did you mean Transfer", data)
    save_names(data, "Transfers", groups=("ccc",))
    assert is_refused("no group 'ccb'; did you mean ccc", data)
    save_names(data, "Transfers", "%RETRY%ccb", groups=())
    assert keys(Taken(data)) == list(range(COUNT))


def test_a_long_id_is_kept_whole(data, open_shelf):
    shelf = open_shelf(ROOM)
    shelf.put(order("x" * 300), "Transfers", unique="u" * 2_000)
    shelf.flush()

    (message,) = Taken(data).messages

    assert message["key"] == f"icbc/{'x' * 300}"
    assert message["id"] == "u" * 2_000
    assert message["problem"] is None


def test_a_half_message_from_before_the_day_is_read_from_its_own_file(data, open_shelf):
    shelf = open_shelf(SMALL)
    for key in "123":
        shelf.prepare(order(key), "Transfers", unique=key, keys=key)
        shelf.flush()
    shelf.prepare(order("x"), "Other", unique="x")
    shelf.flush()
    fill(shelf, 30, 100)
    start = shelf.next_ms()
    committed, rolled_back = DecisionKind.COMMITTED, DecisionKind.ROLLED_BACK
    kinds = [committed, rolled_back, rolled_back, DecisionKind.PARKED]
    for key, kind in zip("12x3", kinds, strict=True):
        shelf.decide(key, kind)
        shelf.flush()
    halves = [record for record in read_log(data) if record.kind == "half"]

    taken = Taken(data, DayWindow(start, start + 100))

    assert taken.states() == {"1": "committed", "2": "rolled_back", "3": "parked"}
    assert [message["position"] for message in taken.messages] == [
        half.position for half in halves[:3]
    ]
    assert [message["stored_ms"] for message in taken.messages] == [START_MS + n for n in range(3)]
    assert taken.message("1")["queue_offset"] == shelf.queues()["Transfers", 0].max_offset - 1
    # With its file gone, only the copy that the commit wrote remains.
    files(data)[0].unlink()
    less = Taken(data, DayWindow(start, start + 100))
    assert less.states() == {"1": "committed"}
    assert less.message("1") | {"stored_ms": START_MS} == taken.message("1")
    assert less.message("1")["stored_ms"] == start - 1


def test_a_body_that_looks_like_a_span_is_not_taken_for_one(data, in_a_file):
    """Anybody may send one. Taken for a span, it would spoil how the bytes around it are read."""
    at = in_a_file.store.log.next_position + 88
    forged = head(LOG, at, 0, b"x" * 50, 0) + b"x" * 50
    in_a_file.put(forged, "Transfers", unique="forged")
    in_a_file.flush()
    fill(in_a_file, COUNT, COUNT)
    with open_log(data) as log:
        assert next(log.stretches(at - 20)).end > at

    whole = Taken(data)
    cut = Taken(data, stretch_bytes=at - 20)

    assert whole.messages == cut.messages
    assert [message["id"] for message in cut.messages].count("forged") == 1
    assert len(cut.messages) == 2 * COUNT + 1


def test_a_torn_body_that_contains_a_span_is_not_damage(data, in_a_file):
    (file,) = files(data)
    end, at = file.stat().st_size, in_a_file.store.log.next_position + 88
    forged = head(LOG, at, end, b"x", 0)
    in_a_file.put(forged + b"x" * 1000, "Transfers", unique="forged")
    in_a_file.flush()
    file.write_bytes(file.read_bytes()[:-10])

    taken = Taken(data)

    assert keys(taken) == list(range(COUNT))
    assert taken.log.watermark == end


def test_an_older_copy_of_a_file_is_refused(data, in_a_file):
    """A worker may have one; its end is not the end of the log."""
    with open_log(data) as log:
        file = log.opened[-1].file
    with file.open():
        os.truncate(file.path, file.end - file.start - 1)

    with pytest.raises(ReconcileRefused, match=f"{file.path} is shorter than it was when"):
        list(raw_records(LogStretch(file, file.start, file.end)))


class Told:
    """The fate of a message in the model."""

    def __init__(self, at_ms, is_half, counts):
        self.at_ms, self.is_half, self.counts = at_ms, is_half, counts
        self.decisions = []

    def row(self, window):
        """State and moment of the decision, or ``None`` where it has no row."""
        state, decided_ms = ("prepared" if self.is_half else "sent"), None
        for kind, at_ms in self.decisions:
            was_parked = decided_ms is not None and decided_ms >= window.start_ms
            if at_ms >= window.end_ms and was_parked and decided_ms < window.end_ms:
                break
            state, decided_ms = kind.name.lower(), at_ms
        times = [self.at_ms] if decided_ms is None else [self.at_ms, decided_ms]
        has_row = any(window.start_ms <= time < window.end_ms for time in times)
        return (state, decided_ms) if self.counts and has_row else None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["half", "plain", "other half", "other"])),
        st.tuples(st.just("decide"), st.integers(0, 20), st.sampled_from(list(DecisionKind))),
        st.tuples(st.just("flush")),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=STEPS,
    size=st.sampled_from([1500, 4000, 64 << 20]),
    stretch=st.sampled_from([None, 700, 5000, 1 << 20]),
    day=st.tuples(st.integers(0, 45), st.integers(0, 45)),
)
def test_rows_of_any_log_match_the_model(tmp_path_factory, steps, size, stretch, day):
    shelf, told, is_parked = Shelf(sizes=Sizes(segment_size=size)), {}, set()
    folder = tmp_path_factory.mktemp("log")
    try:
        for number, (what, *more) in enumerate(steps):
            unique, topic = f"u{number}", "Other" if what.startswith("other") else "Transfers"
            if what == "flush":
                shelf.flush()
            elif what == "decide":
                shelf.flush()  # A message is flushed before it is decided.
                open_ = [
                    name
                    for name, item in told.items()
                    if item.is_half
                    and all(kind is DecisionKind.PARKED for kind, _ in item.decisions)
                ]
                which, kind = more
                if open_ and not (
                    kind is DecisionKind.PARKED and open_[which % len(open_)] in is_parked
                ):
                    name = open_[which % len(open_)]
                    shelf.decide(name, kind)
                    shelf.flush()
                    told[name].decisions.append((kind, shelf.store.log.last_ms))
                    is_parked |= {name} if kind is DecisionKind.PARKED else set()
            elif what.endswith("half"):
                shelf.prepare(order(unique), topic, unique=unique)
                told[unique] = Told(shelf.store.log.last_ms, True, topic == "Transfers")
            else:
                shelf.put(order(unique), topic, unique=unique)
                told[unique] = Told(shelf.store.log.last_ms, False, topic == "Transfers")
        shelf.flush()
        data = dump(shelf.disk, folder / "data")
        offsets = {body: at for at, body in shelf.bodies("Transfers").items()} if told and (
            shelf.store.find_queue("Transfers", 0)) else {}  # fmt: skip
    finally:
        shelf.close()
    window = DayWindow(START_MS + min(day), START_MS + max(day))

    taken = Taken(data, window, stretch_bytes=stretch)

    expected = {name: row for name, item in told.items() if (row := item.row(window))}
    assert {
        message["id"]: (message["state"], message["decided_ms"]) for message in taken.messages
    } == expected
    assert len(taken.messages) == len(expected)
    for message in taken.messages:
        is_seen = message["state"] in ("sent", "committed")
        assert message["queue_offset"] == (offsets[order(message["id"])] if is_seen else None)
        assert message["stored_ms"] == told[message["id"]].at_ms
        assert message["key"] == f"icbc/{message['id']}"
