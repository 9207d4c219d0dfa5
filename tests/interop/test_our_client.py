"""txmq's own client with the C++ client and ali-ons, on one `txmq serve`: what one sends the
other handles, both ways, and members of one group are of both kinds.
"""

import pytest

from tests.interop import interop_scenarios as scenarios
from tests.interop.interop_together import KILL, members, restart, restarts
from tests.soak import only_in_soak

SHARDS = scenarios.SHARDS_KEPT_BY_ONS
ANY_BYTES = bytes(range(256)) * 8
NO_NUL = ANY_BYTES.replace(b"\0", b"")  # the C++ client's wrapper speaks in C strings
THEIRS = ["cpp", "ons"]


WAYS = {"from us-cpp": ("ours", "cpp"), "to us-ons": ("ons", "ours")}
"""With test_both_clients.py, in which the C++ client sends to ali-ons, each client sends to one
other and receives from one.
"""
OTHER_WAYS = {"from us-ons": ("ours", "ons"), "to us-cpp": ("cpp", "ours")}


def both_ways(play):
    """A play from our client to another, and back; in a soak with each third-party client."""
    cases = [pytest.param(play(*ends), id=way) for way, ends in WAYS.items()]
    return cases + [
        pytest.param(play(*ends), id=way, marks=pytest.mark.soak)
        for way, ends in OTHER_WAYS.items()
    ]


def beside(name):
    """Test our client with this third-party client, and in a soak with each."""
    others = [client for client in THEIRS if client != name]
    return pytest.mark.parametrize("theirs", [name, *only_in_soak(*others)], indirect=True)


@pytest.fixture(params=THEIRS)
def theirs(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=[*WAYS, *only_in_soak(*OTHER_WAYS)])
def direction(request):
    return tuple(map(request.getfixturevalue, (WAYS | OTHER_WAYS)[request.param]))


def agree_on_ids(sent, handled):
    """Both know each message by one id: that of its producer, or that of its position."""
    told = {event["keys"]: {event.get("offset_id"), event["msg_id"]} for event in sent}
    for event in handled:
        assert {event.get("offset_id"), event["msg_id"]} & told[event["keys"]] - {None}


@pytest.mark.timeout(60)
def test_messages_between_txmq_and_another_client_are_handled_once(stage, direction):
    sent, handled = scenarios.messages_arrive_once(stage, *direction)

    scenarios.positions_agree(sent, handled)
    agree_on_ids(sent, handled)
    assert {event["status"] for event in sent} == {"OK"}


@pytest.mark.timeout(60)
@beside("ons")
@pytest.mark.parametrize("verb", ["send-nowait", "send-oneway"])
def test_messages_sent_without_waiting_are_handled_once_by_other_clients(stage, ours, theirs, verb):
    sent, handled = scenarios.messages_arrive_once(stage, ours, theirs, verb)

    if verb == "send-nowait":
        scenarios.positions_agree(sent, handled)


@pytest.mark.timeout(60)
def test_one_way_messages_of_the_cpp_client_are_handled_once(stage, cpp, ours):
    scenarios.messages_arrive_once(stage, cpp, ours, "send-oneway")


@pytest.mark.timeout(60)
@beside("cpp")
def test_messages_of_other_clients_are_polled_once(stage, theirs, ours):
    sent, handled = scenarios.messages_arrive_once(stage, theirs, ours, "send", "--polling")

    scenarios.positions_agree(sent, handled)


@pytest.mark.timeout(60)
def test_keys_tags_properties_and_bodies_arrive_as_they_were_sent(stage, direction, cpp):
    data = NO_NUL if cpp in direction else ANY_BYTES
    sent, handled = scenarios.all_parts_arrive(stage, *direction, data)

    agree_on_ids(sent, handled)


@pytest.mark.timeout(60)
def test_bodies_of_64_kb_arrive_intact_and_compressed(stage, direction):
    scenarios.large_bodies_arrive_intact(stage, *direction)


@pytest.mark.timeout(60)
@beside("cpp")
def test_a_batch_of_ours_arrives_as_single_messages(stage, ours, theirs):
    scenarios.batches_arrive_whole(stage, ours, theirs)


@pytest.mark.timeout(60)
@beside("ons")
def test_lingering_messages_arrive_as_single_messages(stage, ours, theirs):
    scenarios.messages_travel_together(stage, ours, theirs)


@pytest.mark.timeout(60)
def test_ordered_sends_keep_the_order_of_each_shard(stage, direction, ons):
    consuming = direction[1]
    flags = [] if consuming is ons else ["--orderly"]  # ons takes one message a queue at a time

    scenarios.shards_keep_their_order(stage, *direction, SHARDS, *flags)


@pytest.mark.timeout(60)
def test_our_orderly_member_shares_queues_with_a_cpp_member(stage, ours, cpp):
    scenarios.locked_queues_keep_their_order(stage, ours, [ours, cpp], SHARDS)


@pytest.mark.timeout(60)
def test_our_orderly_members_share_queues(stage, ours):
    scenarios.locked_queues_keep_their_order(stage, ours, [ours, ours], SHARDS)


@pytest.mark.timeout(60)
def test_a_tag_expression_selects_messages(stage, direction):
    scenarios.tag_expression_selects(stage, *direction)


@pytest.mark.timeout(60)
def test_broadcasting_reaches_members_of_both_kinds(stage, ours, theirs):
    scenarios.broadcast_reaches_everyone(stage, ours, [ours, theirs])


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "play", both_ways(lambda one, other: members(one, one, other)), indirect=True
)
def test_members_of_both_clients_share_the_queues_of_one_group(play):
    play()


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "play",
    [
        pytest.param(members("ours", "cpp", "ours", "--polling"), id="cpp"),
        pytest.param(members("ours", "ons", "ours", "--polling"), id="ons", marks=pytest.mark.soak),
    ],
    indirect=True,
)
def test_our_polling_member_shares_the_queues_with_another_client(play):
    play()


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("play", [members("ours", "ours", "ours")], indirect=True, ids=str)
def test_our_members_share_the_queues_of_one_group(play):
    play()


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "play", both_ways(lambda one, other: restart(one, other, KILL)), indirect=True
)
def test_a_broker_kill_between_two_clients_loses_no_acknowledged_message(play):
    play()


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "play",
    [restart("ours", "ons", KILL, "send-nowait", "--linger-ms", "50")],
    indirect=True,
    ids=str,
)
def test_a_broker_kill_loses_no_acknowledged_lingering_message(play):
    play()


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("play", restarts("ours"), indirect=True)
def test_a_broker_restart_loses_no_acknowledged_message_of_our_client(play):
    play()
