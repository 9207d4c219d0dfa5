import pytest

from tests.unit.core.core_log import V4, V6, Log
from txmq.limits import FILTER_SCAN_BYTES_MAX, PULL_BYTES_MAX, PULL_MESSAGES_MAX, PULL_SCAN_MAX
from txmq.protocol import record as records
from txmq.protocol.java import string_hash
from txmq_broker.core.fetch import FetchOutcome, fetch
from txmq_broker.core.filter.condition import Condition
from txmq_broker.core.filter.filters import tag_filter


@pytest.fixture
def log():
    return Log()


def wanted(text):
    return tag_filter(text)


def got(log, queue, offset=0, count=32, **given):
    found = fetch(log.store, queue, offset, count, **given)
    return found.outcome, found.next_offset, bodies(found)


def bodies(found):
    unpacked = list(records.unpack_all(b"".join(found.records)))
    assert len(unpacked) == found.messages
    return [record.body for record in unpacked]


def assert_damaged(log, queue, offset, position, **given):
    """A pull that begins with the damage returns no message, and the place of the damage."""
    found = fetch(log.store, queue, offset, 32, **given)
    assert (found.outcome, found.next_offset) == (FetchOutcome.DAMAGED, offset)
    assert (found.records, found.messages) == ([], 0)
    assert found.damage.position == position


# Filters


@pytest.mark.parametrize("text", ["", "*", " * ", "A || *", "||"])
def test_an_expression_that_accepts_everything_gives_no_filter(text):
    assert wanted(text) is None


def test_a_tag_filter_has_the_words_and_their_hashes():
    found = wanted(" A ||B|| A")

    assert found.words == {"A", "B"}
    assert found.hashes == {string_hash("A"), string_hash("B")}


def test_hashes_are_compared_without_their_sign():
    assert string_hash("urgent") < 0
    assert wanted("urgent").hashes == {string_hash("urgent") & 0xFFFFFFFF}


# Bounds


@pytest.mark.parametrize(
    ("offset", "outcome"),
    [(0, FetchOutcome.EMPTY), (1, FetchOutcome.PAST_END), (-1, FetchOutcome.TOO_SMALL)],
)
def test_in_an_empty_queue_a_pull_can_wait_only_at_its_start(log, offset, outcome):
    assert got(log, log.store.queue("T", 0), offset) == (outcome, 0, [])


@pytest.mark.parametrize(
    ("is_deleted", "offset", "outcome", "following", "found"),
    [
        (False, -1, FetchOutcome.TOO_SMALL, 0, []),
        (False, 0, FetchOutcome.FOUND, 3, [b"0", b"1", b"2"]),
        (False, 2, FetchOutcome.FOUND, 3, [b"2"]),
        (False, 3, FetchOutcome.AT_END, 3, []),
        (False, 4, FetchOutcome.PAST_END, 3, []),
        (False, 99, FetchOutcome.PAST_END, 3, []),
        # A queue whose messages are all deleted starts where it ends.
        (True, 2, FetchOutcome.TOO_SMALL, 3, []),
        (True, 3, FetchOutcome.AT_END, 3, []),
        (True, 4, FetchOutcome.PAST_END, 3, []),
    ],
)
def test_the_outcome_depends_on_the_offset_inside_at_or_outside_the_bounds(
    log, is_deleted, offset, outcome, following, found
):
    queue = log.put("T", b"0", b"1", b"2")
    if is_deleted:
        log.store.queues.forget_topic("T")

    assert got(log, queue, offset) == (outcome, following, found)


# Limits


@pytest.mark.parametrize(("count", "given"), [(2, 2), (0, 1), (-5, 1), (10, 10), (999, 32)])
def test_the_number_of_messages_of_an_answer_is_limited(log, count, given):
    queue = log.put("T", *[b"%d" % number for number in range(40)])

    outcome, following, found = got(log, queue, 0, count)
    assert (outcome, following, len(found)) == (FetchOutcome.FOUND, given, given)
    assert given <= PULL_MESSAGES_MAX


def test_an_answer_is_limited_in_bytes_but_has_at_least_one_message(log):
    queue = log.put("T", b"a" * 1000, b"b" * 1000, b"c" * 1000)

    assert len(got(log, queue, bytes_max=2500)[2]) == 2
    assert got(log, queue, bytes_max=1)[1:] == (1, [b"a" * 1000])
    assert got(log, queue, 1, bytes_max=0)[1:] == (2, [b"b" * 1000])


def test_a_large_message_gets_an_answer_of_its_own(log):
    queue = log.put("T", b"small", b"x" * 300_000)

    assert got(log, queue)[1:] == (1, [b"small"])
    assert got(log, queue, 1)[1:] == (2, [b"x" * 300_000])


# Tags


def test_only_messages_with_wanted_tags_are_returned(log):
    log.put("T", b"a", tags="A")
    log.put("T", b"b", tags="B")
    queue = log.put("T", b"c")

    assert got(log, queue, wanted=wanted("A || X")) == (FetchOutcome.FOUND, 3, [b"a"])
    assert got(log, queue, wanted=wanted("B")) == (FetchOutcome.FOUND, 3, [b"b"])
    assert got(log, queue, wanted=wanted("X")) == (FetchOutcome.NO_MATCH, 3, [])


def test_a_tag_with_an_equal_hash_does_not_match(log):
    queue = log.put("T", b"other", tags="BB", hashed=string_hash("Aa"))

    assert string_hash("Aa") == string_hash("BB")
    assert got(log, queue, wanted=wanted("Aa")) == (FetchOutcome.NO_MATCH, 1, [])


def test_messages_that_do_not_match_do_not_count_towards_the_limit(log):
    for number in range(10):
        queue = log.put("T", b"%d" % number, tags="A" if number % 2 else "B")

    assert got(log, queue, 0, 2, wanted=wanted("A")) == (FetchOutcome.FOUND, 5, [b"1", b"3"])
    assert got(log, queue, 5, 3, wanted=wanted("A")) == (FetchOutcome.FOUND, 10, [b"5", b"7", b"9"])


def test_tags_with_equal_hashes_do_not_count_towards_the_limit(log):
    for _ in range(3):
        log.put("T", b"other", tags="BB", hashed=string_hash("Aa"))
    queue = log.put("T", b"1", b"2", tags="Aa")

    found = got(log, queue, 0, 2, wanted=wanted("Aa"))
    assert found == (FetchOutcome.FOUND, 5, [b"1", b"2"])


def test_an_answer_with_a_tag_filter_is_limited_in_bytes(log):
    queue = log.put("T", b"a" * 1000, b"b" * 1000, tags="A")

    found = got(log, queue, bytes_max=1500, wanted=wanted("A"))
    assert found == (FetchOutcome.FOUND, 1, [b"a" * 1000])


def test_a_pull_scans_a_limited_number_of_entries(log):
    log.put("T", *[b"x"] * PULL_SCAN_MAX, tags="B")
    queue = log.put("T", b"wanted", tags="A")

    assert got(log, queue, wanted=wanted("A")) == (FetchOutcome.NO_MATCH, PULL_SCAN_MAX, [])
    assert got(log, queue, PULL_SCAN_MAX, wanted=wanted("A"))[2] == [b"wanted"]


# Conditions


def put(log, *numbers, size=1, born=V4):
    for number in numbers:
        queue = log.put("T", b"%d" % number * size, more={"n": str(number)}, born=born)
    return queue


def test_only_messages_that_match_the_condition_are_returned(log):
    queue = put(log, *range(10))

    assert got(log, queue, wanted=Condition("n between 3 and 5")) == (
        FetchOutcome.FOUND, 10, [b"3", b"4", b"5"],
    )  # fmt: skip
    assert got(log, queue, wanted=Condition("n > 9")) == (FetchOutcome.NO_MATCH, 10, [])
    assert got(log, queue, wanted=Condition("x = 1")) == (FetchOutcome.NO_MATCH, 10, [])
    assert got(log, queue, 4, wanted=Condition("n <> 5"))[2] == [b"4", *list(bodies_of(6, 10))]


def bodies_of(first, end):
    return [b"%d" % number for number in range(first, end)]


@pytest.mark.parametrize("born", [V4, V6])
def test_a_condition_works_on_messages_with_ipv4_and_ipv6_addresses(log, born):
    queue = put(log, 1, 2, born=born)

    assert got(log, queue, wanted=Condition("n = 2"))[2] == [b"2"]


def test_a_message_whose_condition_fails_is_passed_over(log):
    queue = log.put("T", b"odd", more={"n": "odd"})
    put(log, 7)

    assert got(log, queue, wanted=Condition("n = 7 OR TRUE")) == (FetchOutcome.FOUND, 2, [b"7"])


def test_the_next_offset_follows_the_last_returned_message(log):
    queue = put(log, *range(40))

    assert got(log, queue, 0, 2, wanted=Condition("n > 4"))[1:] == (7, [b"5", b"6"])
    assert got(log, queue, 7, 2, wanted=Condition("n > 4"))[1:] == (9, [b"7", b"8"])
    assert got(log, queue, 0, 99, wanted=Condition("n >= 0"))[1] == PULL_MESSAGES_MAX


def test_an_answer_with_a_condition_is_limited_in_bytes(log):
    queue = put(log, 1, 2, 3, 4, size=1000)
    odd = Condition("n in ('1', '4')")

    assert got(log, queue, bytes_max=1500, wanted=odd)[1:] == (3, [b"1" * 1000])
    assert got(log, queue, 3, bytes_max=1, wanted=odd)[1:] == (4, [b"4" * 1000])
    assert got(log, queue, bytes_max=1, wanted=odd)[1:] == (1, [b"1" * 1000])


def test_a_pull_with_a_condition_reads_a_limited_number_of_messages(log):
    log.put("T", *[b"x"] * PULL_SCAN_MAX)
    queue = put(log, 1)

    found = got(log, queue, wanted=Condition("n = 1"))
    assert found == (FetchOutcome.NO_MATCH, PULL_SCAN_MAX, [])
    assert got(log, queue, PULL_SCAN_MAX, wanted=Condition("n = 1"))[2] == [b"1"]


def test_a_pull_with_a_condition_reads_a_limited_number_of_bytes(log):
    queue = log.put("T", *[b"x" * PULL_BYTES_MAX] * 20)
    put(log, 1)

    outcome, following, found = got(log, queue, wanted=Condition("n = 1"))
    assert (outcome, found) == (FetchOutcome.NO_MATCH, [])
    assert following == FILTER_SCAN_BYTES_MAX // PULL_BYTES_MAX


@pytest.mark.parametrize(
    ("digits", "least", "most"), [(30_000, 1, 4), (1, 21, 39)], ids=["long values", "many parts"]
)
def test_a_costly_condition_is_tested_on_fewer_messages(log, digits, least, most):
    queue = log.put("T", *[b"x"] * 200, more={"n": "9" * digits})

    outcome, following, found = got(log, queue, wanted=Condition(" OR ".join(["n = 1"] * 512)))
    assert (outcome, found) == (FetchOutcome.NO_MATCH, [])
    assert least <= following <= most


# Reading


def test_messages_far_apart_in_the_log_are_returned_together(log):
    queue = log.put("T", b"first")
    log.put("U", b"x" * 100_000)
    log.put("T", b"second")
    log.put("T", b"third", born=V6)

    assert got(log, queue)[2] == [b"first", b"second", b"third"]
    assert got(log, queue, 1)[2] == [b"second", b"third"]


def test_messages_in_several_files_of_the_log_are_returned():
    size = 16 * 1024 * 1024
    log = Log(segment_size=size)
    for number in range(4):
        queue = log.put("T", b"%d" % number * (size // 2 - 4096))

    starts = [got(log, queue, number)[2][0][:1] for number in range(4)]
    assert starts == [b"0", b"1", b"2", b"3"]


def test_messages_before_and_after_a_checkpoint_are_returned_in_order(log):
    queue = log.put("T", b"0", b"1")
    log.checkpoint()
    log.put("T", b"2" * 1000, b"3")

    assert got(log, queue)[2] == [b"0", b"1", b"2" * 1000, b"3"]
    assert got(log, queue, bytes_max=600)[1:] == (2, [b"0", b"1"])
    assert got(log, queue, 2, bytes_max=600)[1:] == (3, [b"2" * 1000])


@pytest.mark.parametrize("born", [V4, V6])
@pytest.mark.parametrize("place", [0, 4, 28, 150])
def test_a_damaged_message_is_never_returned(log, place, born):
    queue = log.put("T", b"x" * 100, born=born)
    position = queue.read(0, 1)[0][0]
    file = log.disk.open("log/" + log.disk.names("log")[0])
    byte = file.read(position + place, 1)
    file.write(position + place, bytes([byte[0] ^ 1]))

    assert_damaged(log, queue, 0, position)


@pytest.mark.parametrize("lengths", [(9, 9, 9), (9, 300, 1)], ids=["equal", "unequal"])
def test_damage_is_found_in_any_of_several_adjacent_messages(log, lengths):
    queue = log.put("T", *[b"x" * length for length in lengths])
    assert len(fetch(log.store, queue, 0, 32).records) == 1
    file = log.disk.open("log/" + log.disk.names("log")[0])
    for offset, (position, size, _, _) in enumerate(queue.read(0, 3)):
        last = file.read(position + size - 1, 1)
        file.write(position + size - 1, b"!")

        assert fetch(log.store, queue, 0, 32).messages == offset
        assert_damaged(log, queue, offset, position)
        assert fetch(log.store, queue, offset + 1, 32).messages == 2 - offset
        file.write(position + size - 1, last)


def test_damage_outside_the_checksum_is_found_by_a_tag_filter(log):
    queue = log.put("T", b"x", tags="A")
    position = queue.read(0, 1)[0][0]
    file = log.disk.open("log/" + log.disk.names("log")[0])
    file.write(position + 88 + 1 + 2, b"\x7f")

    assert_damaged(log, queue, 0, position, wanted=wanted("A"))


def test_an_entry_that_points_to_no_message_is_damage(log):
    queue = log.put("T", b"x" * 100)
    queue._tail[0:8] = (1 << 40).to_bytes(8, "big")

    assert_damaged(log, queue, 0, 1 << 40)
