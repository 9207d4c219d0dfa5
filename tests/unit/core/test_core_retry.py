"""Messages that were returned: when they are retried, and why not."""

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

# Seed 000: the number of a retry, and the time after the previous one.
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
def test_each_retry_has_the_delay_level_of_the_table(retry, after):
    verdict = judge_retry(retry - 1, 16, 0)

    assert LEVELS[verdict.level - 1] == after
    assert not verdict.reason


def test_all_retries_together_take_4_hours_45_minutes_and_40_seconds():
    assert sum(seconds(after) for _, after in TABLE) == 4 * 3600 + 45 * 60 + 40


def test_after_the_last_retry_a_message_is_a_dead_letter():
    assert judge_retry(15, 16, 0).reason == ""
    assert judge_retry(16, 16, 0) == RetryVerdict(0, "16 retries failed, 16 are allowed")


def test_retries_beyond_the_table_keep_raising_the_level():
    assert judge_retry(16, 20, 0).level == 19


def test_a_consumer_can_choose_the_level_or_give_up():
    assert judge_retry(3, 16, 5) == RetryVerdict(5)
    assert judge_retry(0, 16, -1) == RetryVerdict(0, "its consumer gave it up")
    assert (
        judge_retry(0, 16, -1, "no such account").reason
        == "its consumer gave it up: no such account"
    )
    assert judge_retry(2, 2, 5, "why\x01not\x02\r\n?").reason.endswith("allowed: why not ?")
    assert len(judge_retry(0, 0, 0, "x" * 10_000).reason) < REASON_CHARS_MAX + 50


def test_out_of_range_attempt_numbers_are_tolerated():
    assert judge_retry(-5, 16, 0) == RetryVerdict(3)
    assert exhaustion_reason(0, 0) == "no retry is allowed"
    assert exhaustion_reason(2**31 - 1, 16)
    assert exhaustion_reason(0, -1)


# How often


def test_the_last_retry_limit_sent_holds_for_the_group_while_it_is_online():
    member = Member("one", "one@1", "PYTHON", 409, 0.0)
    group, config = ConsumerGroup("g"), GroupConfig("g", retry_max_times=7)
    group.members["one"] = member

    def settled(limit, online=group, speaker="one"):
        return retry_maximum(limit, online, speaker, config)

    assert settled(None) == 7
    assert settled(16) == 7  # The default of stock consumers.
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


def test_the_first_retry_notes_topic_and_id_of_the_message():
    given = record(TAGS="a", KEYS="k")

    verdict, text = apply_verdict(given, "g", RetryVerdict(3))

    assert verdict == RetryVerdict(3)
    assert parse(text) == {
        "UNIQ_KEY": "U1", "TAGS": "a", "KEYS": "k",
        "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": given.offset_id, "DELAY": "3",
    }  # fmt: skip


def test_a_later_retry_keeps_the_origin_and_drops_earlier_delays():
    named = {
        "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "AB", "DELAY": "3", "REAL_TOPIC": "%RETRY%g",
        "REAL_QID": "0", "TIMER_DELIVER_MS": "5", "TIMER_DELAY_SEC": "5", "TIMER_DELAY_MS": "5",
    }  # fmt: skip

    _, text = apply_verdict(record("%RETRY%g", 1, **named), "g", RetryVerdict(4))

    assert text.count("DELAY") == 1
    assert parse(text) == {
        "UNIQ_KEY": "U1", "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "AB", "DELAY": "4"
    }  # fmt: skip


def test_a_dead_letter_states_its_reason_and_origin():
    named = {"RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "AB", "DELAY": "18", "DLQ_REASON": "old"}

    _, text = apply_verdict(record("%RETRY%g", 16, **named), "g", RetryVerdict(0, "why"))

    assert parse(text) == {
        "UNIQ_KEY": "U1", "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "AB", "DLQ_REASON": "why",
        "DLQ_ORIGIN_TOPIC": "T", "DLQ_ORIGIN_MESSAGE_ID": "U1",
    }  # fmt: skip


def test_a_retried_dead_letter_names_the_dead_letter_topic_as_its_origin():
    _, text = apply_verdict(record("%DLQ%other", 17, RETRY_TOPIC="T"), "g", RetryVerdict(3))

    assert parse(text)["RETRY_TOPIC"] == "%DLQ%other"


def test_malformed_properties_are_kept_unchanged_in_a_retry():
    _, text = apply_verdict(record(text="UNIQ_KEY\x01U1\x02a\x01b\x01c\x02"), "g", RetryVerdict(3))

    assert "\x02a\x01b\x01c\x02" in text


@pytest.mark.parametrize("size", [PROPERTIES_BYTES_MAX - 250, PROPERTIES_BYTES_MAX - 13])
def test_a_message_without_room_for_retry_properties_becomes_a_dead_letter(size):
    given = record(text=render({"UNIQ_KEY": "U1", "big": "x" * (size - len("UNIQ_KEY.U1.big.."))}))

    verdict, text = apply_verdict(given, "g", RetryVerdict(3))

    assert "no room" in verdict.reason
    assert len(text) <= PROPERTIES_BYTES_MAX
    assert given.properties in text


def test_a_sent_retry_that_becomes_a_dead_letter_states_its_reason():
    text = dead_letter_properties(
        render({"UNIQ_KEY": "U1", "RETRY_TOPIC": "T", "DELAY": "5"}), "why"
    )

    assert parse(text) == {
        "UNIQ_KEY": "U1", "RETRY_TOPIC": "T", "DLQ_ORIGIN_TOPIC": "T",
        "DLQ_ORIGIN_MESSAGE_ID": "U1", "DLQ_REASON": "why",
    }  # fmt: skip
    assert parse(dead_letter_properties("", "why")) == {"DLQ_REASON": "why"}
