"""Secrets are planted, and everything that txmq writes or shows is searched for them."""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from tests.servers.serving import START_SECONDS, STOP_SECONDS, BrokerProcess, environment, free_port
from txmq import Client, ClientSettings, Credentials, Message, Producer
from txmq.cli.root import app
from txmq.errors import TxmqError
from txmq.protocol.codes import RequestCode
from txmq.protocol.operations import AccountChange
from txmq.security.signatures import SigningKey
from txmq_broker.access.acl_files import AclFiles

PLANTED = {name: f"planted-{name}-7f3a" for name in ("admin", "shop", "wrong", "added", "typed")}
ACCOUNTS = f"""accounts:
- {{accessKey: operator, secretKey: {PLANTED["admin"]}, admin: true}}
- {{accessKey: the-shop, secretKey: {PLANTED["shop"]}, topicPerms: [Orders=PUB]}}
"""
BROKEN = ACCOUNTS + f"- {{accessKey: the-shop, secretKey: {PLANTED['typed']}, admin: perhaps}}\n"


class Talkative(BrokerProcess):
    """A broker that logs and shows all it can."""

    def __init__(self, folder, **given):
        super().__init__(folder, **given)
        self.pages = f"127.0.0.1:{free_port()}"

    def command(self):
        shown = ["--log-level", "debug", "--log-format", "json", "--http", self.pages]
        return [*super().command(), *shown]


@pytest.fixture
def acl(tmp_path):
    file = tmp_path / "accounts" / "plain_acl.yml"
    file.parent.mkdir()
    file.write_text(ACCOUNTS)
    file.chmod(0o600)
    return file


@pytest.fixture
def broker(acl, tmp_path):
    started = Talkative(tmp_path / "broker", settings=[f"acl={acl}"])
    started.start()
    yield started
    started.close()


@pytest.fixture
def names(acl, tmp_path):
    """A name server alone; its address, its process and its log."""
    address = f"127.0.0.1:{free_port()}"
    log = tmp_path / "names.log"
    words = ["names", "--listen", address, "--acl", str(acl), "--data", str(tmp_path / "names")]
    with log.open("wb") as to:
        process = subprocess.Popen(
            [sys.executable, "-m", "txmq", *words, "--log-level", "debug"],
            stdout=to,
            stderr=subprocess.STDOUT,
            env=environment(),
        )
    yield address, process, log
    process.terminate()
    process.wait(STOP_SECONDS)


def account(name, secret):
    return Credentials(access_key=name, secret_key=PLANTED[secret])


async def use(names, broker_address, key, texts):
    """What a client with these credentials does; the texts of all errors are kept."""
    settings = ClientSettings(credentials=key)
    texts += [repr(key), repr(settings)]
    async with Client(names, settings) as client:
        texts.append(repr(client))
        for step in (
            lambda: client.admin.create_topic("Orders", queues=1),
            lambda: client.admin.put_account("added-one", PLANTED["added"], topics={"T": "PUB"}),
            lambda: client.admin.put_account("added-one", PLANTED["added"], topics={"T": "X"}),
            lambda: client.session.request(
                broker_address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
            ),
            lambda: client.session.request(broker_address, RequestCode.GET_BROKER_CONFIG),
            lambda: client.session.request(broker_address, RequestCode.GET_BROKER_RUNTIME_INFO),
            lambda: client.admin.topics(),
        ):
            try:
                answer = await step()
            except TxmqError as error:
                texts += [repr(error), repr(error.__cause__)]
            else:
                texts.append(repr(answer))
        async with Producer("shop", client) as producer:
            try:
                texts.append(repr(await producer.send(Message(topic="Orders", body=b"tea"))))
            except TxmqError as error:
                texts.append(repr(error))


async def ask_names(names, key, texts):
    async with Client(names, ClientSettings(credentials=key)) as client:
        try:
            texts.append(repr(await client.admin.topics()))
        except TxmqError as error:
            texts.append(repr(error))


def commands(acl, data):
    yield ["acl", "show", str(acl)], None
    yield ["acl", "show", str(acl), "--json"], None
    yield ["acl", "test", str(acl), "--account", "the-shop", "--publish", "Orders"], None
    yield ["cluster", "list"], None
    yield ["topic", "list"], None
    yield ["acl", "add", "new-one", "--secret-from", "-"], PLANTED["added"]
    yield ["acl", "add", "new-one", "--secret-from", "-", "--topic", "T=X"], PLANTED["typed"]
    yield ["message", "send", "Orders", "tea"], None
    yield ["acl", "remove", "new-one", "--yes"], None
    yield ["audit", "--data", str(data), "--json"], None


def wait_for(text, log):
    for _ in range(START_SECONDS * 100):
        if text in log.read_text():
            return
        asyncio.run(asyncio.sleep(0.01))
    raise AssertionError(f"{text} is not in {log}")


@pytest.mark.timeout(60)
def test_no_planted_secret_appears_in_any_file_or_output(
    broker, names, acl, tmp_path, caplog, monkeypatch
):
    caplog.set_level(logging.DEBUG)
    address, process, log = names
    wait_for("ready names", log)
    shown = []
    for key in (account("operator", "admin"), account("operator", "wrong"),
                account("the-shop", "shop"), account("a-stranger", "wrong")):  # fmt: skip
        asyncio.run(use(broker.names, broker.address, key, shown))
        asyncio.run(ask_names(address, key, shown))
    monkeypatch.setenv("TXMQ_NAMES", broker.names)
    monkeypatch.setenv("TXMQ_ACCESS_KEY", "operator")
    for secret in ("admin", "wrong"):
        monkeypatch.setenv("TXMQ_SECRET_KEY", PLANTED[secret])
        for words, typed in commands(acl, broker.folder / "data"):
            done = CliRunner().invoke(app, words, input=typed)
            shown += [done.output, repr(done.exception)]
    acl.write_text(BROKEN)  # Both servers read it, refuse it, and say why.
    wait_for("stay in force", broker.log)
    wait_for("stay in force", log)
    lines = [Path(f"/proc/{server.pid}/cmdline") for server in (broker.process, process)]
    shown += [line.read_text() for line in lines if line.exists()]
    acl.write_text(ACCOUNTS)
    rules = AclFiles(acl).rules
    shown += [repr(value) for value in (rules, rules.accounts, SigningKey(b"planted"))]
    shown += [repr(known.settings) for known in rules.accounts.values()]
    shown.append(repr(AccountChange("a-name", PLANTED["added"])))
    for page in ("metrics", "health/ready", "info", "elsewhere"):
        shown.append(httpx.get(f"http://{broker.pages}/{page}").text)
    broker.stop()

    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != acl]
    everything = {str(path): path.read_bytes() for path in files}
    everything |= {"the log of the client": caplog.text.encode()}
    everything |= {f"output {at}": text.encode() for at, text in enumerate(shown)}
    assert any(b"check signature failed" in text for text in everything.values())
    assert any(path.endswith(".jsonl") for path in everything)
    for name, secret in PLANTED.items():
        places = [place for place, text in everything.items() if secret.encode() in text]
        assert places == [], (name, places, everything[places[0]][:2000] if places else "")
