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
from examples.bank_transfer.tour.run import stay, take
from examples.bank_transfer.tour.settings import TourSettings
from examples.bank_transfer.ways import Way
from txmq.cli.logs import TextFormatter
from txmq.databases.failures import words
from txmq.errors import TxmqError
from txmq.printable import printable
from txmq.runtime.interrupts import restore_interrupt

__all__ = ["main"]

T = TypeVar("T")

POSTGRES: Final = "postgresql://postgres@127.0.0.1/postgres"
REDIS: Final = "redis://127.0.0.1:6379/0"
CANNOT_RUN: Final = 2
INTERRUPTED: Final = 130


def arguments() -> ArgumentParser:
    """What may be written on the command line."""
    parser = ArgumentParser(
        prog="python -m examples.bank_transfer",
        description="Two banks and their broker, many transfers, and programs that are killed "
        "meanwhile; or one of the programs alone. See docs/howto/bank-transfer.md.",
    )
    programs = parser.add_subparsers(dest="program", metavar="PROGRAM")
    programs.add_parser("banks", help="run the broker and both banks until Ctrl-C, for their pages")
    for name, what in (("icbc", "the bank that pays"), ("ccb", "the bank that is paid")):
        bank = programs.add_parser(name, help=f"run {what}")
        bank.add_argument("--database", required=True, help="a URL of PostgreSQL or SQLite")
        add = bank.add_argument
        add("--names", default="127.0.0.1:9876", help="the name servers (%(default)s)")
        add("--listen", default="127.0.0.1:0", help="where to serve HTTP (a port that is free)")
        add("--redis", default="", help="the URL of a Redis before the table of what is done")
        add("--verbose", action="store_true", help="log what is booked, and the nine steps")
        add("--no-steps", action="store_true", help="keep no steps, neither for pages nor the log")
        if name == "icbc":
            add("--ccb", default="", help="CCB's database, for transfers by XA")
    add_tour(parser)
    return parser


def add_tour(parser: ArgumentParser) -> None:
    """What may be said of the tour."""
    default = TourSettings()
    add = parser.add_argument
    add("--transfers", type=int, default=default.transfers, help="how many (%(default)s)")
    add("--accounts", type=int, default=default.accounts, help="at both banks (%(default)s)")
    add("--rate", type=float, default=default.rate, help="transfers a second at most (no limit)")
    add("--concurrent", type=int, default=default.concurrent, help="at once (%(default)s)")
    add("--seed", type=int, default=default.seed, help="another one, another story (%(default)s)")
    add(
        "--chaos", type=int, nargs="?", const=5, default=default.kills, metavar="KILLS",
        help="how often each program is killed (%(default)s; 5 where no number is given)",
    )  # fmt: skip
    add("--copies", type=int, default=default.copies, help="messages that come twice (%(default)s)")
    add(
        "--way", action="append", choices=[str(way) for way in Way],
        help="how transfers are made; several times for several, all that can be where it is not "
        "given",
    )  # fmt: skip
    add(
        "--postgres", nargs="?", const=POSTGRES, default="", metavar="URL",
        help=f"keep the books in two new databases of this server ({POSTGRES})",
    )  # fmt: skip
    add(
        "--redis", nargs="?", const=REDIS, default="", metavar="URL",
        help=f"have this Redis stand before the tables of what is done ({REDIS})",
    )  # fmt: skip
    add("--directory", type=Path, help="keep books, logs and messages in this new directory")
    add(
        "--no-reconcile", action="store_true",
        help="do not reconcile the ledgers in the end, which takes a Java and half a minute",
    )  # fmt: skip


def tour_of(given: Namespace) -> TourSettings:
    """The tour as it is given.

    Raises:
        ConfigError: A value cannot work.
    """
    return TourSettings(
        transfers=given.transfers, accounts=given.accounts, rate=given.rate,
        concurrent=given.concurrent, seed=given.seed, kills=given.chaos, copies=given.copies,
        ways=tuple(map(Way, given.way or ())), postgres=given.postgres, redis=given.redis,
        directory=given.directory, is_reconciled=not given.no_reconcile,
    )  # fmt: skip


def bank_of(given: Namespace) -> BankSettings:
    """A bank as it is given."""
    return BankSettings(
        name=given.program, database=given.database, names=given.names, listen=given.listen,
        redis=given.redis, other_database=getattr(given, "ccb", ""),
        watches_steps=not given.no_steps,
    )  # fmt: skip


def log_to_stderr(*, is_verbose: bool) -> None:
    """Log what went wrong, or also what happens: the nine steps of each transfer among it."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.DEBUG if is_verbose else logging.WARNING)
    level = logging.INFO if is_verbose else logging.WARNING
    handler.setFormatter(TextFormatter())
    logging.basicConfig(level=level, handlers=[handler])


async def until_told(work: Coroutine[Any, Any, T]) -> T:
    """Do it; SIGTERM ends it as Ctrl-C does, and everything that was started with it."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def main(asked: Sequence[str] | None = None) -> int:
    """Run what is asked for, on the command line where it is not told here; the exit code."""
    restore_interrupt()
    given = arguments().parse_args(asked)
    log_to_stderr(is_verbose=getattr(given, "verbose", False))
    try:
        if given.program is None:
            return asyncio.run(until_told(take(tour_of(given), Console())))
        if given.program == "banks":
            asyncio.run(until_told(stay(tour_of(given), Console())))
        else:
            uvloop.run(run(bank_of(given)))
    except (TxmqError, OSError, SQLAlchemyError, HTTPError) as error:
        why = printable(words(error))
        print(f"{given.program or 'the tour'} cannot be run: {why}", file=sys.stderr)
        return CANNOT_RUN
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
