"""The command line: the tour by default, or one of its programs alone."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import uvloop
from httpx import HTTPError
from rich.console import Console
from sqlalchemy.exc import SQLAlchemyError

from examples.bank_transfer.service import BankSettings, run
from examples.bank_transfer.texts import words
from examples.bank_transfer.tour.run import stay, take
from examples.bank_transfer.tour.settings import TourSettings
from examples.bank_transfer.ways import Way
from txmq.errors import TxmqError

__all__ = ["main"]

T = TypeVar("T")

POSTGRES: Final = "postgresql://postgres@127.0.0.1/postgres"
REDIS: Final = "redis://127.0.0.1:6379/0"
CANNOT_RUN: Final = 2
INTERRUPTED: Final = 130


def arguments() -> ArgumentParser:
    """The options of the command line."""
    parser = ArgumentParser(
        prog="python -m examples.bank_transfer",
        description="Two banks and their broker, many transfers, and programs that are killed "
        "meanwhile; or one of the programs alone. See docs/howto/bank-transfer.md.",
    )
    programs = parser.add_subparsers(dest="program", metavar="PROGRAM")
    programs.add_parser("banks", help="run the broker and both banks until Ctrl-C, for their pages")
    for name, what in (("icbc", "the bank of the payer"), ("ccb", "the bank of the payee")):
        bank = programs.add_parser(name, help=f"run {what}")
        bank.add_argument("--database", required=True, help="a URL of PostgreSQL or SQLite")
        add = bank.add_argument
        add("--names", default="127.0.0.1:9876", help="the name servers (%(default)s)")
        add("--listen", default="127.0.0.1:0", help="where to serve HTTP (a free port)")
        add("--redis", default="", help="the URL of a Redis in front of the table of finished work")
        add("--verbose", action="store_true", help="log bookings and the nine steps")
        add("--no-steps", action="store_true", help="record no steps, for pages or the log")
        if name == "icbc":
            add("--ccb", default="", help="CCB's database, for transfers by XA")
    add_tour(parser)
    return parser


def add_tour(parser: ArgumentParser) -> None:
    """The options of the tour."""
    default = TourSettings()
    add = parser.add_argument
    add("--transfers", type=int, default=default.transfers, help="how many (%(default)s)")
    add("--accounts", type=int, default=default.accounts, help="at both banks (%(default)s)")
    add("--rate", type=float, default=default.rate, help="most transfers a second (no limit)")
    add("--concurrent", type=int, default=default.concurrent, help="at once (%(default)s)")
    add("--seed", type=int, default=default.seed, help="decides all that is random (%(default)s)")
    add(
        "--chaos", type=int, nargs="?", const=5, default=default.kills, metavar="KILLS",
        help="how often each program is killed (%(default)s; 5 without a number)",
    )  # fmt: skip
    add("--copies", type=int, default=default.copies, help="messages that come twice (%(default)s)")
    add(
        "--way", action="append", choices=[str(way) for way in Way],
        help="how transfers are made; may be repeated (all ways that the databases allow)",
    )  # fmt: skip
    add(
        "--postgres", nargs="?", const=POSTGRES, default="", metavar="URL",
        help=f"keep the books in two new databases of this server ({POSTGRES})",
    )  # fmt: skip
    add(
        "--redis", nargs="?", const=REDIS, default="", metavar="URL",
        help=f"put this Redis in front of the tables of finished work ({REDIS})",
    )  # fmt: skip
    add("--directory", type=Path, help="keep books, logs and messages in this new directory")
    add(
        "--no-reconcile", action="store_true",
        help="do not reconcile the ledgers at the end, which needs Java and half a minute",
    )  # fmt: skip


def tour_of(given: Namespace) -> TourSettings:
    """The settings of the tour.

    Raises:
        ConfigError: A value is invalid.
    """
    return TourSettings(
        transfers=given.transfers, accounts=given.accounts, rate=given.rate,
        concurrent=given.concurrent, seed=given.seed, kills=given.chaos, copies=given.copies,
        ways=tuple(map(Way, given.way or ())), postgres=given.postgres, redis=given.redis,
        directory=given.directory, is_reconciled=not given.no_reconcile,
    )  # fmt: skip


def bank_of(given: Namespace) -> BankSettings:
    """The settings of a bank."""
    return BankSettings(
        name=given.program, database=given.database, names=given.names, listen=given.listen,
        redis=given.redis, other_database=getattr(given, "ccb", ""),
        watches_steps=not given.no_steps,
    )  # fmt: skip


def log_to_stderr(*, is_verbose: bool) -> None:
    """Log warnings and errors; if verbose, also events and the nine steps of each transfer."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.DEBUG if is_verbose else logging.WARNING)
    level = logging.INFO if is_verbose else logging.WARNING
    logging.basicConfig(
        level=level, handlers=[handler], format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


async def until_stopped(work: Coroutine[Any, Any, T]) -> T:
    """Run some work; SIGTERM cancels it, as Ctrl-C does."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def main(asked: Sequence[str] | None = None) -> int:
    """Run the chosen program; returns the exit code.

    Args:
        asked: The arguments; by default those of the command line.
    """
    # A shell that starts this with `&` makes it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    given = arguments().parse_args(asked)
    log_to_stderr(is_verbose=getattr(given, "verbose", False))
    try:
        if given.program is None:
            return asyncio.run(until_stopped(take(tour_of(given), Console())))
        if given.program == "banks":
            asyncio.run(until_stopped(stay(tour_of(given), Console())))
        else:
            uvloop.run(run(bank_of(given)))
    except (TxmqError, OSError, SQLAlchemyError, HTTPError) as error:
        why = words(error)
        print(f"{given.program or 'the tour'} cannot run: {why}", file=sys.stderr)
        return CANNOT_RUN
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
