"""7707: what a leader says about its followers."""

from types import SimpleNamespace

import pytest

from tests.running import run_by
from tests.unit.replication.set_stage import in_set
from txmq.errors import IllegalOperation
from txmq.protocol.bodies import TextTable
from txmq.protocol.codes import RequestCode
from txmq.protocol.copies import CopiesView, SetChange
from txmq_broker.config import ReplicationSettings
from txmq_broker.core.admission import Admission
from txmq_broker.replication.acknowledgements import Acknowledgements


async def view_at(client):
    return CopiesView.read((await client.ok(RequestCode.SHOW_COPIES)).body)


@run_by(in_set)
async def test_the_copies_view_of_a_broker_without_followers_lists_none(stage, /):
    await stage.first.lead()
    client = await stage.first.client()
    view = await view_at(client)
    expected = CopiesView("", 0, "async", 1, stage.first.end, [], verified_ms=view.verified_ms)
    assert view == expected


@run_by(in_set)
async def test_the_copies_view_shows_a_followers_position_and_address(stage, /):
    client = await stage.copied()
    view = await view_at(client)
    (follower,) = view.followers
    assert (view.epoch, view.log_end) == (0, stage.first.end)
    assert (follower.member, follower.is_in_sync) == ("m2", True)
    assert follower.address.startswith(stage.second.machine.address)
    assert (follower.position, follower.bytes_behind) == (stage.first.end, 0)
    assert (follower.seconds_behind, follower.is_longer) == (0, False)
    table = TextTable.read((await client.ok(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
    expected = {"epoch": "0", "isLeader": "1", "followers": "1", "followersInSync": "1"}
    assert table.items() >= {**expected, "bytesNotCopied": "0"}.items()
    assert "secondsSinceLeaseRenewal" not in table


@run_by(in_set)
async def test_changing_a_set_without_a_coordinator_is_refused(stage, /):
    await stage.first.lead()
    client = await stage.first.client()
    wanted = SetChange("remove", "m2", "Li Na", "a slow disk")
    found = await client.ask(RequestCode.CHANGE_SET, wanted)
    assert found.code == IllegalOperation.code
    assert "this broker has no coordinator" in found.remark


class Store:
    """A log that ends where the test says."""

    def __init__(self):
        self.log = SimpleNamespace(end=0)
        self.checkpoints = SimpleNamespace(published=0)


@pytest.fixture
def ticked():
    """The lag of a copy after the log ended at the given positions, one per second."""
    store, clock = Store(), SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    settings = ReplicationSettings(lag_max=10)
    answers = Acknowledgements(store, clock, settings, Admission(), lambda *_: None, None)

    def ticked(*ends):
        for end in ends:
            store.log.end = end
            clock.now += 1.0
            answers.tick(())
        return answers.lag_of

    return ticked


def test_a_copys_lag_counts_from_the_last_moment_it_was_complete(ticked):
    lag_of = ticked(10, 20, 20, 30)
    assert [lag_of(position) for position in (30, 29, 20, 19, 10)] == [
        (0.0, False),
        (1.0, False),
        (1.0, False),
        (3.0, False),
        (3.0, False),
    ]


def test_a_copy_behind_all_known_moments_has_only_a_minimum_lag(ticked):
    assert ticked(10, 20)(9) == (1.0, True)
    assert ticked(*range(30, 60))(9) == (10.0, True)


def test_without_any_known_moment_the_lag_is_zero_or_unknown(ticked):
    lag_of = ticked()
    assert lag_of(0) == (0.0, False)
    assert lag_of(-1) == (0.0, True)
