"""The command line: the tour by default, or one of its programs alone."""

from __future__ import annotations

import asyncio
import logging
import sys
from argparse import ArgumentParser, Namespace

from examples.bank_transfer.service import BankSettings, run
from txmq.errors import TxmqError

__all__ = ["main"]


def arguments() -> ArgumentParser:
    """What may be written on the command line."""
    parser = ArgumentParser(prog="python -m examples.bank_transfer", description=__doc__)
    programs = parser.add_subparsers(dest="program", metavar="PROGRAM")
    for name, what in (("icbc", "the bank that pays"), ("ccb", "the bank that is paid")):
        bank = programs.add_parser(name, help=f"run {what}")
        bank.add_argument("--database", required=True, help="a URL of PostgreSQL or SQLite")
        bank.add_argument("--names", default="127.0.0.1:9876", help="the name servers")
        bank.add_argument("--listen", default="127.0.0.1:0", help="where to serve HTTP")
        bank.add_argument("--redis", default="", help="the URL of a Redis before the guard's table")
        bank.add_argument("--verbose", action="store_true", help="log what is booked")
        bank.add_argument(
            "--no-steps", action="store_true", help="do not look on at the nine steps"
        )
        if name == "icbc":
            bank.add_argument("--ccb", default="", help="the other bank's database, for XA")
    return parser


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
    logging.basicConfig(
        level=level, handlers=[handler], format="%(asctime)s %(levelname)s %(message)s"
    )


def main() -> int:
    """Run what is asked for; the exit code."""
    given = arguments().parse_args()
    log_to_stderr(is_verbose=given.verbose)
    try:
        asyncio.run(run(bank_of(given)))
    except (TxmqError, OSError) as problem:
        print(f"{given.program} cannot be run: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
