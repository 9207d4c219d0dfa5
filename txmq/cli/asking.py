"""What the commands share that ask a cluster: their options, one session, and how they fail."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Final, NoReturn, TypeVar

import typer

from txmq.cli.known_names import check_topic
from txmq.cli.output import note
from txmq.client import Admin, Session
from txmq.errors import (
    ConfigError,
    ConnectFailed,
    Effect,
    LimitExceeded,
    LocalProtocolError,
    TopicNotFound,
    TransportError,
    TxmqError,
    UsageError,
)
from txmq.message import Queue
from txmq.printable import printable
from txmq.remoting.pool import NOBODY_LISTENS

__all__ = [
    "FAILED",
    "WRONGLY_CALLED",
    "AsJson",
    "Cluster",
    "Names",
    "Yes",
    "ask",
    "confirm",
    "fail",
    "queue_of",
    "sentence_of",
]

FAILED: Final = 1
WRONGLY_CALLED: Final = 2

NAMES_DEFAULT: Final = "127.0.0.1:9876"

Names = Annotated[
    str,
    typer.Option("--names", envvar="TXMQ_NAMES", help="Name servers, host:port separated by ';'."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON for programs.")]
Cluster = Annotated[
    str | None, typer.Option("--cluster", help="The cluster, where there are several.")
]

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask first.")]

T = TypeVar("T")

_CALLERS_FAULT: Final = (ConfigError, UsageError, LocalProtocolError, LimitExceeded)


def ask(
    names: str,
    question: Callable[[Admin], Awaitable[T]],
    *,
    changes: bool = False,
    topic: str | None = None,
) -> T:
    """Ask a cluster something, or end the program saying why that failed.

    Args:
        names: The name servers.
        question: What to ask.
        changes: Whether it changes something, so that a failure may leave that in doubt.
        topic: The topic that it is about; where that does not exist, the nearest name is suggested.

    Raises:
        typer.Exit: It failed.
    """

    async def asked() -> T:
        async with Session(names) as session:
            admin = Admin(session)
            try:
                return await question(admin)
            except TopicNotFound:
                if topic is not None:
                    await check_topic(admin, topic)
                raise

    try:
        return asyncio.run(asked())
    except _CALLERS_FAULT as error:
        fail(str(error), WRONGLY_CALLED)
    except TxmqError as error:
        fail(f"{sentence_of(error)}{_in_doubt(error) if changes else ''}")


def sentence_of(error: TxmqError) -> str:
    """What an error says, and where nobody listens, how to change that."""
    text = str(error).strip()  # Brokers begin some remarks with a blank.
    if isinstance(error, ConnectFailed) and NOBODY_LISTENS in text:
        # `txmq serve` starts a broker together with its name server.
        return f"{text}; start a broker with: txmq serve"
    return text


def _in_doubt(error: TxmqError) -> str:
    if error.effect is Effect.APPLIED:
        return " (it took effect all the same)"
    # A refusal is an answer: only where none came is anything in doubt.
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


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is changed that cannot be changed back.

    Args:
        question: What to ask.
        yes: Whether the caller has agreed already.

    Raises:
        typer.Exit: Nobody can answer, because standard input is no terminal.
        typer.Abort: The answer is no.
    """
    if yes:
        return
    if not has_terminal():
        fail(
            f"{question} Nobody can answer, because standard input is not a terminal; "
            "add --yes to go on without being asked",
            WRONGLY_CALLED,
        )
    typer.confirm(printable(question), abort=True, err=True)


def has_terminal() -> bool:
    """Whether somebody can answer a question."""
    return sys.stdin.isatty()


def queue_of(topic: str, text: str) -> Queue:
    """The queue of a topic that ``broker:number`` names.

    Raises:
        typer.BadParameter: It is not of that form.
    """
    broker, colon, number = text.rpartition(":")
    if not colon or not broker or not number.isdecimal():
        raise typer.BadParameter(f"{text!r} names no queue; write broker:number, as in broker-a:0")
    return Queue(topic, broker, int(number))
