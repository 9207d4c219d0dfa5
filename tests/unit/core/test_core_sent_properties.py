import pytest

from txmq.errors import MessageIllegal
from txmq.limits import KEYS_PER_MESSAGE_MAX, PROPERTIES_BYTES_MAX, PROPERTIES_OF_HALF_MAX
from txmq.protocol import properties
from txmq.protocol.java import string_hash
from txmq.protocol.record import real_place
from txmq_broker.core.sent_properties import (
    examine,
    examine_all,
    missing_marks,
    refuse_delay,
    terms_of,
)
from txmq_broker.store.queue_store import key_hash, topic_seed

SEED = topic_seed("T")
CLUSTER = "CLUSTER\x01c1\x02"


def arrived(**values):
    return examined(properties.render(values))


def examined(text):
    data, unique, tags_code, hashes, special = examine(text, CLUSTER, SEED, lambda: "NEW")
    assert not terms_of(special).is_marked
    refuse_delay(special or {}, "this")
    return properties.parse(data.decode()), unique, tags_code, hashes


def hashes_of(*keys):
    return tuple(key_hash(SEED, key) for key in keys)


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("UNIQ_KEY\x01u\x02a\x01b\x02", {"a": "b"}),
        ("UNIQ_KEY\x01u\x02CLUSTER\x01other\x02", {}),
        ("WAIT\x01true\x02UNIQ_KEY\x01u\x02", {}),
        ("UNIQ_KEY\x01u\x02WAIT\x01true\x02", {}),
        ("UNIQ_KEY\x01u\x02WAIT\x01false\x02", {}),
        ("UNIQ_KEY\x01u\x02WAIT\x01true", {}),
        ("UNIQ_KEY\x01u\x02TRAN_MSG\x01false\x02", {"TRAN_MSG": "false"}),
        ("UNIQ_KEY\x01u\x02DELAY\x010\x02", {"DELAY": "0"}),
        ("UNIQ_KEY\x01u\x02TIMER_DELAY_SEC\x010\x02", {"TIMER_DELAY_SEC": "0"}),
    ],
)
def test_a_message_is_stored_with_the_name_of_its_own_cluster_and_without_wait(text, stored):
    """Go's request-reply looks for the cluster; a message neither half nor delayed is ordinary."""
    assert examined(text)[0] == {"UNIQ_KEY": "u", "CLUSTER": "c1", **stored}


def test_a_message_without_a_unique_key_gets_one():
    stored, unique, _, hashes = arrived(a="b")

    assert stored["UNIQ_KEY"] == unique == "NEW"
    assert hashes == hashes_of("NEW")


@pytest.mark.parametrize("text", ["", "a\x01b", "a\x01b\x02"])
def test_the_last_separator_of_the_properties_can_be_missing(text):
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
def test_the_tag_is_stored_in_the_queue_as_its_java_hash(tag, code):
    assert arrived(UNIQ_KEY="u", TAGS=tag)[2] == code


def test_the_last_value_of_a_repeated_property_counts():
    assert examined("UNIQ_KEY\x01u\x02UNIQ_KEY\x01v\x02")[1] == "v"


@pytest.mark.parametrize("name", ["a", "UNIQ_KEY", "TAGS", "KEYS", "DELAY", "TRAN_MSG", ""])
def test_a_property_without_a_value_is_not_stored(name):
    """It has no meaning, and a search for a property would have to pass thousands of them."""
    mark = f"{name}\x01\x02"
    data, *_ = examine(f"{mark * 3}UNIQ_KEY\x01u\x02{mark}b{mark}", CLUSTER, SEED, lambda: "NEW")

    assert data.decode() == f"UNIQ_KEY\x01u\x02{CLUSTER}"


def test_properties_with_similar_names_are_left_alone():
    stored, unique, tags_code, _ = arrived(UNIQ_KEY="u", MYTAGS="A", WAITING="x", NOTUNIQ_KEY="n")

    assert (unique, tags_code) == ("u", 0)
    assert stored["WAITING"] == "x"


def test_the_length_of_the_properties_is_limited():
    room = PROPERTIES_BYTES_MAX - len("UNIQ_KEY\x01u\x02a\x01\x02" + CLUSTER)
    arrived(UNIQ_KEY="u", a="x" * room)

    with pytest.raises(MessageIllegal):
        arrived(UNIQ_KEY="u", a="x" * (room + 1))


@pytest.mark.parametrize("value", ["true", "TRUE", "True"])
def test_a_message_can_be_a_half_message_by_its_properties_alone(value):
    *_, special = examine(properties.render({"TRAN_MSG": value}), CLUSTER, SEED, lambda: "NEW")

    assert terms_of(special).is_marked


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_a_message_with_a_delay_property_is_recognised_as_delayed(name):
    with pytest.raises(MessageIllegal, match=name):
        arrived(UNIQ_KEY="u", **{name: "3"})


# --- batches ---

U, V = "UNIQ_KEY\x01u\x02", "UNIQ_KEY\x01v\x02"
TAGGED = "TAGS\x01A\x02"


@pytest.mark.parametrize(
    ("texts", "shared"),
    [
        pytest.param([U, V, U], "", id="alike"),
        pytest.param([TAGGED + U, TAGGED + V], "a\x01b\x02", id="tagged-and-shared"),
        pytest.param([U + "KEYS\x01k\x02", V + "KEYS\x01k\x02"], "", id="same-key"),
        pytest.param([U, V + "KEYS\x01k\x02", V], "", id="one-has-a-key"),
        pytest.param([U + TAGGED, V + "TAGS\x01B\x02", V], "", id="tags-differ"),
        pytest.param([U, "UNIQ_KEY\x01\x02", "", V], "", id="some-without-id"),
        pytest.param([U + U, U + V, V + U], "", id="two-ids"),
        pytest.param([U, V], U, id="shared-id"),
        pytest.param([U[:-1], V[:-1], V], TAGGED, id="no-last-separator"),
        pytest.param(["UNIQ_KEY\x01ä\x02" + TAGGED, V + TAGGED], "", id="long-in-bytes"),
        pytest.param([U, "UNIQ_KEY\x01a\x01b\x02"], "", id="mark-in-an-id"),
        pytest.param(["MYUNIQ_KEY\x01NEW\x02", "MYUNIQ_KEY\x01v\x02"], "", id="looks-alike"),
        pytest.param([U, V], "DELAY\x013\x02", id="special"),
    ],
)
def test_each_message_of_a_batch_is_examined_as_a_single_message(texts, shared):
    rules = CLUSTER, SEED, lambda: "NEW"

    alone = [examine(properties.join(text, shared), *rules) for text in texts]

    assert list(examine_all(texts, shared, *rules)) == alone


def test_a_batch_with_a_too_long_unique_key_is_refused():
    texts = [U, f"UNIQ_KEY\x01{'x' * PROPERTIES_BYTES_MAX}\x02"]

    with pytest.raises(MessageIllegal, match="properties"):
        list(examine_all(texts, "", CLUSTER, SEED, lambda: "NEW"))


# --- half messages ---


def half_arrived(text="", group="P"):
    marks = missing_marks(examine(text, CLUSTER, SEED, lambda: "NEW"), group)
    data, unique, _, _, special = examine(
        properties.join(text, marks), CLUSTER, SEED, lambda: "NEW"
    )
    terms = terms_of(special)
    return properties.parse(data.decode()), unique, terms.group, terms.immunity_s


def test_a_half_message_is_stored_with_its_transaction_properties():
    values = {
        "TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "u", "KEYS": "k l", "TAGS": "A",
        "CHECK_IMMUNITY_TIME_IN_SECONDS": "30",
    }  # fmt: skip

    text = properties.render({**values, "WAIT": "true", "CLUSTER": "other"})
    arrival = examine(text, CLUSTER, SEED, lambda: "NEW")
    data, unique, tags_code, hashes, special = arrival

    assert missing_marks(arrival, "other") == ""
    assert properties.parse(data.decode()) == {**values, "CLUSTER": "c1"}
    assert (unique, tags_code) == ("u", string_hash("A"))
    assert hashes == hashes_of("u", "k", "l")
    assert terms_of(special) == (True, "P", 30, False)


@pytest.mark.parametrize("text", ["", "a\x01b", "a\x01b\x02"])
def test_a_half_message_declared_by_its_header_gets_the_missing_properties(text):
    stored, unique, group, immunity_s = half_arrived(text)

    expected = {**properties.parse(text), "TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "NEW"}
    assert stored == {**expected, "CLUSTER": "c1"}
    assert (unique, group, immunity_s) == ("NEW", "P", 0)


def test_the_last_of_several_groups_of_a_half_message_counts():
    stored, _, group, _ = half_arrived("PGROUP\x01a\x02PGROUP\x01b\x02PGROUP\x01\x02", "c")

    assert group == stored["PGROUP"] == "b"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("30", 30), ("0", 0), ("-1", 0), ("1.5", 0), ("x", 0), ("", 0), ("\u0663", 0),
        ("9" * 40, None),
    ],
)  # fmt: skip
def test_a_producer_can_set_the_check_immunity_time(value, seconds):
    text = f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{value}\x02"

    *_, immunity_s = half_arrived(text)

    assert immunity_s == (0xFFFF_FFFF if seconds is None else seconds)


@pytest.mark.parametrize("value", ["", "0"])
def test_a_half_message_with_a_delay_of_zero_is_accepted(value):
    stored, *_ = half_arrived(f"DELAY\x01{value}\x02UNIQ_KEY\x01u\x02")

    assert stored["UNIQ_KEY"] == "u"


def test_the_properties_of_a_half_message_leave_room_for_its_delivery():
    frame = "TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01u\x02a\x01\x02"
    room = PROPERTIES_OF_HALF_MAX - len(frame + CLUSTER)
    half_arrived(frame.replace("a\x01", "a\x01" + "x" * room))

    with pytest.raises(MessageIllegal, match=str(PROPERTIES_OF_HALF_MAX)):
        half_arrived(frame.replace("a\x01", "a\x01" + "x" * (room + 1)))


@pytest.mark.parametrize("text", ["", f"PGROUP\x01{'g' * 256}\x02"])
def test_the_group_name_of_a_half_message_is_limited(text):
    half_arrived(group="g" * 255)

    with pytest.raises(MessageIllegal, match="255"):
        half_arrived(text, group="g" * 256)


@pytest.mark.parametrize("mark", ["\x01", "\x02"])
def test_a_group_name_with_property_separators_is_refused(mark):
    with pytest.raises(MessageIllegal, match="control"):
        half_arrived(group=f"g{mark}UNIQ_KEY")


def test_a_half_message_declared_by_its_header_can_have_an_immunity_time():
    text = "PGROUP\x01P\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0130\x02"

    assert half_arrived(text)[3] == 30


def test_the_room_left_is_enough_for_the_longest_topic_and_queue():
    assert len(b"\x02" + real_place("x" * 127, 2**31 - 1)) <= 256
