"""A program's membership in a cluster: one set of connections, one id, and its groups.

A client sends heartbeats to all brokers every 30 s, when a group joins, and on every new
connection, since a broker forgets a client when its connection closes. It refreshes routes, and
answers brokers' requests (:class:`BrokerRequests`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final, Protocol, Self, TypeVar, runtime_checkable

import msgspec

from txmq.client.admin.admin import Admin
from txmq.client.lifecycle import Lifecycle, not_open
from txmq.client.middleware import Middleware, ReceiveFunction, as_middleware
from txmq.client.observe.worker_process import CURRENT
from txmq.client.received_message import received
from txmq.client.routes import MASTER
from txmq.client.session import Session
from txmq.client.settings import ClientSettings
from txmq.errors import (
    BrokerRefused,
    InternalError,
    RequestNotSupported,
    RequestTimeout,
    TxmqError,
    UsageError,
)
from txmq.limits import RELAYED_MAX
from txmq.message import Queue, QueueOffset, ReceivedMessage
from txmq.protocol import properties
from txmq.protocol.bodies import (
    ConsumedDirectly,
    ConsumerRegistration,
    Heartbeat,
    HeldQueue,
    MessageQueue,
    ProducerRegistration,
    SubscriptionData,
    queue_map,
    read_queue_map,
    with_queue_map,
)
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command, answer
from txmq.protocol.headers import (
    CheckState,
    ClientGroups,
    ConsumeDirectly,
    GroupHeader,
    ReplyPush,
    ResetOffset,
    TopicAndGroup,
)
from txmq.protocol.record import Record, host_bytes, unpack
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Dispatcher, Handler
from txmq.runtime.clock import Clock, SystemClock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network
from txmq.runtime.tasks import Tasks
from txmq.settings.values import settings_or

__all__ = [
    "BrokerRequests",
    "ClientMember",
    "ClusterClient",
    "Consuming",
    "Replies",
    "TransactionOwner",
    "client_of",
]

log = logging.getLogger(__name__)

W = TypeVar("W", bound="Middleware | ReceiveFunction")

LEAVE_S: Final = 1.0
"""The timeout for unregistering a group; a broker also forgets it when the connection closes."""

_SUCCESS: Final = "CR_SUCCESS"
_LATER: Final = "CR_LATER"
_RAISED: Final = "CR_THROW_EXCEPTION"


class Replies:
    """The awaited replies, by correlation id."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def expect(self, correlation: str) -> Iterator[asyncio.Future[ReceivedMessage]]:
        """Expect a reply while the block runs."""
        waiter: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation] = waiter
        try:
            yield waiter
        finally:
            del self._waiting[correlation]

    def came(self, correlation: str, reply: ReceivedMessage) -> bool:
        """Deliver a reply; true if a caller waited for it."""
        waiter = self._waiting.get(correlation)
        if waiter is None or waiter.done():
            return False
        waiter.set_result(reply)
        return True


class ClientMember(Protocol):
    """A producer or consumer of some group."""

    @property
    def group(self) -> str:
        """The group's name."""
        ...

    def registration(self) -> ProducerRegistration | ConsumerRegistration:
        """What it registers with brokers."""
        ...

    def rebalance_soon(self) -> None:
        """React to changed topics or members; a producer ignores it."""
        ...


@runtime_checkable
class TransactionOwner(Protocol):
    """A producer that can report the state of its transactions."""

    def check(self, connection: Connection, header: CheckState, message: ReceivedMessage) -> None:
        """Handle a broker's check of a half message; the answer, if any, is an END."""
        ...


@runtime_checkable
class Consuming(Protocol):
    """A consumer that brokers can inspect and move."""

    @property
    def is_orderly(self) -> bool:
        """Whether it consumes each queue in order."""
        ...

    def positions(self) -> Mapping[Queue, QueueOffset]:
        """The consumed offset of each queue that it holds."""
        ...

    def held(self) -> Mapping[Queue, HeldQueue]:
        """The queues that it holds, for operators."""
        ...

    def subscribed(self) -> Sequence[SubscriptionData]:
        """Its subscriptions."""
        ...

    async def move(self, offsets: Mapping[Queue, int]) -> None:
        """Move to other offsets in queues that it holds."""
        ...

    async def handle(self, message: ReceivedMessage) -> object:
        """Handle one message outside its queue; ``None`` if it is consumed."""
        ...


class ClusterClient(Lifecycle):
    """The connections, heartbeats, routes and groups that producers and consumers share.

    :class:`txmq.client.client.Client` adds handlers.

    Args:
        names: The name servers, ``host:port`` separated by ``;``.
        settings: Timeouts and intervals.
        network: Opens streams.
        clock: Gives the time.
        entropy: Gives randomness.

    Raises:
        ConfigError: ``names`` names no server, or an address is invalid.
    """

    def __init__(
        self,
        names: str,
        settings: ClientSettings | None = None,
        network: Network | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self.settings: ClientSettings = settings_or(ClientSettings, settings)
        self.replies: Replies = Replies()
        self.tasks: Tasks = Tasks()
        clock = clock or SystemClock()
        self.session: Session = Session(
            names,
            network,
            clock,
            entropy,
            service=Dispatcher(BrokerRequests(self, clock, names).table()),
            on_open=self._opened,
            answer_s=self.settings.answer_timeout,
            # Refresh in the background well before the route expires.
            fresh_s=2 * self.settings.route_refresh,
            credentials=self.settings.credentials,
            tls=self.settings.tls,
        )
        self.admin: Admin = Admin(self.session)
        self.id: str = _client_id(self.settings, self.session.entropy)
        self._producers: dict[str, ClientMember] = {}
        self._consumers: dict[str, ClientMember] = {}
        self._beaten: dict[str, None] = {}
        self._to_beat: Counter[str] = Counter()
        self._met: dict[str, str] = {}
        self._is_open = False
        self.middlewares: list[Middleware] = []

    def middleware(self, hook: W) -> W:
        """Run code around the handlers and sends of this client; also a decorator.

        The first one registered is outermost. It applies to all push consumers and producers that
        share the client, but not to batch handlers.

        Args:
            hook: A :class:`~txmq.client.middleware.Middleware`, or an async function of the
                message and ``call_next`` that runs around each handler.

        Raises:
            UsageError: The client is open, or ``hook`` is neither.
        """
        if self._is_open:
            raise UsageError("register middleware before the client opens")
        self.middlewares.append(as_middleware(hook))
        return hook

    async def __aenter__(self) -> Self:
        if not self.session.owner.is_current:
            self.id = _client_id(self.settings, self.session.entropy)
        await self.session.__aenter__()
        self._is_open = True
        self.tasks.start(self._beat_always(), "heartbeats")
        self.tasks.start(self._refresh_always(), "route refresh")
        return self

    async def __aexit__(self, *ending: object) -> None:
        if not self.session.owner.is_current:
            return
        async with AsyncExitStack() as at_last:
            # The session closes even if stopping the tasks is cut short.
            at_last.push_async_callback(self.session.__aexit__, *ending)
            self._is_open = False
            await self.tasks.stop()

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return self._is_open

    # Groups

    async def join(self, member: ClientMember) -> None:
        """Register a producer or consumer with all known brokers.

        Raises:
            UsageError: The client is not open, or already has a member of this kind in the group.
        """
        if not self._is_open:
            raise not_open("this client is not open")
        self.session.owner.check()
        table = self._table_of(member)
        if table.setdefault(member.group, member) is not member:
            raise UsageError(
                f"this client has a member of group {member.group} already; "
                "a second one needs a client of its own"
            )
        try:
            if isinstance(member, TransactionOwner):
                await self._meet_brokers()
            await self.beat()
        except BaseException:
            # Some brokers may have registered it.
            await self.leave(member)
            raise

    async def leave(self, member: ClientMember) -> None:
        """Unregister a member with the brokers; a broker that does not answer drops it later by
        itself.
        """
        table = self._table_of(member)
        if table.get(member.group) is not member:
            return
        del table[member.group]
        is_producer = table is self._producers
        header = ClientGroups(
            self.id,
            producer_group=member.group if is_producer else None,
            consumer_group=None if is_producer else member.group,
        )
        addresses = {**self._beaten, **dict.fromkeys(self._addresses())}
        # Start each task before the next coroutine exists: if the loop is already closed, none
        # stays unawaited.
        tasks = [
            asyncio.ensure_future(self._tell_goodbye(address, header)) for address in addresses
        ]
        await asyncio.gather(*tasks)

    def _table_of(self, member: ClientMember) -> dict[str, ClientMember]:
        is_producer = isinstance(member.registration(), ProducerRegistration)
        return self._producers if is_producer else self._consumers

    async def _tell_goodbye(self, address: str, header: ClientGroups) -> None:
        connection = self.session.pool.ready(address)
        if connection is None:
            return
        try:
            await connection.request(RequestCode.UNREGISTER_CLIENT, header, timeout_s=LEAVE_S)
        except TxmqError as error:
            log.debug("%s did not hear that %s leaves: %s", address, self.id, error)

    def producer(self, group: str) -> ClientMember | None:
        """The member that produces for a group."""
        return self._producers.get(group)

    def consumer(self, group: str) -> ClientMember | None:
        """The member that consumes for a group."""
        return self._consumers.get(group)

    def rebalance_soon(self, group: str | None = None) -> None:
        """Make the consumers of one group, or all, rebalance soon."""
        for name, member in self._consumers.items():
            if group is None or name == group:
                member.rebalance_soon()

    # Heartbeats

    async def beat(self) -> None:
        """Send heartbeats to all known brokers; skip those that do not answer."""
        if self._producers or self._consumers:
            await asyncio.gather(*[self.beat_at(address) for address in self._addresses()])

    def _addresses(self) -> list[str]:
        # Only consumers register with slave replicas.
        routed = [
            address
            for replicas in self.session.brokers().values()
            for number, address in replicas.items()
            if number == MASTER or self._consumers
        ]
        return list(dict.fromkeys([*routed, *self._met.values()]))

    async def _meet_brokers(self) -> bool:
        """Find every broker that may check this client's transactions; return whether any is new.

        Other members of the group, or this one before a restart, may have sent through any broker.
        """
        before, self._met = self._met, {}
        if any(isinstance(member, TransactionOwner) for member in self._producers.values()):
            self._met = before
            try:
                known = await self.admin.cluster()
            except TxmqError as error:
                log.warning("cannot find the brokers that may check transactions: %s", error)
                return False
            self._met = {
                broker.name: broker.addresses[MASTER]
                for broker in known
                if MASTER in broker.addresses
            }
        return not self._met.items() <= before.items()

    def master(self, broker: str) -> str | None:
        """The address of a broker's master as last looked up, for producers of transactions."""
        return self._met.get(broker)

    def _heartbeat(self) -> bytes:
        producers = [member.registration() for member in self._producers.values()]
        consumers = [member.registration() for member in self._consumers.values()]
        return Heartbeat(
            self.id,
            [
                registration
                for registration in producers
                if isinstance(registration, ProducerRegistration)
            ],
            [
                registration
                for registration in consumers
                if isinstance(registration, ConsumerRegistration)
            ],
        ).write()

    async def beat_at(self, address: str) -> Connection | None:
        """Send a heartbeat to one broker; returns the connection if the broker answered."""
        try:
            connection = await self._connection_to_beat(address)
            if not self._producers and not self._consumers:
                return None  # All groups have left.
            await self._beat_over(connection)
        except BrokerRefused as error:
            log.warning("%s refuses the heartbeat of %s: %s", address, self.id, error)
        except TxmqError as error:
            log.info("no heartbeat to %s: %s", address, error)
        else:
            self._beaten[address] = None
            return connection
        return None

    async def _beat_over(self, connection: Connection) -> None:
        asked_at, limit = self.session.clock.monotonic(), self.settings.answer_timeout
        try:
            await connection.request(
                RequestCode.HEART_BEAT, body=self._heartbeat(), timeout_s=limit
            )
        except RequestTimeout:
            if connection.active_at < asked_at:
                # A silently cut connection stays open for a quarter of an hour; close it, so that
                # the next request opens another.
                connection.abort()
            raise

    async def _connection_to_beat(self, address: str) -> Connection:
        self._to_beat[address] += 1
        try:
            return await self.session.connection(address)
        finally:
            self._to_beat[address] -= 1

    def _opened(self, address: str, connection: Connection) -> None:
        del connection
        # A connection opened for a heartbeat carries that heartbeat; only others need one now.
        is_due = not self._to_beat[address] and address not in self.session.names
        if is_due and self._is_open and (self._producers or self._consumers):
            self.tasks.start(self.beat_at(address), f"heartbeat to {address}")

    async def _beat_always(self) -> None:
        while True:
            await asyncio.sleep(self.settings.heartbeat)
            addresses = self._addresses()
            self._beaten = {address: None for address in self._beaten if address in addresses}
            self._to_beat = +self._to_beat  # Drop zero counts.
            await self.beat()

    # Routes

    async def _refresh_always(self) -> None:
        while True:
            await asyncio.sleep(self.settings.route_refresh)
            try:
                moved = await self.session.refresh()
            except TxmqError as error:
                log.warning("routes are not refreshed: %s", error)
                continue
            if await self._meet_brokers() or moved:
                # New brokers have not registered this client yet.
                await self.beat()
                self.rebalance_soon()


def client_of(
    names: str | ClusterClient,
    network: Network | None = None,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
) -> tuple[ClusterClient, bool]:
    """The client of a producer or consumer: the shared one, or a new one.

    Args:
        names: The client to share, or the name servers of a new one.
        network: Opens streams, for a new client.
        clock: Gives the time, for a new client.
        entropy: Gives randomness, for a new client.

    Returns:
        The client, and whether the caller must open and close it.

    Raises:
        ConfigError: ``names`` names no server, or has the wrong type.
    """
    if isinstance(names, ClusterClient):
        return names, False
    return ClusterClient(names, None, network, clock, entropy), True


def _client_id(settings: ClientSettings, entropy: Entropy) -> str:
    host = settings.host or platform.node().replace("@", "-") or "localhost"
    instance = settings.instance or f"{os.getpid()}#{entropy.token(6).hex()}"
    if settings.instance and CURRENT.get() is not None:
        # The processes of a worker share their settings, and brokers take one id for one member.
        instance = f"{instance}-{os.getpid()}"
    return f"{host}@{instance}"


class BrokerRequests:
    """Answers brokers' requests for a client's groups."""

    def __init__(self, home: ClusterClient, clock: Clock, names: str) -> None:
        self._home = home
        self._clock = clock
        self._names = names
        self._started_ms = clock.wall_ms()

    def table(self) -> dict[int, Handler]:
        """The method for each request code."""
        return {
            RequestCode.CHECK_TRANSACTION_STATE: self.check,
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self.members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self.reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self.status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self.reply,
        }

    # Producers

    def check(self, connection: Connection, request: Command) -> None:
        """39: check a half message. If no member of its group is here, the next check may reach
        one.
        """
        header = request.read(CheckState)
        message = received(unpack(request.body)[0], "")
        group = message.properties.get(properties.PRODUCER_GROUP, "")
        producer = self._home.producer(group)
        check = getattr(
            producer, "check", None
        )  # An isinstance check against a protocol takes as long as a send.
        if check is not None:
            check(connection, header, message)
        else:
            log.warning(
                "no producer here can answer the check of transaction %s of group %s",
                message.id,
                group,
            )

    def reply(self, connection: Connection, request: Command) -> bytes:
        """326: deliver the reply to a request message."""
        del connection
        header = request.read(ReplyPush)
        text = header.properties or ""
        message = received(_record(header, request.body, text), "")
        correlation = properties.find(text, properties.CORRELATION_ID) or ""
        if not self._home.replies.came(correlation, message):
            log.info("a reply to %s came too late", header.producer_group)
        return answer(request)

    # Consumers

    def members_changed(self, connection: Connection, request: Command) -> None:
        """40: a member joined or left a group."""
        del connection
        self._home.rebalance_soon(request.read(GroupHeader).consumer_group)

    def reset(self, connection: Connection, request: Command) -> None:
        """220: move to other offsets."""
        del connection
        header = request.read(ResetOffset)
        consumer = self._consumer(header.group)
        table = read_queue_map(request.body, "offsetTable", int)
        offsets = {Queue(q.topic, q.broker_name, q.queue_id): at for q, at in table.items()}
        self._start(consumer.move(offsets), f"offset reset of {header.group}")

    def status(self, connection: Connection, request: Command) -> bytes:
        """221: report the consumed offset of each queue."""
        del connection
        header = request.read(TopicAndGroup)
        positions = self._consumer(header.group).positions()
        table = {_named(q): int(at) for q, at in positions.items() if q.topic == header.topic}
        return answer(request, body=with_queue_map("messageQueueTable", table))

    def running_info(self, connection: Connection, request: Command) -> bytes:
        """307: report this consumer's status."""
        del connection
        consumer = self._consumer(request.read(ConsumeDirectly).consumer_group)
        held = {
            _named(q): msgspec.to_builtins(held_queue) for q, held_queue in consumer.held().items()
        }
        about = {
            "PROP_NAMESERVER_ADDR": self._names,
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMEORDERLY": "true" if consumer.is_orderly else "false",
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_CLIENT_VERSION": "V4_9_8",
        }
        body = {
            "properties": about,
            "subscriptionSet": list(consumer.subscribed()),
            "mqTable": msgspec.Raw(queue_map(held)),
            "mqPopTable": {},
            "statusTable": {},
            "jstack": None,
        }
        return answer(request, body=msgspec.json.encode(body))

    def consume(self, connection: Connection, request: Command) -> None:
        """309: handle this one message now."""
        header = request.read(ConsumeDirectly)
        consumer = self._consumer(header.consumer_group)
        broker = request.field_map().get("brokerName", "")
        message = received(unpack(request.body)[0], broker)
        self._start(self._consume(connection, request, consumer, message), "one message by hand")

    async def _consume(
        self,
        connection: Connection,
        request: Command,
        consumer: Consuming,
        message: ReceivedMessage,
    ) -> None:
        since = self._clock.monotonic()
        result, remark = _SUCCESS, ""
        try:
            if await consumer.handle(message) is not None:
                result = _LATER
        except Exception as error:
            # The operator receives the error; the message keeps its place.
            log.exception("a handler failed with message %s", message.id)
            result, remark = _RAISED, f"{type(error).__name__}: {error}"
        spent_ms = int((self._clock.monotonic() - since) * 1000)
        consumed = ConsumedDirectly(consumer.is_orderly, True, result, remark, spent_ms)
        connection.send(answer(request, body=consumed.write()))

    def _consumer(self, group: str) -> Consuming:
        consumer = self._home.consumer(group)
        if consumer is None:
            raise InternalError(f"The Consumer Group <{group}> not exist in this client")
        if not isinstance(consumer, Consuming):
            raise RequestNotSupported(f"the consumer of {group} handles no messages by itself")
        return consumer

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        if len(self._home.tasks) >= RELAYED_MAX:
            work.close()
            raise InternalError("too many requests of brokers are being worked on")
        self._home.tasks.start(work, name)


def _named(queue: Queue) -> MessageQueue:
    return MessageQueue(queue.broker, queue.number, queue.topic)


def _record(header: ReplyPush, body: bytes, text: str) -> Record:
    def host(address: str) -> bytes:
        name, _, port = address.lstrip("/").rpartition(":")
        try:
            return host_bytes(name.strip("[]"), int(port))
        except ValueError:
            return bytes(8)

    return Record(
        queue_id=header.queue_id, flag=header.flag, queue_offset=0, position=0,
        sys_flag=header.sys_flag, born_ms=header.born_timestamp, born_host=host(header.born_host),
        stored_ms=header.store_timestamp, store_host=host(header.store_host),
        attempts=header.reconsume_times or 0, prepared_position=0, body=body,
        topic=header.topic, properties=text,
    )  # fmt: skip
