"""Stock clients over TLS: `ali-ons` on Node's TLS sockets, the C++ client through a tunnel.

Neither has an option for TLS. A Node program can give ali-ons other sockets. A tunnel in front of
the broker speaks TLS for clients of any kind, and the broker advertises the tunnel's address. Both
use the OpenSSL that Node brings.
"""

import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.interop.interop_clients import HERE
from tests.interop.interop_stage import ASKS_SOON, Stage, half, letter, letters
from tests.interop.test_access import ACCOUNTS, BILL, SHOP
from tests.servers.certificates import Authority
from tests.servers.serving import BrokerProcess, environment, free_port
from tools.packages import node_program

OPERATOR = {"TXMQ_ACCESS_KEY": "operator", "TXMQ_SECRET_KEY": "operator-secret"}
TOPIC = "Orders"
LEAVE_SECONDS = 20


class TlsBroker(BrokerProcess):
    """A broker that speaks TLS alone, perhaps behind a tunnel that its clients connect to."""

    def __init__(self, folder, *, is_tunneled, has_accounts):
        super().__init__(folder)
        self.authority = Authority(folder / "ca")
        certificate, key = self.authority.issue("broker")
        self.settings = [*ASKS_SOON, "tls.mode=enforcing"]
        self.settings += [f"tls.certificate={certificate}", f"tls.key={key}"]
        self.tunnel = None
        self.is_tunneled = is_tunneled
        if has_accounts:
            file = folder / "plain_acl.yml"
            file.write_text(ACCOUNTS)
            file.chmod(0o600)
            self.settings.append(f"acl={file}")

    def start(self):
        ways = {free_port(): self.address, free_port(): self.names}
        outside, names = (f"127.0.0.1:{port}" for port in ways)
        if self.is_tunneled:
            self.settings.append(f"advertise={outside}")
        super().start()
        if self.is_tunneled:
            program = [node_program(), HERE / "tls_tunnel.js", self.authority.certificate]
            self.tunnel = subprocess.Popen(
                [*map(str, program), *(f"{port}={address}" for port, address in ways.items())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert self.tunnel.stdout.readline() == b"ready\n"
            self.names = names
        way = {"TXMQ_NAMES": self.names}
        if not self.is_tunneled:
            way |= {"TXMQ_TLS": "on", "TXMQ_TLS_CA": str(self.authority.certificate)}
        subprocess.run(
            [sys.executable, "-m", "txmq", "topic", "create", TOPIC, "--queues", "1"],
            env=environment() | OPERATOR | way,
            check=True,
        )

    def close(self):
        if self.tunnel is not None:
            self.tunnel.communicate(timeout=LEAVE_SECONDS)
        super().close()


@contextmanager
def on_stage(folder, name, **kind):
    broker = TlsBroker(folder / "broker", **kind)
    stage = Stage(broker, folder, name)
    try:
        broker.start()
        yield stage
    finally:
        stage.close()
        broker.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("has_accounts", [False, True], ids=["", "accounts"])
@pytest.mark.parametrize("name", ["cpp", "ons"])
def test_a_stock_client_sends_and_consumes_over_tls(request, tmp_path, name, has_accounts):
    client, is_tunneled = request.getfixturevalue(name), name == "cpp"
    kind = {"is_tunneled": is_tunneled, "has_accounts": has_accounts}
    with on_stage(tmp_path, request.node.name, **kind) as stage:
        trust = [] if is_tunneled else ["--tls-ca", str(stage.broker.authority.certificate)]
        shop, bill = ("--account", SHOP, *trust), ("--account", BILL, *trust)
        lines = [*letters("m", 8), letter("large", "x" * 100_000)]

        consumer = stage.consumer(client, TOPIC, "bill", *(bill if has_accounts else trust))
        sender = stage.sender(client, TOPIC, "send", *(shop if has_accounts else trust))
        stage.send(sender, lines)

        stage.wait_handled([consumer], lines)
        consumer.leave()
        sender.leave()


@pytest.mark.timeout(90)
@pytest.mark.parametrize("has_accounts", [False, True], ids=["", "accounts"])
def test_transactions_of_a_stock_client_are_decided_over_tls(cpp, request, tmp_path, has_accounts):
    kind = {"is_tunneled": True, "has_accounts": has_accounts}
    with on_stage(tmp_path, request.node.name, **kind) as stage:
        shop, bill = (("--account", name) if has_accounts else () for name in (SHOP, BILL))
        consumer = stage.consumer(cpp, TOPIC, "bill", *bill)
        producer = stage.transactor(cpp, TOPIC, "shop", "COMMIT", *shop)

        told = [("kept", "COMMIT"), ("dropped", "ROLLBACK"), ("asked", "UNKNOWN")]
        stage.send(producer, [half(keys, local) for keys, local in told])

        stage.wait_checked(producer, "asked")
        stage.wait_handled([consumer], [letter("kept"), letter("asked")])
        assert "dropped" not in consumer.handled_keys
        consumer.leave()
        producer.leave()
