"""A leader that demands more copies than there are."""

from msgspec.structs import replace

from tests.running import run_by
from tests.unit.handlers.handler_stage import SETTINGS, in_world, sending
from tests.unit.handlers.transaction_stage import COMMIT, end, prepare
from txmq_broker.config import ReplicationSettings
from txmq_broker.core.admission import COPIES

TOO_FEW = 14
SEND = 10


@run_by(in_world, replace(SETTINGS, replication=ReplicationSettings(min_in_sync=2)))
async def test_with_too_few_copies_neither_messages_nor_decisions_are_stored(stage, /):
    client = await stage.client(topic="T")
    refused = await client.ask(SEND, sending("T"), body=b"alone")
    assert refused.code == TOO_FEW
    assert refused.remark == "1 of 2 copies are in sync; nothing was stored"
    # As when a follower leaves between a half message and its decision.
    reason = stage.broker.admission.reasons.pop(COPIES)
    half = await prepare(client)
    stage.broker.admission.set_cause(COPIES, reason)
    assert await end(client, half, COMMIT) == TOO_FEW
    assert (await client.pull("T")).bodies == []

    stage.broker.admission.clear_cause(COPIES)
    assert await end(client, half, COMMIT) == 0
    assert (await client.pull("T")).bodies == [b"half"]
