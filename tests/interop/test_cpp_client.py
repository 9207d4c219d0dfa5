"""The C++ client (librocketmq, by PyPI rocketmq-client-python 0.5.0rc2) against `txmq serve`.

What it sends to others, and receives from others, is in test_our_client.py and
test_both_clients.py; what it only sends to itself runs in a soak.
"""

import pytest

from tests.interop import interop_scenarios as scenarios
from tests.interop.interop_together import members, restarts

SHARDS = ["lisbon", "oslo", "quito", "tunis", "xian"]


@pytest.mark.timeout(60)
def test_synchronous_sends_are_acknowledged_and_handled_once(stage, cpp):
    sent, handled = scenarios.messages_arrive_once(stage, cpp, cpp)

    scenarios.positions_agree(sent, handled)
    assert {event["status"] for event in sent} == {"OK"}
    told = {event["keys"]: event["msg_id"] for event in sent}
    assert {event["keys"]: event["msg_id"] for event in handled} == told


@pytest.mark.soak
@pytest.mark.timeout(60)
def test_one_way_sends_are_handled_once(stage, cpp):
    scenarios.messages_arrive_once(stage, cpp, cpp, verb="send-oneway")


@pytest.mark.timeout(60)
def test_the_first_message_to_a_missing_topic_creates_it(stage, cpp):
    topic, group = f"{stage.name}-new", stage.group()
    sender = stage.sender(cpp, topic)
    lines = stage.send(sender, scenarios.letters("m", 8))

    consumer = stage.consumer(cpp, topic, group)

    stage.wait_handled([consumer], lines)


@pytest.mark.soak
@pytest.mark.timeout(60)
def test_bodies_of_64_kb_arrive_intact_and_compressed(stage, cpp):
    scenarios.large_bodies_arrive_intact(stage, cpp, cpp)


@pytest.mark.timeout(60)
def test_ordered_sends_keep_the_order_of_each_shard(stage, cpp):
    scenarios.shards_keep_their_order(stage, cpp, cpp, SHARDS, "--orderly")


@pytest.mark.soak
@pytest.mark.timeout(60)
def test_orderly_members_share_queues_and_keep_the_order(stage, cpp):
    scenarios.locked_queues_keep_their_order(stage, cpp, [cpp, cpp], SHARDS)


@pytest.mark.soak
@pytest.mark.timeout(60)
def test_a_tag_expression_selects_messages(stage, cpp):
    scenarios.tag_expression_selects(stage, cpp, cpp)


@pytest.mark.soak
@pytest.mark.timeout(60)
def test_broadcasting_reaches_every_member(stage, cpp):
    scenarios.broadcast_reaches_everyone(stage, cpp, [cpp, cpp])


@pytest.mark.soak
@pytest.mark.timeout(180)
@pytest.mark.parametrize("play", [members("cpp", "cpp", "cpp")], indirect=True, ids=str)
def test_no_message_is_lost_or_repeated_when_a_member_joins_and_leaves(play):
    play()


@pytest.mark.soak
@pytest.mark.timeout(180)
@pytest.mark.parametrize("play", restarts("cpp"), indirect=True)
def test_a_broker_restart_loses_no_acknowledged_message(play):
    play()
