"""Which texts become patterns, and how many."""

import pytest

from txmq_broker.core.arrival import PatternShelf, examine

CLUSTER = "CLUSTER\x01c1\x02"
JAVA = "KEYS\x01{}\x02UNIQ_KEY\x01{}\x02WAIT\x01true\x02TAGS\x01a\x02"


def examined(text, patterns):
    return examine(text, CLUSTER, 7, lambda: "NEW", patterns)


@pytest.mark.parametrize(
    "shape",
    [
        JAVA,
        "TAGS\x01a\x02UNIQ_KEY\x01{1}\x02KEYS\x01{0}",
        "UNIQ_KEY\x01{1}\x02",
        "UNIQ_KEY\x01{1}\x02WAIT\x01true\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02",
    ],
)
def test_the_next_message_of_a_kind_teaches_nothing_new(shape):
    patterns = PatternShelf().new_topic()

    examined(shape.format("k1", "u1"), patterns)
    learned = patterns.known
    examined(shape.format("k2 k3", "u2"), patterns)

    assert learned
    assert patterns.known is learned


def test_a_topic_keeps_the_patterns_of_a_few_kinds():
    patterns = PatternShelf().new_topic()

    for number in range(1_000):
        examined(f"UNIQ_KEY\x01u\x02different\x01{number}\x02", patterns)

    assert len(patterns.known) == 4


def test_a_topic_with_other_texts_each_time_learns_from_few_of_them():
    patterns = PatternShelf().new_topic()
    learned = set()

    for number in range(1_000):
        examined(f"UNIQ_KEY\x01u\x02different\x01{number}\x02", patterns)
        learned.add(patterns.known[0])

    assert len(learned) < 25


def test_a_broker_with_many_topics_forgets_the_oldest_patterns():
    shelf = PatternShelf(patterns_max=2)
    topics = [shelf.new_topic() for _ in range(3)]

    for topic in topics:
        examined(JAVA.format("k", "u"), topic)

    assert [len(topic.known) for topic in topics] == [0, 1, 1]


def test_a_long_text_is_not_kept():
    patterns = PatternShelf().new_topic()

    examined("UNIQ_KEY\x01u\x02a\x01" + "x" * 1_000, patterns)

    assert not patterns.known
