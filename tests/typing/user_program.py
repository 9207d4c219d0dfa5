"""A program that uses every public name of txmq, for mypy: it must type-check, and is never run.

What is declared here with a type is what a user relies on; a change that breaks such a line breaks
programs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sqlalchemy import MetaData, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import txmq
from txmq import (
    DEAD_LETTER,
    Admin,
    Client,
    ClientSettings,
    ClientTls,
    ConsumerSettings,
    Credentials,
    Effect,
    Fence,
    HalfMessage,
    Later,
    LocalTransactionState,
    LogPosition,
    ManagerSettings,
    Message,
    MessageTemplate,
    Middleware,
    Outbox,
    Producer,
    ProducerSettings,
    PullConsumer,
    PullContext,
    PulledBatch,
    PullOutcome,
    PushConsumer,
    Queue,
    QueueOffset,
    ReceivedMessage,
    ReceiveNext,
    Relay,
    RelaySettings,
    Reply,
    ScheduledPull,
    SendNext,
    SendResult,
    SendStatus,
    SQLResource,
    StartFrom,
    Telemetry,
    Transaction,
    TransactionListener,
    TransactionManager,
    TransactionOutcome,
    TransactionProducer,
    TransactionSettings,
    TransactionState,
    TxmqError,
    XAResource,
    allocation,
    blocking,
    create_fence,
    create_outbox,
    encode_body,
    errors,
    reply_to,
)

NAMES: Final = "127.0.0.1:9876"
VERSION: str = txmq.__version__
STATUSES: Mapping[SendStatus, str] = {
    SendStatus.OK: "safe",
    SendStatus.FLUSH_DISK_TIMEOUT: "not on the disk in time",
    SendStatus.SLAVE_NOT_AVAILABLE: "without a replica",
    SendStatus.FLUSH_SLAVE_TIMEOUT: "on no replica in time",
}


def of_order(queues: Sequence[Queue], message: Message, order_id: int) -> Queue:
    """A selector for ``send_to``."""
    return queues[(order_id + message.flag) % len(queues)]


def told(sent: asyncio.Future[SendResult]) -> None:
    """A callback for ``send_nowait``."""
    result: SendResult = sent.result()
    print(STATUSES[result.status], result.queue.topic, result.id, result.offset_id)


async def send(names: str) -> QueueOffset:
    """Every way to send."""
    settings = ProducerSettings(
        timeout="20s", retries=3, queues_of_new_topics=2, linger=0.001, in_flight_max="16MiB"
    )
    patience: float = settings.timeout
    room: int = settings.in_flight_max
    order = Message(
        topic="Orders", body=b"tea", tags="Paid", keys=("order-7",), properties={"shop": "7"}
    )
    async with Producer("shop", names, settings) as producer:
        result: SendResult = await producer.send(order)
        await producer.send(order, result.queue)
        producer.send_nowait(order).add_done_callback(told)
        await producer.send_oneway(order)
        results: list[SendResult] = await producer.send_batch([order, order])
        await producer.send_to(order, of_order, 7)
        await producer.send_ordered(order, "order-7")
        later: SendResult = await producer.send(replace(order, deliver_after="90s"))
        if later.recall_handle is not None:
            recalled: str = await producer.recall("Orders", later.recall_handle)
            print(recalled == later.id)
        in_flight: int = producer.bytes_in_flight
        reply: ReceivedMessage = await producer.request(order, timeout=3.0)
        print(results, in_flight, reply.body, patience, room)
    return result.offset


async def is_stored(producer: Producer, message: Message) -> bool | None:
    """What is known of a message whose send failed."""
    try:
        await producer.send(message)
    except errors.RequestTimeout:
        return None
    except errors.LimitExceeded as problem:
        print(problem.limit, problem.value, problem.offered)
        return False
    except TxmqError as problem:
        effect: Effect = problem.effect
        may_try_again: bool = problem.retryable
        print(may_try_again)
        return {Effect.NONE: False, Effect.APPLIED: True, Effect.MAYBE: None}[effect]
    return True


def settings_of_client() -> ClientSettings:
    """With spans, where somebody looks at them."""
    telemetry: Telemetry | None = Telemetry.if_installed()
    account = Credentials(access_key="web-shop", secret_key="the secret")
    tls = ClientTls(ca=Path("ca.pem"), server_name="broker.example")
    return ClientSettings(instance="one", telemetry=telemetry, credentials=account, tls=tls)


async def answer(producer: Producer, question: ReceivedMessage) -> SendResult:
    """Reply to a message that asks for it."""
    reply: Reply = reply_to(question, b"42", tags="Price")
    return await producer.send(reply)


async def consume(names: str, example: ReceivedMessage) -> Mapping[Queue, QueueOffset]:
    """Every way to be called with messages."""
    settings = ConsumerSettings(
        start=StartFrom.TIME,
        start_ms=0,
        batch_max=10,
        allocation=allocation.NearestRoom(
            allocation.ConsistentHash(virtual_nodes=20), room_of, room_of
        ),
        offsets_path=Path("offsets"),
    )
    async with Client(names, settings_of_client()) as client:
        consumer = PushConsumer("billing", client, settings)

        @consumer.on("Orders", tags="Paid || Open")
        async def bill(message: ReceivedMessage) -> Later | None:
            place: LogPosition = message.position
            print(message.key, message.attempts, place)
            return Later(level=DEAD_LETTER, reason="why") if message.attempts > 3 else None

        @consumer.on("Refunds")
        def refund(message: ReceivedMessage) -> None:
            print(message.body, message.queue, message.offset)

        @consumer.on_batch("Visits")
        async def count(messages: Sequence[ReceivedMessage]) -> Later:
            return Later(first=len(messages) - 1, suspend=0.1)

        async with consumer:
            queues: list[Queue] = consumer.queues
            consumer.pause(queues)
            consumer.resume()
            await consumer.commit()
            await consumer.wait()
        await bill(example)  # A decorated function can be called as before.
        refund(example)
        return consumer.positions()


class Bank(TransactionListener):
    """Local transactions, and what became of them."""

    async def execute_local_transaction(
        self, message: HalfMessage, arg: int
    ) -> LocalTransactionState:
        """Take the money."""
        xid: str = message.xid
        if arg > 10_000:
            raise errors.RollBack(f"too much for {xid}, {message.key}, {message.sent.status}")
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, message: ReceivedMessage) -> LocalTransactionState:
        """Look it up."""
        is_booked = message.xid in message.keys
        return LocalTransactionState.UNKNOWN if is_booked else LocalTransactionState.ROLLBACK


async def transfer(names: str, order: Message) -> str:
    """Send a message that is seen only if the money was taken."""
    settings = TransactionSettings(timeout=20, check_workers=5, check_queue=200)
    async with TransactionProducer("bank", names, Bank(), settings) as producer:
        try:
            outcome: TransactionOutcome = await producer.send_in_transaction(order, 100)
        except errors.TransactionConflict as problem:
            return f"{problem.xid} {problem.said} {problem.decided}"
        if outcome.state is TransactionState.COMMITTED and not outcome.is_acknowledged:
            print(outcome.problem, producer.tally.unacknowledged)
        half: HalfMessage = await producer.prepare(order)
        late: TransactionOutcome = await producer.decide(half, LocalTransactionState.ROLLBACK)
        print(late.message_id, late.queue, late.half_offset, late.half.offset_id)
        return outcome.xid


async def decorate(names: str, order: Message) -> TransactionOutcome:
    """The same without a listener: a database knows."""
    resource = SQLResource(create_async_engine("sqlite+aiosqlite://"))
    settings = ManagerSettings(local_timeout=10.0, local_attempts=3, timeout=5.0)
    async with TransactionManager("bank", names, resource, settings) as tm:

        @tm.transactional(topic="Orders", tags="CCB", keys=lambda number, amount: str(number))
        async def take(session: AsyncSession, number: int, amount: int) -> int:
            found: Transaction[AsyncSession] | None = tm.current()
            print(found and found.xid, session.is_active)
            return amount

        @tm.transactional(
            topic="Orders", keys=lambda made: str(made), delay_level=3, made_from="result"
        )
        async def create(session: AsyncSession, amount: int) -> int:
            return amount if session.is_active else 0

        both = (
            MessageTemplate(topic="Orders"),
            MessageTemplate(topic="Audit", keys="k", deliver_after="2h"),
        )

        @tm.transactional(*both)
        async def note(session: AsyncSession, amount: int) -> int:
            tm.add(order)
            return amount if session.is_active else 0

        class Desk:
            @tm.transactional(topic="Orders", keys=lambda amount: str(amount))
            async def pay(self, session: AsyncSession, amount: int) -> int:
                return amount if session.is_active else 0

        paid: TransactionOutcome = await Desk().pay(100)
        print(paid.unwrap(), encode_body(Refund("order-7")))
        made: TransactionOutcome = await create(100)
        print(made.sent and made.sent[0].id)
        noted: TransactionOutcome = await note(100)
        print([sent.id for sent in noted.sent])
        async with tm.transaction(order, order) as transaction:
            transaction.add(order)
            print(transaction.session.is_active, transaction.message.xid, transaction.halves)
        print(transaction.outcome, tm.tally.committed)
        return await take(7, amount=100)


async def decorate_two(names: str) -> TransactionOutcome:
    """Two databases in one transaction."""
    engines = {name: create_async_engine(f"postgresql+psycopg:///{name}") for name in ("A", "B")}
    resource = XAResource(engines, horizon=120.0)
    async with TransactionManager("banks", names, resource) as tm:

        @tm.transactional(topic="Orders")
        async def move(banks: Mapping[str, AsyncSession], amount: int) -> int:
            return amount if banks["A"].is_active and banks["B"].is_active else 0

        print(await resource.recover(), (await resource.look()).waiting)
        return await move(100)


def create_tables(url: str) -> bool:
    """The tables of a service without migrations."""
    engine = create_engine(url)
    statements: list[str] = Fence("txmq_fence").ddl("postgresql")
    return create_fence(engine) or create_outbox(engine, schema="shop") or not statements


async def add_later(session: AsyncSession, order: Message) -> list[str]:
    outbox = Outbox("orders_outbox", schema="shop", notifies=False)
    one: str = await outbox.add(session, order, lane="account-1")
    return [one, *await outbox.add_many(session, [order, order])]


def add_at_once(session: Session, order: Message) -> list[str]:
    outbox = Outbox(metadata=MetaData())
    with create_engine("sqlite://").begin() as connection:
        one: str = outbox.add(connection, order)
    return [one, *outbox.add_many(session, [order], lane="account-1")]


async def publish(names: str) -> int:
    """A program that does nothing but to send what is in an outbox."""
    settings = RelaySettings(on_poison="dead_letter", dead_letter_topic="Dead", lease=5.0)
    engine = create_engine("sqlite://")
    async with Client(names) as client, Relay(engine, client, settings, outbox=Outbox()) as relay:
        await relay.wait()
        print((await relay.waiting()).oldest_s)
        return relay.tally.published


async def serve(names: str) -> None:
    """A program that only consumes."""
    client = Client(names)

    @client.on("Orders", group="billing", tags="Paid", settings=ConsumerSettings(batch_max=1))
    async def bill(message: ReceivedMessage) -> Later | None:
        print(message.key)
        return None

    async with client:
        await client.wait()


@dataclass
class Refund:
    """What a refund's body holds."""

    order: str


class Tenant(Middleware):
    """Carries a property from one message to the next."""

    async def send(self, message: Message, call_next: SendNext) -> SendResult | None:
        """Add the property."""
        named = {**message.properties, "tenant": "bank"}
        return await call_next(replace(message, properties=named))


async def serve_bodies(names: str) -> None:
    """Handlers of declared types, middleware, and a message every night."""
    client = Client(names)
    client.middleware(Tenant())

    @client.middleware
    async def measure(message: ReceivedMessage, call_next: ReceiveNext) -> Later | None:
        print(message.topic)
        return await call_next(message)

    @client.on("Refunds", group="refunds")
    async def refund(body: Refund) -> None:
        print(body.order)

    @client.on("Returns", group="refunds")
    def take_back(body: Refund, message: ReceivedMessage) -> Later | None:
        return None if body.order else Later(DEAD_LETTER, reason=message.key)

    @client.every(topic="Reports", daily="02:00", zone=UTC)
    async def report(moment: datetime) -> Mapping[str, str]:
        return {"day": moment.date().isoformat()}

    @client.every(topic="Ticks", interval=60, tags="Tick", name="tick")
    def tick() -> bytes:
        return b"tick"

    await refund(Refund("order-7"))
    async with client:
        await client.wait()


def room_of(name: str) -> str:
    """The room of a broker or of a client."""
    return name.split("@", 1)[0]


STRATEGIES: Final[Sequence[allocation.Allocation]] = (
    allocation.Average(),
    allocation.Circle(),
    allocation.ByConfig(frozenset({Queue("Orders", "broker-a", 0)})),
    allocation.MachineRoom(frozenset({"room-1"})),
    allocation.ConsistentHash(),
    allocation.NearestRoom(allocation.Average(), room_of, room_of),
)


async def pull(names: str) -> PulledBatch:
    """Every way to ask for messages."""
    consumer = PullConsumer("reader", names, ConsumerSettings(commits_itself=False))
    consumer.subscribe("Orders", tags="Paid")
    async with consumer:
        async for messages in consumer:
            first: ReceivedMessage = messages[0]
            print(first.born_ms, first.stored_ms)
            await consumer.commit()
            break
        more: list[ReceivedMessage] = await consumer.poll(timeout=1.0)
        queue = (await consumer.queues_of("Orders"))[0]
        await consumer.seek(queue, 0)
        await consumer.seek_to_begin(queue)
        await consumer.seek_to_end(queue)
        await consumer.seek_to_time(queue, 0)
        print(len(more))
        return await consumer.pull(queue, await consumer.committed(queue) or 0, 32, hold="1s")


async def pull_by_schedule(names: str) -> None:
    """Be called for each queue."""
    schedule = ScheduledPull("schedule", names)

    @schedule.on("Orders")
    async def task(queue: Queue, context: PullContext) -> None:
        pulled: PulledBatch = await context.consumer.pull(queue, 0)
        if pulled.outcome is PullOutcome.FOUND:
            context.consumer.note_offset(queue, pulled.next_offset)
        context.next_delay = 10.0

    async with schedule:
        await schedule.wait()


async def start_and_stop(names: str, manager: TransactionManager[Session], relay: Relay) -> None:
    """Open and close by name, as programs do whose start and end lie apart."""
    client, producer = Client(names), Producer("shop", names)
    pushed, pulled = PushConsumer("billing", names), PullConsumer("reader", names)
    await client.start()
    await producer.start()
    await producer.send(Message(topic="Orders", body=b"tea", wait_stored=False))
    await manager.start()
    await pushed.start()
    await pulled.start()
    await relay.start()
    pulled.end()
    for opened in (relay, pulled, pushed, manager, producer, client):
        await opened.stop()
    shop = blocking.Producer("shop", names)
    shop.start()
    shop.stop()


async def administer(admin: Admin) -> list[str]:
    """Ask and order."""
    await admin.create_topic("Orders", queues=4)
    found: list[ReceivedMessage] = await admin.query("Orders", "order-7")
    lag: int = sum(progress.lag for progress in await admin.group_progress("billing", "Orders"))
    print(found, lag)
    return await admin.topics()


def without_await(names: str) -> SendResult:
    """The same for programs without a loop."""
    with blocking.Client(names) as client:
        admin: blocking.Admin = client.admin
        topics: list[str] = admin.topics()
        consumer = blocking.PushConsumer("billing", client)

        @consumer.on("Orders")
        def bill(message: ReceivedMessage) -> None:
            print(message.id)

        client.on("Refunds", group="refunds")(bill)
        client.wait()
        with consumer:
            queues: list[Queue] = consumer.queues
        with blocking.PullConsumer("reader", client) as reader:
            batch: list[ReceivedMessage] = reader.poll(1.0)
            for messages in reader:
                print(messages[0].body)
        schedule = blocking.ScheduledPull("schedule", client)

        @schedule.on("Orders")
        def task(queue: Queue, context: blocking.PullContext) -> None:
            context.consumer.note_offset(queue, context.consumer.pull(queue, 0).next_offset)
            context.next_delay = 10.0

        with schedule:
            schedule.wait()
        with blocking.TransactionProducer("bank", client, Bank()) as bank:
            outcome: TransactionOutcome = bank.send_in_transaction(
                Message(topic="Orders", body=b"tea"), 100
            )
            print(outcome.state)
        resource = SQLResource(create_engine("sqlite://"))
        with blocking.TransactionManager("bank", client, resource) as tm:

            @tm.transactional(topic="Orders")
            def take(session: Session, amount: int) -> int:
                return amount if session.is_active else 0

            @tm.transactional(topic="Orders", made_from="result")
            def create(session: Session, amount: int) -> dict[str, int]:
                return {"amount": amount if session.is_active else 0}

            taken: TransactionOutcome = take(amount=create(100).result["amount"])
            with tm.transaction(Message(topic="Orders", body=b"tea")) as transaction:
                print(transaction.session.is_active, taken.result, tm.current())
        with blocking.Producer("shop", client) as producer:
            later = producer.send_nowait(Message(topic="Orders", body=b"tea", delay_level=3))
            recalled: str = producer.recall("Orders", later.result().recall_handle or "")
            print(recalled)
            print(topics, queues, batch, producer.send(Message(topic="Orders", body=b"tea")))
            return later.result(timeout=3.0)
