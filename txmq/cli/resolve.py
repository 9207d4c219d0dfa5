"""``txmq resolve``: answers checks for services that are dead, with nothing but their database.

It joins the producer group, and its answers come from the fence, as those of any manager do. Where
the database goes away it leaves the group until that is back: brokers then wait for somebody whom
they can ask, and no check is spent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import typer

from txmq.background import fast_loop
from txmq.cli import logs
from txmq.cli.asking import FAILED, NAMES_DEFAULT, WRONGLY_CALLED, AsJson, Names, fail, sentence_of
from txmq.cli.known_names import check_producer_group
from txmq.cli.output import as_json, note, say
from txmq.cli.schema import FenceName, SchemaName, told
from txmq.cli.stopping import at_signals
from txmq.cli.xa import is_named, xa_resource_of
from txmq.client.client import Client
from txmq.client.names import check_name
from txmq.client.routes import MASTER
from txmq.client.settings import ClientSettings
from txmq.errors import (
    DatabaseFailed,
    GroupNotFound,
    LimitExceeded,
    LocalProtocolError,
    RequestNotSupported,
    ResourceError,
    TransportError,
    TxmqError,
)
from txmq.limits import CHECKS_PER_PRODUCER_MAX, GROUP_CHARS_MAX
from txmq.protocol.bodies import OpenTransactions
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import ListTransactions
from txmq.quantity import quantity
from txmq.runtime.backoff import Backoff

if TYPE_CHECKING:
    from txmq.transaction.manager import TransactionManager
    from txmq.transaction.resources import SQLResource, XAResource
    from txmq.transaction.tally import TransactionTally

__all__ = ["resolve"]

T = TypeVar("T")

LOOK_S: Final = 0.25
"""How often it is looked what has been done."""
SAY_S: Final = 5.0
"""How often it is said."""
KEEP_IN_TOUCH_S: Final = 5.0
"""Brokers that come back are met this soon: nothing else would be said to them."""
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0
HANDLER_S: Final = 120.0
"""Longer than a whole batch of checks takes of which each waits for a lock."""
STOP_S: Final = 5.0


def resolve(
    group: Annotated[str, typer.Argument(help="The producer group of the services.")],
    *,
    database: Annotated[
        list[str],
        typer.Option(
            envvar="TXMQ_DATABASE",
            help="The database, such as postgresql://user@host/bank; or, where transactions are "
            "over several, each of them as NAME=URL, and first the one with the fence.",
        ),
    ],
    fence: FenceName = "txmq_fence",
    schema: SchemaName = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when the group has nothing open any more.")
    ] = False,
    workers: Annotated[
        int, typer.Option(min=1, help="Checks worked on at once; they share database transactions.")
    ] = CHECKS_PER_PRODUCER_MAX,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but the end.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log what is not known, and why.")] = (
        False
    ),
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Answer brokers that ask about transactions of services that are dead, until told to stop.

    It needs the database of the services, and nothing else of them. With --until-empty the exit
    code says whether all is decided: 0, or 1 where transactions are parked or it was stopped.
    """
    logs.configure("text", "warning" if verbose else "error")
    with told(), _told_of_names(), resource_of(database, fence, schema) as resource:
        check_name("producer group", group, GROUP_CHARS_MAX)
        plan = Plan(group, names, workers, until_empty, quiet)
        with asyncio.Runner(loop_factory=fast_loop()) as runner:
            summary = runner.run(Resolving(plan, resource).run())
    if json:
        as_json(asdict(summary))
    else:
        say(str(summary))
    if not summary.is_good:
        raise typer.Exit(FAILED)


@contextmanager
def resource_of(
    databases: list[str], fence: str, schema: str | None
) -> Iterator[SQLResource[Any] | XAResource[Any]]:
    """What answers: the database behind its fence, or several by their names.

    Raises:
        ConfigError: That is no URL of a database that can have a fence, or a name is none.
    """
    from txmq.databases.engines import engine_of
    from txmq.transaction.resources import SQLResource

    if len(databases) > 1 or is_named(databases[0]):
        with xa_resource_of(databases, fence, schema) as several:
            yield several
        return
    engine = engine_of(databases[0])
    try:
        resource = SQLResource(engine, fence=fence, schema=schema)
        try:
            yield resource
        finally:
            resource.close()
    finally:
        engine.dispose()


@contextmanager
def _told_of_names() -> Iterator[None]:
    try:
        yield
    except (LocalProtocolError, LimitExceeded) as problem:
        fail(str(problem), WRONGLY_CALLED)
    except RequestNotSupported as problem:
        fail(f"this broker cannot say what is open, so leave out --until-empty: {problem}")
    except TransportError as problem:
        fail(sentence_of(problem))


class Plan(NamedTuple):
    """What was asked for."""

    group: str
    names: str
    workers: int
    is_until_empty: bool
    is_quiet: bool


@dataclass(kw_only=True)
class Summary:
    """What was answered; and where brokers could say it, what is left."""

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
            line += f"; {self.conflicts} had been decided otherwise before, look into the log"
        if self.left == count == self.unknown == self.conflicts == 0:
            line += "; nothing of this group was open; txmq tx list shows what is"
        if self.left:
            line += f"; {quantity(self.left, 'is', 'are')} left, which txmq tx list shows"
        return line


class Left(NamedTuple):
    """What is open, of all brokers that are known."""

    all: int
    waiting: int
    """Of these for an answer, at least; others are parked."""


class Resolving:
    """One run of the command.

    Args:
        plan: What was asked for.
        resource: What answers.
    """

    def __init__(self, plan: Plan, resource: SQLResource[Any] | XAResource[Any]) -> None:
        self._plan = plan
        self._resource = resource
        keep = ClientSettings(heartbeat_s=KEEP_IN_TOUCH_S, route_refresh_s=KEEP_IN_TOUCH_S)
        self._client = Client(plan.names, keep)
        self._clock = self._client.session.clock
        self._stopped = asyncio.Event()
        self._before: list[TransactionTally] = []
        self._met: dict[str, None] = {}
        """All brokers by name, also those that are gone since."""
        self._left: Left | None = None
        self._silent = ""

    async def run(self) -> Summary:
        """Answer until it is time to stop.

        Raises:
            ResourceError: The database cannot answer, from the beginning.
            TransportError: No name server answers.
            RequestNotSupported: A broker cannot say whether anything is open.
        """
        begun = self._clock.monotonic()
        with at_signals(self._stopped):
            is_done = await self._until_stopped()
        tally = self._tally()
        return Summary(
            committed=tally["checks_committed"],
            rolled_back=tally["checks_rolled_back"],
            unknown=tally["checks_unknown"],
            conflicts=tally["conflicts"],
            left=None if self._left is None else self._left.all,
            seconds=round(self._clock.monotonic() - begun, 3),
            is_good=not tally["conflicts"] and (is_done or not self._plan.is_until_empty),
        )

    async def _until_stopped(self) -> bool:
        """Answer; whether nothing is left to be answered."""
        async with self._client:
            await self._client.admin.cluster()
            await self._unless_stopped(self._resource.verify())
            if not self._stopped.is_set():
                await self._say_if_unknown()
                self._say(f"answering for {self._plan.group}; Ctrl-C ends it")
                await self._answer()
            return self._left is not None and not self._left.all

    async def _say_if_unknown(self) -> None:
        # It is no error: brokers know nothing either of a group whose transactions are all decided.
        with suppress(TxmqError):  # RocketMQ's brokers cannot say it, and others may be away.
            try:
                await check_producer_group(self._client.admin, self._plan.group)
            except GroupNotFound as error:
                self._say(str(error))

    async def _answer(self) -> None:
        backoff = Backoff(self._client.session.entropy, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        identity, is_done = self._resource.identity, False
        while not is_done and not self._stopped.is_set():
            try:
                async with self._member():
                    if self._resource.identity != identity:
                        raise DatabaseFailed("another fence is there now; start this anew")
                    backoff.worked()
                    is_done = await self._look_on()
            except (ResourceError, TransportError) as problem:
                if self._resource.identity != identity:
                    raise
                why = str(problem).partition("\n")[0]
                self._say(f"cannot answer now, so brokers wait: {why}")
                await self._pause(backoff.failed())

    @asynccontextmanager
    async def _member(self) -> AsyncIterator[TransactionManager[Any]]:
        from txmq.transaction.manager import TransactionManager
        from txmq.transaction.settings import ManagerSettings

        settings = ManagerSettings(
            check_workers=self._plan.workers,
            check_queue=2 * CHECKS_PER_PRODUCER_MAX * max(1, len(await self._masters())),
            check_timeout_s=HANDLER_S,
            stop_s=STOP_S,
        )
        manager = TransactionManager(self._plan.group, self._client, self._resource, settings)
        async with manager:
            self._before.append(manager.tally)
            yield manager

    async def _look_on(self) -> bool:
        """Say what is done until nothing is left; whether that is so.

        Raises:
            ResourceError: The database is gone.
        """
        said_at, said, seen = self._clock.monotonic(), self._tally(), self._tally()
        while True:
            await self._pause(LOOK_S)
            if self._stopped.is_set():
                await self._ask_what_is_left()
                return False
            now = self._tally()
            if now["checks_unknown"] > seen["checks_unknown"]:
                # That it cannot tell may have to do with one transaction, or with all.
                await self._unless_stopped(self._resource.verify())
            is_idle, is_due = now == seen, self._clock.monotonic() - said_at >= SAY_S
            seen = now
            if (is_idle and self._plan.is_until_empty) or is_due:
                await self._ask_what_is_left()
                if self._plan.is_until_empty and self._left is not None and not self._left.waiting:
                    return True
            if is_due:
                self._say_progress(now, said, self._clock.monotonic() - said_at)
                said_at, said = self._clock.monotonic(), now

    # What is open

    async def _masters(self) -> dict[str, str | None]:
        """Where the master of each broker is that was ever met; nowhere if that is gone."""
        found = {
            each.name: each.addresses.get(MASTER) for each in await self._client.admin.cluster()
        }
        self._met.update(dict.fromkeys(found))
        return {name: found.get(name) for name in self._met}

    async def _ask_what_is_left(self) -> None:
        """See what brokers say is open; nothing is known where one of them does not answer."""
        left = Left(0, 0)
        header = ListTransactions("prepared", self._plan.group, 0, 1)
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
                left = Left(left.all + found.of_group, left.waiting + len(found.transactions))
        except RequestNotSupported:
            self._left = None
            if self._plan.is_until_empty:
                raise
            return
        except TxmqError as problem:
            silent = str(problem)
        self._left = None if silent else left
        if silent and not self._silent:
            self._say(f"a broker does not answer, and is waited for: {silent}")
        self._silent = silent

    # What is said

    def _tally(self) -> dict[str, int]:
        names = [each.name for each in fields(self._before[0])] if self._before else []
        return {name: sum(getattr(each, name) for each in self._before) for name in names}

    def _say(self, text: str) -> None:
        if not self._plan.is_quiet:
            note(text)

    def _say_progress(self, now: dict[str, int], said: dict[str, int], seconds: float) -> None:
        keys = ("checks_committed", "checks_rolled_back", "checks_unknown")
        committed, rolled_back, unknown = (now[key] for key in keys)
        rate = sum(now[key] - said[key] for key in keys) / seconds
        left = "" if self._left is None else f", {self._left.all} open"
        self._say(
            f"{committed} committed, {rolled_back} rolled back, {unknown} unknown, "
            f"{rate:.0f} a second{left}"
        )

    # Waiting

    async def _pause(self, seconds: float) -> None:
        await self._unless_stopped(asyncio.sleep(seconds))

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Wait for something, and no longer than until it is time to stop."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            working.cancel()
            stopping.cancel()
