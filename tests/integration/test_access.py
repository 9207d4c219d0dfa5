"""Accounts: who may do what, from our own client's side of the wire."""

import asyncio
import json
import os
import socket

import pytest
from typer.testing import CliRunner

from tests.running import in_loop, run_by
from txmq import (
    Client,
    ClientSettings,
    ConsumerSettings,
    Credentials,
    LocalTransactionState,
    Message,
    Producer,
    StartFrom,
    TransactionProducer,
    TransactionState,
)
from txmq.cli.root import app
from txmq.errors import BrokerRefused, ConfigError, NoPermission, UnknownRefusal
from txmq.protocol import command as commands
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import EndTransaction
from txmq.remoting.pool import split_address
from txmq.runtime.disk import LocalDisk
from txmq_broker.access.audit import read_audit
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings, CheckBackSettings, SecuritySettings, StoreSettings
from txmq_broker.testing import embedded

ROLLBACK = 12
OPERATOR = Credentials(access_key="operator", secret_key="operator-secret")
TEA = Message(topic="Orders", body=b"tea")
FIRST = ConsumerSettings(start=StartFrom.FIRST)
ACCOUNTS = """
accounts:
- accessKey: operator
  secretKey: operator-secret
  admin: true
- accessKey: the-shop
  secretKey: the-shop-secret
  defaultTopicPerm: DENY
  topicPerms: [Orders=PUB]
- accessKey: the-bill
  secretKey: the-bill-secret
  topicPerms: [Orders=SUB]
  groupPerms: [billing=SUB]
"""


@pytest.fixture
def acl(tmp_path):
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    file.chmod(0o600)
    return file


def guarded(acl):
    return embedded(BrokerSettings(store=StoreSettings(flush="async"), acl=str(acl)))


def as_(broker, account, secret=None):
    credentials = Credentials(access_key=account, secret_key=secret or f"{account}-secret")
    return Client(broker.names, ClientSettings(credentials=credentials))


@run_by(in_loop)
async def test_an_account_may_do_only_what_its_file_grants(acl):
    async with guarded(acl) as broker:
        async with as_(broker, "operator") as client:
            await client.admin.create_topic("Orders", queues=1)
            await client.admin.create_topic("Wages", queues=1)
        async with as_(broker, "the-shop") as shop, Producer("shop", shop) as producer:
            await producer.send(Message(topic="Orders", body=b"tea"))
            assert await producer.send_batch(
                [Message(topic="Orders", body=b"1"), Message(topic="Orders", body=b"2")]
            )
            with pytest.raises(NoPermission, match="the-shop needs PUB of topic Wages for SEND"):
                await producer.send(Message(topic="Wages", body=b"1,000"))
            with pytest.raises(NoPermission, match="the-shop needs an administrator for"):
                await shop.admin.create_topic("Mine", queues=1)
        arrived = asyncio.Event()

        bill = as_(broker, "the-bill")

        @bill.on("Orders", group="billing", settings=FIRST)
        async def handle(message):
            if message.body == b"tea":
                arrived.set()

        async with bill:
            await asyncio.wait_for(arrived.wait(), 20)


@run_by(in_loop)
async def test_unknown_accounts_and_wrong_signatures_are_refused(acl):
    async with guarded(acl) as broker:
        async with as_(broker, "operator") as client:
            await client.admin.create_topic("Orders", queues=1)
        for client, why in (
            (Client(broker.names), "no accessKey is configured"),
            (as_(broker, "unknown-name"), "no account has the accessKey 'unknown-name'"),
            (as_(broker, "the-shop", "wrong-secret"), "check signature failed"),
        ):
            async with client:
                with pytest.raises(NoPermission, match=why):
                    await client.session.route("Orders")


@run_by(in_loop)
async def test_changed_accounts_take_effect_without_a_restart(acl):
    async with guarded(acl) as broker, as_(broker, "the-shop") as shop:
        async with as_(broker, "operator") as client:
            await client.admin.create_topic("Wages", queues=1)
        async with Producer("shop", shop) as producer:
            with pytest.raises(BrokerRefused):
                await producer.send(Message(topic="Wages", body=b"1"))
            acl.write_text(ACCOUNTS.replace("Orders=PUB", "Wages=PUB"))
            await broker.refresh_files()
            await producer.send(Message(topic="Wages", body=b"1"))
            acl.write_text("accounts: [{accessKey: short}]")
            await broker.refresh_files()
            await producer.send(Message(topic="Wages", body=b"the rules from before are in force"))


@run_by(in_loop)
async def test_a_captured_read_replayed_with_another_code_deletes_a_topic(acl):
    """The threat model page says that a signature does not cover the request code."""
    async with guarded(acl) as broker, as_(broker, "operator") as client:
        await client.admin.create_topic("Orders", queues=1)
        fields = OPERATOR.sign({"topic": "Orders"}, b"")
        read = commands.encode(RequestCode.GET_TOPIC_CONFIG, 1, fields)
        deletion = read.replace(b'"code":351', b'"code":215')
        assert deletion != read
        for captured in (read, deletion):
            reader, writer = await asyncio.open_connection(*split_address(broker.address))
            writer.write(captured)
            size = int.from_bytes(await reader.readexactly(4), "big")
            assert b'"code":0' in await reader.readexactly(size)
            writer.close()
        assert "Orders" not in broker.topics.by_name


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
@run_by(in_loop)
async def test_an_account_file_readable_by_others_is_refused(acl):
    acl.chmod(0o644)
    with pytest.raises(ConfigError, match="other users may read it; run: chmod 600"):
        async with guarded(acl):
            pass


class Listener:
    def __init__(self, state):
        self.state = state
        self.checks = 0

    async def execute_local_transaction(self, message, arg):
        return self.state

    async def check_local_transaction(self, message):
        self.checks += 1
        return self.state


@run_by(in_loop)
async def test_only_a_publisher_of_the_topic_can_end_its_transaction(acl):
    async with guarded(acl) as broker:
        async with as_(broker, "operator") as client:
            await client.admin.create_topic("Orders", queues=1)
        async with as_(broker, "the-shop") as shop:
            listener = Listener(LocalTransactionState.COMMIT)
            async with TransactionProducer("shop", shop, listener) as producer:
                outcome = await producer.send_in_transaction(TEA)
                assert outcome.state is TransactionState.COMMITTED
            listener = Listener(LocalTransactionState.UNKNOWN)
            async with TransactionProducer("open", shop, listener) as producer:
                await producer.send_in_transaction(TEA)
        pending = broker.transactions.halves.pending
        half = pending.find(next(iter(pending)))
        end = EndTransaction("open", half.offset, half.position, ROLLBACK)
        async with as_(broker, "the-bill") as bill:
            with pytest.raises(NoPermission, match="the-bill needs PUB of topic Orders"):
                await bill.session.request(broker.address, RequestCode.END_TRANSACTION, end)
        assert len(pending) == 1
        async with as_(broker, "the-shop") as shop:
            await shop.session.request(broker.address, RequestCode.END_TRANSACTION, end)
        assert len(pending) == 0


def test_the_audit_log_records_topic_creations_and_reveals_tampering(acl, tmp_path):
    settings = BrokerSettings(
        data=str(tmp_path), listen="127.0.0.1:0", names_listen="127.0.0.1:0", acl=str(acl)
    )

    async def scenario():
        async with Broker(settings) as broker:
            async with as_(broker, "operator") as client:
                await client.admin.create_topic("Orders", queues=1)
            async with as_(broker, "the-shop") as shop:
                for _ in range(12):
                    with pytest.raises(NoPermission):
                        await shop.admin.create_topic("Mine", queues=1)

    asyncio.run(scenario())
    (file,) = (tmp_path / "audit").iterdir()
    file.write_bytes(file.read_bytes()[:-5])  # A crash tears the last line like this.
    asyncio.run(scenario())
    warnings = []
    entries = list(read_audit(LocalDisk(tmp_path), warnings.append))
    (warning,) = warnings
    assert warning.startswith("audit/000001.jsonl: line 4 is torn")
    assert [(e.account, e.fields["topic"], bool(e.refused)) for e in entries] == [
        ("operator", "Orders", False),
        ("the-shop", "Mine", True),
        ("the-shop", "Mine", True),
        ("operator", "Orders", False),
        ("the-shop", "Mine", True),
        ("the-shop", "Mine", True),
    ]
    assert entries[-1].refused.endswith("(10 times)")
    assert "secret" not in file.read_text()
    assert "Signature" not in file.read_text()
    file.write_text(file.read_text().replace('"Orders"', '"Others"', 1))
    list(read_audit(LocalDisk(tmp_path), warnings.append))
    assert "line 2, 4 is torn or changed, or one before it was removed" in warnings[-1]
    shown = CliRunner().invoke(app, ["audit", "--data", str(tmp_path), "--refused"]).output
    assert "the-shop at 127.0.0.1:" in shown
    assert "UPDATE_AND_CREATE_TOPIC topic=Mine" in shown
    assert "refused: account the-shop needs an administrator" in shown
    assert "Orders" not in shown


@run_by(in_loop)
async def test_checks_of_a_half_message_go_only_to_publishers_of_its_topic(acl):
    settings = BrokerSettings(
        store=StoreSettings(flush="async"),
        acl=str(acl),
        transaction=CheckBackSettings(timeout=0.05, check_interval=0.05),
    )

    async with embedded(settings) as broker:
        async with as_(broker, "operator") as client:
            await client.admin.create_topic("Orders", queues=1)
        stranger = Listener(LocalTransactionState.COMMIT)
        shop = Listener(LocalTransactionState.UNKNOWN)
        async with (
            as_(broker, "the-bill") as bill,
            TransactionProducer("shop", bill, stranger),
            as_(broker, "the-shop") as client,
            TransactionProducer("shop", client, shop) as producer,
        ):
            await producer.send_in_transaction(TEA)
            async with asyncio.timeout(20):
                while shop.checks < 3:
                    await asyncio.sleep(0.01)
        assert stranger.checks == 0


def test_an_administrator_changes_accounts_over_the_wire(acl, tmp_path):
    settings = BrokerSettings(
        data=str(tmp_path / "data"), listen="127.0.0.1:0", names_listen="127.0.0.1:0", acl=str(acl)
    )

    async def scenario():
        async with Broker(settings) as broker, as_(broker, "operator") as client:
            admin, asked = client.admin, client.session.request
            await admin.create_topic("Orders", queues=1)
            await admin.put_account("new-shop", "planted-secret", topics={"Orders": "PUB"})
            async with as_(broker, "new-shop", "planted-secret") as shop:
                async with Producer("shop", shop) as producer:
                    await producer.send(TEA)
                with pytest.raises(NoPermission, match="needs an administrator"):
                    await shop.admin.put_account("new-shop", "planted-secret", admin=True)
                code = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
                with pytest.raises(NoPermission):
                    await shop.session.request(broker.address, code)
                config = (await asked(broker.address, code)).body.decode()
                assert "new-shop" in config
                assert "secret" not in config
                with pytest.raises(UnknownRefusal, match="^code 209: .*topicPerms cannot hold"):
                    await admin.put_account("new-shop", topics={"": "PUB"})
                version = await asked(broker.address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
                assert '"counter":1' in version.field_map()["version"]
                await asked(
                    broker.address,
                    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
                    {"globalWhiteAddrs": "192.0.2.7,10.0.0.{1,7}", "aclFileFullPath": ""},
                )
                await admin.remove_account("new-shop")
                with pytest.raises(NoPermission, match="no account has the accessKey"):
                    await shop.admin.route("Orders")
                with pytest.raises(UnknownRefusal, match="^code 210: no account has the accessKey"):
                    await admin.remove_account("new-shop")

    asyncio.run(scenario())
    assert "- 10.0.0.{1,7}" in acl.read_text()
    (file,) = (tmp_path / "data" / "audit").iterdir()
    record = file.read_text()
    assert record.count('"request":"UPDATE_AND_CREATE_ACL_CONFIG"') == 3
    assert "planted-secret" not in record


@run_by(in_loop)
async def test_an_account_file_no_tool_has_changed_reports_its_modification_time(acl):
    """``mqadmin clusterAclConfigVersion`` shows this time; it was 1970."""
    os.utime(acl, (1_790_000_000, 1_790_000_000))
    async with guarded(acl) as broker, as_(broker, "operator") as client:
        asked = client.session.request(broker.address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
        found = (await asked).field_map()
        version = json.loads(found["version"])
        assert (version["timestamp"], version["counter"]) == (1_790_000_000_000, 0)
        assert json.loads(found["allAclFileVersion"]) == {str(acl): version}


@run_by(in_loop)
async def test_a_broker_without_accounts_refuses_to_add_one():
    async with embedded() as broker, Client(broker.names) as client:
        with pytest.raises(UnknownRefusal, match="start it with --acl FILE"):
            await client.admin.put_account("new-shop", "planted-secret")
        stats = await client.admin.broker_stats("broker-a")
        assert stats["access"] == "no accounts: loopback alone"


def test_acl_commands_edit_the_account_file(acl):
    def run(*words, **given):
        result = CliRunner().invoke(app, ["acl", *words, "--file", str(acl)], **given)
        assert result.exit_code == 0, result.output
        return result.stdout

    secret = run("add", "new-shop", "--topic", "Orders=PUB").strip()
    assert f"secretKey: {secret}" in acl.read_text()
    assert run("add", "new-shop", "--other-topics", "SUB", "--keep-secret") == ""
    run("add", "new-bill", "--secret-from", "-", input="a-secret-of-mine\n")
    text = acl.read_text()
    assert "a-secret-of-mine" in text
    assert f"secretKey: {secret}" in text
    assert "defaultTopicPerm: SUB" in text
    run("remove", "new-shop", "--yes")
    assert "new-shop" not in acl.read_text()


def outside_address():
    """An address of this machine that is not loopback: to the broker its peers are strangers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.99", 9))  # Sends nothing.
        except OSError:
            pytest.skip("this machine has no address besides loopback")
        return probe.getsockname()[0]


@pytest.mark.parametrize("is_trusted", [False, True])
def test_without_accounts_remote_peers_are_refused_unless_trusted(tmp_path, is_trusted):
    address = outside_address()
    settings = BrokerSettings(
        data=str(tmp_path),
        listen=f"{address}:0",
        names_listen=f"{address}:0",
        store=StoreSettings(flush="async"),
        security=SecuritySettings(trust=address if is_trusted else ""),
    )

    async def scenario():
        async with Broker(settings) as broker, Client(broker.names) as client:
            with pytest.raises(NoPermission, match="protected mode refuses UPDATE_AND_CREATE"):
                await client.session.request(broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC)
            if not is_trusted:
                with pytest.raises(NoPermission, match=r"security\.trust"):
                    await client.session.route("Orders")
                return
            async with Producer("shop", client) as producer:
                await producer.send(TEA)

    asyncio.run(scenario())
    refused = [entry.request for entry in read_audit(LocalDisk(tmp_path), pytest.fail)]
    assert refused == ["UPDATE_AND_CREATE_TOPIC"]
