"""``txmq history``: figures of the past, as the console draws them."""

from collections.abc import Awaitable
from typing import Annotated, Final, TypeVar

import typer

from txmq.cli.common import NAMES_DEFAULT, WRONGLY_CALLED, Cluster, Names, ask, fail
from txmq.cli.lists import Listing, listed
from txmq.client import Admin, FigureHistory
from txmq.client.routes import MASTER
from txmq.errors import RequestNotSupported
from txmq.ops.known_names import check_group
from txmq.ops.moments import moment_ms, time_text
from txmq.ops.rows import ListColumn
from txmq.runtime.clock import SystemClock

__all__ = ["FINE_MS", "app"]

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True, help="Show figures of the past: rates, durations, transactions and lag."
)

FINE_MS: Final = 3600 * 1000
"""Brokers keep a row for each ten seconds of this time, and one for each minute before it."""

Since = Annotated[
    str, typer.Option("--since", metavar="MOMENT", help="The first moment, such as 2h (ago).")
]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


_TIME: Final = ListColumn("time", "at_ms", time_text)
_BROKER: Final = ListColumn("broker", "broker")


@app.command()
@listed(
    [
        _TIME,
        _BROKER,
        ListColumn("in/s", "messages_in_per_second", _number),
        ListColumn("out/s", "messages_out_per_second", _number),
        ListColumn("send p50 ms", "send_p50_ms", _number),
        ListColumn("send p99 ms", "send_p99_ms", _number),
        ListColumn("open", "transactions_open", _count),
        ListColumn("parked", "transactions_parked", _count),
    ],
    empty="the brokers have no figures yet: a row follows each ten seconds",
)
def broker(
    name: Annotated[str | None, typer.Argument(help="The broker; by default all.")] = None,
    *,
    since: Since = "1h",
    cluster: Cluster = None,
    names: Names = NAMES_DEFAULT,
) -> Listing:
    """Show messages in and out, durations of sends, and open transactions of brokers.

    A broker keeps a row for each ten seconds of an hour, and one for each minute of a day. They
    are in its memory, so a restart begins anew.
    """
    from_ms, now_ms = _moments(since)
    period_s = 10 if now_ms - from_ms <= FINE_MS else 60

    async def read(admin: Admin) -> list[FigureHistory]:
        known = await admin.cluster()
        chosen = [info for info in known if name is None or info.name == name]
        if not chosen:
            await admin.broker_history(str(name))  # Its error names the brokers that exist.
        return [
            await _served(admin.broker_history(info.name, from_ms=from_ms, period_s=period_s))
            for info in chosen
            if cluster in {None, info.cluster} and MASTER in info.addresses
        ]

    return _listing(ask(names, read))


@app.command()
@listed(
    [_TIME, _BROKER, ListColumn("behind", "lag", _count)],
    empty="no broker has figures of this group yet: a row follows each minute",
)
def group(
    name: Annotated[str, typer.Argument(help="The group.")],
    *,
    since: Since = "3h",
    cluster: Cluster = None,
    names: Names = NAMES_DEFAULT,
) -> Listing:
    """Show how far a group was behind, each minute; with --json also by queue.

    Brokers keep three hours of it in memory.
    """
    from_ms, _ = _moments(since)

    async def read(admin: Admin) -> list[FigureHistory]:
        found = await _served(admin.group_history(name, from_ms=from_ms, cluster=cluster))
        if not any(values != (None,) for history in found for _, values in history.rows):
            await check_group(admin, name, cluster=cluster)
        return found

    return _listing(ask(names, read))


@app.command()
@listed(
    [_TIME, _BROKER, ListColumn("in/s", "messages_in_per_second", _number)],
    empty="no broker has figures of this topic: a row follows each minute after its first message",
)
def topic(
    name: Annotated[str, typer.Argument(help="The topic.")],
    *,
    since: Since = "3h",
    names: Names = NAMES_DEFAULT,
) -> Listing:
    """Show how many messages a second a topic received, each minute.

    Brokers keep three hours of it in memory.
    """
    from_ms, _ = _moments(since)

    async def read(admin: Admin) -> list[FigureHistory]:
        return await _served(admin.topic_history(name, from_ms=from_ms))

    return _listing(ask(names, read, topic=name))


def _moments(since: str) -> tuple[int, int]:
    now_ms = SystemClock().wall_ms()
    try:
        return max(0, moment_ms(since, now_ms)), now_ms
    except ValueError as error:
        fail(f"--since takes {error}, not {since!r}", WRONGLY_CALLED)


async def _served(asked: Awaitable[T]) -> T:
    try:
        return await asked
    except RequestNotSupported as error:
        error.add_note("only brokers of txmq keep a history; see their rates with: txmq stats")
        raise


def _listing(found: list[FigureHistory]) -> Listing:
    rows = [
        {"at_ms": at_ms, "broker": history.broker} | dict(zip(history.columns, values, strict=True))
        for history in found
        for at_ms, values in history.rows
        if any(value is not None for value in values)
    ]
    rows.sort(key=lambda row: (row["at_ms"], row["broker"]))
    return Listing(rows)
