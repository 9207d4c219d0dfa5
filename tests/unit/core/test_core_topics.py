import pytest

from tests.unit.core.core_log import NOW_MS, Log, topic
from txmq.errors import InternalError, NoPermission, TopicNotFound
from txmq.protocol.bodies import DataVersion, TopicConfig, TopicConfigs
from txmq_broker.config import BrokerSettings, TopicDefaults
from txmq_broker.core.topics import Topics, check_name, config_for_group, system_topics

CLOSED = [
    "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
]  # fmt: skip


@pytest.fixture
def topics():
    return Log().topics()


@pytest.mark.parametrize("name", ["T", "%RETRY%g", "a|b-c_9", "x" * 127])
def test_a_topic_name_of_legal_characters_is_accepted(name):
    check_name(name)


@pytest.mark.parametrize("name", ["", " ", "a b", "a.b", "a@b", "täg", "T\n", "x" * 128])
def test_an_illegal_topic_name_is_refused(name):
    with pytest.raises(InternalError):
        check_name(name)


def test_every_broker_has_the_system_topics(topics):
    assert {known.name for known in topics} == {
        *CLOSED, "TBW102", "BenchmarkTest", "rmq_sys_wheel_timer", "c1", "broker-a",
        "c1_REPLY_TOPIC", "RMQ_SYS_TRACE_TOPIC",
    }  # fmt: skip
    assert len(topics) == 13
    for name in ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"):
        assert topics.get(name).config == topic(name, 1)
    assert topics.get("TBW102").config.perm == 7
    assert topics.get("TBW102").config.write_queue_nums == 8


def test_with_auto_creation_off_there_is_no_template_topic():
    settings = BrokerSettings(topics=TopicDefaults(auto_create=False))

    names = {config.topic_name for config in system_topics(settings)}

    assert "TBW102" not in names
    assert "RMQ_SYS_TRACE_TOPIC" in names  # Tracing clients need it.


def test_saved_topics_are_loaded_and_override_built_in_ones():
    log = Log()
    saved = TopicConfigs(DataVersion(5, 6), {"T": topic("T", 3), "c1": topic("c1", 2)})
    topics = Topics(log.store, TopicDefaults())
    topics.load(saved, [topic("c1", 16)])

    assert topics.saved() == saved
    assert len(topics.get("c1").queues) == 2
    assert topics.is_system("c1")


def test_getting_an_unknown_topic_is_an_error(topics):
    assert topics.by_name.get("T") is None
    with pytest.raises(TopicNotFound):
        topics.get("T")


@pytest.mark.parametrize("name", [*CLOSED, "TBW102", "c1", "rmq_sys_anything"])
def test_system_topics_are_recognised(topics, name):
    assert topics.is_system(name)


def test_a_topic_of_a_user_is_not_a_system_topic(topics):
    topics.put(topic("T"), NOW_MS)

    assert not topics.is_system("T")


def test_every_change_raises_the_data_version(topics):
    topics.put(topic("T"), NOW_MS)
    topics.put(topic("T", 8), NOW_MS + 1)
    topics.remove("T", NOW_MS + 2)

    assert topics.version == DataVersion(timestamp=NOW_MS + 2, counter=3)


def test_a_change_keeps_the_topic_object_and_its_queues(topics):
    before = topics.put(topic("T", 4), NOW_MS)
    queues = before.queues
    after = topics.put(topic("T", 2, write=6), NOW_MS)

    assert after is before
    assert after.queues[:4] == queues
    assert len(after.queues) == 6


@pytest.mark.parametrize(("read", "write"), [(0, 0), (-1, 4), (4, -1), (4097, 4), (4, 4097)])
def test_an_invalid_number_of_queues_is_refused(topics, read, write):
    with pytest.raises(InternalError):
        topics.put(TopicConfig("T", read, write), NOW_MS)

    assert topics.by_name.get("T") is None


@pytest.mark.parametrize(("read", "write"), [(0, 1), (1, 0), (4096, 4096)])
def test_the_read_or_write_queues_alone_can_be_zero(topics, read, write):
    assert len(topics.put(TopicConfig("T", read, write), NOW_MS).queues) == max(read, write)


def test_removing_a_topic_keeps_its_counts_in_the_totals(topics):
    gone = topics.put(topic("T"), NOW_MS)
    gone.put_count, gone.put_bytes = 3, 40

    assert topics.remove("T", NOW_MS)
    assert not topics.remove("T", NOW_MS)
    assert (topics.puts_forgotten, topics.bytes_forgotten) == (3, 40)


@pytest.mark.parametrize(
    ("perm", "readable", "writeable"),
    [(6, True, True), (4, True, False), (2, False, True), (0, False, False)],
)
def test_the_permission_decides_whether_a_topic_is_readable_and_writeable(
    topics, perm, readable, writeable
):
    made = topics.put(topic("T", perm=perm), NOW_MS)

    assert (made.is_readable, made.is_writeable) == (readable, writeable)


def test_a_topic_with_an_illegal_name_is_neither_put_nor_created(topics):
    with pytest.raises(InternalError):
        topics.put(topic("a b"), NOW_MS)
    with pytest.raises(InternalError):
        topics.put(topics.config_for_sending("a b", "TBW102", 4), NOW_MS)


# Topics made by sending


@pytest.mark.parametrize(("wanted", "made"), [(4, 4), (8, 8), (9, 8), (1, 1), (0, 1), (-3, 1)])
def test_a_created_topic_has_no_more_queues_than_its_template(topics, wanted, made):
    new = topics.put(topics.config_for_sending("T", "TBW102", wanted), NOW_MS)

    config = new.config
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (made, made, 6)


def test_any_topic_with_the_inherit_permission_is_a_template(topics):
    topics.put(topic("mine", 2, perm=5), NOW_MS)

    assert topics.put(topics.config_for_sending("T", "mine", 4), NOW_MS).config.perm == 4


@pytest.mark.parametrize("template", ["no such topic", "BenchmarkTest"])
def test_without_a_usable_template_no_topic_is_created(topics, template):
    with pytest.raises(TopicNotFound):
        topics.put(topics.config_for_sending("T", template, 4), NOW_MS)

    assert topics.by_name.get("T") is None


def test_with_auto_creation_off_a_leftover_template_creates_no_topic():
    topics = Log().topics()
    topics.defaults = TopicDefaults(auto_create=False)

    with pytest.raises(TopicNotFound):
        topics.put(topics.config_for_sending("T", "TBW102", 4), NOW_MS)
    assert topics.put(topics.config_for_sending("T", "c1", 4), NOW_MS).name == "T"


# Who may send to what


@pytest.mark.parametrize("name", CLOSED)
def test_clients_cannot_send_to_system_topics(topics, name):
    with pytest.raises(NoPermission):
        topics.for_sending(name)


def test_clients_cannot_send_to_a_topic_without_write_permission(topics):
    topics.put(topic("T", perm=4), NOW_MS)

    with pytest.raises(NoPermission):
        topics.for_sending("T")


def test_an_unknown_topic_can_be_sent_to_only_once_it_is_created(topics):
    assert topics.for_sending("T") is None
    made = topics.put(topic("T"), NOW_MS)
    assert topics.for_sending("T") is made


def test_only_writeable_ordinary_topics_are_listed_as_sendable(topics):
    """Retry topics need a second look: their group must exist."""
    topics.put(topic("T"), NOW_MS)
    topics.put(topic("closed", perm=4), NOW_MS)
    topics.put(config_for_group("%RETRY%g", 1), NOW_MS)
    assert {"T", "TBW102"} <= set(topics.sendable)
    assert topics.sendable.keys().isdisjoint({"closed", "%RETRY%g", "SELF_TEST_TOPIC"})

    topics.put(topic("T", perm=4), NOW_MS)
    topics.put(topic("closed", perm=6), NOW_MS)
    assert "T" not in topics.sendable
    assert "closed" in topics.sendable
    topics.remove("closed", NOW_MS)
    assert "closed" not in topics.sendable
    assert topics.for_sending("%RETRY%g") is topics.get("%RETRY%g")


# What could not be saved


def test_unsaved_changes_can_be_undone(topics):
    topics.put(topic("changed", 4), NOW_MS)
    topics.put(topic("removed", 2), NOW_MS)
    topics.settle()
    before = topics.saved()
    topics.put(topic("changed", 8, perm=4), NOW_MS + 1)
    topics.remove("removed", NOW_MS + 1)
    topics.put(topic("made"), NOW_MS + 1)
    topics.undo()

    assert topics.saved() == before
    assert len(topics.get("changed").queues) == 4
    assert {"changed", "removed"} <= set(topics.sendable)
    assert "made" not in topics.sendable


def test_saved_changes_are_not_undone(topics):
    topics.put(topic("T"), NOW_MS)
    topics.settle()
    topics.undo()

    assert topics.by_name.get("T")
