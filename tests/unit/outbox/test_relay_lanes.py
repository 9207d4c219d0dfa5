"""What a relay has at hand, and what of it may go; and the shares of relays."""

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.outbox.test_relay_model import Relaying
from txmq.errors import (
    BrokerBusy,
    ConnectFailed,
    InternalError,
    LimitExceeded,
    MessageIllegal,
    TopicNotFound,
)
from txmq.limits import SLOTS
from txmq.outbox.carrying import Fault, fault
from txmq.outbox.lanes import Lanes, Row
from txmq.outbox.slots import Slots, fair_share


def rows(*ids, lane=None, topic="T", slot=0, alone=()):
    return [Row(each, slot, lane, topic, 10, is_alone=each in alone) for each in ids]


def lanes(rows_max=100, lane_rows_max=50, load_rows=10, load_bytes=1_000):
    made = Lanes(rows_max, lane_rows_max, load_rows, load_bytes)
    made.open(range(SLOTS))
    return made


def ids(load):
    return None if load is None else [each.id for each in load.rows]


def test_a_row_that_was_committed_late_goes_before_what_follows_it_in_its_lane():
    model = Relaying()
    late = model.begin("a", ["T"])
    model.transact(None, ["T"])
    model.look(reason=False, deletes=False)
    assert [each.id for each in model.take()] == [2]

    # The sweeps have just been here, and see nothing of this.
    model.end(late, True)
    model.transact("a", ["T"])
    model.look(reason=False, deletes=False)

    assert [each.id for each in model.take()] == [1, 3]


def test_what_is_deleted_while_somebody_reads_is_not_read_as_new():
    model = Relaying()
    model.transact(None, ["T", "U"])
    model.look(reason=False, deletes=False)
    first, second = model.take(), model.take()
    model.land(first, 1)
    model.tick(0.6)
    model.look(reason=True, deletes=True)
    model.land(second, 1)

    assert model.take() == []
    assert {each.id for each in first + second} == {1, 2}


def test_the_rows_of_a_lane_wait_for_those_before_them():
    at_hand = lanes()
    at_hand.add(rows(1, 2, lane="a"), 0, 0.0)

    load = at_hand.take(0.0)
    at_hand.add(rows(3, lane="a"), 0, 0.0)

    assert ids(load) == [1, 2]
    assert at_hand.take(0.0) is None
    at_hand.land(load.rows[:1])
    at_hand.give_back(load.rows[1:])
    assert ids(at_hand.take(0.0)) == [2, 3]


def test_several_lanes_travel_together_and_a_row_alone_by_itself():
    at_hand = lanes()
    at_hand.add(rows(1, 4, lane="a") + rows(2, 5, lane="b") + rows(3, lane="c"), 0, 0.0)
    at_hand.add(rows(6, 7, 8, alone=(7,)), 0, 0.0)

    assert ids(at_hand.take(0.0)) == [1, 4, 2, 5, 3]
    assert ids(at_hand.take(0.0)) == [6]
    assert ids(at_hand.take(0.0)) == [7]
    assert ids(at_hand.take(0.0)) == [8]


def test_a_row_that_nobody_takes_keeps_its_lane_waiting_and_no_other():
    at_hand = lanes()
    at_hand.add(rows(1, 2, lane="a", alone=(1,)) + rows(3, lane="b"), 0, 0.0)
    refused = at_hand.take(0.0).rows
    at_hand.rest(refused[0], 60.0)

    assert ids(at_hand.take(0.0)) == [3]
    assert at_hand.wanted(59.0, 10) == []
    (asked,) = at_hand.wanted(60.0, 10)
    assert asked.seen == 0
    at_hand.fetched([asked], rows(2, lane="a"), 60.0, is_cut=False)  # Somebody has deleted 1.
    assert ids(at_hand.take(60.0)) == [2]


def test_a_lane_has_no_more_room_than_its_share_and_is_fetched_later():
    at_hand = lanes(lane_rows_max=2)
    at_hand.add(rows(1, 2, 3, 4, lane="a"), 0, 0.0)
    load = at_hand.take(0.0)
    assert ids(load) == [1, 2]
    assert at_hand.wanted(0.0, 10) == []
    at_hand.land(load.rows)

    (asked,) = at_hand.wanted(0.0, 10)
    at_hand.fetched([asked], rows(3, 4, lane="a"), 0.0, is_cut=False)

    assert asked.seen == 2
    assert ids(at_hand.take(0.0)) == [3, 4]


def test_a_topic_in_trouble_leaves_room_for_others():
    at_hand = lanes(rows_max=10)
    at_hand.pause("T", 5.0)
    at_hand.add(rows(*range(1, 10)), 0, 0.0)
    at_hand.add(rows(10, 11, topic="U"), 0, 0.0)

    assert ids(at_hand.take(0.0)) == [10, 11]
    assert at_hand.has_left_some
    assert at_hand.take(4.9) is None
    assert ids(at_hand.take(5.0)) == [1, 2, 3, 4, 5]


def test_slots_that_are_lost_leave_nothing_behind_and_what_flies_is_not_waited_for():
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
    assert [each for each in (1, 2, 3) if at_hand.holds(each)] == [1, 3]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_relays_that_come_and_go_end_up_with_all_slots_and_fair_shares(crowd):
    """Each renews in turn, as many of them as there are just then."""
    owner = dict.fromkeys(range(SLOTS))
    relays = []
    now = 0.0
    for count in crowd:
        relays = [Slots(10.0) if each is None else each for each in (relays + [None] * 9)[:count]]
        for slot, whose in owner.items():
            if whose not in relays:
                owner[slot] = None  # Its lease has ended.
        for _ in range(3):
            for relay in relays:
                now += 1.0
                beat(relay, owner, len(relays), now)
    assert None not in owner.values()
    shares = [len(each) for each in relays]
    assert sum(shares) == SLOTS
    assert max(shares) <= fair_share(len(relays))


def beat(relay, owner, living, now):
    held = {slot for slot, whose in owner.items() if whose is relay}
    free = [slot for slot, whose in owner.items() if whose is None]
    taken = free[: max(0, fair_share(living) - len(held))]
    owner.update(dict.fromkeys(taken, relay))
    relay.renewed(held | set(taken), living, now)
    for slot in list(relay.leaving):
        owner[slot] = None
        relay.let_go(slot)
    assert relay.are_safe(now + 9.9) or not len(relay)
    assert not relay.are_safe(now + 10.0)


def test_whose_fault_it_is():
    assert fault(LimitExceeded("size", 1, 2)) is Fault.MESSAGE
    assert fault(MessageIllegal()) is Fault.MESSAGE
    assert fault(TopicNotFound()) is Fault.TOPIC
    assert fault(InternalError()) is Fault.PERHAPS
    assert fault(ValueError()) is Fault.PERHAPS
    assert fault(BrokerBusy()) is Fault.TIMES
    assert fault(ConnectFailed()) is Fault.TIMES
