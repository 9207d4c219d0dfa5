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


def test_every_broker_has_the_built_in_groups_of_rocketmq(groups):
    assert {group.group_name for group in groups} == set(BUILT_IN)
    assert not groups.unsaved


def test_saved_groups_are_loaded_again(groups):
    saved = GroupConfigs(DataVersion(1, 2), {"g": GroupConfig("g", retry_max_times=3)})
    groups.load(saved)

    assert groups.find("g") == GroupConfig("g", retry_max_times=3)
    assert groups.saved().data_version == DataVersion(1, 2)


def test_asking_for_a_group_creates_it(groups):
    made = groups.get("g", NOW_MS)

    assert made == GroupConfig("g")
    assert groups.get("g", NOW_MS) is made
    assert groups.version == DataVersion(timestamp=NOW_MS, counter=1)
    assert groups.unsaved


def test_with_auto_creation_off_asking_for_a_group_does_not_create_it():
    groups = Groups(TopicDefaults(auto_create_groups=False))

    with pytest.raises(GroupNotFound):
        groups.get("g", NOW_MS)
    assert groups.get("CID_RMQ_SYS_TRANS", NOW_MS).group_name == "CID_RMQ_SYS_TRANS"


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_an_empty_or_too_long_group_name_is_refused(groups, name):
    with pytest.raises(InternalError):
        groups.put(GroupConfig(name), NOW_MS)


def test_the_number_of_retry_queues_of_a_group_is_limited(groups):
    with pytest.raises(InternalError):
        groups.put(GroupConfig("g", retry_queue_nums=4097), NOW_MS)
    groups.put(GroupConfig("g", retry_queue_nums=0), NOW_MS)


def test_removing_a_group_a_second_time_does_nothing(groups):
    groups.put(GroupConfig("g"), NOW_MS)
    groups.unsaved = False

    assert groups.remove("g", NOW_MS)
    assert groups.unsaved
    assert not groups.remove("g", NOW_MS)
    assert groups.find("g") is None
