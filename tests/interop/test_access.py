"""Stock clients with credentials against `txmq serve --acl`."""

import subprocess
import sys

import pytest

from tests.interop.interop_stage import Stage, letters
from tests.servers.serving import BrokerProcess, environment

ACCOUNTS = """
accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
- {accessKey: the-shop, secretKey: the-shop-secret, topicPerms: [Orders=PUB, Wages=SUB]}
- accessKey: the-bill
  secretKey: the-bill-secret
  topicPerms: [Orders=SUB]
  groupPerms: [bill=SUB]
"""
SHOP, BILL = "the-shop:the-shop-secret", "the-bill:the-bill-secret"


def as_operator(*command):
    account = {"TXMQ_ACCESS_KEY": "operator", "TXMQ_SECRET_KEY": "operator-secret"}
    subprocess.run(
        [sys.executable, "-m", "txmq", *command], env=environment() | account, check=True
    )


@pytest.fixture(scope="module")
def acl(tmp_path_factory):
    file = tmp_path_factory.mktemp("accounts") / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    file.chmod(0o600)
    return file


@pytest.fixture(scope="module")
def guarded(acl, tmp_path_factory):
    broker = BrokerProcess(tmp_path_factory.mktemp("guarded"), settings=[f"acl={acl}"])
    broker.start()
    for topic in ("Orders", "Wages"):
        as_operator("topic", "create", topic, "--queues", "1", "--names", broker.names)
    yield broker
    broker.close()


@pytest.fixture(params=["cpp", "ons"])
def client(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def stage(guarded, tmp_path, request):
    stage = Stage(guarded, tmp_path, request.node.name)
    yield stage
    stage.close()


def is_refused(stage, sender):
    """The client does not show the broker's reason; the broker's log has it."""
    stage.wait(lambda: sender.events["refused"], "a refusal")
    return not sender.sent


@pytest.mark.timeout(60)
def test_a_client_with_the_right_secret_sends_and_consumes(stage, client):
    lines = letters("m", 8)
    consumer = stage.consumer(client, "Orders", "bill", "--account", BILL)
    sender = stage.sender(client, "Orders", "send", "--account", SHOP)
    sender.write(lines)
    stage.wait_handled([consumer], lines)


@pytest.mark.timeout(60)
def test_a_client_can_send_once_its_account_gets_the_permission(stage, client, acl):
    sender = stage.sender(client, "Wages", "send", "--account", SHOP)
    sender.write(letters("w", 1))
    assert is_refused(stage, sender)
    assert "account the-shop needs PUB of topic Wages" in stage.broker.log.read_text()
    acl.write_text(ACCOUNTS.replace("Wages=SUB", "Wages=PUB"))
    stage.wait(lambda: sender.sent, "a send with the new permission")
    acl.write_text(ACCOUNTS)
    stage.wait(lambda: stage.broker.log.read_text().count("accounts read again") % 2 == 0, "both")


@pytest.mark.timeout(60)
def test_a_client_with_a_wrong_secret_is_refused(stage, client):
    sender = stage.sender(client, "Orders", "send", "--account", "the-shop:another-secret")
    sender.write(letters("x", 1))
    assert is_refused(stage, sender)
    assert "check signature failed for accessKey=the-shop" in stage.broker.log.read_text()


@pytest.mark.timeout(60)
def test_a_consumer_without_permission_for_its_group_gets_nothing(stage, cpp):
    consumer = stage.consumer(cpp, "Orders", "another-group", "--account", BILL)
    wanted = "account the-bill needs SUB of group another-group"
    stage.wait(lambda: wanted in stage.broker.log.read_text(), "a refusal")
    assert not consumer.handled
