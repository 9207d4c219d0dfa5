"""``txmq relay``: publishes the committed messages of an outbox, until it is stopped."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Final

from txmq.cli import logs
from txmq.cli.common import (
    NAMES_DEFAULT,
    Names,
    exit_on_errors,
    flag,
    host_and_port,
    option,
    stop_at_signals,
)
from txmq.cli.output import say, say_now
from txmq.cli.schema import Database, OutboxName, SchemaName, open_database
from txmq.client import Admin, Session
from txmq.errors import DatabaseFailed, TransportError
from txmq.metrics.http import METRICS_TYPE, HttpPage, HttpServer, health_pages
from txmq.ops.known_names import check_topic
from txmq.runtime.background import fast_loop
from txmq.text import quantity

if TYPE_CHECKING:
    from txmq.outbox.relay import Relay

__all__ = ["relay"]

COUNT_S: Final = 5.0
"""Shorter than Prometheus' default timeout of 10 s."""
LEASE_MAX_S: Final = 3_600.0


def relay(
    *,
    database: Database,
    outbox: OutboxName = "txmq_outbox",
    schema: SchemaName = None,
    group: str = option("The producer group that sends the messages.", default="txmq_relay"),
    on_poison: str = option(
        "What to do with a row whose message no broker accepts: its lane waits, or the "
        "row is put aside with the reason, or its message goes to another topic.",
        default="block",
        metavar="block|skip|dead_letter",
    ),
    dead_letter_topic: str = option("The topic for --on-poison dead_letter.", default=""),
    lease: float = option(
        "Lease in seconds. When it expires, another relay takes over the rows of a relay "
        "that died.",
        default=10.0,
        min=0.1,
        max=LEASE_MAX_S,
    ),
    http: str | None = option(
        "Where to serve /metrics, /health/live and /health/ready over HTTP.",
        "--http",
        "--metrics",
        metavar="HOST:PORT",
    ),
    names: Names = NAMES_DEFAULT,
    verbose: bool = flag("Log more than warnings.", "--verbose"),
) -> None:
    """Publish the committed messages of an outbox; several relays share the work.

    It prints a line that begins with "ready" when it has started. After SIGTERM it waits for the
    sends in flight, then ends.
    """
    logs.configure("text", "info" if verbose else "warning")
    where = host_and_port(http)
    with exit_on_errors(http=http), open_database(database) as engine:
        from txmq.outbox.relay import Relay
        from txmq.outbox.settings import RelaySettings
        from txmq.outbox.table import Outbox

        settings = RelaySettings(
            on_poison=on_poison,  # type: ignore[arg-type]  # which checks it itself
            dead_letter_topic=dead_letter_topic,
            group=group,
            lease=lease,
        )
        table = Outbox(outbox, schema)
        shown = engine.url.render_as_string(hide_password=True)

        async def run() -> None:
            await _check_dead_letter_topic(names, dead_letter_topic)
            working = Relay(engine, names, settings, outbox=table)
            await _run(working, f"ready {table.name} in {shown} names {names}", where)

        with asyncio.Runner(loop_factory=fast_loop()) as runner:
            runner.run(run())


async def _run(relay: Relay, line: str, http: tuple[str, int] | None) -> None:
    stopped = asyncio.Event()
    with stop_at_signals(stopped):
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(relay)
            if http is not None:
                pages = {
                    "/metrics": lambda: _page(relay),
                    **health_pages(lambda: _objection(relay)),
                }
                server = HttpServer(pages, *http)
                await stack.enter_async_context(server)
                line += " metrics http://{}:{}/metrics".format(*server.address)
            say_now(line)
            await stopped.wait()
    tally = relay.tally
    lost = quantity(tally.lost_leases, "lease")
    say(f"{tally.published} published, {tally.failed} failed, {lost} lost")


async def _check_dead_letter_topic(names: str, topic: str) -> None:
    # Otherwise a misspelt topic would show up only with the first message that no broker accepts.
    if topic:
        with suppress(TransportError):  # A relay waits for brokers that do not answer.
            async with Session(names) as session:
                await check_topic(Admin(session), topic, "the dead-letter topic")


async def _objection(relay: Relay) -> str:
    """Why the relay cannot read its outbox now; empty if it can."""
    try:
        async with asyncio.timeout(COUNT_S):
            await relay.waiting()
    except TimeoutError:
        return f"the database did not answer within {COUNT_S:g} s"
    except DatabaseFailed as error:
        return str(error)
    return ""


async def _page(relay: Relay) -> HttpPage:
    from txmq.outbox.metrics import exposition

    try:
        async with asyncio.timeout(COUNT_S):
            waiting = await relay.waiting()
    except (DatabaseFailed, TimeoutError):
        waiting = None  # The page still has the counters of this relay.
    return HttpPage(exposition(relay.tally, waiting), content_type=METRICS_TYPE)
