"""The Node client ali-ons 3.12.0 against `txmq serve`.

It offers no one-way send, and no orderly consumer beyond one message at a time per queue.
What it only sends to itself runs in a soak, as in test_cpp_client.py.
"""

import pytest

from tests.interop import interop_scenarios as scenarios
from tests.interop.interop_together import members, restarts


@pytest.mark.timeout(60)
def test_synchronous_sends_are_acknowledged_and_handled_once(stage, ons):
    sent, handled = scenarios.messages_arrive_once(stage, ons, ons)

    scenarios.positions_agree(sent, handled)
    assert {event["status"] for event in sent} == {"OK"}
    told = {event["keys"]: (event["msg_id"], event["queue_id"]) for event in sent}
    assert {event["keys"]: (event["msg_id"], event["queue_id"]) for event in handled} == told


@pytest.mark.soak
@pytest.mark.timeout(60)
def test_bodies_of_64_kb_arrive_intact_and_compressed(stage, ons):
    scenarios.large_bodies_arrive_intact(stage, ons, ons)


@pytest.mark.timeout(60)
def test_ordered_sends_keep_the_order_of_each_shard(stage, ons):
    scenarios.shards_keep_their_order(stage, ons, ons, scenarios.SHARDS_KEPT_BY_ONS)


@pytest.mark.soak
@pytest.mark.timeout(60)
def test_a_tag_expression_selects_messages(stage, ons):
    scenarios.tag_expression_selects(stage, ons, ons)


@pytest.mark.soak
@pytest.mark.timeout(60)
def test_broadcasting_reaches_every_member(stage, ons):
    scenarios.broadcast_reaches_everyone(stage, ons, [ons, ons])


@pytest.mark.soak
@pytest.mark.timeout(180)
@pytest.mark.parametrize("play", [members("ons", "ons", "ons")], indirect=True, ids=str)
def test_no_message_is_lost_or_repeated_when_a_member_joins_and_leaves(play):
    play()


@pytest.mark.soak
@pytest.mark.timeout(180)
@pytest.mark.parametrize("play", restarts("ons"), indirect=True)
def test_a_broker_restart_loses_no_acknowledged_message(play):
    play()
