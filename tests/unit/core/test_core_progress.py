import pytest

from tests.unit.core.core_log import NOW_MS, Log, topic
from txmq.protocol.bodies import (
    ConsumerRegistration,
    Heartbeat,
    MessageQueue,
    OffsetPair,
    QueueStats,
    SubscriptionData,
)
from txmq_broker.core.clients import Clients
from txmq_broker.core.offsets import Offsets
from txmq_broker.core.progress import NO_CORRECTION, ConsumeProgress


class Scene:
    def __init__(self):
        self.log = Log()
        self.topics = self.log.topics()
        self.offsets = Offsets()
        self.clients = Clients()
        self.progress = ConsumeProgress(
            "b", self.topics, self.offsets, self.clients, self.log.store
        )

    def topic(self, name, queues=1, **given):
        return self.topics.put(topic(name, queues, **given), NOW_MS)

    def connect(self, group, *names):
        wanted = [SubscriptionData(name) for name in names]
        registration = ConsumerRegistration(group, subscription_data_set=wanted)
        self.clients.beat("a", Heartbeat("id", [], [registration]), "JAVA", 409, 0.0)


@pytest.fixture
def scene():
    return Scene()


def q(number=0, name="T"):
    return MessageQueue("b", number, name)


def test_the_queues_of_a_topic_are_shown_with_bounds_and_last_update(scene):
    made = scene.topic("T", 2)
    scene.log.put("T", b"0", at_ms=NOW_MS)
    scene.log.put("T", b"1", at_ms=NOW_MS + 50)

    assert scene.progress.of_topic(made) == {
        q(0): QueueStats(0, 2, NOW_MS + 50),
        q(1): QueueStats(0, 0, 0),
    }


def test_a_queue_with_all_messages_deleted_has_no_last_update(scene):
    made = scene.topic("T")
    scene.log.put("T", b"0")
    scene.log.store.queues.forget_topic("T")

    assert scene.progress.of_topic(made) == {q(0): QueueStats(1, 1, 0)}


def test_the_topics_of_a_group_are_those_with_offsets_it_still_subscribes_to(scene):
    for name in ("T", "U"):
        scene.topic(name)
        scene.offsets.put("g", name, 0, 1)
    scene.offsets.put("g", "gone", 0, 1)

    assert [topic.name for topic in scene.progress.topics_of("g")] == ["T", "U"]
    assert [topic.name for topic in scene.progress.topics_of("g", ["U", "gone"])] == ["U"]
    scene.connect("g", "T")
    assert [topic.name for topic in scene.progress.topics_of("g")] == ["T"]


def test_the_progress_of_a_group_covers_the_read_queues(scene):
    made = scene.topic("T", 2, write=3)
    scene.log.put("T", b"0", b"1", b"2", at_ms=NOW_MS + 7)
    scene.offsets.put("g", "T", 0, 2)
    scene.offsets.put("g", "T", 2, 9)

    assert scene.progress.of_group("g", made) == {
        q(0): OffsetPair(3, 2, NOW_MS + 7, 2),
        q(1): OffsetPair(0, 0, 0, 0),
    }


def test_an_offset_beyond_the_last_message_has_no_time(scene):
    made = scene.topic("T")
    scene.offsets.put("g", "T", 0, 5)

    assert scene.progress.of_group("g", made)[q(0)] == OffsetPair(0, 5, 0, 5)


@pytest.mark.parametrize(
    ("offset", "consumed", "delay"),
    [(None, 10, 90), (0, 10, 90), (1, 10, 80), (2, 20, 0), (9, -1, 0)],
)
def test_the_delay_of_a_group_is_the_age_of_its_next_message(scene, offset, consumed, delay):
    made = scene.topic("T")
    scene.log.put("T", b"0", at_ms=NOW_MS + 10)
    scene.log.put("T", b"1", at_ms=NOW_MS + 20)
    if offset is not None:
        scene.offsets.put("g", "T", 0, offset)

    (span,) = scene.progress.time_spans("g", made, NOW_MS + 100)
    assert (span.min_time_stamp, span.max_time_stamp) == (NOW_MS + 10, NOW_MS + 20)
    assert span.consume_time_stamp == (NOW_MS + consumed if consumed > 0 else -1)
    assert span.delay_time == delay


def test_the_delay_of_a_group_starts_at_the_first_message_still_kept(scene):
    made = scene.topic("T")
    scene.log.put("T", b"0", at_ms=NOW_MS + 10)
    scene.log.store.queues.forget_topic("T")
    scene.log.put("T", b"1", at_ms=NOW_MS + 20)
    scene.offsets.put("g", "T", 0, 0)

    assert scene.progress.time_spans("g", made, NOW_MS + 100)[0].delay_time == 80
    assert [offset for _, offset in scene.progress.first_unread("g", made)] == [1]


def test_in_an_empty_queue_a_group_has_no_delay(scene):
    (span,) = scene.progress.time_spans("g", scene.topic("T"), NOW_MS)

    assert span.message_queue == q(0)
    assert (span.min_time_stamp, span.max_time_stamp, span.consume_time_stamp) == (-1, -1, -1)
    assert span.delay_time == 0


def test_a_message_from_the_future_gives_no_negative_delay(scene):
    made = scene.topic("T")
    scene.log.put("T", b"0", at_ms=NOW_MS + 1000)

    assert scene.progress.time_spans("g", made, NOW_MS)[0].delay_time == 0


# Corrections (308)


@pytest.mark.parametrize(
    ("group", "excluded", "offset"),
    [
        ("a", (), 3),
        ("c", ["b"], 5),
        ("b", ["b"], NO_CORRECTION),
        ("b", (), 3),
        ("new", (), 3),
    ],
    ids=["leading", "the slowest excluded", "behind all counted", "the slowest", "a new group"],
)
def test_the_correction_of_a_group_is_the_offset_of_the_slowest(scene, group, excluded, offset):
    scene.topic("T", 2)
    scene.log.put("T", *[b"x"] * 10)
    for name, at in (("a", 5), ("b", 3), ("c", 8)):
        scene.offsets.put(name, "T", 0, at)

    assert scene.progress.corrections("T", group, excluded) == {0: offset}


def test_offsets_of_deleted_messages_or_missing_queues_give_no_correction(scene):
    scene.topic("T")
    scene.log.put("T", b"0", b"1")
    scene.log.store.queues.forget_topic("T")
    scene.offsets.put("a", "T", 0, 1)
    scene.offsets.put("b", "T", 0, 2)
    scene.offsets.put("b", "T", 9, 5)

    assert scene.progress.corrections("T", "a") == {0: NO_CORRECTION}
    assert scene.progress.corrections("U", "a") == {}
