"""Rechecks of many transactions, at brokers with the paged request and at others."""

from msgspec.structs import replace

from tests.unit.client.client_stage import staged
from txmq.protocol import bodies, command
from txmq.protocol.headers import NamedTransaction
from txmq.protocol.operations import RecheckedTransactions, RecheckTransactions

NOT_FOUND = 22
ENTRY = bodies.TransactionEntry("T1", "parked", "g", "T", 0, 0, 0, "", "", 1, 0, "")


@staged(brokers=2)
async def test_a_broker_without_paged_rechecks_is_asked_about_each_transaction(stage):
    new, old = stage.cluster.brokers
    starts, names, counts = [], [], []

    def recheck_page(request):
        starts.append(request.read(RecheckTransactions).from_offset)
        found = RecheckedTransactions(5, 7) if starts == [0] else RecheckedTransactions(2, -1)
        return command.answer(request, 0, found)

    def recheck_one(request):
        names.append(request.read(NamedTransaction).transaction_id)
        return command.answer(request, NOT_FOUND if names == ["T1"] else 0)

    entries = [ENTRY, replace(ENTRY, transaction_id="T2")]
    listed = bodies.OpenTransactions(entries, 2, 2, 2).write()
    new.on_recheck_transactions = recheck_page
    old.on_list_transactions = lambda request: command.answer(request, body=listed)
    old.on_recheck_transaction = recheck_one

    found = await stage.admin.recheck_transactions(group="g", on_progress=counts.append)

    assert found == {"broker-a": 7, "broker-b": 1}
    assert (starts, names, counts) == ([0, 7], ["T1", "T2"], [5, 2, 1])


@staged()
async def test_a_page_of_rechecks_that_makes_no_progress_is_the_last(stage):
    (broker,) = stage.cluster.brokers
    stuck = RecheckedTransactions(1, 0)
    broker.on_recheck_transactions = lambda request: command.answer(request, 0, stuck)

    assert await stage.admin.recheck_transactions() == {"broker-a": 1}
