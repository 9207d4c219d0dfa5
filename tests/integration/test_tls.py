"""TLS from a client to a real broker and its name server, and its certificates as accounts."""

import asyncio
import os
import shutil
import socket
import ssl
from contextlib import asynccontextmanager

import pytest
from typer.testing import CliRunner

from tests.running import in_loop, run_by
from tests.servers.certificates import lock
from txmq import (
    Client,
    ClientSettings,
    ClientTls,
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
from txmq.errors import ConfigError, ConnectionLost, NoPermission
from txmq.protocol import command as commands
from txmq.protocol.codes import RequestCode
from txmq.runtime.clock import SystemClock
from txmq.runtime.disk import LocalDisk
from txmq.runtime.network import SystemNetwork
from txmq.security.tls import subject_of
from txmq_broker.access.audit import read_audit
from txmq_broker.access.front_door import FrontDoor, ServerCertificates
from txmq_broker.config import (
    BrokerSettings,
    CheckBackSettings,
    SecuritySettings,
    ServerTlsSettings,
    StoreSettings,
)
from txmq_broker.names.server import NameServer
from txmq_broker.testing import embedded

TEA = Message(topic="Orders", body=b"tea")
FIRST = ConsumerSettings(start=StartFrom.FIRST)
ACCOUNTS = """
accounts:
- accessKey: operator
  tlsSubject: CN=operator,O=Bank
  admin: true
- accessKey: the-shop
  secretKey: the-shop-secret
  tlsSubject: web-shop
  topicPerms: [Orders=PUB]
- accessKey: the-bill
  secretKey: the-bill-secret
  topicPerms: [Orders=SUB]
  groupPerms: [billing=SUB]
"""
SUBJECTS = {"operator": "O=Bank/CN=operator", "web-shop": "CN=web-shop", "stranger": "CN=x"}


@pytest.fixture(scope="module")
def pairs(authority):
    """The certificates of a server and of clients."""
    clients = {name: authority.issue(name, subject) for name, subject in SUBJECTS.items()}
    return {"server": authority.issue("server"), **clients}


@pytest.fixture
def tls(authority, pairs):
    """The settings of a broker that wants certificates."""
    certificate, key = map(str, pairs["server"])
    files = {"certificate": certificate, "key": key, "client_ca": str(authority.certificate)}
    return ServerTlsSettings(mode="enforcing", **files)


@pytest.fixture
def acl(tmp_path):
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    file.chmod(0o600)
    return str(file)


@pytest.fixture
def as_(authority, pairs):
    """The settings of a client with a certificate and an optional signature."""

    def settings(name, credentials=None):
        certificate, key = pairs.get(name, (None, None))
        tls = ClientTls(ca=authority.certificate, certificate=certificate, key=key)
        return ClientSettings(tls=tls, credentials=credentials)

    return settings


def served(tls, **settings):
    return embedded(BrokerSettings(store=StoreSettings(flush="async"), tls=tls, **settings))


class Listener:
    def execute_local_transaction(self, message, arg):
        return TransactionState.UNKNOWN

    def check_local_transaction(self, message):
        return LocalTransactionState.COMMIT


@run_by(in_loop)
async def test_a_client_certificate_authenticates_an_account(tls, acl, as_):
    """For sends, checks by the broker, pulls and operators, with and without a signature."""
    back = CheckBackSettings(timeout=0.05, check_interval=0.2)
    bill = Credentials(access_key="the-bill", secret_key="the-bill-secret")

    async with served(tls, acl=acl, transaction=back) as broker:
        async with Client(broker.names, as_("operator")) as operator:
            await operator.admin.create_topic("Orders", queues=1)
            await operator.admin.create_topic("Wages", queues=1)
        arrived = []
        # A signature overrides the certificate, whose account may not read.
        bills = Client(broker.names, as_("web-shop", bill))

        @bills.on("Orders", group="billing", settings=FIRST)
        async def handle(message):
            arrived.append(message.body)

        async with bills, Client(broker.names, as_("web-shop")) as shop:
            async with Producer("shop", shop) as producer:
                await producer.send(TEA)
                with pytest.raises(NoPermission, match="the-shop needs PUB of topic Wages"):
                    await producer.send(Message(topic="Wages", body=b"1,000"))
            async with TransactionProducer("pay", shop, Listener()) as transactions:
                await transactions.send_in_transaction(Message(topic="Orders", body=b"paid"))
                async with asyncio.timeout(20):
                    while sorted(arrived) != [b"paid", b"tea"]:
                        await asyncio.sleep(0.01)
        async with Client(broker.names, as_("stranger")) as stranger:
            with pytest.raises(NoPermission, match="no account has the tlsSubject 'CN=x'"):
                await stranger.session.route("Orders")
        notes = read_audit(LocalDisk(broker.settings.data), pytest.fail)
        created = [note.account for note in notes if note.fields.get("topic") == "Wages"]
        assert created == ["CN=operator,O=Bank"]


def test_certificates_are_replaced_under_load_without_a_failed_send(
    authority, as_, tls, tmp_path, caplog
):
    """Old connections live on, new ones see the new certificate, and a broken key changes nothing.

    As `docs/howto/tls.md` says, the key comes last: until then the pair does not match.
    """
    shown, key = tmp_path / "shown.pem", tmp_path / "shown.key"

    def show(pair):
        for source, target in zip(pair, (shown, key), strict=True):
            shutil.copy2(source, target)

    def serial(broker):
        context = authority.context(authority.issue("monitor"))
        host, port = broker.address.rsplit(":", 1)
        return asyncio.to_thread(_serial, context, host, int(port))

    show(authority.issue("first"))
    settings = ServerTlsSettings(
        mode="enforcing", certificate=str(shown), key=str(key), client_ca=tls.client_ca
    )

    async def scenario():
        async with served(settings) as broker:
            sent, is_over = [], asyncio.Event()

            async def send_always(number):
                while not is_over.is_set():
                    client = Client(broker.names, as_("web-shop"))
                    async with client, Producer(f"p{number}", client) as producer:
                        for _ in range(20):
                            sent.append(await producer.send(TEA))
                    await asyncio.sleep(0)

            async def some_sends():
                enough = len(sent) + 50
                while len(sent) < enough:
                    await asyncio.sleep(0.005)

            client = Client(broker.names, as_("web-shop"))
            async with asyncio.timeout(60), client, Producer("old", client) as old:
                await old.send(TEA)
                senders = [asyncio.create_task(send_always(number)) for number in range(3)]
                seen = [await serial(broker)]
                for name in ("second", "third"):
                    await some_sends()
                    show(authority.issue(name))
                    await broker.refresh_files()
                    await some_sends()
                    seen.append(await serial(broker))
                key.write_text("no key")
                await broker.refresh_files()
                await some_sends()
                seen.append(await serial(broker))
                is_over.set()
                await asyncio.gather(*senders)
                await old.send(TEA)
            assert len(set(seen[:3])) == 3
            assert seen[3] == seen[2]

    asyncio.run(scenario())
    assert "is not in PEM form" in caplog.text
    assert "; the certificates from before stay in force" in caplog.text


def _serial(context, host, port):
    with (
        socket.create_connection((host, port), timeout=5) as raw,
        context.wrap_socket(raw, server_hostname=host) as stream,
    ):
        return stream.getpeercert()["serialNumber"]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@run_by(in_loop)
async def test_a_client_with_another_tls_implementation_is_served(authority, tls, pairs, version):
    """Frames in one record and in many, through asyncio's own TLS."""
    context = authority.context(pairs["web-shop"])
    context.minimum_version = context.maximum_version = version

    async with served(tls) as broker:
        reader, writer = await asyncio.open_connection(*broker.names.rsplit(":", 1), ssl=context)
        frame = commands.encode(RequestCode.GET_BROKER_CLUSTER_INFO, 1)
        writer.write(frame * 3)
        for byte in frame:
            writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        for _ in range(4):
            size = int.from_bytes(await reader.readexactly(4), "big")
            assert b"broker-a" in await reader.readexactly(size)
        writer.close()
        await writer.wait_closed()


def test_a_broker_presents_its_certificate_to_a_separate_name_server(
    authority, tls, pairs, as_, monkeypatch
):
    """The broker, every client and the commands take their certificate from the environment."""
    own = {"ON": "on", "CA": authority.certificate, "CERTIFICATE": pairs["web-shop"][0]}
    for name, value in {**own, "KEY": pairs["web-shop"][1]}.items():
        monkeypatch.setenv(f"TXMQ_TLS_{name}".replace("_ON", ""), str(value))

    @asynccontextmanager
    async def cluster():
        network = SystemNetwork()
        door = FrontDoor("", SecuritySettings(), tls, network)
        async with NameServer(network, SystemClock(), door=door) as names:
            await names.open("127.0.0.1", 0)
            async with served(tls, names="{}:{}".format(*names.address)) as broker:
                yield broker

    async def scenario():
        async with cluster() as broker, Client(broker.names) as client:
            await client.admin.create_topic("Orders", queues=1)
            async with Producer("p", client) as producer:
                await producer.send(TEA)
            words = ["topic", "list", "--names", broker.names]
            listed = await asyncio.to_thread(CliRunner().invoke, app, words)
            assert "Orders" in listed.output
            monkeypatch.setenv("TXMQ_TLS", "off")
            async with Client(broker.names) as plain:
                with pytest.raises(ConnectionLost, match="accepts only TLS .set TXMQ_TLS=on"):
                    await plain.session.route("Orders")

    asyncio.run(scenario())


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_unusable_certificate_files_are_refused_with_the_reason(tls, pairs, tmp_path, authority):
    certificate, key = pairs["server"]
    open_key, locked = tmp_path / "open.key", tmp_path / "locked.key"
    open_key.write_bytes(key.read_bytes())
    open_key.chmod(0o640)
    lock(key, locked, b"secret")
    for files, why in (
        ((certificate, open_key), "other users may read it; run: chmod 600"),
        ((certificate, locked), "needs a password; write the key without one: openssl pkey"),
        ((certificate, pairs["web-shop"][1]), "is not the key of the certificate"),
        ((tmp_path / "none.pem", key), r"none\.pem cannot be read: No such file"),
        ((key, key), "is not in PEM form"),
    ):
        wrong = ServerTlsSettings(
            mode="permissive", certificate=str(files[0]), key=str(files[1]), client_ca=""
        )
        with pytest.raises(ConfigError, match=why):
            ServerCertificates(wrong)
    with pytest.raises(ConfigError, match="has no certificate in PEM form"):
        ServerCertificates(
            ServerTlsSettings(
                mode="enforcing", certificate=str(certificate), key=str(key), client_ca=str(key)
            )
        )


@pytest.mark.parametrize(
    ("subject", "written", "common_name"),
    [
        ("CN=web-shop", "CN=web-shop", "web-shop"),
        (
            'C=DE/O=Bank + Sons, Ltd/OU=#1/CN=pay "now"; <x>',
            r"CN=pay \"now\"\; \<x\>,OU=\#1,O=Bank \+ Sons\, Ltd,C=DE",
            'pay "now"; <x>',
        ),
        ("DC=com/DC=bank/UID=7/CN=a/CN=b", "CN=b,CN=a,UID=7,DC=bank,DC=com", ""),
        ("O=Bank", "O=Bank", ""),
        ("CN=CN=operator", "CN=CN=operator", ""),
    ],
)
def test_a_subject_is_written_as_openssl_writes_it(authority, subject, written, common_name):
    certificate, _ = authority.issue("subject", subject)
    parsed = subject_of(ssl._ssl._test_decode_cert(str(certificate)))
    assert (parsed.text, parsed.common_name) == (written, common_name)
