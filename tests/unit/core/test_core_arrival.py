import pytest

from broker.core.arrival import examine
from broker.store.key_index import key_hash, topic_seed
from txmq.errors import MessageIllegal, NoPermission
from txmq.limits import KEYS_PER_MESSAGE_MAX, PROPERTIES_BYTES_MAX
from txmq.protocol import properties
from txmq.protocol.java import string_hash

SEED = topic_seed("T")
CLUSTER = "CLUSTER\x01c1\x02"


def arrived(**values):
    return examined(properties.render(values))


def examined(text):
    data, unique, tags_code, hashes = examine(text, CLUSTER, SEED, lambda: "NEW")
    return properties.parse(data.decode()), unique, tags_code, hashes


def hashes_of(*keys):
    return tuple(key_hash(SEED, key) for key in keys)


def test_a_message_is_stored_with_the_name_of_its_cluster():
    """Go's request-reply looks for it."""
    assert arrived(UNIQ_KEY="u", a="b")[0] == {"UNIQ_KEY": "u", "a": "b", "CLUSTER": "c1"}


def test_a_cluster_that_a_client_claims_is_put_right():
    assert arrived(UNIQ_KEY="u", CLUSTER="other")[0] == {"UNIQ_KEY": "u", "CLUSTER": "c1"}


@pytest.mark.parametrize(
    "text",
    [
        "WAIT\x01true\x02UNIQ_KEY\x01u\x02",
        "UNIQ_KEY\x01u\x02WAIT\x01true\x02",
        "UNIQ_KEY\x01u\x02WAIT\x01false\x02",
        "UNIQ_KEY\x01u\x02WAIT\x01true",
    ],
)
def test_whether_to_wait_for_the_disk_is_not_stored(text):
    assert examined(text)[0] == {"UNIQ_KEY": "u", "CLUSTER": "c1"}


def test_a_message_without_an_id_gets_one():
    stored, unique, _, hashes = arrived(a="b")

    assert stored["UNIQ_KEY"] == unique == "NEW"
    assert hashes == hashes_of("NEW")


@pytest.mark.parametrize("text", ["", "a\x01b", "a\x01b\x02"])
def test_the_last_separator_may_be_missing(text):
    stored, _, _, _ = examined(text)

    assert stored == {**properties.parse(text), "UNIQ_KEY": "NEW", "CLUSTER": "c1"}


@pytest.mark.parametrize(("keys", "words"), [("k", ["k"]), ("k l", ["k", "l"]), ("", [])])
def test_a_message_can_be_found_by_its_id_and_by_each_of_its_keys(keys, words):
    assert arrived(UNIQ_KEY="u", KEYS=keys)[3] == hashes_of("u", *words)


def test_a_message_with_too_many_keys_is_found_by_the_first_of_them():
    keys = [f"k{number}" for number in range(KEYS_PER_MESSAGE_MAX + 10)]

    assert arrived(UNIQ_KEY="u", KEYS=" ".join(keys))[3] == hashes_of(
        "u", *keys[:KEYS_PER_MESSAGE_MAX]
    )


@pytest.mark.parametrize(("tag", "code"), [("A", string_hash("A")), ("", 0)])
def test_the_tag_goes_into_the_queue_as_javas_hash(tag, code):
    assert arrived(UNIQ_KEY="u", TAGS=tag)[2] == code


def test_of_a_property_given_twice_the_last_counts():
    assert examined("UNIQ_KEY\x01u\x02UNIQ_KEY\x01v\x02")[1] == "v"


def test_properties_that_only_look_alike_are_left_alone():
    stored, unique, tags_code, _ = arrived(UNIQ_KEY="u", MYTAGS="A", WAITING="x", NOTUNIQ_KEY="n")

    assert (unique, tags_code) == ("u", 0)
    assert stored["WAITING"] == "x"


def test_properties_may_be_as_long_as_a_record_can_say():
    room = PROPERTIES_BYTES_MAX - len("UNIQ_KEY\x01u\x02a\x01\x02" + CLUSTER)
    arrived(UNIQ_KEY="u", a="x" * room)

    with pytest.raises(MessageIllegal):
        arrived(UNIQ_KEY="u", a="x" * (room + 1))


@pytest.mark.parametrize("value", ["true", "TRUE"])
def test_half_messages_are_not_taken_yet(value):
    with pytest.raises(NoPermission):
        arrived(UNIQ_KEY="u", TRAN_MSG=value)


def test_delayed_messages_are_not_taken_yet():
    with pytest.raises(NoPermission):
        arrived(UNIQ_KEY="u", DELAY="3")


@pytest.mark.parametrize("values", [{"TRAN_MSG": "false"}, {"DELAY": "0"}])
def test_a_message_that_only_says_it_is_neither_is_an_ordinary_one(values):
    assert arrived(UNIQ_KEY="u", **values)[0] == {"UNIQ_KEY": "u", "CLUSTER": "c1", **values}
