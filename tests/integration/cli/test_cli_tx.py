"""``txmq tx`` against a real broker."""

import asyncio
import json

import pytest

from txmq.client import Admin, Session
from txmq.message import Queue
from txmq.protocol import properties
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import SendMessageV2

PREPARED = 4


@pytest.fixture
def tx(txmq, txmq_broker):
    """Run ``txmq tx ...`` and return what it printed."""

    def run(*arguments, code=0):
        result = txmq("tx", *arguments, "--names", txmq_broker.names)
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stderr

    return run


def prepare(names, *ids, group="icbc"):
    asyncio.run(send_halves(names, *ids, group=group))


async def send_halves(names, *ids, group="icbc", credentials=None):
    """Send half messages whose producer never decides."""
    async with Session(names, credentials=credentials) as session:
        route = await Admin(session).create_topic("Transfers", queues=1)
        for name in ids:
            text = {"UNIQ_KEY": name, "KEYS": "t-17", "TRAN_MSG": "true", "PGROUP": group}
            header = SendMessageV2(
                producer_group=group, topic="Transfers", default_topic="TBW102",
                default_topic_queue_nums=1, queue_id=0, sys_flag=PREPARED, born_timestamp=0, flag=0,
                properties=properties.render(text),
            )  # fmt: skip
            address, body = route.reader(route.brokers[0]), f"transfer {name}".encode()
            await session.request(address, RequestCode.SEND_MESSAGE_V2, header, body=body)


def visible(names):
    async def pull():
        async with Session(names) as session:
            queue = Queue("Transfers", (await session.route("Transfers")).brokers[0], 0)
            return [message.body for message in (await Admin(session).pull(queue, 0)).messages]

    return asyncio.run(pull())


def test_open_transactions_are_listed_oldest_first(tx, txmq_broker):
    assert tx("list") == "no open transactions\n"
    prepare(txmq_broker.names, "A1", "A2")
    prepare(txmq_broker.names, "B1", group="ccb")

    table = tx("list").splitlines()
    rows = json.loads(tx("list", "--group", "ccb", "--json"))

    assert [line.split()[0] for line in table if line.strip()][2:] == ["A1", "A2", "B1"]
    (only,) = rows
    told = (only["id"], only["state"], only["group"], only["checks"])
    assert told == ("B1", "prepared", "ccb", 0)
    assert tx("list", "--state", "parked") == "no open transactions\n"
    assert len(json.loads(tx("list", "--limit", "1", "--json"))) == 1
    assert "prepared or parked" in tx("list", "--state", "lost", code=2)


def test_a_transaction_is_shown_with_its_message(tx, txmq_broker):
    prepare(txmq_broker.names, "A1")
    (listed,) = json.loads(tx("list", "--json"))

    for name in ("A1", listed["offset_id"]):
        shown = json.loads(tx("show", name, "--json"))
        assert shown["transaction"] == listed
        assert shown["message"]["body"] == "transfer A1"
    assert "transfer A1" in tx("show", "A1")
    assert "no transaction A2 is open" in tx("show", "A2", code=1)


def test_transactions_are_committed_and_rolled_back_with_a_reason(tx, txmq_broker):
    prepare(txmq_broker.names, "A1", "A2")

    committed = tx("commit", "A1", "--reason", "in the books", "--operator", "ann", "--yes")
    rolled_back = tx("rollback", "A2", "--reason", "never paid", "--yes", "--json")

    assert committed == "transaction A1 is committed at broker-a by ann\n"
    assert json.loads(rolled_back)["decision"] == "rollback"
    assert visible(txmq_broker.names) == [b"transfer A1"]
    assert tx("list") == "no open transactions\n"
    assert "no transaction A1 is open" in tx("rollback", "A1", "--reason", "x", "--yes", code=1)


def test_a_decision_needs_a_reason_and_a_confirmation(tx, txmq_broker, terminal):
    prepare(txmq_broker.names, "A1")

    assert "--reason" in tx("commit", "A1", "--yes", code=2)
    tx("commit", "A1", "--reason", "  ", "--yes", code=1)
    tx("commit", "A1", "--reason", "in the books", code=1)

    assert visible(txmq_broker.names) == []
    words = ("--operator", "Ann", "--reason", "the ledger is back")
    assert "the broker asks the producers of A1 now" in tx("recheck", "A1", *words)
    shown = tx("history", "A1")
    assert "Ann has the broker ask the producers again" in shown
    assert "reason: the ledger is back" in shown
