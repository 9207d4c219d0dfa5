"""``txmq tx`` against a real broker."""

import asyncio
import json
from contextlib import contextmanager
from functools import partial

import pytest

from txmq.client import Admin, Session
from txmq.message import Queue
from txmq.protocol import properties
from txmq.protocol.bodies import TransactionEntry, TransactionMessages
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import answer
from txmq.protocol.headers import SendMessageV2
from txmq.protocol.record import Record, host_bytes, pack
from txmq_broker.config import BrokerSettings, StoreSettings
from txmq_broker.testing import BrokerThread

PREPARED = 4
HOST = host_bytes("127.0.0.1", 1)


@pytest.fixture
def tx_at(txmq):
    """Run ``txmq tx ...`` at a cluster and return what it printed."""

    def run(names, *arguments, code=0):
        result = txmq("tx", *arguments, "--names", names)
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stderr

    return run


@pytest.fixture
def tx(tx_at, txmq_broker):
    """The same at one broker."""
    return partial(tx_at, txmq_broker.names)


def prepare(names, *ids, group="icbc"):
    asyncio.run(send_halves(names, *ids, group=group))


async def send_halves(names, *ids, group="icbc", credentials=None, broker="broker-a"):
    """Send half messages whose producer never decides; X.1 is of the transaction X."""
    async with Session(names, credentials=credentials) as session:
        route = await Admin(session).create_topic("Transfers", queues=1)
        for name in ids:
            text = {"UNIQ_KEY": name, "KEYS": "t-17", "TRAN_MSG": "true", "PGROUP": group}
            xid, _, number = name.partition(".")
            text |= {"TXMQ_XID": xid} if number else {}
            header = SendMessageV2(
                producer_group=group, topic="Transfers", default_topic="TBW102",
                default_topic_queue_nums=1, queue_id=0, sys_flag=PREPARED, born_timestamp=0, flag=0,
                properties=properties.render(text),
            )  # fmt: skip
            address, body = route.reader(broker), f"transfer {name}".encode()
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
    plain = tx("show", "A1")
    assert ("transfer A1" in plain, "messages" in plain) == (True, False)
    assert "together" not in tx("history", "A1")
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


@contextmanager
def two_brokers():
    """Two brokers: one has the messages X and X.2 of a transaction, the other has X.1."""
    flush = StoreSettings(flush="async")
    with (
        BrokerThread(BrokerSettings(store=flush)) as first,
        BrokerThread(BrokerSettings(name="broker-b", names=first.names, store=flush)),
    ):
        asyncio.run(send_halves(first.names, "X", "X.2"))
        asyncio.run(send_halves(first.names, "X.1", broker="broker-b"))
        yield first.names


def test_all_messages_of_a_transaction_are_shown_whichever_broker_has_them(tx_at):
    with two_brokers() as names:
        tx = partial(tx_at, names)
        for name, where in (("X", []), ("X.1", []), ("X.2", ["--broker", "broker-a"])):
            shown = tx("show", name, *where)
            rows = [line.split() for line in shown.partition("these 3 messages:")[2].splitlines()]
            assert [row for row in rows if row and row[0].startswith("X")] == [
                ["X", "Transfers", "prepared", "broker-a"],
                ["X.1", "Transfers", "prepared", "broker-b"],
                ["X.2", "Transfers", "prepared", "broker-a"],
            ]
        listed = json.loads(tx("list", "--json"))
        assert {(row["id"], row["xid"]) for row in listed} == {
            (f"X{n}", "X") for n in ("", ".1", ".2")
        }
        whole = json.loads(tx("show", "X.1", "--json"))["messages"]
        assert whole == sorted(listed, key=lambda row: row["id"])

        tx("commit", "X", "--broker", "broker-a", "--reason", "in the books", "--yes")

        assert tx("list") == "no open transactions\n"
        history = tx("history", "X.1")
        assert "X.1 of icbc: committed" in history
        assert "together with 2 messages: X (committed), X.2 (committed)" in history
        states = [row["state"] for row in json.loads(tx("history", "X", "--json"))["messages"]]
        assert states == ["committed"] * 3


def test_a_transaction_is_shown_although_another_broker_does_not_answer(asking, cluster):
    holder, away = cluster.brokers
    entry = TransactionEntry("X", "prepared", "g", "T", 0, 0, 0, "", "", 1, 0, "", xid="X")
    fields = {"transaction": entry.write().decode()}
    body = pack(Record(0, 0, 0, 0, 0, 1, HOST, 1, HOST, 0, 0, b"pay", "T", "UNIQ_KEY\x01X\x02"))
    holder.on_show_transaction = lambda request: answer(request, 0, fields, body=body)
    listed = TransactionMessages([entry]).write()
    holder.on_list_transaction_messages = lambda request: answer(request, body=listed)
    away.address = "127.0.0.1:1"

    shown = asking("tx", "show", "X")

    assert (shown.exit_code, "pay" in shown.stdout) == (0, True)
    assert "without the messages that broker broker-b may have: " in shown.stderr


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
