"""Every limit: who enforces it, which figure counts what it bounds, and how it refuses.

A limit on what peers make a server keep has one figure for what is kept and one for what was
refused. The tests lower each of these limits, exceed it over a socket, and read the figures over
the wire.
"""

import asyncio
import json
import re
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from tests.running import in_loop, run_by
from tests.traffic.honest_client import frame
from txmq import limits
from txmq.limits import FRAME_BYTES_MAX
from txmq.protocol.bodies import TextTable
from txmq.remoting.pool import ConnectionPool
from txmq.runtime.clock import SystemClock
from txmq.runtime.network import SystemNetwork
from txmq_broker.app import Broker
from txmq_broker.config import CheckBackSettings
from txmq_broker.handlers.pull import HeldPulls
from txmq_broker.names.routes import RouteRegistry
from txmq_broker.names.server import NameServer
from txmq_broker.testing import settings_for_test

FIGURES, TOPIC, GROUP, SEND, PULL, BEAT, COMMIT, LOCK = 28, 17, 200, 310, 11, 34, 15, 41
RUNNING_INFO, PUT_VALUE, REGISTER = 307, 100, 103
BOTH = ("broker", "names")


class Stage:
    """A broker with a name server, of which one is under test."""

    def __init__(self, address, pool):
        self.address = address
        self._pool = pool
        self._writers = []

    def close(self):
        for writer in self._writers:
            writer.close()

    async def ask(self, code, body=b"", **fields):
        """The code and the remark of an answer."""
        connection = await self._pool.connection(self.address)
        named = {name: str(value) for name, value in fields.items()}
        answer = await connection.ask(code, named, body=body, timeout_s=20)
        return answer.code, answer.remark or ""

    async def figures(self):
        connection = await self._pool.connection(self.address)
        answer = await connection.request(FIGURES, timeout_s=20)
        return TextTable.read(answer.body).table

    async def raw(self, data):
        """A connection of its own that has sent these bytes."""
        host, port = self.address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        self._writers.append(writer)
        writer.write(data)
        await writer.drain()
        return reader, writer

    # What clients ask

    async def send(self, topic, properties=""):
        fields = dict(zip("abcdefghij", ["p", topic, "TBW102", 4, 0, 0, 1, 0, "", 0], strict=True))
        return await self.ask(SEND, b"x", **fields | {"i": properties})

    async def pull(self, group="g", wait_ms=0, subscription="*"):
        flag = 4 | (2 if wait_ms else 0)
        return await self.ask(
            PULL, consumerGroup=group, topic="T", queueId=0, queueOffset=0, maxMsgNums=32,
            sysFlag=flag, commitOffset=0, suspendTimeoutMillis=wait_ms, subVersion=0,
            subscription=subscription,
        )  # fmt: skip

    async def beat(self, producers=0, topics=0):
        subscriptions = [{"topic": f"T{at}", "subString": "*"} for at in range(topics)]
        beat = {
            "clientID": "c",
            "producerDataSet": [{"groupName": f"p{at}"} for at in range(producers)],
            "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": subscriptions}],
        }
        return await self.ask(BEAT, json.dumps(beat).encode())

    async def commit(self, group, queue):
        return await self.ask(COMMIT, consumerGroup=group, topic="T", queueId=queue, commitOffset=0)

    async def topic(self, name):
        fields = {"topic": name, "defaultTopic": "TBW102", "perm": 6}
        return await self.ask(TOPIC, readQueueNums=1, writeQueueNums=1, **fields)

    async def value(self, key, value="v"):
        return await self.ask(PUT_VALUE, namespace="N", key=key, value=value)

    async def register(self, name, *topics):
        table = {topic: {"topicName": topic} for topic in topics}
        version = {"counter": 1, "timestamp": 1}
        body = {"topicConfigSerializeWrapper": {"dataVersion": version, "topicConfigTable": table}}
        return await self.ask(
            REGISTER, json.dumps(body).encode(), brokerName=name, clusterName="C",
            brokerAddr=f"10.0.0.1:{len(name)}", haServerAddr="10.0.0.1:2", brokerId=0,
        )  # fmt: skip


# What exceeds a limit; each returns the refusal, or None if the server closes a connection


async def too_many_connections(stage):
    for _ in range(3):
        reader, _ = await stage.raw(b"")
    assert await reader.read() == b""


async def unfinished_frames(stage):
    first, _ = await stage.raw(frame(34, {}, bytes(9_000))[:800])
    await stage.figures()  # The server has read the first before the second comes.
    await stage.raw(frame(34, {}, bytes(9_000))[:800])
    assert await first.read() == b""


async def unread_answers(stage):
    """Requests whose answers fill what both kernels hold, and then the server's own buffer."""
    if await stage.value("k", "v" * 60_000) == (0, ""):
        request = frame(101, {"namespace": "N", "key": "k"})
    else:
        request = frame(26, {})
    _, writer = await stage.raw(b"")

    async def ask_for_ever():
        while True:
            writer.write(request)
            await writer.drain()

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(ask_for_ever(), 60)


async def a_broken_frame(stage):
    reader, _ = await stage.raw((FRAME_BYTES_MAX + 1).to_bytes(4) + b"\0\0\0\1")
    assert await reader.read() == b""


async def new_topics(stage):
    return [await stage.send(f"T{at}") for at in range(3)][-1]


async def operators_topics(stage):
    return [await stage.topic(f"T{at}") for at in range(3)][-1]


async def new_groups(stage):
    await stage.topic("T")
    return [await stage.pull(f"g{at}") for at in range(3)][-1]


async def operators_groups(stage):
    answers = []
    for at in range(3):
        body = json.dumps({"groupName": f"g{at}"}).encode()
        answers.append(await stage.ask(GROUP, body))
    return answers[-1]


async def members(stage):
    return await stage.beat(producers=9)


async def subscriptions(stage):
    return await stage.beat(topics=9)


async def offsets(stage):
    await stage.topic("T")
    await stage.commit("g", 0)
    return await stage.commit("h", 0)


async def locks(stage):
    queues = [{"topic": "T", "brokerName": "b", "queueId": at} for at in range(3)]
    lock = {"clientId": "c", "consumerGroup": "g", "mqSet": queues}
    return await stage.ask(LOCK, json.dumps(lock).encode())


async def waiting_pulls(stage):
    await stage.topic("T")
    waiting = [asyncio.ensure_future(stage.pull(wait_ms=500, subscription="ab")) for _ in range(4)]
    done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await stage.figures()
    for pull in rest:
        pull.cancel()
    return done.pop().result()


async def relays(stage):
    await stage.beat()
    return await stage.ask(RUNNING_INFO, consumerGroup="g", clientId="c")


async def halves(stage):
    await stage.topic("T")
    half = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01{}\x02"
    return [await stage.send("T", half.format(at)) for at in range(3)][-1]


async def values(stage):
    return [await stage.value(f"k{at}") for at in range(3)][-1]


async def topics_of_brokers(stage):
    return await stage.register("a", "T1", "T2", "T3")


async def brokers(stage):
    return [await stage.register("a" * at) for at in range(1, 4)][-1]


class Shared(NamedTuple):
    """A limit of what peers make a server keep."""

    servers: tuple[str, ...]
    kept: str
    """The figure that the limit bounds; empty if it is another limit's too."""
    refused: str
    """The figure that counts what exceeded it; empty if nothing is refused."""
    exceed: object = None
    """Exceeds the limit; without it, a test named beside does, and looks at the figure."""
    value: int = 2
    of: type | None = None
    """The class whose constructor has the limit as a default."""


SHARED = {
    "connections_max": Shared(BOTH, "connectionsOpen", "connectionsRefused", too_many_connections),
    "UNFINISHED_BYTES_MAX": Shared(
        BOTH, "unfinishedBytes", "unfinishedFramesCut", unfinished_frames, 1_000
    ),
    "OWED_BYTES_MAX": Shared(BOTH, "unreadBytes", "unreadAnswersCut", unread_answers, 1_000),
    # tests/unit/remoting: test_connection, and test_tls for the two of handshakes.
    "PUSH_BACKLOG_BYTES": Shared(BOTH, "unreadBytes", "unreadAnswersCut"),
    "TLS_HANDSHAKE_S": Shared(BOTH, "connectionsOpen", "handshakesRefused"),
    "TLS_HANDSHAKE_BYTES_MAX": Shared(BOTH, "connectionsOpen", "handshakesRefused"),
    "FRAME_BYTES_MAX": Shared(BOTH, "", "brokenFramesCut", a_broken_frame, FRAME_BYTES_MAX),
    "KEY_VALUES_MAX": Shared(("names",), "keyValues", "keyValuesRefused", values),
    "KEY_VALUE_BYTES_MAX": Shared(("names",), "keyValueCharacters", "keyValuesRefused", values, 8),
    "ROUTE_TOPICS_MAX": Shared(
        ("names",), "topics", "registrationsRefused", topics_of_brokers, of=RouteRegistry
    ),
    "ROUTE_BROKERS_MAX": Shared(("names",), "brokers", "registrationsRefused", brokers),
    "TOPICS_MAX": Shared(("broker",), "topics", "topicsRefused", operators_topics),
    "MADE_TOPICS_MAX": Shared(("broker",), "topics", "topicsRefused", new_topics),
    "GROUPS_MAX": Shared(("broker",), "groups", "groupsRefused", operators_groups),
    "MADE_GROUPS_MAX": Shared(("broker",), "groups", "groupsRefused", new_groups),
    # Refuses what MADE_TOGETHER_MAX does not allow at once.
    "MADE_PER_SECOND_MAX": Shared(("broker",), "", "topicsRefused"),
    "MADE_TOGETHER_MAX": Shared(("broker",), "", "groupsRefused", new_groups, 1),
    "POSTPONED_MAX": Shared(
        ("broker",), "requestsWaitingForTopics", "topicsRefused", new_topics, 0
    ),
    "POSTPONED_BYTES_MAX": Shared(
        ("broker",), "bytesWaitingForTopics", "topicsRefused", new_topics, 0
    ),
    "MEMBERS_MAX": Shared(("broker",), "members", "heartbeatsRefused", members),
    "GROUPS_PER_CLIENT_MAX": Shared(("broker",), "members", "heartbeatsRefused", members),
    "SUBSCRIPTIONS_MAX": Shared(("broker",), "subscriptions", "heartbeatsRefused", subscriptions),
    "SUBSCRIPTIONS_PER_CLIENT_MAX": Shared(
        ("broker",), "subscriptions", "heartbeatsRefused", subscriptions
    ),
    "HEARTBEAT_BYTES_MAX": Shared(("broker",), "", "heartbeatsRefused", members, 20),
    # tests/integration/test_long_heartbeats.py
    "LONG_REQUESTS_BYTES_MAX": Shared(("broker",), "", "heartbeatsRefused"),
    "OFFSETS_MAX": Shared(("broker",), "offsets", "offsetsRefused", offsets, 1),
    "UNKNOWN_OFFSETS_MAX": Shared(
        ("broker",), "offsetsOfUnknownGroups", "offsetsRefused", offsets, 1
    ),
    "LOCKS_MAX": Shared(("broker",), "lockedQueues", "locksRefused", locks),
    "HELD_PULLS_MAX": Shared(
        ("broker",), "pullsWaiting", "pullsNotHeld", waiting_pulls, of=HeldPulls
    ),
    "HELD_FILTERS_CHARS_MAX": Shared(
        ("broker",), "filterCharactersWaiting", "pullsNotHeld", waiting_pulls, 4
    ),
    "RELAYED_MAX": Shared(("broker",), "requestsRelayed", "relaysRefused", relays, 0),
    "pending_max": Shared(("broker",), "transactionsOpen", "transactionsRefused", halves),
    # tests/unit/services/test_flusher.py
    "UNSYNCED_BYTES_MAX": Shared(("broker",), "bytesWaitingForSync", "busyRefused"),
    # Further checks wait their turn, and the conditions that were used least are compiled again.
    "CHECKS_MAX": Shared(("broker",), "checksOpen", ""),
    "FILTERS_CHARS_MAX": Shared(("broker",), "filterCharactersCompiled", ""),
}
"""The limits of what peers make servers keep, with two settings that are limits as well."""

OF_ONE_REQUEST = """
MESSAGE_BODY_BYTES_MAX PROPERTIES_BYTES_MAX PROPERTIES_OF_HALF_MAX TOPIC_CHARS_MAX GROUP_CHARS_MAX
CLIENT_ID_CHARS_MAX BATCH_MESSAGES_MAX JSON_DEPTH_MAX HEADER_BYTES_MAX HEADER_FIELDS_MAX
LAX_HEADER_BYTES_MAX LAX_BODY_BYTES_MAX REASON_CHARS_MAX KEYS_PER_MESSAGE_MAX
SUBSCRIPTION_CHARS_MAX FILTER_DEPTH_MAX FILTER_OPERANDS_MAX FILTER_NUMBER_CHARS_MAX
DELAY_LEVELS_MAX RECALLED_TOGETHER_MAX RECALLED_BYTES_MAX REMARK_CHARS_MAX LOCK_BYTES_MAX
MESSAGES_OF_TRANSACTION_MAX
"""
"""Limits of the form or the size of one request or setting: it is refused or cut, and nothing is
kept."""

OF_ONE_TURN = """
TURN_S SPAN_BYTES_MAX DELIVERED_TOGETHER_MAX DELIVERED_BYTES_MAX PULL_MESSAGES_MAX PULL_BYTES_MAX
PULL_SCAN_MAX FILTER_SCAN_BYTES_MAX FILTER_WORK_MAX WOKEN_TOGETHER_MAX CHECKS_PER_PRODUCER_MAX
CONNECTION_BACKLOG_BYTES HEARTBEAT_AT_ONCE_BYTES GROUPS_TOGETHER HEADER_BYTES_USUAL
"""
"""How much a server does, or takes in, before it goes on with something else; nothing is
refused."""

OF_ITS_OWN = """
RECENT_TRANSACTIONS RECALLED_TRANSACTIONS YOUNG_LOG_BYTES REPEATED_LINES_MAX GROUPS_SPARED
OWED_BYTES_SPARED CHECKED_TRANSACTIONS_KEPT CHECKS_KEPT RECHECKS_KEPT WAITING_RETRIES_MAX
"""
"""Sizes that a server chooses for itself."""

OF_OPERATORS = "SKIPS_MAX"
"""Limits of what operators make a server keep: tests/unit/core/test_core_tables.py exceeds it."""

OF_CLIENTS = """
TURNS_MAX FAULTS_MAX FAILED_MESSAGES_MAX FORMS_MAX FETCHED_MESSAGES_MAX HUNG_CHECKS_MAX STORIES_MAX
XID_CHARS_MAX XA_THREADS GID_CHARS_MAX LATE_SECONDS_MAX RESOURCE_THREADS FENCE_CHECKS_TOGETHER
FENCE_ROWS_REMOVED KEY_CHARS_MAX STORED_RESULT_BYTES_MAX DONE_ROWS_REMOVED REPLIES_AWAITED_MAX
TRACES_MAX SLOTS LANE_CHARS_MAX MESSAGE_ID_CHARS_MAX OUTBOX_LANES_KEPT OUTBOX_RESTING_MAX
RELAY_THREADS PAYLOAD_REASON_CHARS_MAX WORKER_PROCESSES_MAX WATCHED_FILES_MAX
QUEUES_OF_NEW_TOPICS
"""
"""Limits of producers, consumers, relays and workers."""

OF_PAGES = "HTTP_REQUEST_BYTES_MAX HTTP_ANSWERS_MAX HTTP_WAITING_MAX METRIC_SERIES_MAX"
"""Limits of the pages for monitoring: test_http_server.py beside exceeds the first three, and
tests/unit/monitoring the fourth."""


OF_THE_CONSOLE = """
CONSOLE_SESSIONS_MAX CONSOLE_REQUESTS_MAX CONSOLE_WAITING_MAX CONSOLE_STREAMS_MAX
CONSOLE_STREAMS_OF_SESSION_MAX CONSOLE_FORM_BYTES_MAX CONSOLE_ROWS CONSOLE_SORTED_MAX
CONSOLE_RESENT_MAX
"""
"""Limits of a web console."""


def test_every_limit_is_listed_under_exactly_one_kind():
    settings = {"connections_max", "pending_max"}
    others = (OF_ONE_REQUEST, OF_ONE_TURN, OF_ITS_OWN, OF_OPERATORS, OF_CLIENTS, OF_PAGES)
    kinds = [*SHARED, *" ".join((*others, OF_THE_CONSOLE)).split()]

    assert len(kinds) == len(set(kinds))
    assert set(kinds) - settings == {name for name in vars(limits) if name.isupper()}


def lower(monkeypatch, name, limit):
    """Give a limit its value wherever it has been imported."""
    for module in list(sys.modules.values()):
        if name in getattr(module, "__dict__", {}) and module.__name__.startswith("txmq"):
            monkeypatch.setattr(module, name, limit.value)
    if limit.of is not None:
        monkeypatch.setattr(limit.of.__init__, "__defaults__", (limit.value,))


@asynccontextmanager
async def serving(server, folder, name, limit):
    """A broker or a name server on loopback."""
    settings = settings_for_test(str(folder))
    connections = 10_000
    if name == "connections_max":
        connections = limit.value
    if name == "pending_max":
        settings = replace(settings, transaction=CheckBackSettings(pending_max=limit.value))
    settings = replace(settings, connections_max=connections)
    pool = ConnectionPool(SystemNetwork(), SystemClock())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(pool.close)
        if server == "broker":
            address = (await stack.enter_async_context(Broker(settings))).address
        else:
            names = NameServer(SystemNetwork(), SystemClock(), connections_max=connections)
            await stack.enter_async_context(names)
            await names.open("127.0.0.1", 0)
            address = "{}:{}".format(*names.address)
        stage = Stage(address, pool)
        stack.callback(stage.close)
        yield stage


pytestmark = pytest.mark.timeout(30)
CASES = [(name, server) for name, limit in SHARED.items() for server in limit.servers]


@pytest.mark.parametrize(("name", "server"), CASES)
def test_a_server_counts_what_it_keeps_and_what_it_refuses(
    name, server, tmp_path, monkeypatch, caplog
):
    limit = SHARED[name]

    async def main():
        async with serving(server, tmp_path, name, limit) as stage:
            before = await stage.figures()
            assert {limit.kept, limit.refused} - {""} <= before.keys()
            if limit.exceed is None:
                return
            refusal = await limit.exceed(stage)
            after = await stage.figures()
            assert int(after[limit.refused]) > int(before[limit.refused])
            if refusal is None:
                assert str(limit.value) in caplog.text
            elif limit.refused != "pullsNotHeld":  # Such a pull is answered at once.
                assert re.search("limit|at most|more than|beyond", refusal[1]), refusal
                assert re.search(r"nothing|\bno\b|was not", refusal[1]), refusal

    if limit.exceed is not None:
        lower(monkeypatch, name, limit)
    asyncio.run(main())


@pytest.mark.parametrize("server", BOTH)
def test_repeated_broken_requests_do_not_fill_the_log(server, tmp_path, caplog):
    """The texts differ; lines count as equal by the peer's host and the kind of fault."""

    async def main():
        async with serving(server, tmp_path, "", SHARED["FRAME_BYTES_MAX"]) as stage:
            code = BEAT if server == "broker" else REGISTER
            for at in range(12):
                reader, _ = await stage.raw((FRAME_BYTES_MAX + 1 + at).to_bytes(4) + b"\0\0\0\1")
                assert await reader.read() == b""
                assert (await stage.ask(code, b"x" * at, **{f"f{at}": at}))[0] == 1
            assert int((await stage.figures())["brokenFramesCut"]) == 12

    asyncio.run(main())
    for beginning in ("closing", "request"):
        lines = [text for text in caplog.messages if text.startswith(beginning)]
        assert [line.endswith("(10 times)") for line in lines] == [False, True]


@run_by(in_loop)
async def test_the_built_in_name_server_limits_its_connections(tmp_path):
    settings = replace(settings_for_test(str(tmp_path)), connections_max=2)
    async with Broker(settings) as broker:
        pool = ConnectionPool(SystemNetwork(), SystemClock())
        stage = Stage(broker.names, pool)
        await stage.figures()
        await too_many_connections(stage)
        assert int((await stage.figures())["connectionsRefused"]) >= 1
        stage.close()
        await pool.close()
