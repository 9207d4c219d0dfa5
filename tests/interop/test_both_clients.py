"""The C++ client and ali-ons on one broker: what one sends the other handles."""

import pytest

from tests.interop import interop_scenarios as scenarios
from tests.interop.interop_together import KILL, members, restart
from tests.soak import only_in_soak


@pytest.fixture(params=["cpp-to-ons", *only_in_soak("ons-to-cpp")])
def direction(request, cpp, ons):
    return (cpp, ons) if request.param == "cpp-to-ons" else (ons, cpp)


@pytest.mark.timeout(60)
def test_messages_from_one_client_are_handled_once_by_the_other(stage, direction):
    sent, handled = scenarios.messages_arrive_once(stage, *direction)

    scenarios.positions_agree(sent, handled)


@pytest.mark.timeout(60)
def test_bodies_of_64_kb_pass_from_one_to_the_other(stage, direction):
    scenarios.large_bodies_arrive_intact(stage, *direction)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("play", [members("cpp", "cpp", "ons")], indirect=True, ids=str)
def test_members_of_both_clients_share_the_queues_of_one_group(play):
    play()


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("play", [restart("cpp", "ons", KILL)], indirect=True, ids=str)
def test_a_broker_kill_between_two_clients_loses_no_acknowledged_message(play):
    play()
