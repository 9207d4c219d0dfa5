"""Delayed messages: what each client sends, each client handles in time, and once.

All three know delay levels (C++: set_delay_time_level, ali-ons: delayTimeLevel). Only ours has a
name for a moment; the others' producers set the property that RocketMQ 5 reads,
TIMER_DELIVER_MS. What ali-ons itself offers, setStartDeliverTime, is a property of Alibaba's cloud:
neither RocketMQ nor txmq knows it, and such a message comes at once.
"""

import time

from tests.interop.interop_later import ROUNDING_MS, SOAK, Exchange, assert_in_time, handlings
from tests.interop.interop_stage import assert_once, letter
from tests.interop.interop_together import PlayBroker, played

FIRST_LEVELS = {1: 1_000, 2: 5_000}
COUNT = 18
SWIFT = {level: 200 * level for level in range(1, COUNT + 1)}
LEVELS = "delay.levels=" + " ".join(f"{wait}ms" for wait in SWIFT.values())
SWIFT_BROKER = PlayBroker(settings=(LEVELS,))
"""All its levels are short, and a play may kill it."""
ALL = ("cpp", "ons", "ours")
TOLD = ["DELAY", "TIMER_DELIVER_MS", "REAL_TOPIC", "REAL_QID"]


def by_level(levels, count=1):
    """A function that makes messages of each level for a sender."""

    def make(prefix):
        return [
            letter(f"{prefix}-{level}-{number}", level=level)
            for number in range(count)
            for level in levels
        ]

    return make


def assert_level(exchange, waits):
    """Each message came after the time of its level, and says what it had to wait for."""
    for consumer in exchange.consumers:
        assert_once([consumer], exchange.lines)
        for line in exchange.lines:
            sent, (event,) = exchange.sent(line["keys"]), handlings(consumer, line["keys"])
            level = min(line["level"], max(waits))
            what = f"{line['keys']} at {consumer.label}"
            assert_in_time(event["at_ms"], sent["offered_ms"], sent["at_ms"], waits[level], what)
            told = {name: event["properties"].get(name) for name in TOLD}
            assert told["DELAY"] == str(level), what
            assert told["REAL_TOPIC"] == exchange.topic == event["topic"], what
            assert told["REAL_QID"] == str(event["queue_id"]), what


@played(ALL, is_measured=True)
def test_the_first_delay_levels_take_as_long_as_in_rocketmq(stage, *clients):
    exchange = Exchange(stage, clients, tell=TOLD)
    exchange.listen_all()

    exchange.send(by_level(FIRST_LEVELS, 2 * SOAK))
    exchange.wait()
    exchange.leave()

    assert_level(exchange, FIRST_LEVELS)


@played(ALL, broker=SWIFT_BROKER, is_measured=True)
def test_every_delay_level_takes_its_time_and_higher_ones_count_as_the_last(stage, *clients):
    exchange = Exchange(stage, clients, tell=TOLD)
    exchange.listen_all()

    exchange.send(by_level([*SWIFT, COUNT + 1, 100], SOAK))
    exchange.wait()
    exchange.leave()

    assert_level(exchange, SWIFT)


@played(ALL, is_measured=True)
def test_a_message_arrives_at_its_delivery_time_or_at_once_without_one(stage, *clients):
    exchange = Exchange(stage, clients, tell=TOLD)
    exchange.listen_all()
    now_ms = int(time.time() * 1000)
    moments = [now_ms + 1_500 - 100 * number for number in range(8 * SOAK)]

    exchange.send(
        lambda name: [
            letter(f"{name}-past", deliver_at_ms=now_ms - 1),
            letter(f"{name}-cloud", properties={"__STARTDELIVERTIME": str(now_ms + 60_000)}),
            *(letter(f"{name}-{at_ms}", deliver_at_ms=at_ms) for at_ms in moments),
        ]
    )
    exchange.wait()
    exchange.leave()

    for consumer in exchange.consumers:
        assert_once([consumer], exchange.lines)
        for line in exchange.lines:
            sent, (event,) = exchange.sent(line["keys"]), handlings(consumer, line["keys"])
            at_ms = line.get("deliver_at_ms", now_ms)
            told, what = event["properties"], f"{line['keys']} at {consumer.label}"
            # A message that was sent after its delivery time is delivered at once.
            assert_in_time(event["at_ms"], at_ms, max(at_ms, sent["at_ms"]), 0, what)
            assert int(told.get("TIMER_DELIVER_MS") or now_ms) == at_ms, what
            if at_ms <= now_ms:
                assert not told.get("REAL_TOPIC"), what


@played(ALL, broker=SWIFT_BROKER, is_measured=True)
def test_delayed_messages_survive_a_broker_kill_and_arrive_once(stage, *clients):
    exchange = Exchange(stage, clients, tell=TOLD)
    levels = [5, 10, 15]  # due before, about and after the restart

    exchange.send(by_level(levels, 4 * SOAK))
    stage.broker.kill()
    stage.broker.start()
    exchange.listen_all()
    exchange.wait()
    exchange.leave()

    for consumer in exchange.consumers:
        assert_once([consumer], exchange.lines)
        for line in exchange.lines:
            (event,) = handlings(consumer, line["keys"])
            due_ms = exchange.sent(line["keys"])["offered_ms"] + SWIFT[line["level"]]
            assert event["at_ms"] >= due_ms - ROUNDING_MS, line["keys"]
