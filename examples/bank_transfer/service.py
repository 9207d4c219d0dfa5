"""One bank as a program: its part in transfers, its API and its pages."""

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
from examples.bank_transfer.icbc import ICBC
from examples.bank_transfer.orders import ADVICES, TRANSFERS
from examples.bank_transfer.queries import Queries
from examples.bank_transfer.steps import Steps
from examples.bank_transfer.web.api import api_of, paying_api_of
from examples.bank_transfer.web.desk import Desk
from examples.bank_transfer.web.page_templates import away, static_files
from examples.bank_transfer.web.pages import CustomerPages
from examples.bank_transfer.web.security import SecurityMiddleware
from examples.bank_transfer.web.teller import TellerPage
from txmq import Client
from txmq.errors import ConfigError, TopicNotFound, TransportError
from txmq.idempotent import RedisGuard, SessionGuard, UniqueKeyTable

__all__ = ["BankSettings", "redis_of", "run"]

log = logging.getLogger(__name__)

REQUESTS_MAX: Final = 256
"""Requests under way at once; one more receives "come again"."""
AGAIN_S: Final = 0.5
STOP_S: Final = 3
"""How long the end waits for requests."""
LEASE_S: Final = 5.0
"""How long Redis keeps the key of a consumer that was killed; others wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BankSettings:
    """The settings of a bank.

    Raises:
        ConfigError: The databases cannot take part in XA.
    """

    name: Literal["icbc", "ccb"]
    database: str
    names: str
    listen: str
    redis: str = ""
    """The URL of a Redis in front of the table of finished work; none if empty."""
    other_database: str = ""
    """The other bank's database, only for XA."""
    watches_steps: bool = True
    """True if the bank records the nine steps of transfers."""

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port of :attr:`listen`.

        Raises:
            ConfigError: It has none.
        """
        host, _, port = self.listen.rpartition(":")
        if not (host and port.isdecimal() and int(port) < 65536):
            raise ConfigError(f"a bank cannot listen at {self.listen!r}; write HOST:PORT")
        return host.strip("[]"), int(port)

    def __post_init__(self) -> None:
        """Check that the databases can prepare, if XA needs it."""
        for database in (self.database, self.other_database) if self.other_database else ():
            if (kind := driven(database).get_backend_name()) != "postgresql":
                raise ConfigError(
                    f"transfers by XA need PostgreSQL at both banks, and one of them has {kind}: "
                    "leave the other bank's database out, or name two of PostgreSQL"
                )


async def run(settings: BankSettings) -> None:
    """Serve until SIGTERM or SIGINT, then finish the requests under way.

    Raises:
        TxmqError: The database, or the cluster, cannot be used.
        OSError: The bank cannot listen at the address.
    """
    host, port = settings.address
    await asyncio.to_thread(create_books, settings.database)
    ending = asyncio.Event()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        async with opened(settings, ending) as routes:
            app = SecurityMiddleware(
                Starlette(routes=routes, exception_handlers={SQLAlchemyError: away})
            )
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
    """A server that prints when it is ready, and leaves signals to the bank, which has more to
    close.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        await super().startup(sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            print(f"ready http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


async def see_topics(client: Client) -> None:
    """Create the missing topics; wait until a broker can.

    Raises:
        BrokerRefused: The broker refuses.
    """
    while True:
        try:
            for topic in (TRANSFERS, ADVICES):
                await _see_topic(client, topic)
        except (ConfigError, TransportError) as error:
            log.warning("no broker can be reached yet: %s", error)
            await asyncio.sleep(AGAIN_S)
        else:
            return


async def _see_topic(client: Client, topic: str) -> None:
    try:
        await client.admin.route(topic)
    except TopicNotFound:
        await client.admin.create_topic(topic)  # With accounts, only an administrator may.


def redis_of(url: str) -> Redis:
    """A client of a Redis; it connects at its first use.

    Raises:
        ConfigError: The URL is not one of a Redis.
    """
    try:
        return Redis.from_url(url)
    except ValueError as error:
        raise ConfigError(
            "the URL is not one of a Redis; write one like redis://127.0.0.1:6379/0"
        ) from error


@asynccontextmanager
async def opened(settings: BankSettings, ending: asyncio.Event) -> AsyncIterator[list[BaseRoute]]:
    """The bank, while it is open; yields its routes."""
    async with AsyncExitStack() as opening:

        def engine(url: str) -> AsyncEngine:
            made = async_engine(url)
            opening.push_async_callback(made.dispose)
            return made

        writing, queries = engine(settings.database), Queries(engine(settings.database))
        client = await opening.enter_async_context(Client(settings.names))
        await see_topics(client)
        guard: SessionGuard[str, AsyncSession] = UniqueKeyTable(writing)
        if settings.redis:
            redis = await opening.enter_async_context(redis_of(settings.redis))
            guard = RedisGuard(redis, lease=LEASE_S).before(UniqueKeyTable(writing))
        links = "/transfers/" if settings.name == "icbc" else "/api/transfers/"
        teller = TellerPage(settings.name.upper(), writing, queries, links)
        routes: list[BaseRoute] = [*api_of(queries), *teller.routes(), static_files()]
        if settings.name == "ccb":
            await opening.enter_async_context(open_ccb(writing, client, guard=guard))
            routes.append(Route("/", RedirectResponse("/teller")))
        else:
            other = engine(settings.other_database) if settings.other_database else None
            steps = opening.enter_context(Steps(is_on=settings.watches_steps))
            bank = ICBC(writing, client, steps=steps, guard=guard, ccb=other)
            await opening.enter_async_context(bank)
            desk = await opening.enter_async_context(Desk(bank, queries))
            routes += [*paying_api_of(bank), *CustomerPages(desk, queries, ending).routes()]
        yield routes
