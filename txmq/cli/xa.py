"""``txmq xa``: lists and recovers prepared transactions over several databases."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from txmq.cli import logs
from txmq.cli.commands import Commands, Listing, listed
from txmq.cli.common import (
    FAILED,
    AsJson,
    duration_of,
    flag,
    option,
    stop_at_signals,
    unless_stopped,
)
from txmq.cli.output import as_json, note, say
from txmq.cli.schema import FenceName, SchemaName, database_errors
from txmq.errors import ConfigError, DatabaseFailed
from txmq.ops.moments import age_of
from txmq.ops.rows import ListColumn

if TYPE_CHECKING:
    from txmq.transaction.resources import InDoubtBranch, Look, Recovered, XAResource

__all__ = ["app", "databases_of", "is_named", "xa_resource_of"]

app = Commands("List and end prepared transactions over several databases.")

Databases = Annotated[
    list[str],
    typer.Option(
        "--database",
        envvar="TXMQ_XA_DATABASES",
        metavar="NAME=URL",
        help="Each database by the name that services give it; the first has the fence.",
    ),
]


class Branches(NamedTuple):
    """The databases, and how long a transaction may stay undecided."""

    database: Databases
    fence: FenceName = "txmq_fence"
    schema: SchemaName = None
    horizon: str = option(
        "A recovery rolls back transactions that are undecided for longer.", default="5m"
    )

    @property
    def horizon_s(self) -> float:
        """The option in seconds.

        Raises:
            typer.Exit: It is not a duration.
        """
        return duration_of(self.horizon, "--horizon")

    def resource(self) -> AbstractContextManager[XAResource[Any]]:
        """The databases; their errors end the program."""
        return xa_resource_of(self.database, self.fence, self.schema)


ROUND_S: Final = 30.0
"""How long one database may take in a round of ``--watch``."""


@app.command("list")
@listed(
    [
        "database",
        ListColumn("id", "name"),
        ListColumn("age", "age_ms", age_of),
        "fence",
        "recovery",
        "owner",
    ],
    empty="nothing is prepared",
)
def list_(
    *,
    branches: Branches,
    is_complete: bool = flag("Also those of other programs, which stay untouched.", "--all"),
) -> Listing:
    """List prepared transactions with the fence's decision and what a recovery would do."""
    horizon = branches.horizon_s
    with branches.resource() as resource:

        async def look() -> Look:
            await resource.verify(only_fence=True)
            return await resource.look(horizon, also_others=is_complete)

        found = asyncio.run(look())
    reasons = [f"{name} did not answer: {why}" for name, why in found.silent.items()]
    return Listing(
        [_fields(branch) for branch in found.waiting],
        warnings=[" ".join(reason.split()) for reason in reasons],
        code=FAILED if reasons else 0,
        empty="nothing is prepared at the databases that answer" if reasons else "",
        as_json=lambda chosen: [
            {name: row[name] for name in row if name != "name"} for row in chosen
        ],
    )


def _fields(found: InDoubtBranch) -> dict[str, Any]:
    from txmq.transaction.resources.two_phase import Duty

    is_ours = found.duty is not Duty.NONE
    fence = "undecided" if found.decided is None else _DECISIONS[found.decided.name]
    return {
        "database": found.branch,
        "name": found.xid if is_ours else found.prepared.gid,
        "id": found.xid if is_ours else "",
        "gid": found.prepared.gid,
        "age_ms": int(found.prepared.age_s * 1000),
        "fence": fence if is_ours else "",
        "recovery": found.duty.value if is_ours else "not ours",
        "owner": found.prepared.owner,
    }


_DECISIONS: Final = {"COMMIT": "committed", "ROLLBACK": "rolled back"}


@app.command()
def recover(
    *,
    branches: Branches,
    watch: bool = flag("Repeat it until it is stopped.", "--watch"),
    every: str = option("How often, with --watch.", default="30s"),
    json: AsJson = False,
) -> None:
    """End prepared transactions as the fence has decided; `txmq xa list` shows what it would do.

    The exit code is 0 only if every transaction that should end has ended. With --watch, it keeps
    going while databases go down and come back.
    """
    plan = RecoveryPlan(branches.horizon_s, duration_of(every, "--every"), json)
    logs.configure("text", "error")
    with branches.resource() as resource:
        if watch:
            asyncio.run(_watch(resource, plan))
            return
        done = asyncio.run(_once(resource, plan))
    _print_result(done, plan)
    if not done.is_complete:
        raise typer.Exit(FAILED)


class RecoveryPlan(NamedTuple):
    """The options of the command."""

    horizon_s: float
    every_s: float
    is_json: bool


async def _once(resource: XAResource[Any], plan: RecoveryPlan) -> Recovered:
    await resource.verify(only_fence=True)
    return await resource.recover(plan.horizon_s)


async def _watch(resource: XAResource[Any], plan: RecoveryPlan) -> None:
    stopped = asyncio.Event()
    with stop_at_signals(stopped):
        await unless_stopped(stopped, _rounds(resource, plan))


async def _rounds(resource: XAResource[Any], plan: RecoveryPlan) -> None:
    printed = ""
    while True:
        trouble = ""
        try:
            done = await _once(resource, plan)
        except DatabaseFailed as error:
            trouble = str(error)
        else:
            if done.committed or done.rolled_back:
                _print_result(done, plan)
            trouble = _trouble(done)
        if trouble and trouble != printed:
            note(f"txmq: {trouble}")
        elif printed and not trouble:
            note("all databases answer again")
        printed = trouble
        await asyncio.sleep(plan.every_s)


def _print_result(done: Recovered, plan: RecoveryPlan) -> None:
    if plan.is_json:
        as_json(done._asdict())
        return
    left = f"; {done.left} left to the programs that run them" if done.left else ""
    say(f"{done.committed} committed, {done.rolled_back} rolled back{left}")
    if trouble := _trouble(done):
        note(f"txmq: {trouble}")


def _trouble(done: Recovered) -> str:
    parts = [f"{done.failed} could not be ended now"] if done.failed else []
    parts += [f"{', '.join(done.silent)} did not answer"] if done.silent else []
    return "; ".join(parts)


def databases_of(named: list[str]) -> dict[str, str]:
    """URLs by name.

    Raises:
        ConfigError: A URL has no name, or two URLs have the same name.
    """
    found: dict[str, str] = {}
    for text in named:
        name, _, url = text.partition("=")
        if not is_named(text):
            raise ConfigError(
                f"{_without_password(text)} has no name; write it as services do, such as "
                "icbc=postgresql://user@host/bank"
            )
        if name in found:
            raise ConfigError(f"{name} is given twice; give each database one name")
        found[name] = url
    return found


def is_named(database: str) -> bool:
    """True if a name precedes the URL."""
    name, equals, _ = database.partition("=")
    return bool(equals) and "://" not in name


def _without_password(url: str) -> str:
    return repr(url) if "@" not in url else f"'...@{url.rpartition('@')[2]}'"


@contextmanager
def xa_resource_of(named: list[str], fence: str, schema: str | None) -> Iterator[XAResource[Any]]:
    """The databases, the first with its fence.

    Raises:
        typer.Exit: A database cannot prepare transactions, or a name is invalid.
    """
    with database_errors(), ExitStack() as stack:
        from txmq.databases.engines import engine_of
        from txmq.transaction.resources import XAResource

        engines = {}
        for name, url in databases_of(named).items():
            engines[name] = engine_of(url)
            stack.callback(engines[name].dispose)
        resource = XAResource(engines, fence=fence, schema=schema, confirm_timeout=ROUND_S)
        stack.callback(resource.close)
        yield resource
