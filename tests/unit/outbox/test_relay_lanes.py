"""The rows that a relay holds, which of them it may send, and how relays share slots."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.outbox.test_relay_model import Relaying
from txmq.client.settings import ProducerSettings
from txmq.client.values import BrokerInfo
from txmq.databases.guarded_transaction import drive
from txmq.errors import (
    BrokerBusy,
    ConnectFailed,
    InternalError,
    LimitExceeded,
    MessageIllegal,
    TopicNotFound,
)
from txmq.limits import SLOTS
from txmq.message import Message
from txmq.outbox.lanes import Lanes, OutboxRow, Slots, fair_share
from txmq.outbox.publisher import PublishedRows, Publisher, SendFailure, classify
from txmq.outbox.settings import RelaySettings
from txmq.runtime.clock import SystemClock
from txmq.runtime.entropy import SystemEntropy


def rows(*ids, lane=None, topic="T", slot=0, alone=()):
    return [OutboxRow(row_id, slot, lane, topic, 10, is_alone=row_id in alone) for row_id in ids]


def lanes(rows_max=100, lane_rows_max=50, batch_rows=10, batch_bytes=1_000, bytes_max=10_000):
    at_hand = Lanes(rows_max, lane_rows_max, batch_rows, batch_bytes, bytes_max)
    at_hand.open(range(SLOTS))
    return at_hand


def ids(batch):
    return None if batch is None else [row.id for row in batch.rows]


def test_a_row_committed_late_is_sent_before_later_rows_of_its_lane():
    model = Relaying()
    late = model.begin("a", ["T"])
    model.transact(None, ["T"])
    model.look(reason=False, deletes=False)
    assert [row.id for row in model.take()] == [2]

    # The sweeps have just passed these rows, and do not see them.
    model.end(late, True)
    model.transact("a", ["T"])
    model.look(reason=False, deletes=False)

    assert [row.id for row in model.take()] == [1, 3]


def test_a_row_deleted_during_a_read_is_not_new():
    model = Relaying()
    model.transact(None, ["T", "U"])
    model.look(reason=False, deletes=False)
    first, second = model.take(), model.take()
    model.land(first, 1)
    model.tick(0.6)
    model.look(reason=True, deletes=True)
    model.land(second, 1)

    assert model.take() == []
    assert {row.id for row in first + second} == {1, 2}


@pytest.mark.parametrize("read", ["forward", "sweep", "lanes", "look back"])
def test_a_row_that_another_relay_sent_during_a_read_is_not_sent_again(read):
    """The slot is lost during the read, and comes back after the other relay has sent the row."""
    model = Relaying()
    late = model.begin("a", ["T"]) if read == "sweep" else []
    if read != "forward":
        model.transact("b", ["T"])
        model.look(reason=False, deletes=False)
        assert [row.lane for row in model.take()] == ["b"]
    model.end(late, True)
    if read != "sweep":
        model.transact("a", ["T"])
    reads = iter([*["forward"] * (read != "forward"), read])

    def lose_the_slot():
        if next(reads, None) == read:
            model.take_slots({1, 2})
            for row in model.base.rows:
                row.is_deleted = row.is_deleted or row.lane == "a"
            model.take_slots({0, 1, 2})

    model.tick(0.1)
    model.base.meanwhile = lose_the_slot
    drive(model.reader.look(has_reason=True))

    assert all(row.is_deleted for row in model.base.rows if row.lane == "a")
    assert model.take() == []


def test_rows_in_memory_and_those_of_the_next_read_stay_below_the_limit_of_bytes(monkeypatch):
    model = Relaying()
    model.transact(None, ["T", "U"])
    model.look(reason=False, deletes=False)
    sizes = []
    forward = model.base.forward

    def sized_forward(slots, low, count, size):
        sizes.append(size)
        return forward(slots, low, count, size)

    monkeypatch.setattr(model.base, "forward", sized_forward)
    model.look(reason=False, deletes=False)

    assert sizes == [RelaySettings().size_max - model.lanes.bytes]
    assert model.lanes.bytes == 2


def test_a_published_row_is_known_until_the_read_after_its_deletion_begins():
    published = PublishedRows(None, None, None)
    published.add(rows(1, 2))
    published.drop([1])

    assert [row_id in published for row_id in (1, 2, 3)] == [True, True, False]

    published.gone.clear()  # As a read does when it begins.
    assert [row_id in published for row_id in (1, 2, 3)] == [False, True, False]


@pytest.mark.parametrize("is_late", [False, True])
def test_rows_behind_many_rows_of_a_failing_topic_are_found(is_late):
    model = Relaying()
    model.transact(None, ["T"] * 30)
    hidden = model.begin(None, ["U"])
    model.transact(None, ["T"] * 30)
    model.lanes.pause("T", model.clock.now + 600)
    if not is_late:
        model.end(hidden, True)
    # It goes on without a pause while it finds rows.
    while drive(model.reader.look(has_reason=False)):
        pass
    if is_late:
        for _ in range(2):
            model.tick(0.6)
            model.look(reason=False, deletes=False)
        model.end(hidden, True)
        for _ in range(30):
            model.tick(0.6)
            model.look(reason=False, deletes=False)
    assert [row.topic for row in model.take()] == ["U"]


def test_the_rows_of_a_lane_wait_for_those_before_them():
    at_hand = lanes()
    at_hand.add(rows(1, 2, lane="a"), 0, 0.0)

    batch = at_hand.take(0.0)
    at_hand.add(rows(3, lane="a"), 0, 0.0)

    assert ids(batch) == [1, 2]
    assert at_hand.take(0.0) is None
    at_hand.land(batch.rows[:1])
    at_hand.give_back(batch.rows[1:])
    assert ids(at_hand.take(0.0)) == [2, 3]


def test_several_lanes_share_a_batch_and_a_row_marked_alone_has_its_own():
    at_hand = lanes()
    at_hand.add(rows(1, 4, lane="a") + rows(2, 5, lane="b") + rows(3, lane="c"), 0, 0.0)
    at_hand.add(rows(6, 7, 8, alone=(7,)), 0, 0.0)

    assert ids(at_hand.take(0.0)) == [1, 4, 2, 5, 3]
    assert ids(at_hand.take(0.0)) == [6]
    assert ids(at_hand.take(0.0)) == [7]
    assert ids(at_hand.take(0.0)) == [8]


def test_a_refused_row_blocks_only_its_own_lane():
    at_hand = lanes()
    at_hand.add(rows(1, 2, lane="a", alone=(1,)) + rows(3, lane="b"), 0, 0.0)
    refused = at_hand.take(0.0).rows
    at_hand.rest(refused[0], 60.0)

    assert ids(at_hand.take(0.0)) == [3]
    assert at_hand.wanted(59.0, 10) == []
    (asked,) = at_hand.wanted(60.0, 10)
    assert asked.seen == 0
    at_hand.add_fetched(
        [asked], rows(2, lane="a"), 60.0, is_cut=False
    )  # An operator has deleted 1.
    assert ids(at_hand.take(60.0)) == [2]


def test_a_lane_above_its_share_of_rows_is_fetched_later():
    at_hand = lanes(lane_rows_max=2)
    at_hand.add(rows(1, 2, 3, 4, lane="a"), 0, 0.0)
    batch = at_hand.take(0.0)
    assert ids(batch) == [1, 2]
    assert at_hand.wanted(0.0, 10) == []
    at_hand.land(batch.rows)

    (asked,) = at_hand.wanted(0.0, 10)
    at_hand.add_fetched([asked], rows(3, 4, lane="a"), 0.0, is_cut=False)

    assert asked.seen == 2
    assert ids(at_hand.take(0.0)) == [3, 4]


def test_rows_of_a_lane_given_back_one_by_one_keep_their_order():
    at_hand = lanes(rows_max=8)
    at_hand.add(rows(1, 2, lane="a"), 0, 0.0)
    first = at_hand.take(0.0)
    at_hand.add(rows(3, 4, 5), 0, 0.0)
    at_hand.take(0.0)
    at_hand.pause("T", 5.0)  # It keeps its share of the room until one of the rows is gone.

    for row in first.rows:
        at_hand.give_back([row])

    assert at_hand.take(10.0) is None
    (asked,) = at_hand.wanted(10.0, 10)
    assert (asked.lane, asked.seen) == ("a", 0)
    at_hand.works("T")
    at_hand.add_fetched([asked], rows(1, 2, lane="a"), 10.0, is_cut=False)
    assert ids(at_hand.take(10.0)) == [1, 2]


def test_a_failing_topic_leaves_room_for_others():
    at_hand = lanes(rows_max=10)
    at_hand.pause("T", 5.0)
    at_hand.add(rows(*range(1, 10)), 0, 0.0)
    at_hand.add(rows(10, 11, topic="U"), 0, 0.0)

    assert ids(at_hand.take(0.0)) == [10, 11]
    assert at_hand.has_left_some
    assert at_hand.take(4.9) is None
    assert ids(at_hand.take(5.0)) == [1, 2, 3, 4, 5]


def test_lost_slots_drop_their_rows_without_waiting_for_those_in_flight():
    at_hand = lanes()
    at_hand.add(rows(1, lane="a", slot=1) + rows(2, slot=1) + rows(3, slot=2), 0, 0.0)
    first = at_hand.take(0.0)
    at_hand.lose({1})

    assert ids(first) == [1] or first.topic == "T"
    assert at_hand.is_clear(1)
    assert ids(at_hand.take(0.0)) in ([3], None)
    at_hand.open({1})
    at_hand.add(rows(1, lane="a", slot=1), 0, 0.0)
    at_hand.give_back(first.rows)
    assert [row_id for row_id in (1, 2, 3) if at_hand.holds(row_id)] == [1, 3]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_relays_that_join_and_leave_share_all_slots_fairly(crowd):
    """All relays of the moment renew in turn."""
    owner = dict.fromkeys(range(SLOTS))
    relays = []
    now = 0.0
    for count in crowd:
        relays = [
            Slots(10.0) if relay is None else relay for relay in (relays + [None] * 9)[:count]
        ]
        for slot, whose in owner.items():
            if whose not in relays:
                owner[slot] = None  # Its lease has ended.
        for _ in range(3):
            for relay in relays:
                now += 1.0
                beat(relay, owner, len(relays), now)
    assert None not in owner.values()
    shares = [len(relay) for relay in relays]
    assert sum(shares) == SLOTS
    assert max(shares) <= fair_share(len(relays))


def beat(relay, owner, living, now):
    held = {slot for slot, whose in owner.items() if whose is relay}
    free = [slot for slot, whose in owner.items() if whose is None]
    taken = free[: max(0, fair_share(living) - len(held))]
    owner.update(dict.fromkeys(taken, relay))
    relay.renew(held | set(taken), living, now)
    for slot in list(relay.leaving):
        owner[slot] = None
        relay.release(slot)
    assert relay.are_safe(now + 9.9) or not len(relay)
    assert not relay.are_safe(now + 10.0)


def test_errors_of_sends_are_classified_by_their_cause():
    assert classify(LimitExceeded("size", 1, 2)) is SendFailure.MESSAGE
    assert classify(MessageIllegal()) is SendFailure.MESSAGE
    assert classify(TopicNotFound()) is SendFailure.TOPIC
    assert classify(InternalError()) is SendFailure.UNCERTAIN
    assert classify(ValueError()) is SendFailure.UNCERTAIN
    assert classify(BrokerBusy()) is SendFailure.OUTAGE
    assert classify(ConnectFailed()) is SendFailure.OUTAGE
    assert classify(TimeoutError()) is SendFailure.OUTAGE


@pytest.mark.parametrize("replicas", [[], [1], [0, 1]])
@pytest.mark.parametrize("lane", [None, "a"])
def test_a_topic_counts_as_missing_only_while_its_cluster_has_a_leader(lane, replicas):
    async def refuse(*_):
        raise TopicNotFound

    async def run():
        found = BrokerInfo("a", "c", {replica: f"a:{replica}" for replica in replicas})
        admin = SimpleNamespace(cluster=_answering([found] if replicas else []))
        session = SimpleNamespace(known_route_to_write=lambda _: None, route_to_write=refuse)
        producer = SimpleNamespace(
            send=refuse,
            settings=ProducerSettings(),
            client=SimpleNamespace(admin=admin, session=session),
        )
        store = SimpleNamespace(put_aside=_answering(True), problems=())
        published = SimpleNamespace(add=print, gone=set())
        skip, clock = RelaySettings(on_poison="skip", attempts_max=1), SystemClock()
        at_hand, ended = lanes(), asyncio.Event()
        slots = SimpleNamespace(are_safe=lambda _: True)
        at_hand.add([OutboxRow(1, 0, lane, "T", 1, Message(topic="T", body=b"x"))], 0, 0.0)
        publisher = Publisher(
            at_hand,
            slots,
            producer,
            store,
            published,
            skip,
            clock,
            SystemEntropy(),
            lambda _: ended.set(),
        )
        publisher.send()
        await ended.wait()
        return publisher.tally

    counts = asyncio.run(run())
    assert (counts.failed, counts.deferred) == ((1, 0) if 0 in replicas else (0, 1))


def _answering(answer):
    async def asked(*_):
        return answer

    return asked


@pytest.mark.parametrize("lane", [None, "a"])
def test_a_topic_that_begins_to_fail_gives_room_back(lane):
    at_hand = lanes(rows_max=10, batch_rows=2)
    for row_id in range(1, 11):
        at_hand.add(rows(row_id, lane=lane and f"{lane}{row_id}"), 0, 0.0)
    first = at_hand.take(0.0)
    assert (ids(first), at_hand.room) == ([1, 2], 0)

    at_hand.pause("T", 5.0)
    at_hand.give_back(first.rows)

    assert at_hand.room == 6
    assert at_hand.has_left_some or len(at_hand.behind()) == 6
    at_hand.pause("U", 5.0)
    at_hand.add(rows(20, 21, topic="U"), 0, 5.0)
    assert len(at_hand) == 5, "each topic in trouble has a row, and all of them one share"


def test_large_bodies_of_a_failing_topic_leave_room_for_others():
    at_hand = lanes(bytes_max=100)
    at_hand.add(rows(*range(1, 10)), 0, 0.0)
    at_hand.pause("T", 5.0)
    assert at_hand.bytes < 50


def test_a_lane_that_gives_room_back_keeps_its_order():
    at_hand = lanes(rows_max=4, batch_rows=3)
    at_hand.add(rows(1, 2, 3, 4, lane="a"), 0, 0.0)
    first = at_hand.take(0.0)
    at_hand.pause("T", 5.0)
    at_hand.give_back(first.rows)

    sent = []
    for _ in range(4):
        while batch := at_hand.take(9.0):
            sent += ids(batch)
            at_hand.land(batch.rows)
        for asked in at_hand.wanted(9.0, 10):
            left = [row_id for row_id in (1, 2, 3, 4) if row_id > asked.seen]
            at_hand.add_fetched([asked], rows(*left, lane="a"), 9.0, is_cut=False)
    assert sent == [1, 2, 3, 4]
