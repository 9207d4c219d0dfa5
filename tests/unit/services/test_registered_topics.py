"""The topics that a name server still has to receive."""

from tests.unit.core.core_log import NOW_MS, Log
from txmq.protocol.bodies import TopicConfig, TopicConfigs
from txmq_broker.config import TopicDefaults
from txmq_broker.core.topics import Topics
from txmq_broker.services.registrar import PART_TOPICS, RegisteredTopics


def topics_of(count):
    topics = Topics(Log().store, TopicDefaults())
    topics.load(TopicConfigs(), [])
    for number in range(count):
        topics.put(TopicConfig(f"T{number}", 1, 1), NOW_MS)
    topics.settle()
    return topics


def test_many_topics_are_registered_in_parts_and_only_the_last_has_the_version():
    known, topics = RegisteredTopics(), topics_of(2 * PART_TOPICS + 1)
    parts = list(known.parts(topics))

    sizes = [len(part.topic_config_table) for part in parts]
    assert sizes == [PART_TOPICS, PART_TOPICS, 1]
    versions = [part.data_version for part in parts]
    assert versions[-1] == topics.version == known.version
    assert len({(version.timestamp, version.counter) for version in versions}) == 3


def test_after_the_first_registration_only_changed_topics_are_sent():
    known, topics = RegisteredTopics(), topics_of(PART_TOPICS + 2)
    for _ in known.parts(topics):
        break  # The first registration failed.
    assert len(list(known.parts(topics))) == 2

    topics.put(TopicConfig("T3", 2, 2), NOW_MS)
    topics.put(TopicConfig("New", 1, 1), NOW_MS)
    topics.remove("T4", NOW_MS)
    (part,) = known.parts(topics)
    assert part.topic_config_table == {
        "T3": TopicConfig("T3", 2, 2),
        "New": TopicConfig("New", 1, 1),
    }
    assert part.data_version == topics.version


def test_topics_changed_during_a_registration_are_sent_in_the_next():
    known, topics = RegisteredTopics(), topics_of(2 * PART_TOPICS)
    for number, _ in enumerate(known.parts(topics)):
        topics.put(TopicConfig(f"Late-{number}", 1, 1), NOW_MS)

    (part,) = known.parts(topics)
    assert {*part.topic_config_table} == {"Late-0", "Late-1"}


def test_a_few_topics_are_always_registered_in_one_part():
    known, topics = RegisteredTopics(), topics_of(2)
    for _ in range(2):
        (part,) = known.parts(topics)
        assert part == topics.saved()
