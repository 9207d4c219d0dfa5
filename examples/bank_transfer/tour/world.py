"""The broker, the two banks, and where they keep what they know."""

from __future__ import annotations

import asyncio
import logging
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from redis.exceptions import RedisError
from sqlalchemy import URL, Engine, NullPool, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from examples.bank_transfer.databases import create_books, driven, open_accounts
from examples.bank_transfer.service import redis_of
from examples.bank_transfer.texts import words
from examples.bank_transfer.tour.orders import accounts
from examples.bank_transfer.tour.programs import NotStarted, Program, free_port
from examples.bank_transfer.tour.settings import TourSettings
from examples.bank_transfer.ways import Way

__all__ = ["World", "opened"]

log = logging.getLogger(__name__)

BROKER_SETTINGS: Final = (
    # So soon that the tour does not wait for checks or retries.
    "transaction.timeout=2s",
    "transaction.check_interval=2s",
    # At this interval, the default number of checks would end after half a minute. An ICBC that was
    # killed between two prepared books needs longer, and no operator handles parked transactions.
    "transaction.check_max=1000",
    # The last ones are longer: who waits for what a killed program has prepared has 16 tries, and
    # what it then gives up is a dead letter, and money that never arrives.
    "delay.levels=1s 1s 1s 1s 2s 2s 2s 2s 5s 5s 10s 10s 20s 20s 30s 30s 30s 30s",
)


@dataclass(frozen=True, slots=True)
class World:
    """The databases, brokers and programs of a tour."""

    mark: str
    """Begins the ids of this tour's transfers."""
    icbc_database: str
    ccb_database: str
    names: str
    broker: Program
    icbc: Program
    ccb: Program
    icbc_url: str
    ccb_url: str
    directory: Path

    @property
    def programs(self) -> tuple[Program, ...]:
        """All that can be killed."""
        return self.broker, self.icbc, self.ccb

    async def stop(self) -> None:
        """Stop the programs, the banks before their broker; databases and files stay."""
        for program in reversed(self.programs):
            await program.stop()


@asynccontextmanager
async def opened(settings: TourSettings) -> AsyncIterator[World]:
    """Everything runs, and customers have accounts; all is ended behind it.

    Raises:
        NotStarted: A program, or a server that is needed, is not there.
    """
    async with AsyncExitStack() as closing:
        if settings.directory is None:
            directory = Path(
                closing.enter_context(tempfile.TemporaryDirectory(prefix="txmq-bank-"))
            )
        else:
            directory = settings.directory
            directory.mkdir(parents=True, exist_ok=True)
            if any(directory.iterdir()):
                raise NotStarted(f"there is something in {directory} already: name a new directory")
        if settings.redis:
            await see_redis(settings.redis)
        books = closing.enter_context(databases(settings, directory))
        await asyncio.gather(*(
            asyncio.to_thread(_open_bank, name, url, settings.accounts // 2)
            for name, url in zip(("ICBC", "CCB"), books, strict=True)
        ))  # fmt: skip
        world = _world(settings, directory, books)
        for program in reversed(world.programs):
            closing.push_async_callback(program.stop)
        await world.broker.start()
        await asyncio.gather(world.icbc.start(), world.ccb.start())
        yield world


async def see_redis(url: str) -> None:
    """Verify that the Redis server answers.

    Without Redis the banks still work, from their tables alone; but a user who names a server wants
    to see it take part.

    Raises:
        ConfigError: The URL is invalid.
        NotStarted: The Redis does not answer.
    """
    async with redis_of(url) as redis:
        try:
            await redis.ping()
        except RedisError as error:
            raise NotStarted(f"no Redis answers: {words(error)}") from error


@contextmanager
def databases(settings: TourSettings, directory: Path) -> Iterator[tuple[str, str]]:
    """The URLs of two new databases.

    Raises:
        NotStarted: The server does not make them.
    """
    if not settings.postgres:
        yield (f"sqlite:///{directory / 'icbc.db'}", f"sqlite:///{directory / 'ccb.db'}")
        return
    given = driven(settings.postgres)
    mark = secrets.token_hex(4)
    icbc, ccb = (given.set(database=f"txmq_tour_{bank}_{mark}") for bank in ("icbc", "ccb"))
    with ExitStack() as dropping:
        try:
            with server(given).connect() as connection:
                for bank in (icbc, ccb):
                    connection.execute(text(f"CREATE DATABASE {bank.database}"))
                    dropping.callback(_drop, given, bank)
        except SQLAlchemyError as error:
            raise NotStarted(
                f"no database can be made at {given!r}, give the URL of a PostgreSQL whose user "
                f"may: {words(error)}"
            ) from error
        yield icbc.render_as_string(hide_password=False), ccb.render_as_string(hide_password=False)


def server(url: URL) -> Engine:
    """For what no transaction may stand around."""
    return create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)


def _drop(given: URL, books: URL) -> None:
    """Drop a database; what is prepared in it would keep it, and ends with the tour."""
    prepared = text("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    try:
        with server(books).connect() as connection:
            for gid in connection.scalars(prepared).all():
                quoted = gid.replace("'", "''")
                connection.exec_driver_sql(f"ROLLBACK PREPARED '{quoted}'")
        with server(given).connect() as connection:
            connection.execute(text(f"DROP DATABASE {books.database} WITH (FORCE)"))
    except SQLAlchemyError as error:
        log.warning("%s is left behind: %s", books.database, words(error))


def _open_bank(name: str, url: str, count: int) -> None:
    create_books(url)
    open_accounts(url, accounts(name, count), time.time_ns() // 1_000_000)


def _world(settings: TourSettings, directory: Path, books: tuple[str, str]) -> World:
    taken: set[int] = set()
    broker, names, icbc, ccb = (f"127.0.0.1:{free_port(taken)}" for _ in range(4))

    def bank(name: str, database: str, listen: str, *more: str) -> Program:
        given = ["--database", database, "--names", names, "--listen", listen, *more]
        if settings.redis:
            given += ["--redis", settings.redis]
        if settings.directory is not None:
            given.append("--verbose")  # The kept log then has each step.
        return Program(
            name.upper(), "examples.bank_transfer", [name, *given], directory / f"{name}.log"
        )

    serving = ["serve", "--data", str(directory / "broker"), "--listen", broker]
    serving += ["--names-listen", names]
    for setting in BROKER_SETTINGS:
        serving += ["--set", setting]
    other = ["--ccb", books[1]] if Way.XA in settings.chosen_ways else []
    return World(
        secrets.token_hex(3), *books, names,
        Program("the broker", "txmq", serving, directory / "broker.log"),
        bank("icbc", books[0], icbc, *other),
        bank("ccb", books[1], ccb),
        f"http://{icbc}", f"http://{ccb}", directory,
    )  # fmt: skip
