"""One contract for all coordinators: etcd as a real process, and the simulated store."""

import asyncio
import base64
import json
import secrets

import pytest

from txmq.errors import ConnectFailed, TransportError
from txmq.runtime.coordinator import AllowedLoss, Leader, LogEnd, SetAct, Standing, View
from txmq.testing import SeededEntropy, World
from txmq.testing.coordination import SimulatedCoordination
from txmq_broker.replication.etcd import EtcdCoordinator

LEASE_S = 1
M1, M2 = Leader("m1", "127.0.0.1:10911"), Leader("m2", "127.0.0.1:10921")
NOTHING = LogEnd(0, 0)


def as_base64(text):
    return base64.b64encode(text.encode()).decode()


class RealStore:
    """A set of its own in a real etcd."""

    def __init__(self, server):
        self.server = server
        self.name = secrets.token_hex(6)

    def coordinator(self, member):
        return EtcdCoordinator([("127.0.0.1", self.server.port)], self.name)

    def run(self, scenario):
        return asyncio.run(scenario(self))

    async def losses(self):
        values = await self.kept("losses")
        return [AllowedLoss(**value | {"former": tuple(value["former"])}) for value in values]

    async def acts(self):
        return [SetAct(**value) for value in await self.kept("acts")]

    async def kept(self, folder):
        folder = f"/txmq/sets/{self.name}/{folder}/"
        wanted = {"key": as_base64(folder), "range_end": as_base64(folder[:-1] + "0")}
        answer = await self.coordinator("m1")._call("/v3/kv/range", wanted)
        return [json.loads(base64.b64decode(pair["value"])) for pair in answer["kvs"]]

    def restart(self):
        self.server.kill()
        assert self.server.start()


class SimulatedStore:
    """A simulated store in a world of its own."""

    def __init__(self):
        self.world = World(7)
        self.store = None

    def coordinator(self, member):
        self.store = self.store or SimulatedCoordination(SeededEntropy(7))
        return self.store.coordinator(member)

    def run(self, scenario):
        return self.world.run(scenario(self))

    async def losses(self):
        return self.store.losses

    async def acts(self):
        return self.store.acts

    def restart(self):
        self.store.restart()


@pytest.fixture(params=["etcd", "simulated"])
def store(request):
    if request.param == "simulated":
        return SimulatedStore()
    return RealStore(request.getfixturevalue("etcd"))


async def led(coordinator, leader):
    """The leadership that a member takes from the present state."""
    return await coordinator.lead(leader, await coordinator.view(), LEASE_S, NOTHING)


async def in_sync_set(coordinator, leadership, seen, *members):
    """The state after its leader replaced the in-sync set."""
    return await coordinator.change(leadership, seen, seen._replace(in_sync=members))


def test_a_new_set_has_no_leader_and_the_first_member_may_lead(store):
    async def scenario(store):
        view = await store.coordinator("m1").view()
        assert view == View(None, 0, (), 0)
        assert view.may_lead("m1")

    store.run(scenario)


def test_only_one_of_two_candidates_leads(store):
    async def scenario(store):
        first, second = store.coordinator("m1"), store.coordinator("m2")
        seen = await first.view()
        won = await asyncio.gather(
            first.lead(M1, seen, LEASE_S, NOTHING), second.lead(M2, seen, LEASE_S, NOTHING)
        )
        (leadership,) = [result for result in won if result is not None]
        view = await second.view()
        assert view[:3] == (leadership.leader, 1, (leadership.leader.member,))
        assert not view.may_lead("m1")

    store.run(scenario)


def test_an_expired_lease_removes_the_leader_and_the_next_epoch_is_higher(store):
    async def scenario(store):
        first, second = store.coordinator("m1"), store.coordinator("m2")
        leadership = await led(first, M1)
        view = await in_sync_set(first, leadership, await first.view(), "m2", "m1")
        assert view.in_sync == ("m1", "m2")
        view = await second.changed(view)
        assert view[:3] == (None, 1, ("m1", "m2"))
        assert view.may_lead("m2")
        assert not view.may_lead("m3")
        assert (await second.lead(M2, view, LEASE_S, NOTHING)).epoch == 2
        assert await first.renew(leadership) is None

    store.run(scenario)


def test_no_other_member_leads_while_the_lease_is_certain(store):
    async def scenario(store):
        first, second = store.coordinator("m1"), store.coordinator("m2")
        loop = asyncio.get_running_loop()
        leadership = await led(first, M1)
        view = await second.view()
        while view.leader is not None:
            view = await second.changed(view)
        assert loop.time() >= leadership.certain_until

    store.run(scenario)


def test_a_renewed_lease_outlives_its_first_end(store):
    async def scenario(store):
        first = store.coordinator("m1")
        leadership = await led(first, M1)
        first_end = leadership.certain_until
        while asyncio.get_running_loop().time() < first_end + LEASE_S / 2:
            await asyncio.sleep(LEASE_S / 4)
            leadership = await first.renew(leadership)
        assert leadership.certain_until > first_end
        assert (await first.view()).leader == M1

    store.run(scenario)


def test_a_resigned_leader_can_be_replaced_at_once(store):
    async def scenario(store):
        first, second = store.coordinator("m1"), store.coordinator("m2")
        leadership = await first.lead(M1, await first.view(), 60, NOTHING)
        waiting = asyncio.create_task(second.changed(await second.view()))
        await first.resign(leadership)
        view = await waiting
        assert view.leader is None
        assert await first.renew(leadership) is None
        await first.resign(leadership)
        assert (await second.lead(M2, view, LEASE_S, NOTHING)).epoch == 2

    store.run(scenario)


def test_the_in_sync_set_changes_only_from_the_state_its_leader_saw(store):
    async def scenario(store):
        first, second = store.coordinator("m1"), store.coordinator("m2")
        leadership = await first.lead(M1, await first.view(), 60, NOTHING)
        seen = await first.view()
        view = await in_sync_set(first, leadership, seen, "m1", "m2")
        assert view == await second.view()
        assert view.version > seen.version
        assert await in_sync_set(first, leadership, seen, "m1") is None
        await first.resign(leadership)
        seen = await first.view()
        assert await in_sync_set(first, leadership, seen, "m1") is None
        assert (await second.lead(M2, seen, LEASE_S, NOTHING)).epoch == 2
        assert await in_sync_set(first, leadership, await first.view(), "m1") is None
        assert (await first.view()).in_sync == ("m1", "m2")

    store.run(scenario)


def test_an_allowed_loss_lets_another_member_lead_a_leaderless_set(store):
    async def scenario(store):
        first, second = store.coordinator("m1"), store.coordinator("m2")
        leadership = await first.lead(M1, await first.view(), 60, NOTHING)
        loss = AllowedLoss("m2", "Li Na", "m1 has burnt", 5, ("m1",))
        seen = await second.view()
        assert await second.allow_loss(seen, loss) is None
        await first.resign(leadership)
        assert await second.allow_loss(seen._replace(version=seen.version - 1), loss) is None
        seen = await second.view()
        waiting = asyncio.create_task(second.changed(seen))
        view = await first.allow_loss(seen, loss)
        assert view == await waiting == await second.view()
        assert (view.epoch, view.in_sync, view.loss) == (1, ("m2",), loss)
        assert view.may_lead("m2")
        assert not view.may_lead("m1")
        assert await first.allow_loss(seen, loss) is None
        assert (await second.lead(M2, view, LEASE_S, NOTHING)).epoch == 2
        view = await second.view()
        assert (view.in_sync, view.loss) == (("m2",), None)
        assert await store.losses() == [loss]

    store.run(scenario)


def test_a_removed_member_cannot_lead_until_it_is_let_back(store):
    async def scenario(store):
        first, second = store.coordinator("m1"), store.coordinator("m2")
        leadership = await first.lead(M1, await first.view(), 60, NOTHING)
        seen = await in_sync_set(first, leadership, await first.view(), "m1", "m2.00000001")
        assert seen.members == ("m1", "m2.00000001")
        act = SetAct("remove", "m2", "Li Na", "its disk is slow", 5)
        wanted = seen._replace(in_sync=("m1",), members=("m1",), removed=(act,))
        seen = await first.change(leadership, seen, wanted, act)
        assert (seen.in_sync, seen.members, seen.removed) == (("m1",), ("m1",), (act,))
        await first.resign(leadership)
        seen = await second.view()
        assert seen.removal_of("m2.00000001") == act
        assert not seen.may_lead("m2.00000001")
        # An allowed loss for another member keeps the removal; one for this member lifts it.
        seen = await first.allow_loss(seen, AllowedLoss("m3", "Li Na", "gone", 6, ("m1",)))
        assert (seen.in_sync, seen.removed) == (("m3",), (act,))
        seen = await first.allow_loss(seen, AllowedLoss("m2.00000002", "Li Na", "gone", 7, ()))
        assert (seen.in_sync, seen.removed) == (("m2.00000002",), ())
        assert seen.may_lead("m2.00000002")
        assert await store.acts() == [act]

    store.run(scenario)


def test_other_members_give_way_to_the_chosen_one_until_a_member_leads(store):
    async def scenario(store):
        first, second = store.coordinator("m1"), store.coordinator("m2")
        leadership = await first.lead(M1, await first.view(), 60, NOTHING)
        seen = await in_sync_set(first, leadership, await first.view(), "m1", "m2", "m3")
        act = SetAct("hand-over", "m2", "Li Na", "an upgrade", 5)
        seen = await first.change(leadership, seen, seen._replace(hand_over=act), act)
        # A change of the in-sync set keeps the choice.
        seen = await in_sync_set(first, leadership, seen, "m1", "m2")
        await first.resign(leadership)
        seen = await second.view()
        assert seen.hand_over == act
        assert [seen.gives_way(member) for member in ("m1", "m2", "m3")] == [True, False, True]
        assert await second.lead(M2, seen, LEASE_S, NOTHING) is not None
        assert (await second.view()).hand_over is None

    store.run(scenario)


def test_a_member_that_knows_a_newer_epoch_than_the_store_leads_in_the_next(store):
    """This happens after the store has lost its data."""

    async def scenario(store):
        first = store.coordinator("m1")
        seen = (await first.view())._replace(epoch=7)
        assert (await first.lead(M1, seen, LEASE_S, NOTHING)).epoch == 8
        assert (await first.view()).epoch == 8

    store.run(scenario)


def test_a_change_wakes_the_members_that_wait(store):
    async def scenario(store):
        first, second = store.coordinator("m1"), store.coordinator("m2")
        waiting = asyncio.create_task(second.changed(await second.view()))
        leadership = await first.lead(M1, await first.view(), 60, NOTHING)
        assert (await waiting).leader == M1
        seen = await second.view()
        waiting = asyncio.create_task(second.changed(seen))
        await in_sync_set(first, leadership, seen, "m1", "m2")
        assert (await waiting).in_sync == ("m1", "m2")

    store.run(scenario)


def test_a_restarted_store_keeps_the_state_and_ends_the_waits(store):
    async def scenario(store):
        first = store.coordinator("m1")
        leadership = await first.lead(M1, await first.view(), 60, NOTHING)
        seen = await first.view()
        waiting = asyncio.create_task(first.changed(seen))
        await asyncio.sleep(0.1)  # The request is under way; the outcome is the same if it is not.
        store.restart()
        with pytest.raises(TransportError):
            await waiting
        assert await first.view() == seen
        assert await first.renew(leadership) is not None

    store.run(scenario)


def test_a_partitioned_member_gets_errors_and_loses_its_lease():
    async def scenario():
        store = SimulatedCoordination(SeededEntropy(3))
        first, second = store.coordinator("m1"), store.coordinator("m2")
        leadership = await led(first, M1)
        store.partition("m1")
        with pytest.raises(TransportError):
            await first.renew(leadership)
        view = await second.changed(await second.view())
        assert await second.lead(M2, view, LEASE_S, NOTHING) is not None
        store.heal("m1")
        assert await first.renew(leadership) is None

    World(3).run(scenario())


def test_a_stopped_store_answers_nobody_and_keeps_the_lease():
    async def scenario():
        store = SimulatedCoordination(SeededEntropy(3))
        first, second = store.coordinator("m1"), store.coordinator("m2")
        leadership = await led(first, M1)
        store.stop()
        for question in (first.renew(leadership), second.view(), second.changed(store.view())):
            with pytest.raises(TransportError):
                await question
        await asyncio.sleep(3 * LEASE_S)
        store.start()
        await asyncio.sleep(LEASE_S - 0.5)  # The whole lease time starts again.
        assert (await second.view()).leader == M1
        view = await second.changed(await second.view())
        assert view.leader is None
        assert await first.renew(leadership) is None

    World(3).run(scenario())


def test_the_error_names_every_unreachable_endpoint():
    coordinator = EtcdCoordinator([("127.0.0.1", 1), ("127.0.0.1", 2)], "broker-a")
    with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2"):
        asyncio.run(coordinator.view())


def test_the_acknowledged_position_survives_its_leader_and_in_sync_set(store):
    async def scenario(store):
        first, second = store.coordinator("m1"), store.coordinator("m2")
        assert await second.acknowledged() is None
        leadership = await first.lead(M1, await first.view(), 60, NOTHING)
        await first.acknowledge(leadership, LogEnd(1, 500))
        assert await second.acknowledged() == LogEnd(1, 500)
        seen = await first.view()
        wanted = seen._replace(in_sync=("m1", "m2"))
        assert await first.change(leadership, seen, wanted, None, LogEnd(1, 700)) is not None
        await first.resign(leadership)
        view = await second.view()
        await first.acknowledge(leadership, LogEnd(1, 900))

        assert await second.lead(M2, view, LEASE_S, LogEnd(1, 800)) is not None
        assert await second.acknowledged() == LogEnd(1, 700)

    store.run(scenario)


def test_an_allowed_loss_resets_the_acknowledged_position(store):
    async def scenario(store):
        first, second = store.coordinator("m1"), store.coordinator("m2")
        leadership = await first.lead(M1, await first.view(), 60, NOTHING)
        await first.acknowledge(leadership, LogEnd(1, 500))
        await first.resign(leadership)
        loss = AllowedLoss("m2", "Li Na", "m1 has burnt", 5, ("m1",))
        view = await second.allow_loss(await second.view(), loss)

        assert await second.lead(M2, view, LEASE_S, LogEnd(1, 300)) is not None
        assert await second.acknowledged() == LogEnd(1, 300)

    store.run(scenario)


def test_standings_expire_and_wake_no_waiting_member(store):
    async def scenario(store):
        first, second = store.coordinator("m1"), store.coordinator("m2")
        seen = await second.view()
        waiting = asyncio.ensure_future(second.changed(seen))
        sure, doubtful = Standing(LogEnd(3, 900)), Standing(LogEnd(3, 950), "no mark", 990)
        await first.stand("m1", sure, 3, LEASE_S)
        await second.stand("m2", doubtful, 3, 60)
        await second.stand("m2", sure, 30, 60)
        assert await first.standing(3) == {"m1": sure, "m2": doubtful}
        assert await first.standing(30) == {"m2": sure}
        async with asyncio.timeout(30):
            while await first.standing(3) != {"m2": doubtful}:
                await asyncio.sleep(0.05)
        assert not waiting.done()
        waiting.cancel()

    store.run(scenario)
