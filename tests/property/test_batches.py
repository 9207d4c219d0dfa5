"""A batch is stored like the same messages sent one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.errors import MessageIllegal
from txmq.limits import PROPERTIES_BYTES_MAX
from txmq.protocol import batch, properties
from txmq.protocol.batch import BatchColumns
from txmq_broker.core.batches import BatchShapes
from txmq_broker.core.sent_properties import examine, examine_all
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
    """The results, up to the first refusal."""
    found = []
    try:
        found.extend(arrivals)
    except MessageIllegal as problem:
        found.append(str(problem))
    return found


@given(BATCHES, TEXTS)
def test_a_batch_is_examined_like_its_messages_alone(texts, shared):
    rules = CLUSTER, SEED, lambda: "NEW"

    alone = [(properties.join(text, shared), *rules) for text in texts]

    assert outcomes(examine_all(texts, shared, *rules)) == outcomes(
        examine(*given) for given in alone
    )


FEW = st.text("uk \x01\x02ä", min_size=1, max_size=2)
OPTIONS = ["TAGS\x01A", "TAGS\x01B", "WAIT\x01true", "DELAY\x013", "TRAN_MSG\x01true", "KEYS\x01s"]
PATTERNS = st.tuples(
    st.permutations(["UNIQ_KEY\x01{u}", "KEYS\x01{k}", "a\x01b"]),
    st.lists(st.sampled_from(OPTIONS), max_size=2),
    st.sampled_from(["", "\x02"]),
).map(lambda parts: "\x02".join([*parts[0], *parts[1]]) + parts[2])
"""What the properties of several messages look like; it may leave out the keys."""


@st.composite
def nearly_uniform(draw):
    """Messages of one pattern with short values, so that most have equal sizes."""
    pattern = draw(st.one_of(PATTERNS, PATTERNS.map(lambda text: text.replace("KEYS\x01{k}", "c"))))
    values = st.builds(
        lambda unique, keys: pattern.format(u=unique, k=keys),
        st.sampled_from(["u1", "u2", "u3", "u ", "u\x02", "ä"]),
        st.sampled_from(["k1", "k2", "k ", "\x01k"]),
    )
    texts = draw(st.lists(values, min_size=2, max_size=4))
    flags = st.sampled_from([7, 7, 7, -1])
    bodies = st.sampled_from([b"b1", b"b2", b"b"])
    return [(draw(flags), draw(bodies), text) for text in texts]


def each_stored(found):
    """The stored properties of each message of a uniform batch."""
    shape = found.shape
    for values in zip(*found.columns[1:], strict=True):
        parts = zip(shape.fixed, [*values, b""], strict=True)
        yield b"".join([fixed + value for fixed, value in parts])


@given(
    st.lists(nearly_uniform(), min_size=1, max_size=3),
    st.sampled_from(["", "c\x01d\x02", "KEYS\x01s"]),
)
def test_a_uniform_batch_is_examined_like_its_messages_alone(batches, shared):
    shapes = BatchShapes(CLUSTER, lambda: "NEW")
    for items in batches:
        found = shapes.read(batch.pack(items), shared, SEED)
        if found is None:
            continue

        texts = [properties.join(text, shared) for _, _, text in items]
        alone = [examine(text, CLUSTER, SEED, lambda: "NEW") for text in texts]
        assert list(each_stored(found)) == [arrival[0] for arrival in alone]
        assert found.unique == alone[0][1]
        assert list(found.key_hashes) == [hashed for arrival in alone for hashed in arrival[3]]
        shape = found.shape
        assert [(shape.tags_code, shape.special)] * len(items) == [
            (arrival[2], arrival[4]) for arrival in alone
        ]
        assert list(zip(found.columns[0], [shape.flag] * len(items), strict=True)) == [
            (body, flag) for flag, body, _ in items
        ]
        assert shape.size == len(alone[0][0])


@given(st.lists(st.binary(min_size=3, max_size=3), min_size=2, max_size=40), st.booleans())
def test_messages_that_differ_only_in_body_and_keys_form_a_uniform_batch(bodies, has_keys):
    keys = "KEYS\x01k{0:02}\x02" if has_keys else ""
    pattern = f"TAGS\x01A\x02{keys}UNIQ_KEY\x01u{{0:02}}\x02WAIT\x01true\x02"
    items = [(0, body, pattern.format(number)) for number, body in enumerate(bodies)]

    found = BatchShapes(CLUSTER, lambda: "NEW").read(batch.pack(items), "", SEED)

    assert found is not None
    assert list(found.columns[0]) == bodies


@pytest.mark.parametrize(
    "texts",
    [
        ["UNIQ_KEY\x01a\x02KEYS\x01k l", "UNIQ_KEY\x01b\x02KEYS\x01k m"],
        ["UNIQ_KEY\x01a\x02UNIQ_KEY\x01z", "UNIQ_KEY\x01b\x02UNIQ_KEY\x01z"],
        ["MYKEYS\x01a\x02UNIQ_KEY\x01z", "MYKEYS\x01b\x02UNIQ_KEY\x01z"],
        ["KEYS\x01a\x02", "KEYS\x01b\x02"],
        ["UNIQ_KEY\x01\x02", "UNIQ_KEY\x01\x02"],
        ["UNIQ_KEY\x01a\x02TAGS\x01A", "UNIQ_KEY\x01b\x02TAGS\x01B"],
        ["UNIQ_KEY\x01äx\x02", "UNIQ_KEY\x01xä\x02"],
        ["UNIQ_KEY\x01a\x02", "UNIQ_KEY\x01\x02\x02"],
    ],
)
def test_messages_that_differ_in_other_properties_are_not_uniform(texts):
    data = batch.pack([(0, b"body", text) for text in texts])

    assert BatchShapes(CLUSTER, lambda: "NEW").read(data, "", SEED) is None


@pytest.mark.parametrize("at", [0, 1], ids=["the first", "a later one"])
def test_messages_with_another_head_are_not_uniform(at):
    items = [(0, b"body", f"UNIQ_KEY\x01{number}\x02") for number in range(2)]
    columns = BatchColumns(batch.equal_messages(batch.pack(items)), [0, 9, 10, 11])
    assert columns.cut(batch.pack(items)) == [(b"body", b"body"), (b"0", b"1")]

    items[at] = (1, *items[at][1:])

    assert columns.cut(batch.pack(items)) is None


def test_a_batch_with_broken_utf_8_is_not_uniform():
    data = batch.pack([(0, b"body", f"UNIQ_KEY\x01{number}\x02") for number in range(2)])
    for broken in (
        data.replace(b"\x011\x02", b"\x01\xff\x02"),
        data.replace(b"UNIQ_KEY", b"UNIQ_KE\xff"),
    ):
        assert BatchShapes(CLUSTER, lambda: "NEW").read(broken, "", SEED) is None


@given(st.binary(max_size=80), st.integers(0, 79))
def test_broken_bytes_are_not_taken_for_a_uniform_batch(garbage, at):
    whole = batch.pack([(0, b"body", f"UNIQ_KEY\x01{number}\x02") for number in range(3)])
    shapes = BatchShapes(CLUSTER, lambda: "NEW")
    for data in (garbage, whole[:at], whole[:at] + garbage + whole[at + len(garbage) :]):
        found = shapes.read(data, "", SEED)
        if found is not None:
            assert [item[1] for item in batch.unpack(data)] == list(found.columns[0])
