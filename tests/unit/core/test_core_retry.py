"""What becomes of messages that were given back: when they come again, and why they do not."""

import pytest

from txmq.limits import PROPERTIES_BYTES_MAX, REASON_CHARS_MAX
from txmq.protocol.bodies import GroupConfig
from txmq.protocol.properties import parse, render
from txmq.protocol.record import Record, host_bytes
from txmq_broker.config import DelaySettings
from txmq_broker.core.clients import ConsumerGroup, Member
from txmq_broker.core.retry import (
    RetryVerdict,
    apply_verdict,
    dead_letter_properties,
    exhaustion_reason,
    judge_retry,
    retry_maximum,
)

LEVELS = DelaySettings().levels.split()
SECONDS = {"s": 1, "m": 60, "h": 3600}

# Seed 000: the retry, and how long after the one before it comes.
TABLE = [
    (1, "10s"), (2, "30s"), (3, "1m"), (4, "2m"), (5, "3m"), (6, "4m"), (7, "5m"), (8, "6m"),
    (9, "7m"), (10, "8m"), (11, "9m"), (12, "10m"), (13, "20m"), (14, "30m"), (15, "1h"),
    (16, "2h"),
]  # fmt: skip


def seconds(text):
    return int(text[:-1]) * SECONDS[text[-1]]


def record(topic="T", attempts=0, text="", **named):
    host = host_bytes("10.0.0.1", 10911)
    text = text or render({"UNIQ_KEY": "U1"} | named)
    return Record(0, 0, 5, 4096, 0, 1, host, 2, host, attempts, 0, b"body", topic, text)


# When


@pytest.mark.parametrize(("retry", "after"), TABLE)
def test_each_retry_comes_by_the_seeds_table(retry, after):
    verdict = judge_retry(retry - 1, 16, 0)

    assert LEVELS[verdict.level - 1] == after
    assert not verdict.reason


def test_the_whole_table_takes_four_hours_and_three_quarters():
    assert sum(seconds(after) for _, after in TABLE) == 4 * 3600 + 45 * 60 + 40


def test_after_the_last_retry_a_message_is_dead():
    assert judge_retry(15, 16, 0).reason == ""
    assert judge_retry(16, 16, 0) == RetryVerdict(0, "16 retries failed, 16 are allowed")


def test_beyond_the_table_the_level_goes_on_and_the_schedule_knows_its_last():
    assert judge_retry(16, 20, 0).level == 19


def test_a_consumer_may_name_the_level_or_give_up():
    assert judge_retry(3, 16, 5) == RetryVerdict(5)
    assert judge_retry(0, 16, -1) == RetryVerdict(0, "its consumer gave it up")
    assert (
        judge_retry(0, 16, -1, "no such account").reason
        == "its consumer gave it up: no such account"
    )
    assert judge_retry(2, 2, 5, "why\x01not\x02\r\n?").reason.endswith("allowed: why not ?")
    assert len(judge_retry(0, 0, 0, "x" * 10_000).reason) < REASON_CHARS_MAX + 50


def test_forged_numbers_are_borne():
    assert judge_retry(-5, 16, 0) == RetryVerdict(3)
    assert exhaustion_reason(0, 0) == "no retry is allowed"
    assert exhaustion_reason(2**31 - 1, 16)
    assert exhaustion_reason(0, -1)


# How often


def test_the_last_number_said_holds_for_the_group_while_it_is_online():
    member = Member("one", "one@1", "PYTHON", 409, 0.0)
    group, config = ConsumerGroup("g"), GroupConfig("g", retry_max_times=7)
    group.members["one"] = member

    def settled(said, online=group, speaker="one"):
        return retry_maximum(said, online, speaker, config)

    assert settled(None) == 7
    assert settled(16) == 7  # Stock consumers say so by themselves.
    assert settled(3) == 3
    assert settled(16) == 3
    assert settled(30) == 30
    assert settled(None) == 30
    assert settled(-1) == 30
    assert settled(2, speaker="a stranger") == 2
    assert settled(None) == 30
    assert settled(None, online=None) == 7  # Nobody is online any more.
    assert settled(0, online=None) == 0


# What is stored


def test_the_first_return_notes_where_it_comes_from():
    given = record(TAGS="a", KEYS="k")

    verdict, text = apply_verdict(given, "g", RetryVerdict(3))

    assert verdict == RetryVerdict(3)
    assert parse(text) == {
        "UNIQ_KEY": "U1", "TAGS": "a", "KEYS": "k",
        "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": given.offset_id, "DELAY": "3",
    }  # fmt: skip


def test_a_later_return_keeps_that_and_forgets_its_delays():
    named = {
        "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "AB", "DELAY": "3", "REAL_TOPIC": "%RETRY%g",
        "REAL_QID": "0", "TIMER_DELIVER_MS": "5", "TIMER_DELAY_SEC": "5", "TIMER_DELAY_MS": "5",
    }  # fmt: skip

    _, text = apply_verdict(record("%RETRY%g", 1, **named), "g", RetryVerdict(4))

    assert text.count("DELAY") == 1
    assert parse(text) == {
        "UNIQ_KEY": "U1", "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "AB", "DELAY": "4"
    }  # fmt: skip


def test_a_dead_letter_says_why_and_from_where():
    named = {"RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "AB", "DELAY": "18", "DLQ_REASON": "old"}

    _, text = apply_verdict(record("%RETRY%g", 16, **named), "g", RetryVerdict(0, "why"))

    assert parse(text) == {
        "UNIQ_KEY": "U1", "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "AB", "DLQ_REASON": "why",
        "DLQ_ORIGIN_TOPIC": "T", "DLQ_ORIGIN_MESSAGE_ID": "U1",
    }  # fmt: skip


def test_whoever_reads_dead_letters_of_others_gets_them_again_as_such():
    _, text = apply_verdict(record("%DLQ%other", 17, RETRY_TOPIC="T"), "g", RetryVerdict(3))

    assert parse(text)["RETRY_TOPIC"] == "%DLQ%other"


def test_what_cannot_be_written_again_is_kept_as_it_is():
    _, text = apply_verdict(record(text="UNIQ_KEY\x01U1\x02a\x01b\x01c\x02"), "g", RetryVerdict(3))

    assert "\x02a\x01b\x01c\x02" in text


@pytest.mark.parametrize("size", [PROPERTIES_BYTES_MAX - 250, PROPERTIES_BYTES_MAX - 13])
def test_a_message_without_room_for_a_retry_is_a_dead_letter_and_fits(size):
    given = record(text=render({"UNIQ_KEY": "U1", "big": "x" * (size - len("UNIQ_KEY.U1.big.."))}))

    verdict, text = apply_verdict(given, "g", RetryVerdict(3))

    assert "no room" in verdict.reason
    assert len(text) <= PROPERTIES_BYTES_MAX
    assert given.properties in text


def test_a_sent_retry_that_is_buried_says_why():
    text = dead_letter_properties(
        render({"UNIQ_KEY": "U1", "RETRY_TOPIC": "T", "DELAY": "5"}), "why"
    )

    assert parse(text) == {
        "UNIQ_KEY": "U1", "RETRY_TOPIC": "T", "DLQ_ORIGIN_TOPIC": "T",
        "DLQ_ORIGIN_MESSAGE_ID": "U1", "DLQ_REASON": "why",
    }  # fmt: skip
    assert parse(dead_letter_properties("", "why")) == {"DLQ_REASON": "why"}
