"""The same names without ``await``: for Flask, Django, scripts and threads.

::

    from txmq import Message
    from txmq.blocking import Producer

    with Producer("billing", "127.0.0.1:9876") as producer:
        producer.send(Message(topic="Orders", body=b"..."))

It is the asyncio client that works here, in one event loop in a thread of its own for each
:class:`Client`; a producer or consumer that is given name servers has a client of its own. Every
method waits for what its twin in :mod:`txmq` awaits, takes the same arguments and raises the same
errors. All of it may be used from any number of threads.

Ctrl-C while something waits cancels it there too. Handlers given to consumers run in threads of the
consumer's, or in the background loop where they are ``async``; inside an event loop, that one or
another, nothing here may be called, since it would stall.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar

import txmq
from txmq.client import settings
from txmq.client.consumer.handling import BatchHandler, MessageHandler
from txmq.client.consumer.subscription import ANY_TAG
from txmq.client.values import SendResult
from txmq.errors import UsageError
from txmq.message import Message, Queue, ReceivedMessage

__all__ = [
    "Admin",
    "Client",
    "Producer",
    "PullConsumer",
    "PullContext",
    "PushConsumer",
    "ScheduledPull",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
M = TypeVar("M", bound=MessageHandler)
B = TypeVar("B", bound=BatchHandler)

END_S: Final = 10.0
"""How long a background loop may take to end once everything in it has been closed."""


class _Background:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Let it run."""
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name="txmq-loop", daemon=True
        )
        self._thread.start()
        ready.result()

    def _run(self, ready: concurrent.futures.Future[None]) -> None:
        with asyncio.Runner(loop_factory=_fast_loop()) as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(ready.set_result, None)
            self._loop.run_forever()

    def stop(self) -> None:
        """End it, and whatever still runs in it."""
        loop, self._loop = self._loop, None
        thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(END_S)

    def wait(self, work: Coroutine[Any, Any, R]) -> R:
        """Run something there and wait for it.

        Raises:
            UsageError: The loop does not run, or an event loop would have to wait here.
        """
        loop = self._loop
        if loop is None:
            work.close()
            raise UsageError("this is not open; use it with 'with'")
        if _is_in_a_loop():
            work.close()
            raise UsageError("in an event loop use txmq itself; txmq.blocking would stall it")
        running = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return running.result()
        except BaseException:
            # Ctrl-C reaches whoever waits; what is waited for must hear of it.
            running.cancel()
            raise


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class _Face(Generic[T_co]):
    """A thing of the asyncio client, and the loop it lives in."""

    def __init__(self, background: _Background, real: T_co) -> None:
        self._background = background
        self._real = real


def _waits(
    method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[_Face[T], P], R]:
    @functools.wraps(method)
    def call(self: _Face[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._background.wait(method(self._real, *args, **kwargs))

    return call


def _iterates(
    method: Callable[Concatenate[T, P], AsyncIterator[R]],
) -> Callable[Concatenate[_Face[T], P], Iterator[R]]:
    @functools.wraps(method)
    def call(self: _Face[T], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return _each(self._background, method(self._real, *args, **kwargs))

    return call


def _each(background: _Background, found: AsyncIterator[R]) -> Iterator[R]:
    async def following() -> tuple[R] | None:
        try:
            return (await anext(found),)
        except StopAsyncIteration:
            return None

    while (item := background.wait(following())) is not None:
        yield item[0]


def _there(
    method: Callable[Concatenate[T, P], R],
) -> Callable[Concatenate[_Face[T], P], R]:
    """A plain method that belongs into the loop's thread all the same."""

    @functools.wraps(method)
    def call(self: _Face[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def run() -> R:
            return method(self._real, *args, **kwargs)

        return self._background.wait(run())

    return call


class _Opened(Protocol):
    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


X = TypeVar("X", bound=_Opened)


class _Openable(_Face[X]):
    """What ``with`` opens and closes."""

    def __init__(self, background: _Background, real: X, *, is_own: bool) -> None:
        super().__init__(background, real)
        self._is_own = is_own

    def __enter__(self) -> Self:
        if self._is_own:
            self._background.start()
        try:
            self._background.wait(self._real.__aenter__())
        except BaseException:
            if self._is_own:
                self._background.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._background.wait(self._real.__aexit__(kind, problem, trace))
        finally:
            if self._is_own:
                self._background.stop()


class Admin(_Face[txmq.Admin]):
    """:class:`txmq.Admin`; see there what each method does and raises."""

    create_topic = _waits(txmq.Admin.create_topic)
    delete_topic = _waits(txmq.Admin.delete_topic)
    topics = _waits(txmq.Admin.topics)
    route = _waits(txmq.Admin.route)
    topic_status = _waits(txmq.Admin.topic_status)
    topic_groups = _waits(txmq.Admin.topic_groups)
    create_group = _waits(txmq.Admin.create_group)
    delete_group = _waits(txmq.Admin.delete_group)
    groups = _waits(txmq.Admin.groups)
    group_progress = _waits(txmq.Admin.group_progress)
    group_connections = _waits(txmq.Admin.group_connections)
    producer_connections = _waits(txmq.Admin.producer_connections)
    max_offset = _waits(txmq.Admin.max_offset)
    min_offset = _waits(txmq.Admin.min_offset)
    offset_by_time = _waits(txmq.Admin.offset_by_time)
    committed_offset = _waits(txmq.Admin.committed_offset)
    commit_offset = _waits(txmq.Admin.commit_offset)
    reset_offset = _waits(txmq.Admin.reset_offset)
    send = _waits(txmq.Admin.send)
    send_batch = _waits(txmq.Admin.send_batch)
    pull = _waits(txmq.Admin.pull)
    view = _waits(txmq.Admin.view)
    query = _waits(txmq.Admin.query)
    find = _waits(txmq.Admin.find)
    transactions = _waits(txmq.Admin.transactions)
    transaction = _waits(txmq.Admin.transaction)
    decide_transaction = _waits(txmq.Admin.decide_transaction)
    recheck_transaction = _waits(txmq.Admin.recheck_transaction)
    dead_letter_groups = _waits(txmq.Admin.dead_letter_groups)
    dead_letters = _iterates(txmq.Admin.dead_letters)
    dead_letter = _waits(txmq.Admin.dead_letter)
    resent_copy = _waits(txmq.Admin.resent_copy)
    resend_dead_letter = _waits(txmq.Admin.resend_dead_letter)
    cluster = _waits(txmq.Admin.cluster)
    broker_stats = _waits(txmq.Admin.broker_stats)


class Client(_Openable[txmq.Client]):
    """:class:`txmq.Client` with its own background loop; ``with`` opens and closes both."""

    def __init__(self, names: str, settings: settings.ClientSettings | None = None) -> None:
        super().__init__(_Background(), txmq.Client(names, settings), is_own=True)
        self.admin = Admin(self._background, self._real.admin)

    @property
    def id(self) -> str:
        """What brokers call it."""
        return self._real.id


def _home(names: str | Client) -> tuple[_Background, str | txmq.Client, bool]:
    if isinstance(names, str):
        return _Background(), names, True
    return names._background, names._real, False  # noqa: SLF001 - both are faces of one module


class Producer(_Openable[txmq.Producer]):
    """:class:`txmq.Producer`; ``with`` opens and closes it."""

    def __init__(
        self,
        group: str,
        names: str | Client,
        settings: settings.ProducerSettings | None = None,
    ) -> None:
        background, home, is_own = _home(names)
        super().__init__(background, txmq.Producer(group, home, settings), is_own=is_own)

    send = _waits(txmq.Producer.send)
    send_oneway = _waits(txmq.Producer.send_oneway)
    send_batch = _waits(txmq.Producer.send_batch)
    send_ordered = _waits(txmq.Producer.send_ordered)
    request = _waits(txmq.Producer.request)

    def send_to(
        self, message: Message, select: Callable[[Sequence[Queue], Message, T], Queue], arg: T
    ) -> SendResult:
        """See :meth:`txmq.Producer.send_to`."""
        return self._background.wait(self._real.send_to(message, select, arg))

    def send_nowait(
        self, message: Message, queue: Queue | None = None
    ) -> concurrent.futures.Future[SendResult]:
        """Send a message and return before it is answered; the future tells the answer.

        Raises:
            TxmqError: As for :meth:`txmq.Producer.send_nowait`.
        """
        told: concurrent.futures.Future[SendResult] = concurrent.futures.Future()

        async def begin() -> None:
            self._real.send_nowait(message, queue).add_done_callback(finish)

        def finish(sent: asyncio.Future[SendResult]) -> None:
            if sent.cancelled():
                told.cancel()
            elif (problem := sent.exception()) is not None:
                told.set_exception(problem)
            else:
                told.set_result(sent.result())

        self._background.wait(begin())
        return told


class PushConsumer(_Openable[txmq.PushConsumer]):
    """:class:`txmq.PushConsumer`; ``with`` starts and stops it."""

    def __init__(
        self,
        group: str,
        names: str | Client,
        settings: settings.ConsumerSettings | None = None,
    ) -> None:
        background, home, is_own = _home(names)
        super().__init__(background, txmq.PushConsumer(group, home, settings), is_own=is_own)

    def on(self, topic: str, tags: str = ANY_TAG, *, sql: str = "") -> Callable[[M], M]:
        """See :meth:`txmq.PushConsumer.on`."""
        return self._real.on(topic, tags, sql=sql)

    def on_batch(self, topic: str, tags: str = ANY_TAG, *, sql: str = "") -> Callable[[B], B]:
        """See :meth:`txmq.PushConsumer.on_batch`."""
        return self._real.on_batch(topic, tags, sql=sql)

    wait = _waits(txmq.PushConsumer.wait)
    commit = _waits(txmq.PushConsumer.commit)
    move = _waits(txmq.PushConsumer.move)
    pause = _there(txmq.PushConsumer.pause)
    resume = _there(txmq.PushConsumer.resume)
    positions = _there(txmq.PushConsumer.positions)

    @property
    def queues(self) -> list[Queue]:
        """The queues it holds now."""
        return sorted(self.positions())


class PullConsumer(_Openable[txmq.PullConsumer]):
    """:class:`txmq.PullConsumer`; ``with`` starts and stops it, ``for`` gives its messages."""

    def __init__(
        self,
        group: str,
        names: str | Client,
        settings: settings.ConsumerSettings | None = None,
    ) -> None:
        background, home, is_own = _home(names)
        super().__init__(background, txmq.PullConsumer(group, home, settings), is_own=is_own)

    def subscribe(self, topic: str, tags: str = ANY_TAG, *, sql: str = "") -> None:
        """See :meth:`txmq.PullConsumer.subscribe`."""
        self._real.subscribe(topic, tags, sql=sql)

    assign = _waits(txmq.PullConsumer.assign)
    queues_of = _waits(txmq.PullConsumer.queues_of)
    poll = _waits(txmq.PullConsumer.poll)
    commit = _waits(txmq.PullConsumer.commit)
    seek = _waits(txmq.PullConsumer.seek)
    seek_to_begin = _waits(txmq.PullConsumer.seek_to_begin)
    seek_to_end = _waits(txmq.PullConsumer.seek_to_end)
    seek_to_time = _waits(txmq.PullConsumer.seek_to_time)
    pull = _waits(txmq.PullConsumer.pull)
    committed = _waits(txmq.PullConsumer.committed)
    note_offset = _there(txmq.PullConsumer.note_offset)
    pause = _there(txmq.PullConsumer.pause)
    resume = _there(txmq.PullConsumer.resume)
    positions = _there(txmq.PullConsumer.positions)
    stop = _there(txmq.PullConsumer.stop)
    _following = _waits(txmq.PullConsumer.__anext__)

    @property
    def queues(self) -> list[Queue]:
        """The queues it has now."""
        return sorted(self.positions())

    def __iter__(self) -> Iterator[list[ReceivedMessage]]:
        """Lists of messages, each of one queue, until the consumer is stopped."""
        with suppress(StopAsyncIteration):
            while True:
                yield self._following()


@dataclass(slots=True)
class PullContext:
    """What a task of a :class:`ScheduledPull` is given for one call."""

    consumer: PullConsumer
    next_delay_s: float


PullTask = Callable[[Queue, PullContext], None]
K = TypeVar("K", bound=PullTask)


class ScheduledPull(_Openable[txmq.ScheduledPull]):
    """:class:`txmq.ScheduledPull` for plain functions, which run in threads."""

    def __init__(
        self,
        group: str,
        names: str | Client,
        settings: settings.ConsumerSettings | None = None,
    ) -> None:
        background, home, is_own = _home(names)
        super().__init__(background, txmq.ScheduledPull(group, home, settings), is_own=is_own)
        self.consumer = PullConsumer.__new__(PullConsumer)
        _Face.__init__(self.consumer, background, self._real.consumer)

    wait = _waits(txmq.ScheduledPull.wait)

    def on(self, topic: str) -> Callable[[K], K]:
        """See :meth:`txmq.ScheduledPull.on`."""

        def decorate(task: K) -> K:
            async def call(queue: Queue, context: txmq.PullContext) -> None:
                here = PullContext(self.consumer, context.next_delay_s)
                await asyncio.to_thread(task, queue, here)
                context.next_delay_s = here.next_delay_s

            self._real.on(topic)(call)
            return task

        return decorate
