"""A batch is stored as the same messages would be that were sent one by one."""

from hypothesis import given
from hypothesis import strategies as st

from txmq.errors import MessageIllegal
from txmq.limits import PROPERTIES_BYTES_MAX
from txmq.protocol import properties
from txmq_broker.core.arrival import examine, examine_all
from txmq_broker.store.queue_store import topic_seed

SEED = topic_seed("T")
CLUSTER = "CLUSTER\x01c1\x02"
NAMES = st.sampled_from(
    ["UNIQ_KEY", "KEYS", "TAGS", "WAIT", "CLUSTER", "TRAN_MSG", "DELAY", "MYUNIQ_KEY", "a", ""]
)
VALUES = st.sampled_from(
    ["", "u", "v", "ä", "k l", "x\x01y", "UNIQ_KEY\x01z", "x" * PROPERTIES_BYTES_MAX]
)
PAIRS = st.one_of(st.builds("{}\x01{}".format, NAMES, VALUES), NAMES)
TEXTS = st.builds(
    lambda pairs, end: "\x02".join(pairs) + end,
    st.lists(PAIRS, max_size=4),
    st.sampled_from(["", "\x02"]),
)
ALIKE = st.builds(
    lambda before, values, after: [f"{before}UNIQ_KEY\x01{value}{after}" for value in values],
    TEXTS,
    st.lists(VALUES, min_size=1, max_size=4),
    st.one_of(TEXTS, TEXTS.map("\x02{}".format)),
)
BATCHES = st.one_of(ALIKE, st.lists(TEXTS, min_size=1, max_size=4))


def outcomes(arrivals):
    """What is found, up to the first that is refused."""
    found = []
    try:
        found.extend(arrivals)
    except MessageIllegal as problem:
        found.append(str(problem))
    return found


@given(BATCHES, TEXTS)
def test_each_message_of_a_batch_is_examined_as_if_it_were_alone(texts, shared):
    rules = CLUSTER, SEED, lambda: "NEW"

    alone = (examine(properties.join(text, shared), *rules) for text in texts)

    assert outcomes(examine_all(texts, shared, *rules)) == outcomes(alone)
