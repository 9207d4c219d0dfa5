"""The in-sync set under any order of events: members in sync have all answered messages."""

from hypothesis import given
from hypothesis import strategies as st

from txmq_broker.replication.acknowledgements import NEAR_BYTES, InSyncSet

MEMBERS = ("m1", "m2", "m3")
STEP = NEAR_BYTES // 2

events = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 3 * STEP)),
        st.tuples(st.just("copy"), st.sampled_from(MEMBERS), st.floats(0, 1)),
        st.tuples(st.just("leave"), st.sampled_from(MEMBERS)),
        st.tuples(st.just("lag"), st.integers(0, 4 * STEP)),
        st.tuples(st.just("ask")),
        st.tuples(st.just("confirm")),
        st.tuples(st.just("take effect")),
    ),
    max_size=60,
)


class StoreAndCopies:
    """A store that takes a change in effect before it confirms it, and the real copies."""

    def __init__(self, confirmed):
        self.set = InSyncSet(confirmed)
        self.stored = frozenset(confirmed)
        self.asked = None
        self.end = self.answered = 0
        self.copies = dict.fromkeys(MEMBERS, 0)

    def answer(self):
        """Answer all sends that may be answered, as the broker does after every event."""
        while self.answered < self.end and self.set.has_copied(self.answered + 1):
            reached = min([self.end, *(self.set.copied_to(member) for member in self.set.awaited)])
            self.answered = max(self.answered + 1, reached)

    def check(self):
        for member in self.stored:
            assert self.copies[member] >= self.answered, f"{member} may lead and lacks some"

    def happen(self, event, *more):
        match event:
            case "write":
                self.end += more[0]
            case "copy":
                member, part = more
                self.copies[member] += int((self.end - self.copies[member]) * part)
                self.set.note_copied(member, self.copies[member], self.answered)
            case "leave":
                self.set.leave(more[0])
            case "lag":
                self.set.drop_behind(max(0, self.end - more[0]))
            case "ask":
                self.asked = self.set.next_change() or self.asked
            case "take effect":
                self.stored = self.stored if self.asked is None else self.asked
            case "confirm" if self.asked is not None:
                self.stored, self.asked = self.asked, None
                self.set.confirm(self.stored)


@given(st.sets(st.sampled_from(MEMBERS)), events)
def test_any_member_that_may_lead_has_all_answered_messages(confirmed, happening):
    world = StoreAndCopies(confirmed)
    for event in happening:
        world.happen(*event)
        world.answer()
        world.check()


def test_a_follower_joins_under_load():
    world = StoreAndCopies(())
    for _ in range(10):
        world.happen("write", STEP)
        world.answer()
        world.copies["m1"] = world.end - STEP
        world.set.note_copied("m1", world.copies["m1"], world.answered)
    assert "m1" in world.set.present


def test_a_late_member_is_waited_for_until_the_store_confirms_its_removal():
    in_sync = InSyncSet(("m1", "m2"))
    in_sync.note_copied("m1", 100, 0)
    in_sync.note_copied("m2", 50, 0)

    assert in_sync.drop_behind(80) == ["m2"]
    assert in_sync.next_change() == {"m1"}
    assert not in_sync.has_copied(100)
    in_sync.confirm({"m1"})
    assert in_sync.has_copied(100)


def test_the_former_leader_is_not_kept_in_sync():
    in_sync = InSyncSet(("m1", "m2"), former="m1")

    assert in_sync.next_change() == {"m2"}
