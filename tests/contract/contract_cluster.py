"""Owns the vocabulary of the contract: the cluster, topics and groups made for one test, consumers
that write down what they are given, and patience.
"""

import asyncio
import itertools
import re
import secrets
from contextlib import AsyncExitStack, suppress
from time import monotonic

import pytest

from txmq.client.client import Client
from txmq.client.consume import PushConsumer
from txmq.client.routes import MASTER
from txmq.client.send.producer import Producer
from txmq.client.settings import ClientSettings, ConsumerSettings, ProducerSettings
from txmq.errors import NoPermission, RequestNotSupported, TopicNotFound, TxmqError
from txmq.message import Message
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import SendBack

QUEUES = 4
PATIENCE_S = 60.0
POLL_S = 0.02
SOON = ClientSettings(heartbeat=5.0, route_refresh=2.0, answer_timeout=10.0)

# Delay level 1 is a second in every stock table; level 0 would begin with 10 s.
SHORTEST_DELAY = 1

run_token = secrets.token_hex(4)
numbers = itertools.count()


class Remarks:
    """What the run has seen that may differ from cluster to cluster; said once at its end."""

    def __init__(self):
        self._seen = {}

    def add(self, text, test=None):
        self._seen.setdefault(text, []).extend([test] if test else [])

    def __bool__(self):
        return bool(self._seen)

    def lines(self):
        for text, tests in self._seen.items():
            yield f"{text} ({', '.join(tests)})" if tests else text


class Cluster:
    """The cluster under test, as one test sees it; ``async with`` opens it and tidies up."""

    def __init__(self, names, cluster, test, remarks, *, is_ours):
        self.names = names
        self.cluster = cluster
        self.is_ours = is_ours
        self.test = test
        self.remarks = remarks
        self.client = Client(names, SOON)
        self._stem = f"txmq-contract-{run_token}-{re.sub('[^a-z0-9]+', '-', test.lower())[:40]}"
        self._topics, self._groups = [], []

    async def __aenter__(self):
        await self.client.__aenter__()
        self.admin = self.client.admin
        await self._introduce()
        return self

    async def _introduce(self):
        brokers = await self.admin.cluster()
        masters = [broker for broker in brokers if MASTER in broker.addresses]
        self.brokers = [broker for broker in masters if self.cluster in (None, broker.cluster)]
        for broker in self.brokers:
            stats = await self.admin.broker_stats(broker.name)
            version = stats.get("brokerVersionDesc", "of no known version")
            self.remarks.add(f"ran against broker {broker.name} {version}, {self.names}")

    async def __aexit__(self, *problem):
        for group in self._groups:
            with suppress(TxmqError):
                await self.admin.delete_group(group, cluster=self.cluster)
        retries = [f"%{kind}%{group}" for kind in ("RETRY", "DLQ") for group in self._groups]
        for topic in self._topics + retries:
            with suppress(TxmqError):  # The test may have removed it, or nothing made it.
                await self.admin.delete_topic(topic)
        await self.client.__aexit__(*problem)

    def remark(self, text):
        """Say at the end of the run what this cluster does that others may not."""
        self.remarks.add(text, self.test)

    def cannot(self, why):
        """Skip a test of an optional feature; on our own broker it fails instead."""
        (pytest.fail if self.is_ours else pytest.skip)(why)

    # -- names and actors --------------------------------------------------------------------

    def name(self):
        return f"{self._stem}-{next(numbers)}"

    async def topic(self, queues=QUEUES):
        """A topic with this many queues at every broker."""
        name = self.name()
        self._topics.append(name)
        await self.admin.create_topic(name, queues, cluster=self.cluster)
        return name

    async def queue(self):
        """The only queue of a topic."""
        name = self.name()
        self._topics.append(name)
        broker = self.brokers[0].name
        route = await self.admin.create_topic(name, 1, broker, cluster=self.cluster)
        (queue,) = route.readable
        return queue

    async def group(self):
        """A consumer group; made, since clusters may not let any group consume."""
        name = self.name()
        self._groups.append(name)
        await self.admin.create_group(name, cluster=self.cluster)
        return name

    def producer(self, **settings):
        settings = {"timeout": 10.0, **settings}
        return Producer(self.name(), self.client, ProducerSettings(**settings))

    def listener(self, group, topic, tags="*", **settings):
        return Listener(self, group, topic, tags, settings)

    async def queues(self, topic):
        return sorted((await self.admin.route(topic)).readable)

    # -- facts -------------------------------------------------------------------------------

    async def until(self, fact, what):
        """Return the fact's first true value, which may have to be awaited."""
        deadline = monotonic() + PATIENCE_S
        while True:
            value = fact()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return value
            if monotonic() > deadline:
                raise AssertionError(f"waited {PATIENCE_S:.0f} s for {what}")
            await asyncio.sleep(POLL_S)

    async def until_refused(self, kind, ask, what):
        """Wait until what is asked is refused with this error."""

        async def refused():
            try:
                await ask()
            except kind:
                return True
            return False

        await self.until(refused, what)

    async def until_committed(self, group, topic):
        """Wait until a group has committed the end of every queue."""
        queues = await self.queues(topic)

        async def committed():
            for queue in queues:
                end = await self.admin.max_offset(queue)
                if await self.admin.committed_offset(group, queue) != end:
                    return False
            return True

        await self.until(committed, f"group {group} to have committed everything")

    async def stored(self, queue, offset):
        """The message at this place, which an acknowledged message must have at once."""

        async def found():
            batch = await self.admin.pull(queue, offset, 1, hold=1.0)
            return batch.messages

        (message,) = await self.until(found, f"the message at {queue}@{offset}")
        assert (message.queue, message.offset) == (queue, offset)
        return message

    async def all_stored(self, topic, count):
        """Every message of a topic, once it has this many."""

        async def found():
            status = await self.admin.topic_status(topic)
            return sum(entry.max_offset - entry.min_offset for entry in status) >= count and status

        messages = []
        for entry in await self.until(found, f"{count} messages in {topic}"):
            offset = entry.min_offset
            while offset < entry.max_offset:
                batch = await self.admin.pull(entry.queue, offset)
                messages += batch.messages
                assert batch.next_offset > offset, f"a pull at {entry.queue}@{offset} leads nowhere"
                offset = batch.next_offset
        return messages

    async def dead_letters(self, group):
        """The dead letters of the group."""
        try:
            return await self.all_stored(f"%DLQ%{group}", 1)
        except TopicNotFound:
            return []
        except NoPermission:
            self.cannot("this broker lets nobody read dead letters; older ones do not")

    async def require_send_back(self, result):
        """Skip the test if the brokers cannot take messages back from consumers."""
        header = SendBack(
            offset=(await self.stored(result.queue, result.offset)).position,
            group=await self.group(),
            delay_level=SHORTEST_DELAY,
            origin_msg_id=result.id,
            origin_topic=result.queue.topic,
            unit_mode=False,
            max_reconsume_times=16,
        )
        session = self.client.session
        address = await session.address_of(result.queue)
        try:
            await session.request(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)
        except RequestNotSupported:
            self.cannot("this broker answers 'not supported' to sending messages back (request 36)")


class Listener:
    """A consumer in a client of its own that writes down what it is given."""

    def __init__(self, cluster, group, topic, tags, settings):
        self._cluster = cluster
        self._stack = AsyncExitStack()
        self.client = Client(cluster.names, SOON)
        self.group, self.topic = group, topic
        chosen = {"rebalance_interval": 1.0, "commit_interval": 0.3, **settings}
        self.consumer = PushConsumer(group, self.client, ConsumerSettings(**chosen))
        self.messages = []
        self.handle = self.take
        self.consumer.on(topic, tags)(self._handle)

    async def _handle(self, message):
        verdict = self.handle(message)
        return await verdict if asyncio.iscoroutine(verdict) else verdict

    def take(self, message):
        """Handle a message unless a test sets another function as ``handle``."""
        self.messages.append(message)

    async def __aenter__(self):
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.client)
            await stack.enter_async_context(self.consumer)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *problem):
        await self._stack.aclose()

    @property
    def ids(self):
        return [message.id for message in self.messages]

    @property
    def bodies(self):
        return [message.body for message in self.messages]

    async def until_given(self, results):
        """Wait until it was given every message that was acknowledged with these results."""
        wanted = {result.id for result in results}
        await self._cluster.until(
            lambda: wanted <= set(self.ids), f"{len(wanted)} messages to be handled"
        )

    @property
    def queues(self):
        """The held queues of its topic, without the retry queues of its group."""
        return [queue for queue in self.consumer.queues if queue.topic == self.topic]

    async def until_holding(self, queues):
        """Wait until it holds exactly these queues."""
        await self._cluster.until(lambda: self.queues == queues, f"queues {queues}")


def messages(topic, count, prefix="m", **rest):
    return [
        Message(topic=topic, body=f"body of {prefix}-{number}".encode(), **rest)
        for number in range(count)
    ]
