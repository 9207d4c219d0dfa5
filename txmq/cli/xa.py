"""``txmq xa``: what transactions over several databases have left prepared, seen and ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from txmq.cli import logs
from txmq.cli.asking import FAILED, WRONGLY_CALLED, AsJson, fail
from txmq.cli.moments import age_of
from txmq.cli.output import as_json, note, say, table
from txmq.cli.schema import FenceName, SchemaName, told
from txmq.cli.stopping import at_signals
from txmq.config import parse_duration
from txmq.errors import ConfigError, DatabaseFailed

if TYPE_CHECKING:
    from txmq.transaction.resources import Look, Recovered, Waiting, XAResource

__all__ = ["app", "databases_of", "is_named", "xa_resource_of"]

app = typer.Typer(
    no_args_is_help=True, help="See and end what transactions over several databases left prepared."
)

Databases = Annotated[
    list[str],
    typer.Option(
        "--database",
        envvar="TXMQ_XA_DATABASES",
        metavar="NAME=URL",
        help="Each database by the name its services give it; the first has the fence.",
    ),
]
Horizon = Annotated[
    str, typer.Option(help="What is undecided for longer is rolled back by a recovery.")
]

ROUND_S: Final = 30.0
"""How long one database may take in a round of ``--watch``."""


@app.command("list")
def list_(
    *,
    database: Databases,
    fence: FenceName = "txmq_fence",
    schema: SchemaName = None,
    horizon: Horizon = "5m",
    everybodys: Annotated[
        bool, typer.Option("--all", help="Also what is not ours, and is never touched.")
    ] = False,
    json: AsJson = False,
) -> None:
    """List what is prepared, what the fence says, and what a recovery would do."""
    limit_s = _seconds("--horizon", horizon)
    with told(), xa_resource_of(database, fence, schema) as resource:

        async def look() -> Look:
            await resource.verify(only_fence=True)
            return await resource.look(limit_s, also_others=everybodys)

        found = asyncio.run(look())
    rows = [_fields(branch) for branch in found.waiting]
    if json:
        as_json(rows)
    elif rows:
        headings = ["database", "id", "age", "fence", "recovery", "owner"]
        table(headings, [_row(row) for row in rows])
    elif not found.silent:
        say("nothing is prepared")
    if found.silent:
        said = (f"{name} did not answer: {why}" for name, why in found.silent.items())
        fail(" ".join("; ".join(said).split()))


def _fields(found: Waiting) -> dict[str, Any]:
    from txmq.transaction.resources.prepared import Duty

    is_ours = found.duty is not Duty.NONE
    fence = "undecided" if found.decided is None else _SAID[found.decided.name]
    return {
        "database": found.branch,
        "id": found.xid if is_ours else "",
        "gid": found.prepared.gid,
        "age_ms": int(found.prepared.age_s * 1000),
        "fence": fence if is_ours else "",
        "recovery": found.duty.value if is_ours else "not ours",
        "owner": found.prepared.owner,
    }


def _row(fields: dict[str, Any]) -> list[object]:
    name = fields["id"] or fields["gid"]
    said = [fields[name] for name in ("fence", "recovery", "owner")]
    return [fields["database"], name, age_of(fields["age_ms"]), *said]


_SAID: Final = {"COMMIT": "committed", "ROLLBACK": "rolled back"}


@app.command()
def recover(
    *,
    database: Databases,
    fence: FenceName = "txmq_fence",
    schema: SchemaName = None,
    horizon: Horizon = "5m",
    watch: Annotated[
        bool, typer.Option("--watch", help="Do it again and again, until told to stop.")
    ] = False,
    every: Annotated[str, typer.Option(help="How often, with --watch.")] = "30s",
    json: AsJson = False,
) -> None:
    """Commit what is decided so, roll back what is not; `txmq xa list` shows it before.

    The exit code is 0 only if nothing that is to be ended is left. With --watch databases may go
    away and come back.
    """
    plan = Plan(_seconds("--horizon", horizon), _seconds("--every", every), json)
    logs.configure("text", "error")
    with told(), xa_resource_of(database, fence, schema) as resource:
        if watch:
            asyncio.run(_watch(resource, plan))
            return
        done = asyncio.run(_once(resource, plan))
    _tell(done, plan)
    if not done.is_complete:
        raise typer.Exit(FAILED)


class Plan(NamedTuple):
    """What was asked for."""

    horizon_s: float
    every_s: float
    is_json: bool


async def _once(resource: XAResource[Any], plan: Plan) -> Recovered:
    await resource.verify(only_fence=True)
    return await resource.recover(plan.horizon_s)


async def _watch(resource: XAResource[Any], plan: Plan) -> None:
    stopped = asyncio.Event()
    working = asyncio.ensure_future(_rounds(resource, plan))
    stopping = asyncio.ensure_future(stopped.wait())
    with at_signals(stopped):
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            for task in (working, stopping):
                task.cancel()
            with suppress(asyncio.CancelledError):
                await working


async def _rounds(resource: XAResource[Any], plan: Plan) -> None:
    said = ""
    while True:
        leftover = ""
        try:
            done = await _once(resource, plan)
        except DatabaseFailed as failed:
            leftover = str(failed)
        else:
            if done.committed or done.rolled_back:
                _tell(done, plan)
            leftover = _left_over(done)
        if leftover and leftover != said:
            note(f"txmq: {leftover}")
        elif said and not leftover:
            note("all databases answer again")
        said = leftover
        await asyncio.sleep(plan.every_s)


def _tell(done: Recovered, plan: Plan) -> None:
    if plan.is_json:
        as_json(done._asdict())
        return
    left = f"; {done.left} left to whoever runs them" if done.left else ""
    say(f"{done.committed} committed, {done.rolled_back} rolled back{left}")
    if leftover := _left_over(done):
        note(f"txmq: {leftover}")


def _left_over(done: Recovered) -> str:
    said = [f"{done.failed} could not be ended now"] if done.failed else []
    said += [f"{', '.join(done.silent)} did not answer"] if done.silent else []
    return "; ".join(said)


def _seconds(option: str, text: str) -> float:
    try:
        return float(parse_duration(text))
    except ValueError as error:
        fail(f"{option} is {error}, not {text!r}", WRONGLY_CALLED)


def databases_of(named: list[str]) -> dict[str, str]:
    """URLs by the names that are given with them.

    Raises:
        ConfigError: One has no name, or one has two.
    """
    found: dict[str, str] = {}
    for text in named:
        name, _, url = text.partition("=")
        if not is_named(text):
            raise ConfigError(
                f"{_shown(text)} has no name; write it as services do, such as "
                "icbc=postgresql://user@host/bank"
            )
        if name in found:
            raise ConfigError(f"{name} is there twice")
        found[name] = url
    return found


def is_named(database: str) -> bool:
    """Whether a name stands before the URL."""
    name, equals, _ = database.partition("=")
    return bool(equals) and "://" not in name


def _shown(url: str) -> str:
    """Without what may be a password."""
    return repr(url) if "@" not in url else f"'...@{url.rpartition('@')[2]}'"


@contextmanager
def xa_resource_of(named: list[str], fence: str, schema: str | None) -> Iterator[XAResource[Any]]:
    """The databases, the first with its fence.

    Raises:
        ConfigError: One is none that prepares transactions, or a name is none.
    """
    from txmq.databases.engines import engine_of
    from txmq.transaction.resources import XAResource

    engines = {}
    with ExitStack() as stack:
        for name, url in databases_of(named).items():
            engines[name] = engine_of(url)
            stack.callback(engines[name].dispose)
        resource = XAResource(engines, fence=fence, schema=schema, confirm_s=ROUND_S)
        stack.callback(resource.close)
        yield resource
