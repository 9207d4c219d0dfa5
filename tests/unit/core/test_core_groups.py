import pytest

from tests.unit.core.core_log import NOW_MS
from txmq.errors import GroupNotFound, InternalError
from txmq.protocol.bodies import DataVersion, GroupConfig, GroupConfigs
from txmq_broker.config import TopicDefaults
from txmq_broker.core.groups import BUILT_IN, Groups


@pytest.fixture
def groups():
    made = Groups(TopicDefaults())
    made.load(GroupConfigs())
    return made


def test_every_broker_has_the_groups_tools_rely_on(groups):
    assert {each.group_name for each in groups} == set(BUILT_IN)
    assert not groups.unsaved


def test_what_was_saved_is_there_again(groups):
    saved = GroupConfigs(DataVersion(1, 2), {"g": GroupConfig("g", retry_max_times=3)})
    groups.load(saved)

    assert groups.find("g") == GroupConfig("g", retry_max_times=3)
    assert groups.saved().data_version == DataVersion(1, 2)


def test_a_group_comes_into_being_by_being_named(groups):
    made = groups.get("g", NOW_MS)

    assert made == GroupConfig("g")
    assert groups.get("g", NOW_MS) is made
    assert groups.version == DataVersion(timestamp=NOW_MS, counter=1)
    assert groups.unsaved


def test_where_groups_must_be_made_first_naming_one_is_not_enough():
    groups = Groups(TopicDefaults(auto_create_groups=False))

    with pytest.raises(GroupNotFound):
        groups.get("g", NOW_MS)
    assert groups.get("CID_RMQ_SYS_TRANS", NOW_MS).group_name == "CID_RMQ_SYS_TRANS"


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_a_group_needs_a_name_that_clients_can_have(groups, name):
    with pytest.raises(InternalError):
        groups.put(GroupConfig(name), NOW_MS)


def test_a_group_cannot_have_more_retry_queues_than_a_topic_may_have(groups):
    with pytest.raises(InternalError):
        groups.put(GroupConfig("g", retry_queue_nums=4097), NOW_MS)
    groups.put(GroupConfig("g", retry_queue_nums=0), NOW_MS)


def test_a_group_is_removed_once(groups):
    groups.put(GroupConfig("g"), NOW_MS)
    groups.unsaved = False

    assert groups.remove("g", NOW_MS)
    assert groups.unsaved
    assert not groups.remove("g", NOW_MS)
    assert groups.find("g") is None
