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
    file.touch(0o600)
    file.write_text(ACCOUNTS)
    return file


@pytest.fixture
def acl(tmp_path):
    return accounts_in(tmp_path)


def settings_in(folder, **more):
    anywhere = {"listen": "127.0.0.1:0", "names_listen": "127.0.0.1:0"} | more
    return BrokerSettings(data=str(folder), store=StoreSettings(flush="async"), **anywhere)


@asynccontextmanager
async def one_broker(folder, **more):
    async with Broker(settings_in(folder / "data", **more)) as broker:
        yield broker.names


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


# Several brokers, one of which refuses


@asynccontextmanager
async def two_brokers(folder, acl):
    """The first has accounts; the second has none and refuses to change any."""
    async with AsyncExitStack() as stack:
        server = NameServer(SystemNetwork(), SystemClock())
        await stack.enter_async_context(server)
        await server.open("127.0.0.1", 0)
        names = "{}:{}".format(*server.address)
        for name, file in (("broker-a", str(acl)), ("broker-b", "")):
            settings = settings_in(folder / name, name=name, names=names, acl=file)
            await stack.enter_async_context(Broker(settings))
        yield names


def test_an_account_change_that_one_broker_refuses_is_in_force_at_the_other(during, tmp_path, acl):
    added, removed = during(
        two_brokers(tmp_path, acl),
        ("acl", "add", "new-shop", "--topic", "Orders=PUB"),
        ("acl", "remove", "the-shop", "--yes"),
    )

    assert added.exit_code == removed.exit_code == 1
    for result in (added, removed):
        assert "the change is in force at broker-a, but not at broker-b" in result.stderr
        assert "start it with --acl FILE" in result.stderr
        assert "is in force\n" not in result.stderr.replace("the change is in force", "")
    accounts = AclFiles(acl).rules.accounts
    assert accounts["new-shop"].settings.secret_key == added.stdout.strip()
    assert "the-shop" not in accounts


def test_accounts_are_listed_without_their_secrets(during, tmp_path, acl):
    listed, refused = during(
        two_brokers(tmp_path, acl),
        ("acl", "list", "--broker", "broker-a", "--json"),
        ("acl", "list", "--broker", "broker-b"),
    )

    operator, shop = json.loads(listed.stdout)
    assert (operator["account"], operator["admin"]) == ("operator", True)
    assert (shop["account"], shop["admin"]) == ("the-shop", False)
    assert shop["topics"] == ["Orders=PUB"]
    assert "secret" not in listed.stdout
    assert (refused.exit_code, "start it with --acl FILE" in refused.stderr) == (1, True)


# The list of brokers


def test_cluster_list_shows_that_a_broker_needs_an_administrator(during, tmp_path, acl):
    (result,) = during(two_brokers(tmp_path, acl), ("cluster", "list", "--json"), account=SHOP)

    assert result.exit_code == 0
    assert "account the-shop needs an administrator for GET_BROKER_RUNTIME_INFO" in result.stdout
    assert "no accounts: loopback alone" in result.stdout


def test_cluster_list_refused_by_the_name_server_prints_one_line_and_exits_1(during, tmp_path, acl):
    guarded = one_broker(tmp_path, acl=str(acl))

    (result,) = during(guarded, ("cluster", "list"), account={})

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("txmq: ")
    assert "TXMQ_ACCESS_KEY" in result.stderr
    assert result.stderr.count("\n") == 1


def test_cluster_list_warns_of_brokers_that_are_reachable_without_tls(during, tmp_path, acl):
    open_broker = one_broker(tmp_path, listen=f"{outside_address()}:0", acl=str(acl))

    (result,) = during(open_broker, ("cluster", "list", "--json"))

    assert '"access":"accounts; other machines reach it without TLS"' in result.stdout
    assert result.exit_code == 0


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
    ("account", "tls", "code", "complaint"),
    [
        (OPERATOR, True, 0, ""),
        (OPERATOR, False, 1, "perhaps it accepts only TLS (set TXMQ_TLS=on)"),
        ({}, True, 1, "TXMQ_ACCESS_KEY"),
        (OPERATOR | {"TXMQ_SECRET_KEY": "another"}, True, 1, "check signature failed"),
    ],
    ids=["operator", "without TLS", "unsigned", "a wrong secret"],
)
def test_a_name_server_with_accounts_and_tls_serves_only_signed_requests_over_tls(
    guarded_names, account, tls, code, complaint
):
    result = listed(guarded_names, account, tls)

    assert result.returncode == code, result.stderr
    assert complaint in result.stderr
    assert result.stderr.count("\n") <= 1


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
    ("options", "complaint"),
    [
        (["--acl", "plain_acl.yml", "--trust", "10.0.0.0/8"], "exclude each other"),
        (["--acl", "nowhere.yml"], "nowhere.yml"),
        (["--trust", "10.0.0.0/99"], "10.0.0.0/99"),
        (["--trust-brokers", "everybody"], "everybody"),
        (["--tls-mode", "enforcing"], "certificate"),
        (["--tls-mode", "always"], "always"),
    ],
)
def test_a_name_server_does_not_start_with_invalid_options(txmq, acl, options, complaint):
    words = [str(acl) if word == "plain_acl.yml" else word for word in options]

    result = txmq("names", "--listen", "127.0.0.1:0", *words)

    assert result.exit_code != 0
    assert complaint in result.stderr.splitlines()[-1]
    assert "ready" not in result.stdout
