"""Commands against servers with accounts and TLS: who is refused, and what commands say then."""

import asyncio
import json
import socket
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.faults.floods import NamesProcess
from tests.integration.test_access import outside_address
from tests.servers.certificates import Authority
from tests.servers.serving import environment
from tests.traffic.honest_client import answer, frame
from txmq.runtime.clock import SystemClock
from txmq.runtime.network import SystemNetwork
from txmq_broker.access.acl_files import AclFiles
from txmq_broker.access.front_door import FrontDoor
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings, SecuritySettings, ServerTlsSettings, StoreSettings
from txmq_broker.names.server import NameServer

ACCOUNTS = """
accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
- {accessKey: the-shop, secretKey: the-shop-secret, topicPerms: [Orders=PUB]}
"""
OPERATOR = {"TXMQ_ACCESS_KEY": "operator", "TXMQ_SECRET_KEY": "operator-secret"}
SHOP = {"TXMQ_ACCESS_KEY": "the-shop", "TXMQ_SECRET_KEY": "the-shop-secret"}

REGISTER = 103


def accounts_in(folder):
    file = folder / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    file.chmod(0o600)
    return file


@pytest.fixture
def acl(tmp_path):
    return accounts_in(tmp_path)


def settings_in(folder, **more):
    anywhere = {"listen": "127.0.0.1:0", "names_listen": "127.0.0.1:0"} | more
    return BrokerSettings(data=str(folder), store=StoreSettings(flush="async"), **anywhere)


@pytest.fixture
def during(txmq, monkeypatch):
    """Run commands of an account in a thread, while servers run in this one."""

    def run(servers, *commands, account=OPERATOR):
        for name, value in account.items():
            monkeypatch.setenv(name, value)

        async def main():
            async with servers as names:
                return [
                    await asyncio.to_thread(txmq, *command, "--names", names)
                    for command in commands
                ]

        return asyncio.run(main())

    return run


# Several brokers, of which one refuses


@asynccontextmanager
async def two_brokers(folder, acl):
    """The first has accounts; the second has none, and so changes none."""
    async with AsyncExitStack() as stack:
        server = NameServer(SystemNetwork(), SystemClock())
        await stack.enter_async_context(server)
        await server.open("127.0.0.1", 0)
        names = "{}:{}".format(*server.address)
        for name, file in (("broker-a", str(acl)), ("broker-b", "")):
            settings = settings_in(folder / name, name=name, names=names, acl=file)
            await stack.enter_async_context(Broker(settings))
        yield names


def test_an_account_that_one_of_two_brokers_refuses_keeps_its_secret(during, tmp_path, acl):
    added, removed = during(
        two_brokers(tmp_path, acl),
        ("acl", "add", "new-shop", "--topic", "Orders=PUB"),
        ("acl", "remove", "the-shop", "--yes"),
    )

    assert added.exit_code == removed.exit_code == 1
    for found in (added, removed):
        assert "the change is in force at broker-a, but not at broker-b" in found.stderr
        assert "start it with --acl FILE" in found.stderr
        assert "is in force\n" not in found.stderr.replace("the change is in force", "")
    accounts = AclFiles(acl).rules.accounts
    assert accounts["new-shop"].settings.secret_key == added.stdout.strip()
    assert "the-shop" not in accounts


def test_accounts_are_listed_without_their_secrets(during, tmp_path, acl):
    listed, refused = during(
        two_brokers(tmp_path, acl),
        ("acl", "list", "--broker", "broker-a", "--json"),
        ("acl", "list", "--broker", "broker-b"),
    )

    rows = json.loads(listed.stdout)
    assert [(row["account"], row["admin"]) for row in rows] == [
        ("operator", True),
        ("the-shop", False),
    ]
    assert rows[1]["topics"] == ["Orders=PUB"]
    assert "secret" not in listed.stdout
    assert (refused.exit_code, "start it with --acl FILE" in refused.stderr) == (1, True)


# The list of brokers


def test_a_list_of_brokers_that_refuse_says_so_and_who_may_ask(during, tmp_path, acl):
    (found,) = during(two_brokers(tmp_path, acl), ("cluster", "list", "--json"), account=SHOP)

    assert found.exit_code == 0
    assert "account the-shop needs an administrator for GET_BROKER_RUNTIME_INFO" in found.stdout
    assert "no accounts: loopback alone" in found.stdout


def test_a_list_that_the_name_server_refuses_is_one_line_and_exit_code_1(during, tmp_path, acl):
    @asynccontextmanager
    async def guarded():
        async with Broker(settings_in(tmp_path / "data", acl=str(acl))) as broker:
            yield broker.names

    (found,) = during(guarded(), ("cluster", "list"), account={})

    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr.startswith("txmq: ")
    assert "TXMQ_ACCESS_KEY" in found.stderr
    assert found.stderr.count("\n") == 1


def test_a_list_of_brokers_says_which_of_them_other_machines_reach_without_tls(
    during, tmp_path, acl
):
    settings = settings_in(tmp_path, listen=f"{outside_address()}:0", acl=str(acl))

    @asynccontextmanager
    async def served():
        async with Broker(settings) as broker:
            yield broker.names

    (found,) = during(served(), ("cluster", "list", "--json"))

    assert '"access":"accounts; other machines reach it without TLS"' in found.stdout
    assert found.exit_code == 0


@pytest.mark.parametrize(
    ("host", "trust", "text"),
    [
        ("127.0.0.1", "", "no accounts: loopback alone"),
        ("0.0.0.0", "", "no accounts: loopback alone; other machines reach it without TLS"),
        (
            *("10.0.0.5", "10.0.0.0/24"),
            "no accounts: loopback, clients of 10.0.0.0/24; other machines reach it without TLS",
        ),
    ],
)
def test_a_broker_says_who_may_use_it(host, trust, text):
    door = FrontDoor("", SecuritySettings(trust=trust), ServerTlsSettings(), SystemNetwork())

    assert door.access_at(host) == text


# A name server of its own


class GuardedNames(NamesProcess):
    """A name server with accounts, TLS, and a host whose brokers cannot sign."""

    def __init__(self, folder):
        super().__init__(folder)
        self.authority = Authority(folder / "ca")
        certificate, key = self.authority.issue("names")
        self.pair = self.authority.issue("operator")
        self.options = ["--acl", accounts_in(folder), "--trust-brokers", "127.0.0.1"]
        self.options += ["--tls-mode", "enforcing", "--tls-certificate", certificate]
        self.options += ["--tls-key", key, "--tls-client-ca", self.authority.certificate]

    def command(self):
        return [*super().command(), *map(str, self.options)]


@pytest.fixture(scope="module")
def guarded_names(tmp_path_factory):
    names = GuardedNames(tmp_path_factory.mktemp("names"))
    names.start()
    yield names
    names.close()


def listed(names, account, tls=True):
    own = {"CA": names.authority.certificate, "CERTIFICATE": names.pair[0], "KEY": names.pair[1]}
    way = {"TXMQ_TLS": "on"} | {f"TXMQ_TLS_{name}": str(value) for name, value in own.items()}
    return subprocess.run(
        [sys.executable, "-m", "txmq", "cluster", "list", "--json", "--names", names.address],
        env=environment() | account | (way if tls else {}),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize(
    ("account", "tls", "code", "said"),
    [
        (OPERATOR, True, 0, ""),
        (OPERATOR, False, 1, "perhaps it accepts only TLS (set TXMQ_TLS=on)"),
        ({}, True, 1, "TXMQ_ACCESS_KEY"),
        (OPERATOR | {"TXMQ_SECRET_KEY": "another"}, True, 1, "check signature failed"),
    ],
    ids=["operator", "without TLS", "unsigned", "a wrong secret"],
)
def test_a_name_server_with_accounts_and_tls_serves_those_alone(
    guarded_names, account, tls, code, said
):
    found = listed(guarded_names, account, tls)

    assert found.returncode == code, found.stderr
    assert said in found.stderr
    assert found.stderr.count("\n") <= 1


def test_a_name_server_with_accounts_registers_a_trusted_broker_that_cannot_sign(guarded_names):
    host, port = guarded_names.address.split(":")
    fields = {"brokerName": "stock", "brokerAddr": "127.0.0.1:9", "clusterName": "C"}
    request = frame(REGISTER, {**fields, "haServerAddr": "127.0.0.1:8", "brokerId": "0"}, b"{}")
    context = guarded_names.authority.context(guarded_names.pair)
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
        wrapped.makefile("rb") as stream,
    ):
        wrapped.sendall(request)
        assert answer(stream)["code"] == 0
        assert '"broker":"stock"' in listed(guarded_names, OPERATOR).stdout
        wrapped.sendall(frame(205, {"brokerName": "stock"}))
        assert "no accessKey" in answer(stream)["remark"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--acl", "plain_acl.yml", "--trust", "10.0.0.0/8"], "exclude each other"),
        (["--acl", "nowhere.yml"], "nowhere.yml"),
        (["--trust", "10.0.0.0/99"], "10.0.0.0/99"),
        (["--trust-brokers", "everybody"], "everybody"),
        (["--tls-mode", "enforcing"], "certificate"),
        (["--tls-mode", "always"], "always"),
    ],
)
def test_options_of_a_name_server_that_cannot_be_met_stop_its_start(txmq, acl, options, said):
    words = [str(acl) if word == "plain_acl.yml" else word for word in options]

    found = txmq("names", "--listen", "127.0.0.1:0", *words)

    assert found.exit_code != 0
    assert said in found.stderr.splitlines()[-1]
    assert "ready" not in found.stdout
