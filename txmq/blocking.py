"""The blocking client: the same names without ``await``, for Flask, Django, scripts and threads.

::

    from txmq import Message
    from txmq.blocking import Producer

    with Producer("billing", "127.0.0.1:9876") as producer:
        producer.send(Message(topic="Orders", body=b"..."))

Each :class:`Client` runs the asyncio client in an event loop in its own thread. A producer or
consumer created with name servers has its own client. Every method waits for its counterpart in
:mod:`txmq`, takes the same arguments and raises the same errors. All objects are thread-safe.

Ctrl-C during a call also cancels it in the loop. Plain handlers run in threads of the consumer,
``async`` handlers in the background loop. Do not call this module inside any event loop, because it
would stall.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import (
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import txmq
from txmq.client import settings
from txmq.client.consume.handler import BatchHandler, MessageHandler
from txmq.client.consume.subscription import ANY_TAG
from txmq.client.middleware import Middleware, ReceiveFunction
from txmq.client.schedule import MadeBody, ScheduleOptions
from txmq.client.values import SendResult
from txmq.errors import ConfigError
from txmq.message import Message, Queue, ReceivedMessage
from txmq.runtime.background import Background
from txmq.runtime.facade import AsyncContext, Facade, OpenableFacade, in_loop, iterates, waits
from txmq.runtime.tasks import Threads
from txmq.settings.units import DurationLike
from txmq.transaction.listener import CallerThread, TransactionListener
from txmq.transaction.machine import Transaction
from txmq.transaction.manager import Entered, Work, signed
from txmq.transaction.message import MessageParts, MessageTemplate, chosen
from txmq.transaction.resource import Resource
from txmq.transaction.settings import ManagerSettings, TransactionSettings
from txmq.transaction.state import TransactionOutcome, TransactionTally

__all__ = [
    "Admin",
    "Client",
    "Producer",
    "PullConsumer",
    "PullContext",
    "PushConsumer",
    "ScheduledPull",
    "TransactionManager",
    "TransactionProducer",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
D = TypeVar("D")
D_co = TypeVar("D_co", covariant=True)
Owner = TypeVar("Owner")
M = TypeVar("M", bound=MessageHandler)
F = TypeVar("F", bound=MadeBody)
W = TypeVar("W", bound="Middleware | ReceiveFunction")
B = TypeVar("B", bound=BatchHandler)
S = TypeVar("S")
X = TypeVar("X", bound=AsyncContext)


class Admin(Facade[txmq.Admin]):
    """:class:`txmq.Admin`, which documents the methods and their errors."""

    create_topic: Final = waits(txmq.Admin.create_topic)
    update_topic: Final = waits(txmq.Admin.update_topic)
    delete_topic: Final = waits(txmq.Admin.delete_topic)
    topics: Final = waits(txmq.Admin.topics)
    route: Final = waits(txmq.Admin.route)
    topic_config: Final = waits(txmq.Admin.topic_config)
    topics_of_broker: Final = waits(txmq.Admin.topics_of_broker)
    topic_status: Final = waits(txmq.Admin.topic_status)
    topic_groups: Final = waits(txmq.Admin.topic_groups)
    clusters_of: Final = waits(txmq.Admin.clusters_of)
    traffic: Final = waits(txmq.Admin.traffic)
    create_group: Final = waits(txmq.Admin.create_group)
    delete_group: Final = waits(txmq.Admin.delete_group)
    groups: Final = waits(txmq.Admin.groups)
    group_progress: Final = waits(txmq.Admin.group_progress)
    group_connections: Final = waits(txmq.Admin.group_connections)
    group_lag: Final = waits(txmq.Admin.group_lag)
    producer_connections: Final = waits(txmq.Admin.producer_connections)
    producers: Final = waits(txmq.Admin.producers)
    consumer_report: Final = waits(txmq.Admin.consumer_report)
    consume_directly: Final = waits(txmq.Admin.consume_directly)
    max_offset: Final = waits(txmq.Admin.max_offset)
    min_offset: Final = waits(txmq.Admin.min_offset)
    offset_by_time: Final = waits(txmq.Admin.offset_by_time)
    committed_offset: Final = waits(txmq.Admin.committed_offset)
    commit_offset: Final = waits(txmq.Admin.commit_offset)
    plan_reset: Final = waits(txmq.Admin.plan_reset)
    reset_offset: Final = waits(txmq.Admin.reset_offset)
    plan_clone: Final = waits(txmq.Admin.plan_clone)
    clone_offsets: Final = waits(txmq.Admin.clone_offsets)
    send: Final = waits(txmq.Admin.send)
    send_batch: Final = waits(txmq.Admin.send_batch)
    recall: Final = waits(txmq.Admin.recall)
    pull: Final = waits(txmq.Admin.pull)
    view: Final = waits(txmq.Admin.view)
    query: Final = waits(txmq.Admin.query)
    traces: Final = waits(txmq.Admin.traces)
    find: Final = waits(txmq.Admin.find)
    search: Final = waits(txmq.Admin.search)
    transactions: Final = waits(txmq.Admin.transactions)
    transaction: Final = waits(txmq.Admin.transaction)
    transaction_messages: Final = waits(txmq.Admin.transaction_messages)
    decide_transaction: Final = waits(txmq.Admin.decide_transaction)
    recheck_transaction: Final = waits(txmq.Admin.recheck_transaction)
    recheck_transactions: Final = waits(txmq.Admin.recheck_transactions)
    dead_letter_groups: Final = waits(txmq.Admin.dead_letter_groups)
    dead_letters: Final = iterates(txmq.Admin.dead_letters)
    dead_letter: Final = waits(txmq.Admin.dead_letter)
    resent_copy: Final = waits(txmq.Admin.resent_copy)
    resend_dead_letter: Final = waits(txmq.Admin.resend_dead_letter)
    cluster: Final = waits(txmq.Admin.cluster)
    broker_stats: Final = waits(txmq.Admin.broker_stats)
    broker_config: Final = waits(txmq.Admin.broker_config)
    change_broker_config: Final = waits(txmq.Admin.change_broker_config)
    forbid_writing: Final = waits(txmq.Admin.forbid_writing)
    allow_writing: Final = waits(txmq.Admin.allow_writing)
    audit: Final = waits(txmq.Admin.audit)
    delayed: Final = waits(txmq.Admin.delayed)
    recall_delayed: Final = waits(txmq.Admin.recall_delayed)
    broker_settings: Final = waits(txmq.Admin.broker_settings)
    accounts: Final = waits(txmq.Admin.accounts)
    hand_over: Final = waits(txmq.Admin.hand_over)


class Client(OpenableFacade[txmq.Client]):
    """:class:`txmq.Client` with its own background loop; ``with`` opens and closes both."""

    def __init__(self, names: str, settings: settings.ClientSettings | None = None) -> None:
        super().__init__(Background(), txmq.Client(names, settings), is_own=True)
        self.admin: Admin = Admin(self._background, self._real.admin)

    def on(
        self,
        topic: str,
        tags: str = ANY_TAG,
        *,
        group: str,
        sql: str = "",
        settings: settings.ConsumerSettings | None = None,
    ) -> Callable[[M], M]:
        """See :meth:`txmq.Client.on`."""
        return self._real.on(topic, tags, group=group, sql=sql, settings=settings)

    def middleware(self, hook: W) -> W:
        """See :meth:`txmq.Client.middleware`."""
        return self._real.middleware(hook)

    def every(self, *, topic: str, **options: Unpack[ScheduleOptions]) -> Callable[[F], F]:
        """See :meth:`txmq.Client.every`."""
        return self._real.every(topic=topic, **options)

    wait: Final = waits(txmq.Client.wait)
    start_handlers: Final = waits(txmq.Client.start_handlers)

    @property
    def id(self) -> str:
        """The client id that brokers see."""
        return self._real.id


class _Member(OpenableFacade[X], Generic[X, S]):
    """A producer or consumer, in a shared client or in its own."""

    _kind: Callable[[str, str | txmq.Client, S | None], X]
    _noun: str
    """Its name in error messages."""

    def __init__(self, group: str, names: str | Client, settings: S | None = None) -> None:
        if isinstance(names, Client):
            real = self._kind(group, names._real, settings)  # noqa: SLF001 - both are facades
            super().__init__(names._background, real, is_own=False)  # noqa: SLF001
        elif isinstance(names, txmq.Client):
            raise ConfigError("this client needs await; a txmq.blocking.Client is wanted here")
        else:
            real = self._kind(group, names, settings)
            super().__init__(Background(self._noun), real, is_own=True)


class Producer(_Member[txmq.Producer, settings.ProducerSettings]):
    """:class:`txmq.Producer`; ``with`` opens and closes it."""

    _kind = txmq.Producer
    _noun = "producer"

    send: Final = waits(txmq.Producer.send)
    send_oneway: Final = waits(txmq.Producer.send_oneway)
    send_batch: Final = waits(txmq.Producer.send_batch)
    send_ordered: Final = waits(txmq.Producer.send_ordered)
    recall: Final = waits(txmq.Producer.recall)
    request: Final = waits(txmq.Producer.request)

    def send_to(
        self, message: Message, select: Callable[[Sequence[Queue], Message, T], Queue], arg: T
    ) -> SendResult:
        """See :meth:`txmq.Producer.send_to`."""
        return self._background.wait(self._real.send_to(message, select, arg))

    def send_nowait(
        self, message: Message, queue: Queue | None = None
    ) -> concurrent.futures.Future[SendResult]:
        """Send a message without waiting; the future returns the answer.

        Raises:
            TxmqError: As for :meth:`txmq.Producer.send_nowait`.
        """
        result: concurrent.futures.Future[SendResult] = concurrent.futures.Future()

        async def begin() -> None:
            self._real.send_nowait(message, queue).add_done_callback(finish)

        def finish(sent: asyncio.Future[SendResult]) -> None:
            if sent.cancelled():
                result.cancel()
            elif (error := sent.exception()) is not None:
                result.set_exception(error)
            else:
                result.set_result(sent.result())

        self._background.wait(begin())
        return result


class TransactionProducer(Producer):
    """:class:`txmq.TransactionProducer`; ``with`` opens and closes it.

    A plain local transaction runs in the thread that calls :meth:`send_in_transaction`, so it can
    use that thread's session, request or open transaction. Checks run in the producer's threads.
    """

    _real: txmq.TransactionProducer

    def __init__(
        self,
        group: str,
        names: str | Client,
        listener: TransactionListener,
        settings: TransactionSettings | None = None,
    ) -> None:
        def kind(group: str, names: str | txmq.Client, chosen: Any) -> txmq.TransactionProducer:
            return txmq.TransactionProducer(group, names, listener, chosen)

        self._kind = cast("Any", kind)
        super().__init__(group, names, settings)

    def send_in_transaction(
        self, message: Message | Sequence[Message], arg: object = None
    ) -> TransactionOutcome:
        """See :meth:`txmq.TransactionProducer.send_in_transaction`."""
        here = CallerThread()
        return self._background.wait(self._real.transact(message, arg, here), here)

    prepare: Final = waits(txmq.TransactionProducer.prepare)
    decide: Final = waits(txmq.TransactionProducer.decide)


class TransactionDecorator(Protocol[D_co]):
    """Decorates functions that begin with a session, and methods with one after ``self``."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[D_co, P], Any], /
    ) -> Callable[P, TransactionOutcome]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Owner, D_co, P], Any], /
    ) -> Callable[Concatenate[Owner, P], TransactionOutcome]: ...


class TransactionManager(_Member[txmq.TransactionManager[D], ManagerSettings]):
    """:class:`txmq.TransactionManager`; ``with`` opens and closes it.

    It needs a blocking resource. Decorated functions and ``with`` blocks run in the calling thread.

    Raises:
        ConfigError: The resource needs await.
    """

    _noun = "manager"

    def __init__(
        self,
        group: str,
        names: str | Client,
        resource: Resource[D],
        settings: ManagerSettings | None = None,
    ) -> None:
        if not getattr(resource, "is_blocking", True):
            raise ConfigError("this resource needs await; give one that blocks")

        def kind(group: str, names: str | txmq.Client, chosen: Any) -> txmq.TransactionManager[D]:
            return txmq.TransactionManager(group, names, resource, chosen)

        self._kind = cast("Any", kind)
        super().__init__(group, names, settings)

    @property
    def tally(self) -> TransactionTally:
        """See :attr:`txmq.TransactionManager.tally`."""
        return self._real.tally

    def transactional(
        self,
        *templates: MessageTemplate,
        **parts: Unpack[MessageParts],
    ) -> TransactionDecorator[D]:
        """See :meth:`txmq.TransactionManager.transactional`."""
        messages = chosen(templates, parts)

        def decorate(function: Callable[..., Any]) -> Callable[..., TransactionOutcome]:
            of_function = self._real.messages_of(function, messages)

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> TransactionOutcome:
                here = CallerThread()
                work = self._real.called(of_function, function, args, kwargs, here)
                return self._background.wait(work, here)

            return signed(call, of_function.shown)

        return decorate

    @contextmanager
    def transaction(self, *messages: Message) -> Iterator[Transaction[D]]:
        """See :meth:`txmq.TransactionManager.transaction`."""
        begun: Work[D] | None = None
        is_entered, error = False, None

        async def begin() -> Work[D]:
            # Store it here: Ctrl-C may interrupt the waiting thread before it gets the result.
            nonlocal begun
            begun = await self._real.begin(messages)
            return begun

        async def leave() -> None:
            # Check in the loop: a cancelled begin() may still have completed.
            if begun is not None:
                await self._real.leave(begun)

        try:
            begun = self._background.wait(begin())
            transaction = begun.transaction
            with transaction.inside(), begun.local as session:
                with Entered(transaction, session):
                    is_entered = True
                    yield transaction
                    begun.send()
                begun.check_time()
        except Exception as raised:
            if begun is None:
                raise
            error = raised
        except BaseException:
            self._background.wait(leave())
            raise
        outcome = self._end(begun, error)
        if error is not None and not is_entered:
            raise error  # The block never began, so no code can read an outcome.
        begun.transaction.decided = outcome

    def _end(self, begun: Work[D], error: Exception | None) -> TransactionOutcome:
        try:
            return self._background.wait(self._real.end(begun, error))
        except Exception:
            raise
        except BaseException:
            # Ctrl-C may come before the loop has started end().
            self._background.wait(self._real.leave(begun))
            raise

    def current(self) -> Transaction[D] | None:
        """See :meth:`txmq.TransactionManager.current`."""
        return self._real.current()

    def add(self, message: Message) -> None:
        """See :meth:`txmq.TransactionManager.add`."""
        self._real.add(message)


class PushConsumer(_Member[txmq.PushConsumer, settings.ConsumerSettings]):
    """:class:`txmq.PushConsumer`; ``with`` starts and stops it."""

    _kind = txmq.PushConsumer
    _noun = "consumer"

    def on(self, topic: str, tags: str = ANY_TAG, *, sql: str = "") -> Callable[[M], M]:
        """See :meth:`txmq.PushConsumer.on`."""
        return self._real.on(topic, tags, sql=sql)

    def on_batch(self, topic: str, tags: str = ANY_TAG, *, sql: str = "") -> Callable[[B], B]:
        """See :meth:`txmq.PushConsumer.on_batch`."""
        return self._real.on_batch(topic, tags, sql=sql)

    wait: Final = waits(txmq.PushConsumer.wait)
    commit: Final = waits(txmq.PushConsumer.commit)
    move: Final = waits(txmq.PushConsumer.move)
    pause: Final = in_loop(txmq.PushConsumer.pause)
    resume: Final = in_loop(txmq.PushConsumer.resume)
    positions: Final = in_loop(txmq.PushConsumer.positions)

    @property
    def queues(self) -> list[Queue]:
        """The queues it consumes now."""
        return sorted(self.positions())


class PullConsumer(_Member[txmq.PullConsumer, settings.ConsumerSettings]):
    """:class:`txmq.PullConsumer`; ``with`` starts and stops it, ``for`` yields its messages."""

    _kind = txmq.PullConsumer
    _noun = "consumer"

    def subscribe(self, topic: str, tags: str = ANY_TAG, *, sql: str = "") -> None:
        """See :meth:`txmq.PullConsumer.subscribe`."""
        self._real.subscribe(topic, tags, sql=sql)

    assign: Final = waits(txmq.PullConsumer.assign)
    queues_of: Final = waits(txmq.PullConsumer.queues_of)
    poll: Final = waits(txmq.PullConsumer.poll)
    commit: Final = waits(txmq.PullConsumer.commit)
    seek: Final = waits(txmq.PullConsumer.seek)
    seek_to_begin: Final = waits(txmq.PullConsumer.seek_to_begin)
    seek_to_end: Final = waits(txmq.PullConsumer.seek_to_end)
    seek_to_time: Final = waits(txmq.PullConsumer.seek_to_time)
    pull: Final = waits(txmq.PullConsumer.pull)
    committed: Final = waits(txmq.PullConsumer.committed)
    note_offset: Final = in_loop(txmq.PullConsumer.note_offset)
    pause: Final = in_loop(txmq.PullConsumer.pause)
    resume: Final = in_loop(txmq.PullConsumer.resume)
    positions: Final = in_loop(txmq.PullConsumer.positions)
    end: Final = in_loop(txmq.PullConsumer.end)
    _next_batch: Final = waits(txmq.PullConsumer.__anext__)

    @property
    def queues(self) -> list[Queue]:
        """The queues it consumes now."""
        return sorted(self.positions())

    def __iter__(self) -> Iterator[list[ReceivedMessage]]:
        """Yield lists of messages, each from one queue, until the consumer stops."""
        with suppress(StopAsyncIteration):
            yield self._next_batch()
            while self._background.is_running:
                yield self._next_batch()


@dataclass(slots=True)
class PullContext:
    """The argument of a :class:`ScheduledPull` task for one call."""

    consumer: PullConsumer
    next_delay: DurationLike


PullTask = Callable[[Queue, PullContext], None]
K = TypeVar("K", bound=PullTask)


class ScheduledPull(_Member[txmq.ScheduledPull, settings.ConsumerSettings]):
    """:class:`txmq.ScheduledPull` for plain functions, which run in threads."""

    _kind = txmq.ScheduledPull
    _noun = "schedule"

    def __init__(
        self,
        group: str,
        names: str | Client,
        settings: settings.ConsumerSettings | None = None,
    ) -> None:
        super().__init__(group, names, settings)
        self.consumer: PullConsumer = PullConsumer.__new__(PullConsumer)
        Facade.__init__(self.consumer, self._background, self._real.consumer)
        self._threads = self._fresh_threads()

    wait: Final = waits(txmq.ScheduledPull.wait)

    def _fresh_threads(self) -> Threads:
        consumer = self._real.consumer
        return Threads(f"txmq-{consumer.group}", consumer.settings.concurrency)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._threads.close()
            self._threads = self._fresh_threads()

    def on(self, topic: str) -> Callable[[K], K]:
        """See :meth:`txmq.ScheduledPull.on`."""

        def decorate(task: K) -> K:
            async def call(queue: Queue, context: txmq.PullContext) -> None:
                here = PullContext(self.consumer, context.next_delay)
                # The thread runs in the caller's context, as with asyncio.to_thread.
                await self._threads.run(partial(copy_context().run, task, queue, here))
                context.next_delay = here.next_delay

            self._real.on(topic)(call)
            return task

        return decorate
