"""Apache RocketMQ 4.9 refuses pulls of op messages, which say what was rolled back. Transactions
are read as they ended all the same, or the run is refused.
"""

import asyncio

import pytest

from tests.reconcile.rocketmq49 import RocketMQ49, hidden_from_names
from tests.reconcile.test_log_cluster import (
    NEVER,
    Cluster,
    a_day,
    on_cluster,
    restart_when_read,
    rows,
)
from txmq.errors import NoPermission, ReconcileRefused, RequestNotSupported
from txmq.protocol.codes import RequestCode
from txmq.protocol.topics import HALF_TOPIC, OP_TOPIC
from txmq.reconcile.log import cluster_log
from txmq.reconcile.rules import DayWindow


class OldCluster(Cluster):
    """A cluster of which some brokers are like those of 4.9.8."""

    def __init__(self, directory, checks, old="ab", hidden=(OP_TOPIC,)):
        super().__init__(directory, checks)
        self.old, self.hidden, self.played = old, hidden, {}

    async def __aenter__(self):
        names = [f"broker-{name}" for name in self.old]
        self.stack.enter_context(hidden_from_names(names, self.hidden))
        return await super().__aenter__()

    async def start(self, name, **settings):
        await super().start(name, **settings)
        if name in self.old:
            self.played[name] = RocketMQ49(self.running[name], self.hidden)


def same_as_files(wire):
    """Compare with the directories, but for what 4.9.8 does not keep."""

    def verify(cluster):
        files = cluster.taken_from_files()
        kept = [row for row in files.messages if row["key"] != "icbc/later"]
        unknown = ("decided_by", "reason", "decided_ms")
        assert rows(wire.messages, *unknown) == rows(kept, *unknown)
        assert rows(wire.failures) == rows(files.failures)
        states = list(wire.states().values())
        assert (states.count("rolled_back"), states.count("prepared")) == (10, 1)

    return verify


@on_cluster(kind=OldCluster)
async def test_rolled_back_transactions_of_rocketmq_49_are_read_as_rolled_back(cluster, patched):
    patched.setattr(cluster_log, "RECORDS_A_FILE", 5)
    await a_day(cluster)

    return same_as_files(await cluster.taken())


@on_cluster(kind=OldCluster, old="b")
async def test_an_old_and_a_newer_broker_are_read_together(cluster, patched):
    """The name servers know the topic of op messages then, but only at the other broker."""
    await a_day(cluster)
    states = list((await cluster.taken()).states().values())

    assert (states.count("rolled_back"), states.count("prepared")) == (10, 1)


@on_cluster(kind=OldCluster, hidden=(OP_TOPIC, HALF_TOPIC))
async def test_an_old_broker_is_read_before_its_first_round_of_checks(cluster, patched):
    await a_day(cluster)

    return same_as_files(await cluster.taken())


@on_cluster(kind=OldCluster)
async def test_an_old_broker_may_restart_while_it_is_read(cluster, patched):
    await a_day(cluster)
    restarts = restart_when_read(cluster, patched)
    wire = await cluster.taken()
    await restarts[0]

    return same_as_files(wire)


@on_cluster(kind=OldCluster)
async def test_op_messages_of_earlier_days_may_be_deleted(cluster, patched):
    patched.setattr(cluster_log, "_MARGIN_MS", 0)
    await a_day(cluster)
    for old in cluster.played.values():
        earlier = old.positions_of_op_records()
        old.minimum[OP_TOPIC] = len(earlier) - 3
        old.deleted.update(earlier[:-3])
    await asyncio.sleep(0.01)
    midnight = cluster.client.session.clock.wall_ms()
    for key in ("one", "two"):
        await cluster.transfer(key, "no")
    wire = await cluster.taken(window=DayWindow(midnight, 1 << 60))

    assert wire.states() == {"one": "rolled_back", "two": "rolled_back"}


@on_cluster(kind=OldCluster)
async def test_a_run_is_refused_if_op_messages_are_deleted_while_it_reads(cluster, patched):
    """The log deletes a record before the index forgets it, so 321 names what 33 does not find."""
    await a_day(cluster)
    old = cluster.played["a"]
    old.deleted.add(old.positions_of_op_records()[3])

    with pytest.raises(ReconcileRefused, match=rf"{OP_TOPIC}/broker-a/0 has no message 3 any more"):
        await cluster.taken()


@on_cluster(kind=OldCluster)
async def test_a_run_is_refused_if_the_index_of_op_messages_is_wrong(cluster, patched):
    await a_day(cluster)
    old = cluster.played["a"]
    first, second, *_ = old.positions_of_op_records()
    old.swapped[second] = first

    with pytest.raises(ReconcileRefused, match=f"names position {second} for its message 1"):
        await cluster.taken()


@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        (RequestCode.QUERY_CONSUME_QUEUE, RequestNotSupported("request type 321 not supported")),
        (RequestCode.VIEW_MESSAGE_BY_ID, NoPermission("administrators only")),
    ],
)
def test_a_run_is_refused_if_op_messages_cannot_be_read_at_all(tmp_path, code, refusal):
    async def play():
        async with OldCluster(tmp_path, NEVER) as cluster:
            await cluster.transfer("no", "no")
            for old in cluster.played.values():
                old.refusals[code] = refusal
            await cluster.taken()

    why = "rolled-back transactions would count as open"
    with pytest.raises(ReconcileRefused, match=rf"pulls of {OP_TOPIC}.*{why}.*{refusal.remark}"):
        asyncio.run(play())
