"""``txmq relay``: publishes what is committed to an outbox, until it is told to stop."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from txmq.background import fast_loop
from txmq.cli import logs
from txmq.cli.asking import NAMES_DEFAULT, WRONGLY_CALLED, Names, fail
from txmq.cli.figures import figures_at
from txmq.cli.known_names import check_topic
from txmq.cli.output import flush, say
from txmq.cli.schema import Database, told
from txmq.cli.stopping import at_signals
from txmq.client import Admin, Session
from txmq.errors import (
    DatabaseFailed,
    LimitExceeded,
    LocalProtocolError,
    TopicNotFound,
    TransportError,
)
from txmq.quantity import quantity

if TYPE_CHECKING:
    from txmq.outbox.relay import Relay
    from txmq.outbox.settings import RelaySettings
    from txmq.outbox.table import Outbox

__all__ = ["relay"]

COUNT_S: Final = 5.0
"""Who scrapes mostly waits for 10 s."""
PORT_MAX: Final = 65_535
LEASE_MAX_S: Final = 3_600.0


def relay(
    *,
    database: Database,
    outbox: Annotated[str, typer.Option("--outbox", help="The outbox table.")] = "txmq_outbox",
    schema: Annotated[
        str | None, typer.Option("--schema", help="Where it is, unless where sessions look first.")
    ] = None,
    group: Annotated[
        str, typer.Option("--group", help="The producer group that messages are sent by.")
    ] = "txmq_relay",
    on_poison: Annotated[
        str,
        typer.Option(
            metavar="block|skip|dead_letter",
            help="What becomes of a row whose message nobody takes: its lane waits, or it is put "
            "aside with the reason, or it goes to another topic.",
        ),
    ] = "block",
    dead_letter_topic: Annotated[
        str, typer.Option("--dead-letter-topic", help="The topic for --on-poison dead_letter.")
    ] = "",
    lease: Annotated[
        float,
        typer.Option(
            "--lease",
            min=0.1,
            max=LEASE_MAX_S,
            help="Seconds after which others do what a dead one did.",
        ),
    ] = 10.0,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="HOST:PORT", help="Where to show figures to Prometheus."),
    ] = None,
    names: Names = NAMES_DEFAULT,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log more than warnings.")] = False,
) -> None:
    """Publish what is committed to an outbox, and share the work with others that do.

    It says "ready" in a line of its own. SIGTERM ends it once what is on its way has arrived.
    """
    logs.configure("text", "info" if verbose else "warning")
    with told():
        from txmq.databases.engines import engine_of
        from txmq.outbox.settings import RelaySettings
        from txmq.outbox.table import Outbox

        settings = RelaySettings(
            on_poison=on_poison,  # type: ignore[arg-type]  # which it looks at itself
            dead_letter_topic=dead_letter_topic,
            group=group,
            lease_s=lease,
        )
        engine = engine_of(database)
        where = None if metrics is None else _address(metrics)
        plan = Plan(engine, Outbox(outbox, schema), names, settings, where)
        try:
            with asyncio.Runner(loop_factory=fast_loop()) as runner:
                runner.run(_run(plan))
        except (LocalProtocolError, LimitExceeded) as error:
            fail(str(error), WRONGLY_CALLED)
        except TopicNotFound as error:
            fail(str(error))
        except OSError as error:
            fail(f"no figures can be shown at {metrics}: {error}")
        finally:
            engine.dispose()


class Plan(NamedTuple):
    """What was asked for."""

    engine: Any
    outbox: Outbox
    names: str
    settings: RelaySettings
    metrics: tuple[str, int] | None


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > PORT_MAX:
        fail(f"{text!r} is no address; write host:port, as in 127.0.0.1:9400", WRONGLY_CALLED)
    return host.strip("[]"), int(port)


async def _run(plan: Plan) -> None:
    from txmq.outbox.relay import Relay

    await _check_dead_letter_topic(plan)
    stopped = asyncio.Event()
    with at_signals(stopped):
        async with AsyncExitStack() as stack:
            working = Relay(plan.engine, plan.names, plan.settings, outbox=plan.outbox)
            await stack.enter_async_context(working)
            shown = plan.engine.url.render_as_string(hide_password=True)
            line = f"ready {plan.outbox.name} in {shown} names {plan.names}"
            if plan.metrics is not None:
                host, port = await stack.enter_async_context(
                    figures_at(*plan.metrics, lambda: _page(working))
                )
                line += f" metrics http://{host}:{port}/metrics"
            say(line)
            flush()
            await stopped.wait()
    tally = working.tally
    lost = quantity(tally.lost_leases, "lease")
    say(f"{tally.published} published, {tally.failed} failed, {lost} lost")


async def _check_dead_letter_topic(plan: Plan) -> None:
    # A misspelt one would be noticed with the first message that no broker takes.
    if not plan.settings.dead_letter_topic:
        return
    with suppress(TransportError):  # A relay waits for brokers that are away.
        async with Session(plan.names) as session:
            name = plan.settings.dead_letter_topic
            await check_topic(Admin(session), name, "the dead-letter topic")


async def _page(relay: Relay) -> str:
    from txmq.outbox.metrics import exposition

    try:
        async with asyncio.timeout(COUNT_S):
            waiting = await relay.waiting()
    except (DatabaseFailed, TimeoutError):
        waiting = None  # What is known is told all the same.
    return exposition(relay.tally, waiting)
