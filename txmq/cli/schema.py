"""``txmq schema``: the tables that txmq needs in an application's database."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Annotated, Final

import typer

from txmq.cli.asking import WRONGLY_CALLED, fail
from txmq.cli.output import say, say_lines
from txmq.config import parse_duration
from txmq.errors import ConfigError, ResourceError
from txmq.quantity import quantity

__all__ = ["Database", "FenceName", "OutboxName", "SchemaName", "app", "told"]

app = typer.Typer(
    no_args_is_help=True, help="The tables that txmq needs in a database: make them, clean them."
)

_EXTRA: Final = {"sqlalchemy", "psycopg", "prometheus_client"}

Database = Annotated[
    str,
    typer.Option(envvar="TXMQ_DATABASE", help="The database, such as postgresql://user@host/bank."),
]
FenceName = Annotated[str, typer.Option("--fence", help="The fence table.")]
DoneName = Annotated[str, typer.Option("--done", help="The table of what is done.")]
OutboxName = Annotated[str, typer.Option("--outbox", help="The outbox table.")]
SchemaName = Annotated[
    str | None, typer.Option("--schema", help="Where it is, unless where sessions look first.")
]


class Wanted(Enum):
    """What a database is to have."""

    FENCE = "fence"
    DONE = "done"
    OUTBOX = "outbox"


Choice = Annotated[
    list[Wanted] | None,
    typer.Argument(
        help="fence, for whoever sends in transactions (the default); done, for idempotent "
        "consumers; outbox, for messages that a relay sends.",
        show_default=False,
    ),
]


@app.command()
def create(
    tables: Choice = None,
    *,
    database: Database,
    fence: FenceName = "txmq_fence",
    done: DoneName = "txmq_done",
    outbox: OutboxName = "txmq_outbox",
    schema: SchemaName = None,
) -> None:
    """Make the tables where they are missing, and see that they can be used."""
    with told():
        from txmq.databases.engines import engine_of
        from txmq.idempotent.schema import create_done
        from txmq.outbox.schema import create_outbox
        from txmq.transaction.resources.schema import create_fence

        makers = {
            Wanted.FENCE: (create_fence, fence),
            Wanted.DONE: (create_done, done),
            Wanted.OUTBOX: (create_outbox, outbox),
        }
        engine = engine_of(database)
        shown = engine.url.render_as_string(hide_password=True)
        try:
            for make, name in [makers[wanted] for wanted in tables or [Wanted.FENCE]]:
                is_new = make(engine, name, schema)
                named = f"{schema}.{name}" if schema else name
                say(f"{named} {'is made' if is_new else 'was there'} in {shown}, and can be used")
        finally:
            engine.dispose()


@app.command()
def sql(
    tables: Choice = None,
    *,
    dialect: Annotated[str, typer.Option(metavar="postgresql|mysql|sqlite")],
    fence: FenceName = "txmq_fence",
    done: DoneName = "txmq_done",
    outbox: OutboxName = "txmq_outbox",
    schema: SchemaName = None,
) -> None:
    """Print the statements that make the tables, for a migration of your own."""
    with told():
        from txmq.idempotent.done import Done
        from txmq.outbox.table import Outbox
        from txmq.transaction.resources.fence import Fence

        made = {
            Wanted.FENCE: Fence(fence, schema).ddl,
            Wanted.DONE: Done(done, schema).ddl,
            Wanted.OUTBOX: Outbox(outbox, schema).ddl,
        }
        for wanted in tables or [Wanted.FENCE]:
            for statement in made[wanted](dialect):
                say_lines(f"{statement};\n")


@app.command()
def clean(
    *,
    database: Database,
    older_than: Annotated[
        str, typer.Option(help="How old what goes has to be, such as 7d or 120h.")
    ],
    horizon: Annotated[
        str | None,
        typer.Option(help="How long a message can come again; 101h unless you know better."),
    ] = None,
    done: DoneName = "txmq_done",
    schema: SchemaName = None,
) -> None:
    """Remove the rows of what was done long ago; for a timer, once a day."""
    with told():
        from txmq.databases.engines import engine_of
        from txmq.idempotent import UniqueKeyTable

        older_s, least_s = _seconds(older_than), None if horizon is None else _seconds(horizon)
        engine = engine_of(database)
        try:
            guard = UniqueKeyTable(engine, table=done, schema=schema)
            removed = asyncio.run(guard.clean(older_s, horizon_s=least_s))
        finally:
            engine.dispose()
        say(f"{quantity(removed, 'row is', 'rows are')} gone from {done}")


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not {error}") from None


@contextmanager
def told() -> Iterator[None]:
    """Say in one line why something cannot be done with a database.

    Raises:
        typer.Exit: It cannot.
    """
    try:
        yield
    except ConfigError as error:
        fail(str(error), WRONGLY_CALLED)
    except ResourceError as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        # Whoever runs a broker has no need of a database.
        if error.name not in _EXTRA:
            raise
        fail(f"this command needs {error.name}: pip install 'txmq[sql]'")
