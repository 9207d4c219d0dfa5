"""``txmq resolve``: answers checks for services that are down, from their database alone.

It joins the producer group, and answers from the fence as every transaction manager does. While
the database does not answer, it leaves the group: brokers then wait for a member that they can ask,
and use up no checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from txmq.cli import logs
from txmq.cli.commands import Answer
from txmq.cli.common import (
    FAILED,
    NAMES_DEFAULT,
    Names,
    exit_on_errors,
    flag,
    host_and_port,
    option,
    stop_at_signals,
    unless_stopped,
)
from txmq.cli.output import note
from txmq.cli.schema import FenceName, SchemaName, open_database
from txmq.cli.xa import is_named, xa_resource_of
from txmq.client.client import Client
from txmq.client.names import check_name
from txmq.client.routes import MASTER
from txmq.client.settings import ClientSettings
from txmq.errors import (
    DatabaseFailed,
    GroupNotFound,
    RequestNotSupported,
    ResourceError,
    TransportError,
    TxmqError,
)
from txmq.limits import CHECKS_PER_PRODUCER_MAX, GROUP_CHARS_MAX
from txmq.metrics.http import METRICS_TYPE, HttpPage, HttpServer, health_pages
from txmq.ops.known_names import check_producer_group
from txmq.protocol.bodies import OpenTransactions
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import ListTransactions
from txmq.runtime.background import fast_loop
from txmq.runtime.backoff import Backoff
from txmq.text import quantity

if TYPE_CHECKING:
    from txmq.transaction.manager import TransactionManager
    from txmq.transaction.resources import SQLResource, XAResource
    from txmq.transaction.state import TransactionTally

__all__ = ["metrics_of", "resolve"]

LOOK_S: Final = 0.25
"""How often it checks its progress."""
SAY_S: Final = 5.0
"""How often it prints its progress."""
HEARTBEAT_S: Final = 5.0
"""How soon a broker that comes back learns of this member: only heartbeats tell it."""
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0
HANDLER_S: Final = 120.0
"""Longer than a batch of checks takes if each of them waits for a lock."""
STOP_S: Final = 5.0


class ResolvePlan(NamedTuple):
    """How to answer, and what to show."""

    until_empty: bool = flag("End when the group has no open transactions.", "--until-empty")
    workers: int = option(
        "Checks answered at once; they share database transactions.",
        default=CHECKS_PER_PRODUCER_MAX,
        min=1,
    )
    quiet: bool = flag("Print only the summary.", "--quiet")
    verbose: bool = flag("Log the checks without a decision, and why.", "--verbose")
    http: str | None = option(
        "Where to serve /metrics, /health/live and /health/ready over HTTP.", metavar="HOST:PORT"
    )
    names: Names = NAMES_DEFAULT


def resolve(
    group: Annotated[str, typer.Argument(help="The producer group of the services.")],
    *,
    database: list[str] = option(
        "The database, such as postgresql://user@host/bank. For transactions over several "
        "databases: each as NAME=URL, the one with the fence first.",
        default=...,
        envvar="TXMQ_DATABASE",
    ),
    fence: FenceName = "txmq_fence",
    schema: SchemaName = None,
    plan: ResolvePlan,
) -> Answer:
    """Answer brokers that ask about transactions of services that are down, until it is stopped.

    It needs only the database of the services. With --until-empty the exit code is 0 if all
    transactions are decided, and 1 if some are parked or it was stopped.
    """
    logs.configure("text", "warning" if plan.verbose else "error")
    with exit_on_errors(http=plan.http), resource_of(database, fence, schema) as resource:
        check_name("producer group", group, GROUP_CHARS_MAX)
        where = host_and_port(plan.http)
        with asyncio.Runner(loop_factory=fast_loop()) as runner:
            summary = runner.run(Resolver(group, plan, resource).run(where))
    return Answer(asdict(summary), str(summary), 0 if summary.is_good else FAILED)


@contextmanager
def resource_of(
    databases: list[str], fence: str, schema: str | None
) -> Iterator[SQLResource[Any] | XAResource[Any]]:
    """The resource that answers: one database with its fence, or several by name.

    Raises:
        typer.Exit: A URL's database cannot have a fence, or a name is invalid.
    """
    if len(databases) > 1 or is_named(databases[0]):
        with xa_resource_of(databases, fence, schema) as several:
            yield several
        return
    with open_database(databases[0]) as engine:
        from txmq.transaction.resources import SQLResource

        with closing(SQLResource(engine, fence=fence, schema=schema)) as resource:
            yield resource


@dataclass(kw_only=True)
class ResolveSummary:
    """The counts of answers, and of the transactions left if brokers can list them."""

    committed: int
    rolled_back: int
    unknown: int
    conflicts: int
    left: int | None
    seconds: float
    is_good: bool

    def __str__(self) -> str:
        """A line for people."""
        count = self.committed + self.rolled_back
        line = (
            f"{count} decided in {self.seconds:.1f} s: {self.committed} committed, "
            f"{self.rolled_back} rolled back; {self.unknown} answered with unknown"
        )
        if self.conflicts:
            line += f"; {self.conflicts} had been decided otherwise before, see the log"
        if self.left == count == self.unknown == self.conflicts == 0:
            line += "; this group had no open transactions; list those of all with: txmq tx list"
        if self.left:
            line += f"; {quantity(self.left, 'is', 'are')} left; list with: txmq tx list"
        return line


class OpenCount(NamedTuple):
    """The open transactions of the group, at all known brokers."""

    all: int
    waiting: int
    """0 if all of them are parked; otherwise at least one waits for an answer."""


class Resolver:
    """One run of the command.

    Args:
        group: The producer group.
        plan: How to answer, and what to show.
        resource: Answers the checks.
    """

    def __init__(
        self, group: str, plan: ResolvePlan, resource: SQLResource[Any] | XAResource[Any]
    ) -> None:
        self._group = group
        self._plan = plan
        self._resource = resource
        keep = ClientSettings(heartbeat=HEARTBEAT_S, route_refresh=HEARTBEAT_S)
        self._client = Client(plan.names, keep)
        self._clock = self._client.session.clock
        self._stopped = asyncio.Event()
        self._before: list[TransactionTally] = []
        self._known_brokers: dict[str, None] = {}
        """The names of all brokers seen, including those that are gone now."""
        self._left: OpenCount | None = None
        self._silent = ""
        self._objection = "the command is starting"
        """Why it does not answer now; empty while it does."""

    async def run(self, http: tuple[str, int] | None) -> ResolveSummary:
        """Answer until it is time to stop.

        Args:
            http: Where to serve metrics and health.

        Raises:
            ResourceError: The database could not answer at the start.
            TransportError: No name server answers.
            RequestNotSupported: A broker cannot list open transactions.
        """
        began_s = self._clock.monotonic()
        with stop_at_signals(self._stopped):
            async with self._pages(http):
                is_done = await self._answer_until_stopped()
        tally = self._tally()
        return ResolveSummary(
            committed=tally["checks_committed"],
            rolled_back=tally["checks_rolled_back"],
            unknown=tally["checks_unknown"],
            conflicts=tally["conflicts"],
            left=None if self._left is None else self._left.all,
            seconds=round(self._clock.monotonic() - began_s, 3),
            is_good=not tally["conflicts"] and (is_done or not self._plan.until_empty),
        )

    @asynccontextmanager
    async def _pages(self, http: tuple[str, int] | None) -> AsyncIterator[None]:
        """Serve metrics and health inside this context, if an address is given."""
        if http is None:
            yield
            return

        async def metrics() -> HttpPage:
            left = None if self._left is None else self._left.all
            text = metrics_of(self._tally(), left, is_answering=not self._objection)
            return HttpPage(text, content_type=METRICS_TYPE)

        async def objection() -> str:
            return self._objection

        pages = {"/metrics": metrics, **health_pages(objection)}
        async with HttpServer(pages, *http) as server:
            self._say("metrics and health at http://{}:{}".format(*server.address))
            yield

    async def _answer_until_stopped(self) -> bool:
        """Answer until stopped; true if no transaction is left."""
        async with self._client:
            await self._client.admin.cluster()
            await unless_stopped(self._stopped, self._resource.verify())
            if not self._stopped.is_set():
                await self._say_if_unknown()
                self._say(f"answering for {self._group}; Ctrl-C ends it")
                await self._answer()
            return self._left is not None and not self._left.all

    async def _say_if_unknown(self) -> None:
        try:
            await check_producer_group(self._client.admin, self._group)
        except GroupNotFound as error:
            # Not an error: brokers forget a group when all its transactions are decided.
            self._say(str(error))
        except TxmqError:
            pass  # RocketMQ's brokers cannot list groups; others may be down.

    async def _answer(self) -> None:
        backoff = Backoff(self._client.session.entropy, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        identity, is_done = self._resource.identity, False
        while not is_done and not self._stopped.is_set():
            try:
                async with self._member():
                    if self._resource.identity != identity:
                        raise DatabaseFailed("the fence was replaced by another; start this again")
                    backoff.reset()
                    self._objection = ""
                    is_done = await self._report_until_done()
            except (ResourceError, TransportError) as error:
                if self._resource.identity != identity:
                    raise
                why = self._objection = str(error).partition("\n")[0]
                self._say(f"cannot answer now; brokers wait: {why}")
                await unless_stopped(self._stopped, asyncio.sleep(backoff.next_pause()))

    @asynccontextmanager
    async def _member(self) -> AsyncIterator[TransactionManager[Any]]:
        from txmq.transaction.manager import TransactionManager
        from txmq.transaction.settings import ManagerSettings

        settings = ManagerSettings(
            check_workers=self._plan.workers,
            check_queue=2 * CHECKS_PER_PRODUCER_MAX * max(1, len(await self._masters())),
            check_timeout=HANDLER_S,
            stop_timeout=STOP_S,
        )
        manager = TransactionManager(self._group, self._client, self._resource, settings)
        async with manager:
            self._before.append(manager.tally)
            yield manager

    async def _report_until_done(self) -> bool:
        """Print the progress until no transaction is left, or it is stopped; true if none is left.

        Raises:
            ResourceError: The database does not answer any more.
        """
        printed_s, printed, seen = self._clock.monotonic(), self._tally(), self._tally()
        while True:
            await unless_stopped(self._stopped, asyncio.sleep(LOOK_S))
            if self._stopped.is_set():
                await self._count_open()
                return False
            now = self._tally()
            if now["checks_unknown"] > seen["checks_unknown"]:
                # The cause of an unknown answer may be one transaction, or the whole database.
                await unless_stopped(self._stopped, self._resource.verify())
            is_idle, is_due = now == seen, self._clock.monotonic() - printed_s >= SAY_S
            seen = now
            is_asked = (is_idle and self._plan.until_empty) or is_due
            if is_asked:
                await self._count_open()
            if is_due:
                self._say_progress(now, printed, self._clock.monotonic() - printed_s)
                printed_s, printed = self._clock.monotonic(), now
            is_over = is_asked and self._left is not None and not self._left.waiting
            if is_over and self._plan.until_empty:
                return True

    # Open transactions

    async def _masters(self) -> dict[str, str | None]:
        """The master's address of each broker ever seen; None if it is gone."""
        found = {
            broker.name: broker.addresses.get(MASTER)
            for broker in await self._client.admin.cluster()
        }
        self._known_brokers.update(dict.fromkeys(found))
        return {name: found.get(name) for name in self._known_brokers}

    async def _count_open(self) -> None:
        """Count the open transactions; the count is None if a broker does not answer."""
        left = OpenCount(0, 0)
        header = ListTransactions("prepared", self._group, 0, 1)
        silent = ""
        try:
            masters = await self._masters()
            away = [name for name, address in masters.items() if address is None]
            if away or not masters:
                silent = f"no master of {', '.join(away) or 'any'} is known"
            for address in filter(None, masters.values()):
                answer = await self._client.session.request(
                    address, RequestCode.LIST_TRANSACTIONS, header
                )
                found = OpenTransactions.read(answer.body)
                left = OpenCount(left.all + found.of_group, left.waiting + len(found.transactions))
        except RequestNotSupported as error:
            self._left = None
            if self._plan.until_empty:
                raise RequestNotSupported(
                    "this broker cannot list open transactions, so leave out --until-empty: "
                    f"{error}"
                ) from error
            return
        except TxmqError as error:
            silent = str(error)
        self._left = None if silent else left
        if silent and not self._silent:
            self._say(f"waiting for a broker that does not answer: {silent}")
        self._silent = silent

    # Output

    def _tally(self) -> dict[str, int]:
        names = [field.name for field in fields(self._before[0])] if self._before else []
        return {name: sum(getattr(tally, name) for tally in self._before) for name in names}

    def _say(self, text: str) -> None:
        if not self._plan.quiet:
            note(text)

    def _say_progress(self, now: dict[str, int], printed: dict[str, int], seconds: float) -> None:
        keys = ("checks_committed", "checks_rolled_back", "checks_unknown")
        committed, rolled_back, unknown = (now[key] for key in keys)
        rate = sum(now[key] - printed[key] for key in keys) / seconds
        left = "" if self._left is None else f", {self._left.all} open"
        self._say(
            f"{committed} committed, {rolled_back} rolled back, {unknown} unknown, "
            f"{rate:.0f} a second{left}"
        )


def metrics_of(tally: Mapping[str, int], left: int | None, *, is_answering: bool) -> str:
    """The metrics of the command, as text for Prometheus.

    Args:
        tally: The summed counters of the command's transaction managers.
        left: The number of open transactions of the group; ``None`` if a broker did not answer.
        is_answering: Whether brokers can ask this command now.
    """
    from txmq.metrics.table import Sample, counter, gauge, table_text

    rows = {
        "answering": gauge("1 while brokers can ask this command."),
        "answers_total": counter("Answers to checks, by outcome.", "outcome"),
        "conflicts_total": counter(
            "Answers whose transaction the broker had decided otherwise before."
        ),
        "open_transactions": gauge("Open transactions of the group, with parked ones."),
    }
    samples = [
        Sample("answering", is_answering),
        *(
            Sample("answers_total", tally.get(f"checks_{outcome}", 0), (outcome,))
            for outcome in ("committed", "rolled_back", "unknown")
        ),
        Sample("conflicts_total", tally.get("conflicts", 0)),
    ]
    if left is not None:
        samples.append(Sample("open_transactions", left))
    return table_text("txmq_resolve_", rows, samples)
