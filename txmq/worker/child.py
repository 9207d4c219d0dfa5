"""One process of a worker: ``python -m txmq.worker.child``, which only a supervisor starts."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from io import TextIOWrapper
from typing import Final

import msgspec

from txmq.cli import logs
from txmq.client.observe.worker_process import CURRENT, WorkerProcess
from txmq.errors import ConfigError, TxmqError, UsageError
from txmq.runtime.background import fast_loop
from txmq.runtime.clock import SystemClock
from txmq.runtime.parent_link import (
    FailedNotice,
    FailureKind,
    LoadedNotice,
    ParentLink,
    ReadyNotice,
    ReportNotice,
)
from txmq.runtime.process import exempt_from_collection
from txmq.runtime.tasks import Tasks
from txmq.transaction.manager import TransactionManager
from txmq.transaction.producer import TransactionProducer
from txmq.worker.figures import (
    HandlerFigures,
    ManagerFigures,
    ProcessReport,
    RelayFigures,
)
from txmq.worker.parts import OpenParts, WorkerPart, import_modules, load_parts, relay_of
from txmq.worker.plan import WorkerPlan

__all__ = ["WorkerChild", "main"]

log = logging.getLogger("txmq.worker.child")  # This module runs as __main__.

LAG_S: Final = 10.0
"""How often brokers are asked for the lag of groups."""
LAG_AGAIN_S: Final = 1.0
"""How soon they are asked again if the lag of a group is not known."""
LAG_ANSWER_S: Final = 5.0
"""How long one of these queries may take."""

ORPHAN_GRACE_S: Final = 5.0
"""How long a process may outlive its supervisor, in addition to its time to drain."""

IMPORT_NOTICE_S: Final = 10.0
"""How long an import may take before the log says so."""

DRAINED: Final = 0
CRASHED: Final = 1
CANNOT_START: Final = 2


class WorkerChild:
    """The work of one process."""

    def __init__(self) -> None:
        self._figures = HandlerFigures(SystemClock())
        self._lag: dict[str, int] = {}
        self._retries: dict[str, int] = {}
        self._parts: OpenParts | None = None
        self._tasks = Tasks()

    def main(self, link: ParentLink) -> int:
        """Import the application, then run the loop; returns the exit code.

        Raises:
            ConnectionError: The supervisor is already gone.
        """
        start = link.read_start()
        plan = msgspec.json.decode(start.plan, type=WorkerPlan)
        logs.configure(plan.log_form, plan.log_level, worker=start.number)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        CURRENT.set(WorkerProcess(start.number, plan.drain_s, self._figures))
        sys.path.insert(0, plan.app_dir)
        try:
            # Import before the loop runs: modules may create tables, which needs its own loop.
            with import_notice(plan.targets):
                import_modules(plan.targets)
        except ConfigError as error:
            link.send(FailedNotice("refused", str(error)))
            return CANNOT_START
        link.end_after_parent(plan.drain_s + ORPHAN_GRACE_S)
        # The runner is not closed: that would wait for threads, and a handler may hang in one.
        runner = asyncio.Runner(loop_factory=fast_loop())
        return runner.run(self.run(link, start.number, plan))

    async def run(self, link: ParentLink, number: int, plan: WorkerPlan) -> int:
        """Work until the supervisor or SIGTERM stops it, or the supervisor dies; returns the exit
        code.
        """
        async with link, AsyncExitStack() as stack:
            link.drain_at_sigterm()
            kind: FailureKind = "refused"
            try:
                parts = await self._load(plan, stack)
                link.send(LoadedNotice(parts.description))
                exempt_from_collection()
                await parts.open()
            except (ConfigError, UsageError) as error:
                reason = str(error)
            except TxmqError as error:
                kind = "unavailable" if error.retryable else "refused"
                reason = str(error).partition("\n")[0]
            else:
                return await self._work(link, parts, lag=plan.watches_lag and number == 1)
            link.send(FailedNotice(kind, reason))
            return CANNOT_START

    async def _load(self, plan: WorkerPlan, stack: AsyncExitStack) -> OpenParts:
        found: list[WorkerPart] = []
        for target in plan.targets:
            found += await load_parts(target, plan.names, stack)
        parts = OpenParts(found, plan.drain_s)
        parts.check()
        for consumer in parts.consumers:
            for subscription in consumer.subscriptions:
                self._figures.of(consumer.group, subscription.topic)
        return parts

    async def _work(self, link: ParentLink, parts: OpenParts, *, lag: bool) -> int:
        self._parts = parts
        if lag:
            self._tasks.start(self._watch_lag(parts), "lag of groups")
        link.send(ReadyNotice())
        await link.stopped.wait()
        if link.is_orphan:
            log.error("the supervisor is gone; this process finishes its work and ends")
        await self._tasks.stop()
        await parts.close()
        link.send(ReportNotice(0, msgspec.Raw(self.report())))
        return DRAINED

    # Reports

    def report(self) -> bytes:
        """The current figures, as JSON."""
        report = ProcessReport(
            self._figures.series,
            self._figures.schedules,
            lag=self._lag,
            retries=self._retries,
            held=self._held(),
            cut_off=self._cut_off(),
        )
        for part in [] if self._parts is None else self._parts.parts:
            found = part.object
            if isinstance(found, TransactionManager | TransactionProducer):
                tally = found.tally
                report.managers[found.group] = ManagerFigures(
                    *[getattr(tally, name) for name in ManagerFigures.__struct_fields__]
                )
            elif (relay := relay_of(found)) is not None:
                counts = relay.tally
                report.relays[relay.outbox.name] = RelayFigures(
                    counts.published, counts.failed, counts.deferred
                )
        return msgspec.json.encode(report)

    def _held(self) -> dict[str, int]:
        if self._parts is None:
            return {}
        held: dict[str, int] = {}
        for consumer in self._parts.consumers:
            with suppress(RuntimeError):  # The loop of another thread may change it.
                queues = consumer.held().values()
                held[consumer.group] = sum(queue.cached_msg_count for queue in queues)
        return held

    def _cut_off(self) -> list[str]:
        found: list[str] = []
        for consumer in {} if self._parts is None else self._parts.consumers:
            with suppress(RuntimeError):  # As in _held.
                if not consumer.client.session.pool.opened():
                    found.append(consumer.group)
        return found

    async def _watch_lag(self, parts: OpenParts) -> None:
        while True:
            for consumer, part in parts.consumers.items():
                admin = consumer.client.admin
                try:
                    async with asyncio.timeout(LAG_ANSWER_S):
                        found = await part.in_loop(admin.group_lag(consumer.group))
                except (TxmqError, TimeoutError) as error:
                    log.debug("the lag of %s is not known: %s", consumer.group, error)
                    self._lag.pop(consumer.group, None)
                    self._retries.pop(consumer.group, None)
                else:
                    self._lag[consumer.group] = found.lag
                    if found.retries is not None:
                        self._retries[consumer.group] = found.retries.count
            is_whole = len(self._lag) == len({consumer.group for consumer in parts.consumers})
            await asyncio.sleep(LAG_S if is_whole else LAG_AGAIN_S)


@contextmanager
def import_notice(targets: Sequence[str]) -> Iterator[None]:
    """Log a line if an import takes long."""
    text = (
        "%s is still being imported after %g s; if it calls asyncio.run() or a function that "
        'never returns, put that under if __name__ == "__main__"'
    )
    timer = threading.Timer(IMPORT_NOTICE_S, log.warning, (text, targets[0], IMPORT_NOTICE_S))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def main() -> None:
    """Run one process; the last argument is the file descriptor of its supervisor."""
    child = WorkerChild()
    if isinstance(sys.stdout, TextIOWrapper):
        # Print whole lines immediately: all processes print to the same stream.
        sys.stdout.reconfigure(line_buffering=True, write_through=False)
    try:
        code = child.main(ParentLink(int(sys.argv[-1]), child.report))
    except ConnectionError:
        code = CRASHED  # The supervisor was killed while this process started.
    except Exception:
        log.exception("this process ends because of an error")
        code = CRASHED
    # Let libraries send what they have buffered, such as traces.
    atexit._run_exitfuncs()  # noqa: SLF001 - os._exit runs none
    sys.stdout.flush()
    # A handler that hangs in a thread must not keep the process alive.
    os._exit(code)


if __name__ == "__main__":
    main()
