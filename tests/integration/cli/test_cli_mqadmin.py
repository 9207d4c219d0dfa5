"""The equivalent of each mqadmin command of RocketMQ, run at a real broker."""

import asyncio
import contextlib
import re
import shlex
import threading
from typing import NamedTuple

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


class Run(NamedTuple):
    """One command line, and what it must show."""

    words: str
    """Without ``txmq`` and the name servers; names in braces are those of :func:`named`."""
    shows: str = ""
    """A regular expression that its output must have."""
    then: str = ""
    """A second command line, which looks at the effect of the first."""
    effect: str = ""
    """A regular expression that the output of the second must have."""


RUNS = {
    "allocateMQ": [Run("group status billing", r"Orders +broker-a +0 +\S+@")],
    "brokerConsumeStats": [
        Run("group monitor --match slow", r"slow +2 "),
        Run("group progress slow", r"Backlog +broker-a +0 +2 +0 +2"),
    ],
    "brokerStatus": [Run("broker status", "messages in today +[1-9]")],
    "checkMsgSendRT": [Run("message send Sent x --json", '"status":"OK"|"offset":')],
    "cloneGroupOffset": [
        Run(
            "group clone slow copy Backlog --yes",
            "group copy has the offsets of slow",
            "group progress copy",
            r"Backlog +broker-a +0 +2 +0 +2",
        )
    ],
    "clusterAclConfigVersion": [Run("acl show {accounts} --json", r'"account":"the-reader"')],
    "clusterList": [
        Run("cluster list", r"DefaultCluster +broker-a +0 +127\.0\.0\.1:\d+ +\S+"),
        Run("cluster status", r"{set} +\S*{leader}"),
        Run("broker status --all", r"putMessageTimesTotal +[1-9]"),
    ],
    "clusterRT": [Run("message send Sent x", r"stored in broker-a:\d+ at offset \d+")],
    "consumeMessage": [
        Run("message pull Backlog", r"one\b(.|\n)*two", "group progress slow", "2 messages behind")
    ],
    "consumerConnection": [
        Run("group clients billing", r"\S+@\S+ +127\.0\.0\.1:\d+"),
        Run("topic clients Orders", r"billing +\S+@\S+ +127\.0\.0\.1:\d+"),
    ],
    "consumerProgress": [
        Run("group progress slow --topic Backlog", "2 messages behind"),
        Run("group monitor --json", '"group":"slow","lag":2'),
    ],
    "consumerStatus": [Run("group status billing", r"concurrent")],
    "copyUser": [Run("acl add copied-a --secret-from {secret}", "", "acl show {live}", "copied-a")],
    "createAcl": [
        Run(
            "acl add reader2 --secret-from {secret} --topic Orders=SUB",
            "",
            "acl show {live}",
            r"reader2 .*Orders=SUB",
        )
    ],
    "createUser": [Run("acl add created --secret-from {secret}", "", "acl show {live}", "created")],
    "deleteAcl": [
        Run(
            "acl add reader2 --keep-secret --topic Orders=DENY",
            "",
            "acl show {live}",
            r"reader2 .*Orders=DENY",
        )
    ],
    "deleteAclConfig": [
        Run("acl remove reader2 --yes", "", "acl show {live}", r"^(?!(.|\n)*reader2)")
    ],
    "deleteExpiredCommitLog": [
        Run(
            "broker config set deleteWhen 05",
            "deleteWhen is 05",
            "broker config get deleteWhen",
            "deleteWhen +05",
        )
    ],
    "deleteSubGroup": [
        Run(
            "group delete gone --yes",
            "group gone is deleted",
            "group list --all --json",
            r'^(?!.*"gone")',
        )
    ],
    "deleteTopic": [
        Run(
            "topic delete Gone --yes",
            "topic Gone is deleted",
            "topic list --all --json",
            r'^(?!.*"Gone")',
        )
    ],
    "deleteUser": [Run("acl remove created --yes", "", "acl show {live}", r"^(?!(.|\n)*created)")],
    "exportConfigs": [Run("broker config get --all --json", r'"setting":"fileReservedTime"')],
    "exportMetadata": [
        Run("topic list --all --json", r'"topic":"Orders"'),
        Run("group list --all --json", r'"group":"billing"'),
    ],
    "exportMetrics": [Run("broker status --all --json", r'"putTps":')],
    "getAcl": [
        Run("acl show {accounts}", r"the-reader .*Orders=SUB"),
        Run("acl test {accounts} --account the-reader --subscribe Orders", "allowed: "),
    ],
    "getBrokerConfig": [Run("broker config get brokerName", "brokerName +broker-a")],
    "getBrokerEpoch": [Run("cluster status --json", r'"epoch":[1-9]')],
    "getConsumerConfig": [Run("group list --match slow --json", r'"retries":16')],
    "getSyncStateSet": [Run("cluster status --json", r'"in_sync":true')],
    "getUser": [
        Run("acl add listed-a --secret-from {secret} --topic Orders=SUB"),
        Run("acl list --match listed-a", r"listed-a +no"),
    ],
    "haStatus": [Run("cluster status --json", r'"bytes_behind":\d+')],
    "listAcl": [
        Run("acl add listed-a --secret-from {secret} --topic Orders=SUB"),
        Run("acl list", r"listed-a +no +Orders=SUB"),
    ],
    "listUser": [
        Run("acl add listed-a --secret-from {secret} --topic Orders=SUB"),
        Run("acl list --json", r'"account":"listed-a"'),
    ],
    "printMsg": [Run("message pull Backlog --tags green", r"two")],
    "printMsgByQueue": [Run("message pull Backlog --queue broker-a:0", r"one")],
    "producer": [Run("producer list", r"shop +\S+@\S+ +127")],
    "producerConnection": [Run("producer list --group shop", r"shop +\S+@\S+ +127")],
    "queryCq": [Run("message pull Backlog --json", r'"offset":1,.*"tags":"green"')],
    "queryMsgById": [
        Run("message view {place}", r"body +tea"),
        Run("message consume-directly billing {place}", "consumed it"),
    ],
    "queryMsgByKey": [Run("message query Orders 17", r"tea")],
    "queryMsgByOffset": [
        Run(
            "message pull Backlog --queue broker-a:0 --offset 1 --count 1",
            r"^(?!(.|\n)*one)(.|\n)*two",
        )
    ],
    "queryMsgByUniqueKey": [Run("message view {id} --topic Orders", r"keys +17")],
    "queryMsgTraceById": [
        Run("message trace Orders {id}", r"sent .* shop "),
        Run("trace tail --since earliest --key {id} --count 1", "sent"),
    ],
    "resetOffsetByTime": [
        Run(
            "group reset slow Backlog --to latest --yes",
            "group slow is moved in 1 queue",
            "group progress slow",
            "0 messages behind",
        )
    ],
    "sendMessage": [
        Run("message send Sent hello --key k-1", "stored in", "message query Sent k-1", "hello")
    ],
    "sendMsgStatus": [Run("message send Sent x --json", r'"offset_id":"[0-9A-F]{32}"')],
    "skipAccumulatedMessage": [
        Run(
            "group skip copy Backlog --yes",
            "2 messages|group copy is moved",
            "group progress copy",
            "0 messages behind",
        )
    ],
    "startMonitoring": [Run("group monitor --lag-max 1000000", "no group has more than")],
    "statsAll": [Run("stats --topic Orders", r"Orders +billing")],
    "topicClusterList": [
        Run("topic route Orders", "broker-a"),
        Run("cluster list", "DefaultCluster +broker-a"),
    ],
    "topicList": [Run("topic list --match Orders", "Orders +1 +1 +rw")],
    "topicRoute": [Run("topic route Orders", r"broker-a +0 +127\.0\.0\.1:\d+ +1 +1")],
    "topicStatus": [Run("topic status Backlog", r"broker-a +0 +0 +2 +2")],
    "updateAcl": [
        Run(
            "acl add copied-a --keep-secret --group billing=SUB",
            "",
            "acl show {live}",
            r"copied-a .*billing=SUB",
        )
    ],
    "updateAclConfig": [
        Run(
            "acl add copied-a --keep-secret --admin", "", "acl show {live}", r"copied-a +(yes|True)"
        )
    ],
    "updateBrokerConfig": [
        Run(
            "broker config set fileReservedTime 48",
            "fileReservedTime is 48",
            "broker config get fileReservedTime",
            "48",
        )
    ],
    "updateGlobalWhiteAddr": [
        Run(
            "acl add copied-a --keep-secret --admin --unsigned-from 10.0.0.7",
            "",
            "acl show {live}",
            r"copied-a .*10\.0\.0\.7",
        )
    ],
    "updateOrderConf": [
        Run("topic create Ordered --queues 1 --order", "topic Ordered has 1 queue"),
        Run("topic update Ordered --no-order", "topic Ordered at broker-a: 1 queue, rw$"),
    ],
    "updateSubGroup": [
        Run(
            "group create tuned --retries 3",
            "3 retries",
            "group list --match tuned",
            r"tuned +yes +3",
        )
    ],
    "updateSubGroupList": [
        Run("group create listed", "group listed exists", "group list --match listed", "listed")
    ],
    "updateTopic": [
        Run("topic create Fresh --queues 2", "has 2 queues", "topic status Fresh", r"broker-a +1 "),
        Run("topic update Fresh --queues 4", "4 queues", "topic status Fresh", r"broker-a +3 "),
    ],
    "updateTopicList": [
        Run("topic create Second", "has 4 queues", "topic list --match Second", "Second +4"),
        Run("topic update Second --queues 9", "9 queues"),
    ],
    "updateTopicPerm": [
        Run("topic permit Second r", "[49] queues, r", "topic list --match Second", " r ")
    ],
    "updateUser": [
        Run(
            "acl add copied-a --keep-secret --admin --other-topics SUB",
            "",
            "acl show {live}",
            r"copied-a .*SUB",
        )
    ],
    "electMaster": [
        Run(
            "cluster promote {follower} --coordinator {etcd} --broker {set} --reason upgrade",
            r"{follower}\S* leads {set} at",
        )
    ],
    "cleanBrokerMetadata": [
        Run(
            "cluster remove {follower} --broker {set} --reason retired --allow-refused-sends",
            "removed {follower} from {set}",
            "cluster status",
            "{follower}.*retired",
        )
    ],
    "wipeWritePerm": [
        Run(
            "cluster drain broker-a",
            "for reading only",
            "topic route Orders",
            r"broker-a +0 +\S+ +1 +0",
        )
    ],
    "addWritePerm": [
        Run(
            "cluster undrain broker-a --yes",
            "for reading and writing",
            "topic route Orders",
            r"broker-a +0 +\S+ +1 +1",
        )
    ],
}
"""By mqadmin's name, for every command that has an equivalent, in the order of the runs."""


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


def cases(*, of_sets):
    return [
        pytest.param(run, id=f"{name}: {run.words.partition(' --')[0]}")
        for name, runs in RUNS.items()
        for run in runs
        if run.words.startswith(OF_SETS) is of_sets
    ]


def test_every_mqadmin_command_has_a_tested_equivalent_or_a_reason_for_none():
    assert set(RUNS) <= set(EQUIVALENTS)
    for name, equivalent in EQUIVALENTS.items():
        lines = [f"{run.words} " for run in RUNS.get(name, ())]
        for command in equivalent.commands:
            assert any(line.startswith(f"{command} ") for line in lines), (name, command)
        assert equivalent.commands or equivalent.text, name


@pytest.mark.parametrize("run", cases(of_sets=False))
def test_the_equivalent_of_an_mqadmin_command_works(run, named, broker):
    check(run, named, broker.names)


@pytest.mark.parametrize("run", cases(of_sets=True))
def test_the_equivalent_of_an_mqadmin_command_works_on_a_broker_set(run, pair):
    leader = pair.wait_in_sync(1)
    (follower,) = [member for member in pair.members.values() if member is not leader]
    named = {"set": pair.name, "etcd": leader.etcd}
    named |= {"leader": leader.name, "follower": follower.name}
    check(run, named, pair.names.names)


def check(run, named, names):
    shown = output_of(run.words, named, names)
    assert re.search(filled(run.shows, named), shown, re.MULTILINE), shown
    if run.then:
        shown = output_of(run.then, named, names)
        assert re.search(filled(run.effect, named), shown, re.MULTILINE), shown


def output_of(line, named, names):
    words = shlex.split(filled(line, named))
    words += [] if line.startswith(OFFLINE) else ["--names", names]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.stdout


def filled(text, named):
    for name, value in named.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text
