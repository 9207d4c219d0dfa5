"""The options, the session and the exit codes of commands that ask a cluster."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Final, NoReturn, TypeVar

import typer

from txmq.cli.output import note, progress_bar
from txmq.client import Admin, Session
from txmq.errors import (
    ConfigError,
    ConnectFailed,
    Effect,
    LimitExceeded,
    LocalProtocolError,
    NoPermission,
    TopicNotFound,
    TransportError,
    TxmqError,
    UsageError,
)
from txmq.message import Queue
from txmq.ops.known_names import check_topic
from txmq.ops.moments import moment_ms
from txmq.remoting.pool import NO_SERVER, split_address
from txmq.runtime.clock import SystemClock
from txmq.text import printable

__all__ = [
    "FAILED",
    "WRONGLY_CALLED",
    "AsJson",
    "Cluster",
    "MonitoringAddress",
    "Names",
    "Yes",
    "ask",
    "confirm",
    "fail",
    "for_each",
    "has_terminal",
    "host_and_port",
    "in_doubt",
    "moment_of",
    "queue_of",
    "sentence_of",
]

FAILED: Final = 1
WRONGLY_CALLED: Final = 2

NAMES_DEFAULT: Final = "127.0.0.1:9876"
NO_ACCOUNT: Final = "no accesskey is configured"
"""What servers answer to unsigned requests, RocketMQ's too."""

Names = Annotated[
    str,
    typer.Option("--names", envvar="TXMQ_NAMES", help="Name servers, host:port separated by ';'."),
]
MonitoringAddress = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="HOST:PORT",
        help="Where to serve /metrics, /health/live, /health/ready and /info over HTTP.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON for programs.")]
Cluster = Annotated[
    str | None, typer.Option("--cluster", help="The cluster, if there are several.")
]

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask first.")]

T = TypeVar("T")
K = TypeVar("K")

ASKED_TOGETHER_MAX: Final = 16
"""Topics, groups or consumers that are queried at the same time."""

_CALLER_ERRORS: Final = (ConfigError, UsageError, LocalProtocolError, LimitExceeded)


def ask(
    names: str,
    question: Callable[[Admin], Awaitable[T]],
    *,
    changes: bool = False,
    topic: str | None = None,
) -> T:
    """Ask a cluster something; if that fails, print the reason and end the program.

    Args:
        names: The name servers.
        question: What to ask.
        changes: Whether it changes something, so that a failure may leave that in doubt.
        topic: Its topic. If the topic does not exist, the error suggests the nearest name.

    Raises:
        typer.Exit: It failed.
    """

    async def run() -> T:
        async with Session(names) as session:
            admin = Admin(session)
            try:
                return await question(admin)
            except TopicNotFound:
                if topic is not None:
                    await check_topic(admin, topic)
                raise

    try:
        return asyncio.run(run())
    except _CALLER_ERRORS as error:
        fail(str(error), WRONGLY_CALLED)
    except TxmqError as error:
        fail(f"{sentence_of(error)}{in_doubt(error) if changes else ''}")


async def for_each(
    things: list[K], query: Callable[[K], Awaitable[T]], *, label: str = ""
) -> list[T]:
    """Query a cluster about each thing, several at a time; the results are in order.

    Args:
        things: What to ask about.
        query: Asks about one thing.
        label: The things' name, for a progress bar on a terminal; empty for none.
    """
    limit = asyncio.Semaphore(ASKED_TOGETHER_MAX)

    async def one(thing: K) -> T:
        async with limit:
            found = await query(thing)
        advance()
        return found

    is_long = len(things) > ASKED_TOGETHER_MAX
    with progress_bar(label if is_long else "", len(things)) as advance:
        return await asyncio.gather(*map(one, things))


def sentence_of(error: TxmqError) -> str:
    """The text of an error with its notes, and what to do about a missing server or account."""
    # Brokers begin some remarks with a blank.
    text = "; ".join([str(error).strip(), *getattr(error, "__notes__", ())])
    if isinstance(error, ConnectFailed) and NO_SERVER in text:
        # `txmq serve` starts a broker together with its name server.
        return f"{text}; start a broker with: txmq serve"
    if isinstance(error, NoPermission) and NO_ACCOUNT in text.lower():
        return f"{text}; name yours with TXMQ_ACCESS_KEY and TXMQ_SECRET_KEY"
    return text


def in_doubt(error: TxmqError) -> str:
    """A clause for a failed change that took effect, or may have; otherwise empty."""
    if error.effect is Effect.APPLIED:
        return " (it took effect all the same)"
    # A refusal is an answer; only a missing answer leaves the effect in doubt.
    if error.effect is Effect.MAYBE and isinstance(error, TransportError):
        return " (it may have taken effect all the same)"
    return ""


def fail(text: str, code: int = FAILED) -> NoReturn:
    """End the program with one sentence.

    Raises:
        typer.Exit: Always.
    """
    note(f"txmq: {text}")
    raise typer.Exit(code)


def confirm(question: str, *, yes: bool, code: int = WRONGLY_CALLED) -> None:
    """Ask before a change that cannot be undone.

    Args:
        question: What to ask.
        yes: Whether the caller has agreed already.
        code: The exit code if the user cannot answer.

    Raises:
        typer.Exit: Standard input is not a terminal, so the user cannot answer.
        typer.Abort: The user refuses.
    """
    if yes:
        return
    if not has_terminal():
        fail(
            f"{question} This cannot ask, because standard input is not a terminal; "
            "add --yes to go on without a question",
            code,
        )
    typer.confirm(printable(question), abort=True, err=True)


def has_terminal() -> bool:
    """True if the user can answer a question."""
    return sys.stdin.isatty()


def host_and_port(text: str) -> tuple[str, int]:
    """The address to serve pages at, from an option.

    Raises:
        typer.Exit: It is not an address.
    """
    try:
        return split_address(text)
    except ConfigError:
        fail(f"{text!r} is not an address; write host:port, as in 127.0.0.1:9400", WRONGLY_CALLED)


def moment_of(text: str, option: str) -> int:
    """The milliseconds since 1970 of the moment in an option.

    Raises:
        typer.BadParameter: The text is not a moment.
    """
    try:
        return moment_ms(text, SystemClock().wall_ms())
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}; write {error}", param_hint=option) from error


def queue_of(topic: str, text: str) -> Queue:
    """The queue of a topic that ``broker:number`` names.

    Raises:
        typer.BadParameter: The text has another form.
    """
    broker, colon, number = text.rpartition(":")
    if not colon or not broker or not number.isdecimal():
        raise typer.BadParameter(f"{text!r} is not a queue; write broker:number, as in broker-a:0")
    return Queue(topic, broker, int(number))
