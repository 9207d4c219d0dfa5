"""The page about TLS leads from nothing to a broker with certificates as accounts."""

import asyncio
import re
import shlex
import shutil
import subprocess

import pytest

from tests.docs.pages import ROOT, Page
from tests.running import in_loop, run_by
from tools.packages import Unprepared
from txmq import Client, Message, Producer
from txmq.errors import ConnectionLost, NoPermission
from txmq.settings.loading import load
from txmq_broker.config import BrokerSettings
from txmq_broker.testing import embedded

PATH = ROOT / "docs/howto/tls.md"
PAGE = Page(PATH, PATH.read_text())
BLOCKS = PAGE.blocks()
TEA = Message(topic="Orders", body=b"tea")


def blocks(language, beginning):
    return [block.text for block in BLOCKS if block.text.startswith(beginning)]


def exported():
    """The variables of each line of the page that exports some."""
    lines = re.findall(r"^\$ export (TXMQ_TLS.+)$", PAGE.text, re.MULTILINE)
    return [dict(word.split("=", 1) for word in shlex.split(line)) for line in lines]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder in which all commands of the page that make certificates were run."""
    if shutil.which("openssl") is None:
        raise Unprepared("the commands of the page about TLS need openssl (Debian: openssl)")
    lines = re.findall(r"^\$ ((?:openssl .+|chmod 600 .+\.key))$", PAGE.text, re.MULTILINE)
    assert len(lines) == 7
    monkeypatch.chdir(tmp_path)
    subprocess.run(["bash", "-ec", "\n".join(lines)], check=True, capture_output=True, timeout=60)
    return tmp_path


async def send(broker):
    async with Client(broker.names) as client, Producer("shop", client) as producer:
        await producer.send(TEA)


def test_the_page_leads_to_a_broker_with_tls_and_accounts(folder, monkeypatch):
    first, second = blocks("toml", "# broker.toml\n")
    (accounts,) = blocks("yaml", "# accounts.yml\n")
    file = folder / "accounts.yml"
    file.write_text(accounts + OPERATOR)
    file.chmod(0o600)

    def settings(text):
        (folder / "broker.toml").write_text(text)
        return load(BrokerSettings, file=folder / "broker.toml")

    plain, certified = exported()[0], {**exported()[1], **exported()[2]}

    async def scenario():
        async with embedded(settings(first)) as broker:
            await send(broker)
            for name, value in plain.items():
                monkeypatch.setenv(name, value)
            await send(broker)
        async with embedded(settings(second)) as broker:
            with pytest.raises(ConnectionLost, match="the server requires a client certificate"):
                await send(broker)
            for name, value in certified.items():
                monkeypatch.setenv(name, value)
            with pytest.raises(NoPermission, match="account web-shop needs an administrator"):
                async with Client(broker.names) as client:
                    await client.admin.create_topic("Orders", queues=1)
            monkeypatch.setenv("TXMQ_ACCESS_KEY", "operator")
            monkeypatch.setenv("TXMQ_SECRET_KEY", "operator-secret")
            async with Client(broker.names) as client:
                await client.admin.create_topic("Orders", queues=1)
            monkeypatch.delenv("TXMQ_ACCESS_KEY")
            monkeypatch.delenv("TXMQ_SECRET_KEY")
            await send(broker)

    asyncio.run(scenario())


OPERATOR = """
- accessKey: operator
  secretKey: operator-secret
  admin: true
"""


@run_by(in_loop)
async def test_one_file_may_hold_certificate_and_key(folder):
    both = folder / "both.pem"
    both.write_bytes((folder / "broker.pem").read_bytes() + (folder / "broker.key").read_bytes())
    both.chmod(0o600)
    chosen = [f"tls.{name}={both}" for name in ("certificate", "key")]

    settings = load(BrokerSettings, arguments=[*chosen, "tls.mode=permissive"])
    async with embedded(settings) as broker:
        await send(broker)
