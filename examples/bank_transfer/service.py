"""One bank as a program: its part in transfers, and its face by HTTP."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import uvicorn
from redis.asyncio import Redis
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from starlette.applications import Starlette
from starlette.responses import RedirectResponse
from starlette.routing import BaseRoute, Route

from examples.bank_transfer.ccb import open_ccb
from examples.bank_transfer.databases import async_engine, create_books, driven
from examples.bank_transfer.faces.api import api_of, paying_api_of
from examples.bank_transfer.faces.desk import Desk
from examples.bank_transfer.faces.door import Door
from examples.bank_transfer.faces.looks import away, static_files
from examples.bank_transfer.faces.pages import CustomerPages
from examples.bank_transfer.faces.teller import TellerPage
from examples.bank_transfer.icbc import ICBC
from examples.bank_transfer.orders import ADVICES, TRANSFERS
from examples.bank_transfer.reading import Reading
from examples.bank_transfer.steps import Steps
from txmq import Client
from txmq.errors import ConfigError, TransportError
from txmq.idempotent import RedisGuard, SessionGuard, UniqueKeyTable
from txmq.remoting.pool import split_address

__all__ = ["BankSettings", "redis_of", "run"]

log = logging.getLogger(__name__)

REQUESTS_MAX: Final = 256
"""Under way at once; one more is told to come again."""
AGAIN_S: Final = 0.5
STOP_S: Final = 3
"""How long an end waits for requests."""
LEASE_S: Final = 5.0
"""How long Redis keeps the key of somebody who was killed; others wait for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BankSettings:
    """What a bank is started with.

    Raises:
        ConfigError: The databases cannot do it.
    """

    name: Literal["icbc", "ccb"]
    database: str
    names: str
    listen: str
    redis: str = ""
    """Stands before the table of what is done, where there is one."""
    other_database: str = ""
    """The other bank's: for XA, and only for that."""
    watches_steps: bool = True
    """Whether the nine steps of transfers can be looked at."""

    def __post_init__(self) -> None:
        """See that the databases can prepare, where they shall."""
        for database in (self.database, self.other_database) if self.other_database else ():
            if (kind := driven(database).get_backend_name()) != "postgresql":
                raise ConfigError(
                    f"transfers by XA need PostgreSQL at both banks, and one of them has {kind}: "
                    "leave the other bank's database out, or name two of PostgreSQL"
                )


async def run(settings: BankSettings) -> None:
    """Serve until SIGTERM or SIGINT, then end what is under way.

    Raises:
        TxmqError: The database, or the cluster, cannot be used.
        OSError: The address cannot be listened at.
    """
    await asyncio.to_thread(create_books, settings.database)
    host, port = split_address(settings.listen)
    ending = asyncio.Event()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        async with opened(settings, ending) as routes:
            app = Door(Starlette(routes=routes, exception_handlers={SQLAlchemyError: away}))
            server = Server(uvicorn.Config(
                app, log_level="warning", access_log=False, lifespan="off",
                limit_concurrency=REQUESTS_MAX, timeout_graceful_shutdown=STOP_S,
            ))  # fmt: skip

            def end() -> None:
                server.should_exit = True
                ending.set()

            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, end)
            await server.serve(sockets=[listening])


class Server(uvicorn.Server):
    """One that says when it is ready, and leaves signals to whoever runs it: behind it there is
    more to be closed.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        await super().startup(sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            print(f"ready http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None."""
        yield


async def see_topics(client: Client) -> None:
    """Make the topics that are missing; waits for a broker that can do so.

    Raises:
        BrokerRefused: It does not.
    """
    while True:
        try:
            there = await client.admin.topics()
            for topic in (TRANSFERS, ADVICES):
                if topic not in there:
                    await client.admin.create_topic(topic)
        except (ConfigError, TransportError) as error:
            log.warning("no broker can be reached yet: %s", error)
            await asyncio.sleep(AGAIN_S)
        else:
            return


def redis_of(url: str) -> Redis:
    """A client of it; whether somebody is there is seen when it is used.

    Raises:
        ConfigError: That is no URL of a Redis.
    """
    try:
        return Redis.from_url(url)
    except ValueError as error:
        raise ConfigError(
            "that is no URL of a Redis; write one like redis://127.0.0.1:6379/0"
        ) from error


@asynccontextmanager
async def opened(settings: BankSettings, ending: asyncio.Event) -> AsyncIterator[list[BaseRoute]]:
    """The bank, as long as it is open; what it answers."""
    async with AsyncExitStack() as opening:

        def engine(url: str) -> AsyncEngine:
            made = async_engine(url)
            opening.push_async_callback(made.dispose)
            return made

        writing, reading = engine(settings.database), Reading(engine(settings.database))
        client = await opening.enter_async_context(Client(settings.names))
        await see_topics(client)
        guard: SessionGuard[str, AsyncSession] = UniqueKeyTable(writing)
        if settings.redis:
            redis = await opening.enter_async_context(redis_of(settings.redis))
            guard = RedisGuard(redis, lease_s=LEASE_S).before(UniqueKeyTable(writing))
        links = "/transfers/" if settings.name == "icbc" else "/api/transfers/"
        teller = TellerPage(settings.name.upper(), writing, reading, links)
        routes: list[BaseRoute] = [*api_of(reading), *teller.routes(), static_files()]
        if settings.name == "ccb":
            await opening.enter_async_context(open_ccb(writing, client, guard=guard))
            routes.append(Route("/", RedirectResponse("/teller")))
        else:
            other = engine(settings.other_database) if settings.other_database else None
            steps = opening.enter_context(Steps(is_on=settings.watches_steps))
            bank = ICBC(writing, client, steps=steps, guard=guard, ccb=other)
            await opening.enter_async_context(bank)
            desk = await opening.enter_async_context(Desk(bank, reading))
            routes += [*paying_api_of(bank), *CustomerPages(desk, reading, ending).routes()]
        yield routes
