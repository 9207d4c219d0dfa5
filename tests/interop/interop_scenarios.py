"""Owns what every client must show, written once; the test files say which client shows it.

Each scenario takes a stage and clients and asserts only what the protocol promises.
"""

import hashlib
import itertools
import random

from tests.interop.interop_stage import (
    QUEUES,
    assert_once,
    digest,
    digest_of,
    letter,
    letters,
    names,
    packet,
    shares,
    times_handled,
)

COMPRESSED = 1  # bit 0 of a stored record's sysFlag
BODY_SIZE = 64 * 1024
PROPERTIES = {"origin": "Zürich", "город": "Рига", "emoji": "💩", "spaced": "a b=c;d"}

CITIES = ["lisbon", "oslo", "quito", "tunis", "xian", "lima", "riga", "bern"]


def keeps_its_queue(shard):
    """ali-ons takes queue 0 for "no queue chosen" and sends such a shard round all queues."""
    return int.from_bytes(hashlib.md5(shard.encode()).digest()[:4]) % QUEUES != 0


SHARDS_KEPT_BY_ONS = [city for city in CITIES if keeps_its_queue(city)]


def messages_arrive_once(stage, sending, consuming, verb="send", *flags):
    """Every message is handled once, with the body, tags and keys it was sent with."""
    topic, group = stage.topic(), stage.group()
    consumer = stage.consumer(consuming, topic, group, *flags)
    sender = stage.sender(sending, topic, verb)

    lines = stage.send(sender, letters("m", 40, tags="T"))
    stage.wait_handled([consumer], lines)
    consumer.leave()

    assert_once([consumer], lines)
    bodies = {line["keys"]: digest(line["body"]) for line in lines}
    assert {event["keys"]: event["body_sha256"] for event in consumer.handled} == bodies
    assert {event["tags"] for event in consumer.handled} == {"T"}
    return sender.sent, consumer.handled


def positions_agree(sent, handled):
    """A message is handled at the queue offset that its sender was told."""
    told = {event["keys"]: event["queue_offset"] for event in sent}
    assert {event["keys"]: event["queue_offset"] for event in handled} == told


def all_parts_arrive(stage, sending, consuming, data):
    """Keys, tags and properties in any script arrive as they were sent, and so do any bytes."""
    topic, group = stage.topic(), stage.group()
    told = [flag for name in PROPERTIES for flag in ("--tell", name)]
    consumer = stage.consumer(consuming, topic, group, *told)
    sender = stage.sender(sending, topic)
    parts = {"tags": "标签", "properties": PROPERTIES}
    wanted = [
        packet("bytes", data, **parts),
        letter("ключ", "тело 正文 💩", **parts),
        letter("one two", **parts),
    ]

    lines = stage.send(sender, wanted)
    stage.wait_handled([consumer], lines)
    consumer.leave()

    assert_once([consumer], lines)
    for line in lines:
        event = next(event for event in consumer.handled if event["keys"] == line["keys"])
        assert (event["tags"], event["body_sha256"]) == (line["tags"], digest_of(line))
        assert {name: event["properties"][name] for name in PROPERTIES} == PROPERTIES
    return sender.sent, consumer.handled


def batches_arrive_whole(stage, sending, consuming, size=10):
    """What was sent as one batch lies in one queue without a gap, and is handled like the rest."""
    topic, group = stage.topic(), stage.group()
    consumer = stage.consumer(consuming, topic, group, tags="A || B")
    sender = stage.sender(sending, topic, "send-batch")
    batches = [letters(f"batch-{number}", size) for number in range(2 * QUEUES)]
    for batch in batches:
        for line, tag in zip(batch, itertools.cycle("ABC")):
            line["tags"] = tag
    lines = [line for batch in batches for line in batch]

    sender.write(batches)
    stage.wait_sent(sender, lines)
    wanted = [line for line in lines if line["tags"] != "C"]
    stage.wait_handled([consumer], wanted)
    consumer.leave()

    assert sorted(consumer.handled_keys) == sorted(names(wanted))
    told = {event["keys"]: event for event in sender.sent}
    for batch in batches:
        places = [(told[key]["queue_id"], told[key]["queue_offset"]) for key in names(batch)]
        queue, first = places[0]
        assert places == [(queue, first + number) for number in range(size)]
    for event in consumer.handled:
        place = (event["queue_id"], event["queue_offset"])
        assert place == (told[event["keys"]]["queue_id"], told[event["keys"]]["queue_offset"])


def messages_travel_together(stage, sending, consuming):
    """Messages that linger share requests by themselves; each arrives once, as if alone."""
    topic, group = stage.topic(), stage.group()
    consumer = stage.consumer(consuming, topic, group)
    sender = stage.sender(sending, topic, "send-nowait", "--linger-ms", "100")

    lines = stage.send(sender, letters("m", 100, tags="T"))
    stage.wait_handled([consumer], lines)
    consumer.leave()

    assert_once([consumer], lines)
    positions_agree(sender.sent, consumer.handled)
    queues = [event["queue_id"] for event in sorted(sender.sent, key=number_of)]
    changes = sum(before != after for before, after in itertools.pairwise(queues))
    assert changes < len(lines) / 4  # alone, each would go to the next queue


def number_of(event):
    return int(event["keys"].rpartition("-")[2])


def large_bodies_arrive_intact(stage, sending, consuming):
    """64 KB are compressed by the sender, stored as they came, and unpacked by the consumer."""
    topic, group = stage.topic(), stage.group()
    consumer = stage.consumer(consuming, topic, group)
    sender = stage.sender(sending, topic)
    noise = random.Random(9876)
    digits = "".join(noise.choices("0123456789abcdef", k=BODY_SIZE))  # shrinks to about a half
    words = ("a body that shrinks well " * BODY_SIZE)[:BODY_SIZE]

    lines = stage.send(sender, [letter("words", words), letter("digits", digits)])
    stage.wait_handled([consumer], lines)

    assert_once([consumer], lines)
    for line in lines:
        event = next(event for event in consumer.handled if event["keys"] == line["keys"])
        assert (event["body_size"], event["body_sha256"]) == (BODY_SIZE, digest(line["body"]))
        stored = stage.broker.records(topic, event["queue_id"], event["queue_offset"])[0]
        assert stored.flag & COMPRESSED
        assert stored.body_size < BODY_SIZE


def shards_keep_their_order(stage, sending, consuming, shards, *flags):
    """Messages of one shard share a queue and are handled in the order they were sent."""
    topic, group = stage.topic(), stage.group()
    consumer = stage.consumer(consuming, topic, group, *flags)
    sender = stage.sender(sending, topic, "send-orderly")

    lines = stage.send(sender, sharded(shards))
    stage.wait_handled([consumer], lines)
    consumer.leave()

    assert_once([consumer], lines)
    for shard in shards:
        own = [line for line in lines if line["shard"] == shard]
        assert len(set(*shares([consumer], own))) == 1
        assert [key for key in consumer.handled_keys if key in names(own)] == names(own)


def sharded(shards):
    """Twenty messages of each shard, in turn."""
    turns = itertools.product(range(20), shards)
    return [letter(f"{shard}-{turn}", shard=shard) for turn, shard in turns]


def locked_queues_keep_their_order(stage, sending, consuming, shards):
    """Orderly members, one of each of two clients, lock their queues: a shard is handled by one of
    them, in order.
    """
    topic, group = stage.topic(), stage.group()
    members = [stage.consumer(client, topic, group, "--orderly") for client in consuming]
    probing = stage.sender(sending, topic)
    stage.settle(probing, members)
    sender = stage.sender(sending, topic, "send-orderly")

    lines = stage.send(sender, sharded(shards))
    stage.wait_handled(members, lines)
    for member in members:
        member.leave()

    assert_once(members, lines)
    for shard in shards:
        own = names(line for line in lines if line["shard"] == shard)
        parts = [[key for key in member.handled_keys if key in own] for member in members]
        assert sorted(parts) == [[], own]


def tag_expression_selects(stage, sending, consuming):
    """`A || B` delivers A and B, neither another tag nor one that starts alike nor none."""
    topic, group = stage.topic(), stage.group()
    consumer = stage.consumer(consuming, topic, group, tags="A || B")
    sender = stage.sender(sending, topic)
    tags = itertools.cycle(["A", "B", "C", "AA", None])  # five tags over four queues: all mixed

    lines = [letter(f"m-{number}", tags=next(tags)) for number in range(40)]
    last = letters("last", 2 * QUEUES, tags="B")  # behind everything else on every queue
    stage.send(sender, lines + last)
    wanted = [line for line in lines if line["tags"] in ("A", "B")] + last
    stage.wait_handled([consumer], wanted)
    consumer.leave()

    assert set(*shares([consumer], last)) == set(range(QUEUES))
    assert sorted(consumer.handled_keys) == sorted(names(wanted))
    # The clients filter once more themselves, so the broker's own choice is looked at as well.
    for queue in range(QUEUES):
        delivered = stage.broker.records(topic, queue, expression="A || B")
        assert {record.tags for record in delivered} <= {"A", "B"}


def broadcast_reaches_everyone(stage, sending, consuming):
    """Each of two broadcasting members handles every message once."""
    topic, group = stage.topic(), stage.group()
    members = [stage.consumer(client, topic, group, "--broadcasting") for client in consuming]
    sender = stage.sender(sending, topic, pace_ms=20)
    listen_everywhere(stage, sender, members)

    lines = stage.send(sender, letters("m", 40))
    for member in members:
        stage.wait_handled([member], lines)
        member.terminate()

    for member in members:
        assert_once([member], lines)


def listen_everywhere(stage, sender, members):
    """A broadcasting member starts at the end of each queue: wait until it listens to all."""

    def listening():
        stage.send(sender, letters(f"probe-{next(rounds)}", QUEUES))
        heard = [{event["queue_id"] for event in member.handled} for member in members]
        return all(queues == set(range(QUEUES)) for queues in heard)

    rounds = itertools.count()
    stage.wait(listening, "both members to listen to all queues")


def members_come_and_go(stage, sending, staying, passing, *flags):
    """A member joins and leaves while messages flow: none is missed, and none doubled but where
    the protocol itself doubles.

    While a queue changes hands its old owner may still handle what it holds and the new owner
    starts at the last committed offset, so a message sent then may be handled by both. Never by
    one member twice, though, and never when the queues had settled before it was sent and its
    offset was committed before the next change: such a doubling is the broker's fault.
    """
    topic, group = stage.topic(), stage.group()
    sender = stage.sender(sending, topic, pace_ms=10)
    first = stage.consumer(staying, topic, group)
    stage.settle(sender, [first])
    alone = stage.send(sender, letters("alone", 40))
    stage.wait_handled([first], alone)
    stage.wait_committed(group, topic)

    joining = flow(stage, sender, "joining")
    second = stage.consumer(passing, topic, group, *flags)
    members = [first, second]
    stage.wait_sent(sender, joining)
    stage.settle(sender, members)
    together = stage.send(sender, letters("together", 60))
    stage.wait_handled(members, together)
    stage.wait_committed(group, topic)

    leaving = flow(stage, sender, "leaving")
    second.leave()
    stage.wait_sent(sender, leaving)
    stage.settle(sender, [first])
    after = stage.send(sender, letters("after", 40))
    stage.wait_handled(members, joining + leaving + after)
    stage.wait_committed(group, topic)
    first.leave()

    assert all(shares(members, together)), "both members took part"
    assert_once(members, alone + together + after)
    for member in members:
        times = times_handled([member], joining + leaving)
        assert {key: count for key, count in times.items() if count > 1} == {}


def flow(stage, sender, prefix):
    """Messages that are still being sent when this returns."""
    lines = letters(prefix, 200)
    sender.write(lines)
    stage.wait(lambda: f"{prefix}-20" in sender.acknowledged, "messages to flow")
    return lines


def restart_loses_nothing(stage, sending, consuming, end, verb="send", *flags):
    """The broker goes away under load and comes back: what it acknowledged is there, in place.

    Doublings are no fault here: offsets not yet committed start again, and a send whose answer
    was lost is offered again.
    """
    topic, group = stage.topic(), stage.group()
    consumer = stage.consumer(consuming, topic, group)
    sender = stage.sender(sending, topic, verb, *flags, pace_ms=5)
    stage.wait_handled([consumer], stage.send(sender, letters("before", 20)))

    through = flow(stage, sender, "through")
    end(stage.broker)
    stage.broker.start()
    stage.wait_sent(sender, through)
    after = stage.send(sender, letters("after", 20))
    # The C++ client gives a pull up only 30 s after its connection broke.
    stage.wait_handled([consumer], through + after, seconds=60)

    told = {(event["keys"], event["queue_offset"]) for event in sender.sent}
    assert told <= {(event["keys"], event["queue_offset"]) for event in consumer.handled}
