"""What the commands share that ask a cluster: their options, one session, and how they fail."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Final, NoReturn, TypeVar

import typer

from txmq.client import Admin, Session
from txmq.errors import (
    ConfigError,
    Effect,
    LimitExceeded,
    LocalProtocolError,
    TransportError,
    TxmqError,
    UsageError,
)
from txmq.message import Queue

__all__ = ["FAILED", "WRONGLY_CALLED", "AsJson", "Cluster", "Names", "ask", "fail", "queue_of"]

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

T = TypeVar("T")

_CALLERS_FAULT: Final = (ConfigError, UsageError, LocalProtocolError, LimitExceeded)


def ask(names: str, question: Callable[[Admin], Awaitable[T]], *, changes: bool = False) -> T:
    """Ask a cluster something, or end the program saying why that failed.

    Args:
        names: The name servers.
        question: What to ask.
        changes: Whether it changes something, so that a failure may leave that in doubt.

    Raises:
        typer.Exit: It failed.
    """

    async def asked() -> T:
        async with Session(names) as session:
            return await question(Admin(session))

    try:
        return asyncio.run(asked())
    except _CALLERS_FAULT as problem:
        fail(str(problem), WRONGLY_CALLED)
    except TxmqError as problem:
        # Brokers begin some remarks with a blank.
        fail(f"{str(problem).strip()}{_in_doubt(problem) if changes else ''}")


def _in_doubt(problem: TxmqError) -> str:
    if problem.effect is Effect.APPLIED:
        return " (it took effect all the same)"
    # A refusal is an answer: only where none came is anything in doubt.
    if problem.effect is Effect.MAYBE and isinstance(problem, TransportError):
        return " (it may have taken effect all the same)"
    return ""


def fail(text: str, code: int = FAILED) -> NoReturn:
    """End the program with one sentence.

    Raises:
        typer.Exit: Always.
    """
    typer.echo(f"txmq: {text}", err=True)
    raise typer.Exit(code)


def queue_of(topic: str, text: str) -> Queue:
    """The queue of a topic that ``broker:number`` names.

    Raises:
        typer.BadParameter: It is not of that form.
    """
    broker, colon, number = text.rpartition(":")
    if not colon or not broker or not number.isdecimal():
        raise typer.BadParameter(f"{text!r} names no queue; write broker:number, as in broker-a:0")
    return Queue(topic, broker, int(number))
