"""What Apache RocketMQ keeps of transactions, as its queues show it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reconcile.log_stage import ALWAYS, FLOW, order
from txmq.errors import ReconcileRefused
from txmq.protocol import properties
from txmq.protocol.codes import SysFlag
from txmq.protocol.record import Record, pack
from txmq.protocol.topics import HALF_TOPIC, OP_TOPIC, PARKED_TOPIC
from txmq.reconcile.log.collapse import Collapse, LogRequest
from txmq.reconcile.log.pulled_records import half_of, marked_records, merged_records
from txmq.reconcile.rules import DayWindow, LogRules

HOST = bytes(8)
LOG = LogRules(flow=(FLOW,))


class Broker:
    """Writes records as Apache RocketMQ does: one a millisecond, and one every 100 bytes."""

    def __init__(self):
        self.log, self.ends = [], {}

    def write(self, topic, body, *, flag=0, prepared=0, queue=0, attempts=0, **named):
        offset = self.ends.get((topic, queue), 0)
        self.ends[topic, queue] = offset + 1
        at = len(self.log) + 1
        text = properties.render({name: value for name, value in named.items() if value})
        self.log.append(
            Record(
                queue, 0, offset, 100 * at, flag, at, HOST, at, HOST, attempts, prepared, body,
                topic, text,
            )
        )  # fmt: skip
        return self.log[-1]

    def prepare(self, key, **more):
        named = {"UNIQ_KEY": f"U-{key}", "REAL_TOPIC": "Transfers", "REAL_QID": "3"}
        return self.write(HALF_TOPIC, order(key), TRAN_MSG="true", **named, **more)

    def check(self, half):
        """A check round writes the half message once more."""
        key = properties.find(half.properties, "UNIQ_KEY").removeprefix("U-")
        return self.prepare(key, TRANSACTION_CHECK_TIMES="1")

    def show(self, half):
        key = properties.find(half.properties, "UNIQ_KEY")
        return self.write(
            "Transfers", half.body, flag=int(SysFlag.COMMITTED), prepared=half.position, queue=3,
            TRAN_MSG="true", UNIQ_KEY=key,
        )  # fmt: skip

    def mark(self, *halves):
        offsets = [str(half.queue_offset) for half in halves]
        body = offsets[0] if len(offsets) == 1 else ",".join(offsets) + ","
        return self.write(OP_TOPIC, body.encode(), TAGS="d")

    def commit(self, half):
        self.show(half)
        self.mark(half)

    def rows(self, window=ALWAYS, log=None, half_of=lambda _: None):
        collapse = Collapse(LogRequest(LOG, {}, window), 0, half_of)
        for record in marked_records(self.log if log is None else log):
            collapse.take(record)
        collapse.finish()
        return collapse.messages

    def states(self, **how):
        return {row.key.removeprefix("icbc/"): row.state for row in self.rows(**how)}


def test_decisions_follow_from_op_visible_and_parked_records():
    broker = Broker()
    halves = {key: broker.prepare(key) for key in ("yes", "no", "open", "lost", "batch")}
    broker.show(halves["yes"])
    broker.mark(halves["yes"], halves["no"])
    broker.mark(halves["batch"])
    broker.write(PARKED_TOPIC, halves["lost"].body, REAL_TOPIC="Transfers", UNIQ_KEY="U-lost")

    assert broker.states() == {
        "yes": "committed",
        "no": "rolled_back",
        "open": "prepared",
        "lost": "parked",
        "batch": "rolled_back",
    }
    yes = next(row for row in broker.rows() if row.key == "icbc/yes")
    assert (yes.position, yes.queue, yes.queue_offset) == (halves["yes"].position, 3, 0)
    assert (yes.stored_ms, yes.decided_ms) == (1, 6)


def test_a_half_message_that_was_checked_is_one_message():
    broker = Broker()
    first = broker.prepare("late")
    second = broker.check(broker.check(first))
    other = broker.check(broker.prepare("never"))
    broker.commit(second)
    broker.mark(other)

    assert [(row.key, row.state, row.position) for row in broker.rows()] == [
        ("icbc/late", "committed", first.position),
        ("icbc/never", "rolled_back", 400),
    ]


def test_a_decision_finds_its_half_message_from_before_the_records():
    broker = Broker()
    halves = [broker.prepare(key) for key in ("yes", "no", "other-day")]
    rest = len(broker.log)
    broker.show(halves[0])
    broker.mark(*halves)
    log = broker.log[rest:]

    def earlier(decision):
        offset = decision.half_offset
        return half_of(halves[offset]) if 0 <= offset < 2 else None

    rows = broker.rows(DayWindow(4, 1 << 60), log, earlier)

    assert {(row.key, row.state, row.position) for row in rows} == {
        ("icbc/yes", "committed", halves[0].position),
        ("icbc/no", "rolled_back", halves[1].position),
    }
    assert all(row.stored_ms < 4 for row in rows)


def test_a_repeated_or_contrary_decision_leaves_a_visible_message():
    """Apache RocketMQ accepts all decisions; what is visible counts."""
    broker = Broker()
    twice, changed = broker.prepare("twice"), broker.prepare("changed")
    broker.commit(twice)
    broker.commit(twice)
    broker.mark(changed)
    broker.commit(changed)

    found = broker.rows()

    assert ("icbc/changed", "committed") in {(row.key, row.state) for row in found}
    assert {row.position for row in found} == {twice.position, changed.position}


def test_retries_and_dead_letters_are_failures_and_delayed_messages_are_left_out():
    broker = Broker()
    committed = int(SysFlag.COMMITTED)
    named = {"RETRY_TOPIC": "Transfers", "UNIQ_KEY": "U-1", "ORIGIN_MESSAGE_ID": "O"}
    broker.write(
        "SCHEDULE_TOPIC_XXXX", order("1"), flag=committed, REAL_TOPIC="%RETRY%ccb", **named
    )
    broker.write("SCHEDULE_TOPIC_XXXX", order("2"), REAL_TOPIC="Transfers", UNIQ_KEY="U-2")
    broker.write("%DLQ%ccb", order("1"), flag=committed, attempts=3, **named)
    broker.write("Transfers", order("3"), flag=committed, UNIQ_KEY="U-3")
    collapse = Collapse(LogRequest(LOG, {}, ALWAYS), 0)
    for record in marked_records(broker.log):
        collapse.take(record)

    assert [(row.group, row.state, row.attempts) for row in collapse.failures] == [
        ("ccb", "retrying", 0),
        ("ccb", "dead", 3),
    ]
    assert [(row.key, row.state) for row in collapse.messages] == [("icbc/3", "sent")]


@pytest.mark.parametrize("body", [b"", b"x", b"\xff", b"-1", b",,", b"9" * 40, "١".encode()])
def test_an_op_record_that_names_no_half_message_is_ignored(body):
    broker = Broker()
    broker.prepare("1")
    broker.write(OP_TOPIC, body)

    assert broker.states() == {"1": "prepared"}


def test_a_message_whose_properties_are_not_text_is_read(tmp_path):
    """A batch may hold any bytes there, and Apache RocketMQ stores them."""
    broker = Broker()
    record = broker.write("Transfers", order("1"), KEYS="key")
    file = tmp_path / "records"
    file.write_bytes(pack(record).replace(b"key", b"k\xffy") + pack(broker.prepare("2")))

    found = list(merged_records([[file]], is_txmq=False))

    assert broker.states(log=found) == {"1": "sent", "2": "prepared"}
    file.write_bytes(pack(record)[:-1])
    with pytest.raises(ReconcileRefused, match="a broken record of offset 0: not a record"):
        list(merged_records([[file]], is_txmq=False))


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("pcrmk")), max_size=40))
def test_a_visible_message_is_never_lost(steps):
    """After any steps, rows show every visible message, and each half message has a row."""
    broker, halves, visible = Broker(), {}, set()
    for number, step in steps:
        key = str(number)
        if step == "p" and key not in halves:
            halves[key] = broker.prepare(key)
        elif key in halves and step == "c":
            broker.commit(halves[key])
            visible.add(key)
        elif key in halves and step == "r":
            broker.mark(halves[key])
        elif key in halves and step == "m":
            halves[key] = broker.check(halves[key])
        elif step == "k":
            broker.write("Transfers", b"\xff{", KEYS=f"k{key}")
    found = broker.rows()

    assert {row.key.removeprefix("icbc/") for row in found if row.state == "committed"} == visible
    assert {row.key.removeprefix("icbc/") for row in found if row.problem is None} == set(halves)
