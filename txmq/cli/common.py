"""Shared by all commands: options, exit codes, cluster sessions, questions and signals."""

import asyncio
import getpass
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Final, NamedTuple, NoReturn, TypeVar

import typer

from txmq.cli.output import note, progress_bar
from txmq.client import Admin, Session
from txmq.errors import (
    ConfigError,
    LimitExceeded,
    LocalProtocolError,
    TopicNotFound,
    TxmqError,
    UsageError,
)
from txmq.message import Queue
from txmq.ops.known_names import check_topic
from txmq.ops.moments import moment_ms
from txmq.ops.queries import ASKED_TOGETHER_MAX, for_each, in_doubt, sentence_of
from txmq.remoting.pool import split_address
from txmq.runtime.clock import SystemClock
from txmq.settings.units import parse_duration
from txmq.text import printable

__all__ = [
    "FAILED",
    "WRONGLY_CALLED",
    "AsJson",
    "Ask",
    "AtBroker",
    "Cluster",
    "GroupArgument",
    "MonitoringAddress",
    "Operator",
    "TopicArgument",
    "Yes",
    "argument",
    "ask_each",
    "confirm",
    "duration_of",
    "exit_on_errors",
    "fail",
    "flag",
    "has_terminal",
    "host_and_port",
    "moment_of",
    "operator_name",
    "option",
    "queue_of",
    "stop_at_signals",
    "unless_stopped",
]

FAILED: Final = 1
WRONGLY_CALLED: Final = 2

NAMES_DEFAULT: Final = "127.0.0.1:9876"
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
AtBroker = Annotated[str | None, typer.Option("--broker", help="Only at this broker.")]
Operator = Annotated[
    str, typer.Option(show_default="who runs this", help="Who decides; kept with the reason.")
]
TopicArgument = Annotated[str, typer.Argument(help="The topic.")]
GroupArgument = Annotated[str, typer.Argument(help="The consumer group.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask first.")]


def option(text: str, *names: str, default: Any = None, **more: Any) -> Any:
    """An option, as the default of a parameter; ``...`` as its own default makes it required."""
    return typer.Option(default, *names, help=text, **more)


def flag(text: str, *names: str) -> Any:
    """An option without a value, as the default of a parameter."""
    return typer.Option(False, *names, help=text)


def argument(text: str, *, default: Any = None, **more: Any) -> Any:
    """An argument that may be left out, as the default of a parameter."""
    return typer.Argument(default, help=text, **more)


T = TypeVar("T")
K = TypeVar("K")

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_CALLER_ERRORS: Final = (ConfigError, UsageError, LocalProtocolError, LimitExceeded)


class Ask(NamedTuple):
    """The cluster that a command works on; call it to query or change the cluster."""

    names: Names = NAMES_DEFAULT

    def __call__(
        self,
        question: Callable[[Admin], Awaitable[T]],
        *,
        changes: bool = False,
        topic: str | None = None,
    ) -> T:
        """Ask the cluster; if that fails, print the reason and end the program.

        Args:
            question: The query or the change.
            changes: Whether it changes something, so that a failure may leave that in doubt.
            topic: Its topic. If the topic does not exist, the error suggests the nearest name.

        Raises:
            typer.Exit: It failed.
        """

        async def run() -> T:
            async with Session(self.names) as session:
                admin = Admin(session)
                try:
                    return await question(admin)
                except TopicNotFound:
                    if topic is not None:
                        await check_topic(admin, topic)
                    raise

        with exit_on_errors(changes=changes):
            return asyncio.run(run())


@contextmanager
def exit_on_errors(*, changes: bool = False, http: str | None = None) -> Iterator[None]:
    """Turn errors of the block into one sentence and an exit code.

    Args:
        changes: Whether the block changes a cluster, so that a failure may leave that in doubt.
        http: The address where the block serves metrics, which may be taken.

    Raises:
        typer.Exit: With 2 if the caller must change something, otherwise with 1.
    """
    try:
        yield
    except _CALLER_ERRORS as error:
        fail(str(error), WRONGLY_CALLED)
    except TxmqError as error:
        fail(f"{sentence_of(error)}{in_doubt(error) if changes else ''}")
    except OSError as error:
        if http is None:
            raise
        fail(f"cannot serve metrics at {http}: {error}")


async def ask_each(things: list[K], query: Callable[[K], Awaitable[T]], label: str) -> list[T]:
    """Like :func:`~txmq.ops.queries.for_each`, with a progress bar on a terminal if there are many
    things.

    Args:
        things: The things to ask about.
        query: Asks about one thing.
        label: The label of the bar.
    """
    is_long = len(things) > ASKED_TOGETHER_MAX
    with progress_bar(label if is_long else "", len(things)) as advance:
        return await for_each(things, query, counted=advance)


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
        yes: Whether the caller has already agreed.
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


def operator_name(given: str) -> str:
    """The operator that brokers record: the one that an option names, or who runs the command."""
    return given or getpass.getuser()


def has_terminal() -> bool:
    """True if the user can answer a question."""
    return sys.stdin.isatty()


def host_and_port(text: str | None) -> tuple[str, int] | None:
    """Parse the address at which to serve pages; ``None`` without the option.

    Raises:
        typer.Exit: It is not an address.
    """
    if text is None:
        return None
    try:
        return split_address(text)
    except ConfigError:
        fail(f"{text!r} is not an address; write host:port, as in 127.0.0.1:9400", WRONGLY_CALLED)


def moment_of(text: str, option: str) -> int:
    """Parse the moment in an option; returns milliseconds since 1970.

    Raises:
        typer.BadParameter: The text is not a moment.
    """
    try:
        return moment_ms(text, SystemClock().wall_ms())
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}; write {error}", param_hint=option) from error


def duration_of(text: str, option: str) -> float:
    """Parse the duration in an option; returns seconds.

    Raises:
        typer.Exit: The text is not a duration.
    """
    try:
        return float(parse_duration(text))
    except ValueError as error:
        fail(f"{option} takes {error}, not {text!r}", WRONGLY_CALLED)


def queue_of(topic: str, text: str) -> Queue:
    """The queue of a topic that ``broker:number`` names.

    Raises:
        typer.BadParameter: The text has another form.
    """
    broker, colon, number = text.rpartition(":")
    if not colon or not broker or not number.isdecimal():
        raise typer.BadParameter(f"{text!r} is not a queue; write broker:number, as in broker-a:0")
    return Queue(topic, broker, int(number))


@contextmanager
def stop_at_signals(stopped: asyncio.Event) -> Iterator[None]:
    """Inside this context, Ctrl-C and SIGTERM set an event of the running loop.

    A second Ctrl-C ends the process at once.
    """
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        stopped.set()
        # The system's default ends the process even while the loop is blocked.
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        note("stopping; press Ctrl-C again to end at once")

    # On Windows loops handle no signals, and Ctrl-C is a KeyboardInterrupt as always.
    with suppress(NotImplementedError):
        loop.add_signal_handler(signal.SIGTERM, stopped.set)
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        # uvloop keeps the handlers after it is closed, and Ctrl-C would no longer have any effect.
        with suppress(NotImplementedError):
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
        signal.signal(signal.SIGINT, before)


async def unless_stopped(stopped: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Run some work; cancel it when the event is set."""
    task, stop = asyncio.ensure_future(work), asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        stop.cancel()
        task.cancel()
