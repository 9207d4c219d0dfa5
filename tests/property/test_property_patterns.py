"""Learned patterns find in a text what the loop over its pairs finds."""

from hypothesis import given
from hypothesis import strategies as st

from txmq_broker.core.arrival import NO_PATTERNS, PatternShelf, examine
from txmq_broker.store.queue_store import topic_seed

RULES = ("CLUSTER\x01c1\x02", topic_seed("T"), lambda: "NEW")
NAMES = st.sampled_from(
    ["UNIQ_KEY", "KEYS", "TAGS", "WAIT", "CLUSTER", "TRAN_MSG", "DELAY", "xUNIQ_KEY", "a%s", ""]
)
VALUES = st.sampled_from(
    ["", "u", "v", "ä%d", "k l", "x\x01y", "\x01", "UNIQ_KEY\x01z", "\0", "true"]
)
PAIRS = st.one_of(st.builds("{}\x01{}".format, NAMES, VALUES), NAMES, st.text(max_size=3))
ENDS = st.sampled_from(["", "\x02", "\x02\x02"])
ANY = st.builds(lambda pairs, end: "\x02".join(pairs) + end, st.lists(PAIRS, max_size=5), ENDS)
SHAPES = st.builds(
    lambda parts, end: "\x02".join(parts) + end,
    st.permutations(
        ["UNIQ_KEY\x01{0}", "KEYS\x01{1}", "TAGS\x01t", "WAIT\x01true", "a\x01b"]
    ).flatmap(lambda parts: st.integers(1, 5).map(lambda count: parts[:count])),
    ENDS,
)
ALIKE = st.builds(
    lambda shape, values: [shape.format(*pair) for pair in values],
    SHAPES,
    st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=6),
)
SERIES = st.one_of(
    ALIKE, st.lists(ANY, min_size=2, max_size=6), st.builds(list.__add__, ALIKE, ALIKE)
)


@given(SERIES)
def test_a_text_read_by_patterns_is_read_as_without_them(texts):
    patterns = PatternShelf().new_topic()

    found = [examine(text, *RULES, patterns) for text in texts]

    assert found == [examine(text, *RULES) for text in texts]
    assert not NO_PATTERNS.known
