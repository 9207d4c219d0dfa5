import pytest

from txmq.client.consume.subscription import TopicSubscription
from txmq.errors import LocalProtocolError
from txmq.limits import SUBSCRIPTION_CHARS_MAX


class Tagged:
    def __init__(self, tags):
        self.tags = tags


def test_without_tags_every_message_matches():
    everything = TopicSubscription("T")

    assert everything.wants(Tagged(""))
    assert everything.wants(Tagged("A"))
    assert not everything.by_tags


def test_tags_are_compared_by_their_text():
    some = TopicSubscription("T", "A || BB")

    # "BB" and "Aa" have one hash, by which a broker would let both through.
    assert [some.wants(Tagged(tag)) for tag in ("A", "BB", "Aa", "")] == [True, True, False, False]


def test_tags_are_registered_with_their_hashes():
    told = TopicSubscription("T", " B||A ").registration(7)

    assert (told.topic, told.sub_string, told.sub_version) == ("T", " B||A ", 7)
    assert (told.tags_set, told.code_set, told.expression_type) == (["A", "B"], [65, 66], "TAG")


def test_messages_of_a_sql_subscription_are_filtered_by_the_broker_alone():
    wanted = TopicSubscription("T", sql="a > 5")

    assert wanted.wants(Tagged("whatever"))
    told = wanted.registration(1)
    assert (told.sub_string, told.expression_type, told.tags_set) == ("a > 5", "SQL92", [])


@pytest.mark.parametrize(
    "given",
    [
        {"tags": "A", "sql": "a > 5"},
        {"tags": " || "},
        {"tags": "A | B"},
        {"tags": "A && B"},
        {"tags": "x" * (SUBSCRIPTION_CHARS_MAX + 1)},
    ],
)
def test_a_contradictory_or_malformed_subscription_is_refused(given):
    with pytest.raises(LocalProtocolError):
        TopicSubscription("T", **given)


@pytest.mark.parametrize("tags", ["*", " * ", "*||*", "* || "])
def test_every_spelling_of_all_tags_is_registered_as_one_star(tags):
    everything = TopicSubscription("T", tags)

    assert everything.wants(Tagged("A"))
    assert everything.expression == everything.registration(1).sub_string == "*"
    assert not everything.registration(1).code_set
