"""What consumers cannot handle: it comes again, later each time, and becomes a dead letter.

What the two others can do, and what not:

- The C++ client says "later" of all the messages that one pull brought, without showing those
  behind the first that fails, and of those before it too. So there is one message at a time for it
  here. How often one may come again it cannot say: the group's own setting holds. If orderly, it
  tries a message again where it is, every 100 ms and for ever, always as the first attempt: there
  is nothing for a broker to do, and nothing to test.
- ali-ons says it by ACTION_RETRY or by throwing, but heeds ACTION_RETRY at the first attempt only
  and takes it for success afterwards, so its handler throws here. It names a maximum of its own
  (maxReconsumeTimes). It has no orderly consumer, whose attempts could differ.
- Neither can choose a delay level, or send a message to the dead letters by itself.
"""

import itertools

from tests.interop.interop_later import Exchange, assert_in_time, handlings
from tests.interop.interop_stage import QUEUES, letter, letters, names
from tests.interop.interop_together import PlayBroker, played

WAITS = {3: 1_000, 4: 2_000, 5: 3_000, 6: 200}  # what comes after a failure, by level
LEVELS = "delay.levels=1s 1s " + " ".join(f"{wait}ms" for wait in WAITS.values())
RETRYING = PlayBroker("async", (LEVELS,), is_shared=True)
"""What failed comes again soon."""
FAILURES = 5  # one more than there are levels: the last one serves again
ALWAYS = "99"


@played(("cpp", "ons", "ours"), broker=RETRYING, is_measured=True)
def test_a_failed_message_comes_again_after_the_delay_of_the_next_level(stage, cpp, ons, ours):
    tell = ["DELAY", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "REAL_TOPIC"]
    flags = ["--fails", str(FAILURES)]
    exchange = Exchange(stage, [cpp, ons, ours], *flags, tell=tell)
    for client in exchange.clients:
        exchange.listen(cpp, stage.retried_group(), tags=client.name)
    for client in (ons, ours):
        exchange.listen(client, stage.group())

    exchange.send(lambda name: [letter(f"from-{name}")])
    exchange.wait(times=1 + FAILURES)
    exchange.leave()

    for consumer in exchange.consumers:
        for line in exchange.wanted(consumer):
            assert_attempts(consumer, line["keys"], exchange)


def assert_attempts(consumer, keys, exchange):
    """The number of attempts, their delays, and the identity of message and topic."""
    events, what = handlings(consumer, keys), f"{keys} at {consumer.label}"
    assert [event["reconsume_times"] for event in events] == [*range(1 + FAILURES)], what
    assert {event["topic"] for event in events} == {exchange.topic}, what
    assert len({event["body_sha256"] for event in events}) == 1, what
    first = events[0]
    assert not first["properties"].get("RETRY_TOPIC"), what
    origins = set()
    for number, (before, event) in enumerate(itertools.pairwise(events), 3):
        level = min(number, max(WAITS))
        gap = f"attempt {number - 2} of {what}"
        assert_in_time(event["at_ms"], before["at_ms"], before["at_ms"], WAITS[level], gap)
        told = event["properties"]
        if number in WAITS:
            assert told["DELAY"] == str(number), gap
        assert told["RETRY_TOPIC"] == exchange.topic, gap
        origins.add(told["ORIGIN_MESSAGE_ID"])
    place = exchange.topic, first["queue_id"], first["queue_offset"]
    position = exchange.stage.broker.records(*place)[0].position
    assert [int(origin[16:], 16) for origin in origins] == [position], what


@played(("cpp",), ("ons",), ("ours",), broker=RETRYING)
def test_a_message_past_its_retries_is_a_dead_letter_to_show_and_resend(stage, client):
    broker = stage.broker
    topic, group = stage.topic(), stage.group()
    flags = ["--fails", ALWAYS, "--attempts-max", "1"]
    if client.name == "cpp":
        group = stage.retried_group()
        broker.txmq("group", "create", group, "--retries", "1")
        flags = flags[:2]
    failing = stage.consumer(client, topic, group, *flags)
    sender = stage.sender(client, topic)
    lines = letters("m", 2)

    for number, line in enumerate(lines, 1):
        stage.send(sender, [line])
        stage.wait(lambda: dead_letters(broker, group) == number, "dead letters")  # noqa: B023
    failing.leave()

    for key in names(lines):
        assert [event["reconsume_times"] for event in handlings(failing, key)] == [0, 1]
    first, second = assert_dead(broker, group, topic, lines)
    healthy = stage.consumer(client, topic, group)
    assert_resent(stage, group, healthy, first, second)
    healthy.leave()


def dead_letters(broker, group):
    topic = f"%DLQ%{group}"
    return broker.max_offset(topic, 0) if broker.knows(topic) else 0


def assert_dead(broker, group, topic, lines):
    """They are listed, and each of them shown, with where it comes from and why it died."""
    (listed,) = broker.txmq("dlq", "list", "--group", group)
    assert (listed["group"], listed["messages"]) == (group, len(lines))
    shown = broker.txmq("dlq", "show", group)
    for dead_letter, line in zip(shown, lines, strict=True):
        assert (dead_letter["keys"], dead_letter["body"]) == ([line["keys"]], line["body"])
        assert dead_letter["origin_topic"] == topic
        assert dead_letter["reason"] == "1 retry failed, 1 is allowed"
    return shown


def assert_resent(stage, group, healthy, first, second):
    """One dead letter is resent by its id, and then all that are left."""
    broker = stage.broker
    who = ["--reason", "the bug is gone", "--operator", "on duty", "--yes"]
    told = broker.txmq("dlq", "resend", group, first["id"], *who)
    assert [(result["id"], result["outcome"]) for result in told] == [(first["id"], "resent")]
    told = broker.txmq("dlq", "resend", group, "--all", *who)
    assert [(result["id"], result["outcome"]) for result in told] == [
        (first["id"], "resent before"),
        (second["id"], "resent"),
    ]
    stage.wait(lambda: len(healthy.handled) >= 2, "what was resent to be handled")
    for dead, event in zip([first, second], healthy.handled, strict=True):
        # It starts anew, under its own key and one that names the dead letter.
        assert event["keys"].split()[0] == dead["keys"][0]
        assert event["keys"].endswith(dead["offset_id"])
        assert (event["topic"], event["reconsume_times"]) == (dead["origin_topic"], 0)
    resent = broker.txmq("dlq", "show", group, first["id"])["resent"]
    assert (resent["by"], resent["reason"]) == ("on duty", "the bug is gone")


HOSTS = {"first": "0", "last": "~"}  # before and behind the addresses that the others begin with


@played(
    *(("ours", "cpp"), ("ours", "ons")),
    more=(("ours fails",), ("theirs fails",)),
    broker=RETRYING,
    is_measured=True,
)
def test_a_message_that_one_member_cannot_handle_goes_to_the_other(stage, ours, theirs, fails):
    """A retry topic has one queue, which falls to the member whose id comes first."""
    topic, group = stage.topic(), stage.retried_group()
    if fails == "ours fails":
        healthy = stage.consumer(theirs, topic, group)
        failing = stage.consumer(ours, topic, group, "--fails", ALWAYS, "--host", HOSTS["last"])
    else:
        healthy = stage.consumer(ours, topic, group, "--host", HOSTS["first"])
        failing = stage.consumer(theirs, topic, group, "--fails", ALWAYS)
    sender = stage.sender(ours, topic)
    lines = []

    def failed_enough():
        prefix = f"m-{len(lines)}"
        lines.extend(stage.send(sender, letters(prefix, QUEUES)))
        return len(failing.handled) >= 2 * QUEUES

    def retries():
        """Each failed attempt with its retry; None while a retry is missing."""
        again = {event["keys"]: event for event in healthy.handled if event["reconsume_times"]}
        pairs = [(event, again.get(event["keys"])) for event in failing.handled]
        return pairs if all(event for _, event in pairs) else None

    stage.wait(failed_enough, "messages that fail")
    stage.wait_handled([healthy], lines)
    found = stage.wait(retries, "all that failed to come again")
    for consumer in (failing, healthy):
        consumer.leave()

    for event, again in found:
        assert (event["reconsume_times"], again["reconsume_times"]) == (0, 1)
        assert again["topic"] == topic
        assert_in_time(again["at_ms"], event["at_ms"], event["at_ms"], WAITS[3], event["keys"])
