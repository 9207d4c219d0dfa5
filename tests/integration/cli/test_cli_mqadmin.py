"""The equivalent of each mqadmin command of RocketMQ, run at a real broker."""

import asyncio
import contextlib
import re
import shlex
import threading

import pytest
from typer.testing import CliRunner

from tests.servers.broker_set import BrokerSet
from txmq import (
    ConsumerSettings,
    Message,
    Producer,
    ProducerSettings,
    PushConsumer,
    StartFrom,
    blocking,
)
from txmq.cli.mqadmin import EQUIVALENTS
from txmq.cli.root import app
from txmq_broker.config import BrokerSettings, StoreSettings
from txmq_broker.testing import BrokerThread

OFFLINE = ("acl show", "acl test", "cluster promote")
OF_SETS = ("cluster status", "cluster promote", "cluster remove")
"""Commands that need a broker set."""


RUNS = [
    ("allocateMQ", "group status billing", r"Orders +broker-a +0 +\S+@"),
    ("brokerConsumeStats", "group monitor --match slow", "slow +2 "),
    ("brokerConsumeStats", "group progress slow", "Backlog +broker-a +0 +2 +0 +2"),
    ("brokerStatus", "broker status", "messages in today +[1-9]"),
    ("checkMsgSendRT", "message send Sent x --json", '"status":"OK"|"offset":'),
    (
        "cloneGroupOffset",
        "group clone slow copy Backlog --yes",
        "group copy has the offsets of slow",
    ),
    ("cloneGroupOffset", "group progress copy", "Backlog +broker-a +0 +2 +0 +2"),
    ("clusterAclConfigVersion", "acl show {accounts} --json", '"account":"the-reader"'),
    ("clusterList", "cluster list", r"DefaultCluster +broker-a +0 +127\.0\.0\.1:\d+ +\S+"),
    ("clusterList", "cluster status", r"{set} +\S*{leader}"),
    ("clusterList", "broker status --all", "putMessageTimesTotal +[1-9]"),
    ("clusterRT", "message send Sent x", r"stored in broker-a:\d+ at offset \d+"),
    ("consumeMessage", "message pull Backlog", r"one\b(.|\n)*two"),
    ("consumeMessage", "group progress slow", "2 messages behind"),
    ("consumerConnection", "group clients billing", r"\S+@\S+ +127\.0\.0\.1:\d+"),
    ("consumerConnection", "topic clients Orders", r"billing +\S+@\S+ +127\.0\.0\.1:\d+"),
    ("consumerProgress", "group progress slow --topic Backlog", "2 messages behind"),
    ("consumerProgress", "group monitor --json", '"group":"slow","lag":2'),
    ("consumerStatus", "group status billing", "concurrent"),
    ("copyUser", "acl add copied-a --secret-from {secret}", ""),
    ("copyUser", "acl show {live}", "copied-a"),
    ("createAcl", "acl add reader2 --secret-from {secret} --topic Orders=SUB", ""),
    ("createAcl", "acl show {live}", "reader2 .*Orders=SUB"),
    ("createUser", "acl add created --secret-from {secret}", ""),
    ("createUser", "acl show {live}", "created"),
    ("deleteAcl", "acl add reader2 --keep-secret --topic Orders=DENY", ""),
    ("deleteAcl", "acl show {live}", "reader2 .*Orders=DENY"),
    ("deleteAclConfig", "acl remove reader2 --yes", ""),
    ("deleteAclConfig", "acl show {live}", r"^(?!(.|\n)*reader2)"),
    ("deleteExpiredCommitLog", "broker config set deleteWhen 05", "deleteWhen is 05"),
    ("deleteExpiredCommitLog", "broker config get deleteWhen", "deleteWhen +05"),
    ("deleteSubGroup", "group delete gone --yes", "group gone is deleted"),
    ("deleteSubGroup", "group list --all --json", '^(?!.*"gone")'),
    ("deleteTopic", "topic delete Gone --yes", "topic Gone is deleted"),
    ("deleteTopic", "topic list --all --json", '^(?!.*"Gone")'),
    ("deleteUser", "acl remove created --yes", ""),
    ("deleteUser", "acl show {live}", r"^(?!(.|\n)*created)"),
    ("exportConfigs", "broker config get --all --json", '"setting":"fileReservedTime"'),
    ("exportMetadata", "topic list --all --json", '"topic":"Orders"'),
    ("exportMetadata", "group list --all --json", '"group":"billing"'),
    ("exportMetrics", "broker status --all --json", '"putTps":'),
    ("getAcl", "acl show {accounts}", "the-reader .*Orders=SUB"),
    ("getAcl", "acl test {accounts} --account the-reader --subscribe Orders", "allowed: "),
    ("getBrokerConfig", "broker config get brokerName", "brokerName +broker-a"),
    ("getBrokerEpoch", "cluster status --json", '"epoch":[1-9]'),
    ("getConsumerConfig", "group list --match slow --json", '"retries":16'),
    ("getSyncStateSet", "cluster status --json", '"in_sync":true'),
    ("getUser", "acl add listed-a --secret-from {secret} --topic Orders=SUB", ""),
    ("getUser", "acl list --match listed-a", "listed-a +no"),
    ("haStatus", "cluster status --json", r'"bytes_behind":\d+'),
    ("listAcl", "acl add listed-a --secret-from {secret} --topic Orders=SUB", ""),
    ("listAcl", "acl list", "listed-a +no +Orders=SUB"),
    ("listUser", "acl add listed-a --secret-from {secret} --topic Orders=SUB", ""),
    ("listUser", "acl list --json", '"account":"listed-a"'),
    ("printMsg", "message pull Backlog --tags green", "two"),
    ("printMsgByQueue", "message pull Backlog --queue broker-a:0", "one"),
    ("producer", "producer list", r"shop +\S+@\S+ +127"),
    ("producerConnection", "producer list --group shop", r"shop +\S+@\S+ +127"),
    ("queryCq", "message pull Backlog --json", '"offset":1,.*"tags":"green"'),
    ("queryMsgById", "message view {place}", "body +tea"),
    ("queryMsgById", "message consume-directly billing {place}", "consumed it"),
    ("queryMsgByKey", "message query Orders 17", "tea"),
    (
        "queryMsgByOffset",
        "message pull Backlog --queue broker-a:0 --offset 1 --count 1",
        r"^(?!(.|\n)*one)(.|\n)*two",
    ),
    ("queryMsgByUniqueKey", "message view {id} --topic Orders", "keys +17"),
    ("queryMsgTraceById", "message trace Orders {id}", "sent .* shop "),
    ("queryMsgTraceById", "trace tail --since earliest --key {id} --count 1", "sent"),
    (
        "resetOffsetByTime",
        "group reset slow Backlog --to latest --yes",
        "group slow is moved in 1 queue",
    ),
    ("resetOffsetByTime", "group progress slow", "0 messages behind"),
    ("sendMessage", "message send Sent hello --key k-1", "stored in"),
    ("sendMessage", "message query Sent k-1", "hello"),
    ("sendMsgStatus", "message send Sent x --json", '"offset_id":"[0-9A-F]{32}"'),
    ("skipAccumulatedMessage", "group skip copy Backlog --yes", "2 messages|group copy is moved"),
    ("skipAccumulatedMessage", "group progress copy", "0 messages behind"),
    ("startMonitoring", "group monitor --lag-max 1000000", "no group has more than"),
    ("statsAll", "stats --topic Orders", "Orders +billing"),
    ("topicClusterList", "topic route Orders", "broker-a"),
    ("topicClusterList", "cluster list", "DefaultCluster +broker-a"),
    ("topicList", "topic list --match Orders", "Orders +1 +1 +rw"),
    ("topicRoute", "topic route Orders", r"broker-a +0 +127\.0\.0\.1:\d+ +1 +1"),
    ("topicStatus", "topic status Backlog", "broker-a +0 +0 +2 +2"),
    ("updateAcl", "acl add copied-a --keep-secret --group billing=SUB", ""),
    ("updateAcl", "acl show {live}", "copied-a .*billing=SUB"),
    ("updateAclConfig", "acl add copied-a --keep-secret --admin", ""),
    ("updateAclConfig", "acl show {live}", "copied-a +(yes|True)"),
    ("updateBrokerConfig", "broker config set fileReservedTime 48", "fileReservedTime is 48"),
    ("updateBrokerConfig", "broker config get fileReservedTime", "48"),
    (
        "updateGlobalWhiteAddr",
        "acl add copied-a --keep-secret --admin --unsigned-from 10.0.0.7",
        "",
    ),
    ("updateGlobalWhiteAddr", "acl show {live}", r"copied-a .*10\.0\.0\.7"),
    ("updateOrderConf", "topic create Ordered --queues 1 --order", "topic Ordered has 1 queue"),
    (
        "updateOrderConf",
        "topic update Ordered --no-order",
        "topic Ordered at broker-a: 1 queue, rw$",
    ),
    ("updateSubGroup", "group create tuned --retries 3", "3 retries"),
    ("updateSubGroup", "group list --match tuned", "tuned +yes +3"),
    ("updateSubGroupList", "group create listed", "group listed exists"),
    ("updateSubGroupList", "group list --match listed", "listed"),
    ("updateTopic", "topic create Fresh --queues 2", "has 2 queues"),
    ("updateTopic", "topic status Fresh", "broker-a +1 "),
    ("updateTopic", "topic update Fresh --queues 4", "4 queues"),
    ("updateTopic", "topic status Fresh", "broker-a +3 "),
    ("updateTopicList", "topic create Second", "has 4 queues"),
    ("updateTopicList", "topic list --match Second", "Second +4"),
    ("updateTopicList", "topic update Second --queues 9", "9 queues"),
    ("updateTopicPerm", "topic permit Second r", "[49] queues, r"),
    ("updateTopicPerm", "topic list --match Second", " r "),
    ("updateUser", "acl add copied-a --keep-secret --admin --other-topics SUB", ""),
    ("updateUser", "acl show {live}", "copied-a .*SUB"),
    (
        "electMaster",
        "cluster promote {follower} --coordinator {etcd} --broker {set} --reason upgrade",
        r"{follower}\S* leads {set} at",
    ),
    (
        "cleanBrokerMetadata",
        "cluster remove {follower} --broker {set} --reason retired --allow-refused-sends",
        "removed {follower} from {set}",
    ),
    ("cleanBrokerMetadata", "cluster status", "{follower}.*retired"),
    ("wipeWritePerm", "cluster drain broker-a", "for reading only"),
    ("wipeWritePerm", "topic route Orders", r"broker-a +0 +\S+ +1 +0"),
    ("addWritePerm", "cluster undrain broker-a --yes", "for reading and writing"),
    ("addWritePerm", "topic route Orders", r"broker-a +0 +\S+ +1 +1"),
]
"""Command lines, without ``txmq`` and the name servers, by the mqadmin command to which they are
equivalent, or whose effect they show; and a regular expression that the output must have.

They run in this order. Names in braces are those of :func:`named`.
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker with accounts that trusts this machine as an operator."""
    folder = tmp_path_factory.mktemp("accounts")
    live = written(folder / "plain_acl.yml", "globalWhiteRemoteAddresses: [127.0.0.1]\n")
    settings = BrokerSettings(store=StoreSettings(flush="async"), acl=str(live))
    with BrokerThread(settings) as running:
        running.accounts = live
        yield running


def written(path, text):
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def named(broker):
    """Topics, groups, a producer and a consumer; yields the words in braces of command lines."""
    folder = broker.accounts.parent
    reader = "{accessKey: the-reader, secretKey: reader-secret, topicPerms: [Orders=SUB]}"
    with blocking.Client(broker.names) as client:
        for topic in ("Orders", "Backlog", "Gone", "Sent"):
            client.admin.create_topic(topic, queues=1)
        for group in ("slow", "gone"):
            client.admin.create_group(group)
        client.admin.send(Message(topic="Backlog", body=b"one", tags="red"))
        client.admin.send(Message(topic="Backlog", body=b"two", tags="green"))
        client.admin.reset_offset("slow", "Backlog", 0, force=True)
        with shop(broker.names) as receipt:
            yield {
                "accounts": written(folder / "others.yml", f"accounts:\n- {reader}\n"),
                "secret": written(folder / "secret", "a-long-enough-secret\n"),
                "live": broker.accounts,
                "id": receipt.id,
                "place": receipt.offset_id,
            }


@contextlib.contextmanager
def shop(names):
    """A producer ``shop`` and a consumer ``billing`` of Orders; yields the receipt of a message."""
    ready, stop = threading.Event(), threading.Event()
    receipts = []

    async def serve():
        consumer = PushConsumer("billing", names, ConsumerSettings(start=StartFrom.FIRST))
        handled = asyncio.Event()

        @consumer.on("Orders")
        async def handle(message):
            handled.set()

        traced = ProducerSettings(is_traced=True)
        async with Producer("shop", names, traced) as producer, consumer:
            message = Message(topic="Orders", body=b"tea", keys=("17",))
            receipts.append(await producer.send(message))
            await handled.wait()
            trace = ["message", "trace", "Orders", receipts[0].id, "--names", names]
            async with asyncio.timeout(10):
                # Traces are sent later than their messages.
                while (
                    "sent" not in (await asyncio.to_thread(CliRunner().invoke, app, trace)).stdout
                ):
                    pass
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(20)
        yield receipts[0]
    finally:
        stop.set()
        thread.join()


@pytest.fixture(scope="module")
def pair(tmp_path_factory, etcd):
    """A broker set of two members."""
    settings = ("replication.lease=2",)
    with BrokerSet(tmp_path_factory.mktemp("set"), etcd.port, settings, count=2) as members:
        yield members


def names_of(*, of_sets):
    """The mqadmin commands of which some equivalent needs a broker set, or needs none."""
    return list(dict.fromkeys(name for name, line, _ in RUNS if is_of_sets(line) is of_sets))


def is_of_sets(line):
    return line.startswith(OF_SETS)


def test_every_mqadmin_command_has_a_tested_equivalent_or_a_reason_for_none():
    assert {name for name, _, _ in RUNS} <= set(EQUIVALENTS)
    for name, equivalent in EQUIVALENTS.items():
        lines = [f"{line} " for other, line, _ in RUNS if other == name]
        for command in equivalent.commands:
            assert any(line.startswith(f"{command} ") for line in lines), (name, command)
        assert equivalent.commands or equivalent.text, name


@pytest.mark.parametrize("name", names_of(of_sets=False))
def test_the_equivalent_of_an_mqadmin_command_works(name, named, broker):
    check(name, named, broker.names, of_sets=False)


@pytest.mark.parametrize("name", names_of(of_sets=True))
def test_the_equivalent_of_an_mqadmin_command_works_on_a_broker_set(name, pair):
    leader = pair.wait_in_sync(1)
    (follower,) = [member for member in pair.members.values() if member is not leader]
    named = {"set": pair.name, "etcd": leader.etcd}
    named |= {"leader": leader.name, "follower": follower.name}
    check(name, named, pair.names.names, of_sets=True)


def check(name, named, names, *, of_sets):
    for other, line, pattern in RUNS:
        if other == name and is_of_sets(line) is of_sets:
            words = shlex.split(filled(line, named))
            words += [] if line.startswith(OFFLINE) else ["--names", names]
            result = CliRunner().invoke(app, words)
            assert result.exit_code == 0, result.output
            shown = result.stdout
            assert re.search(filled(pattern, named), shown, re.MULTILINE), shown


def filled(text, named):
    for name, value in named.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text
