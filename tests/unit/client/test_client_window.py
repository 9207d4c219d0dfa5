"""The window of a queue: the safe offset never passes a message that is still open."""

from types import SimpleNamespace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from txmq.client.consume.consume_window import ConsumeWindow


def message(offset, size=1):
    return SimpleNamespace(offset=offset, body=b"x" * size)


class Model(RuleBasedStateMachine):
    """Compares a window with a plain dictionary of the open messages."""

    def __init__(self):
        super().__init__()
        self.window = ConsumeWindow(7)
        self.open = {}
        self.next = 7
        self.last = None

    @rule(
        gaps=st.lists(st.integers(0, 3), max_size=5), size=st.integers(0, 9), more=st.integers(0, 3)
    )
    def put(self, gaps, size, more):
        """Offsets ascend; tags and transactions leave gaps."""
        taken, at = [], self.next
        for gap in gaps:
            taken.append(message(at + gap, size))
            at += gap + 1
        self.next = at + more
        self.window.put(taken, self.next)
        self.open |= {arrived.offset: size for arrived in taken}
        self.last = taken[-1].offset if taken else self.last

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data):
        offset = data.draw(st.sampled_from(sorted(self.open)))
        del self.open[offset]
        self.window.end([message(offset)])

    @rule(offset=st.integers(0, 50))
    def end_again(self, offset):
        if offset not in self.open:
            self.window.end([message(offset)])

    @invariant()
    def it_knows_what_is_open(self):
        window = self.window
        assert len(window) == len(self.open)
        assert all(offset in window for offset in self.open)
        assert window.bytes_held == sum(self.open.values())
        assert window.next_offset == self.next
        assert window.safe_offset == window.reached == min(self.open, default=self.next)
        assert window.span == (self.last - min(self.open) if self.open else 0)


TestWindow = Model.TestCase


def test_the_safe_offset_does_not_pass_a_kept_offset():
    window = ConsumeWindow(3)
    window.put([message(3), message(4)], 5)
    window.kept = 3
    window.end([message(3)])

    assert (window.safe_offset, window.reached) == (3, 4)
    window.kept = None
    assert window.safe_offset == 4
