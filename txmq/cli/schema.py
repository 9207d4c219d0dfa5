"""``txmq schema``: txmq's tables in the database of an application."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Annotated, Any, Final, cast

import typer

from txmq.cli.commands import Commands
from txmq.cli.common import duration_of, exit_on_errors, fail, option
from txmq.cli.output import say, say_lines
from txmq.text import quantity

__all__ = [
    "Database",
    "FenceName",
    "OutboxName",
    "SchemaName",
    "app",
    "database_errors",
    "open_database",
]

app = Commands("Create and clean the tables that txmq needs in a database.")

_EXTRA: Final = {"sqlalchemy", "psycopg", "prometheus_client"}

Database = Annotated[
    str,
    typer.Option(envvar="TXMQ_DATABASE", help="The database, such as postgresql://user@host/bank."),
]
FenceName = Annotated[str, typer.Option("--fence", help="The fence table.")]
DoneName = Annotated[str, typer.Option("--done", help="The table of finished work.")]
OutboxName = Annotated[str, typer.Option("--outbox", help="The outbox table.")]
SchemaName = Annotated[
    str | None,
    typer.Option("--schema", help="Its schema; by default the first in the search path."),
]


class TableKind(Enum):
    """The kinds of tables."""

    FENCE = "fence"
    DONE = "done"
    OUTBOX = "outbox"


Choice = Annotated[
    list[TableKind] | None,
    typer.Argument(
        help="fence, for producers of transactions (the default); done, for idempotent consumers; "
        "outbox, for messages that a relay sends.",
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
    """Create the missing tables, and check that all are usable."""
    with open_database(database) as engine:
        from txmq.idempotent.unique_key import create_done
        from txmq.outbox.table import create_outbox
        from txmq.transaction.resources.schema import create_fence

        creators = {
            TableKind.FENCE: (create_fence, fence),
            TableKind.DONE: (create_done, done),
            TableKind.OUTBOX: (create_outbox, outbox),
        }
        shown = engine.url.render_as_string(hide_password=True)
        for create_table, name in [creators[kind] for kind in tables or [TableKind.FENCE]]:
            is_new = create_table(engine, name, schema)
            named = f"{schema}.{name}" if schema else name
            say(f"{named} {'is created' if is_new else 'exists'} in {shown}, and can be used")


@app.command()
def sql(
    tables: Choice = None,
    *,
    dialect: str = option("The kind of database.", default=..., metavar="postgresql|mysql|sqlite"),
    fence: FenceName = "txmq_fence",
    done: DoneName = "txmq_done",
    outbox: OutboxName = "txmq_outbox",
    schema: SchemaName = None,
) -> None:
    """Print the statements that create the tables, for your own migration."""
    with database_errors():
        from txmq.idempotent.unique_key import DoneTable
        from txmq.outbox.table import Outbox
        from txmq.transaction.resources.fence import Fence

        statements_of = {
            TableKind.FENCE: Fence(fence, schema).ddl,
            TableKind.DONE: DoneTable(done, schema).ddl,
            TableKind.OUTBOX: Outbox(outbox, schema).ddl,
        }
        for kind in tables or [TableKind.FENCE]:
            for statement in statements_of[kind](dialect):
                say_lines(f"{statement};\n")


@app.command()
def clean(
    *,
    database: Database,
    older_than: str = option(
        "Remove rows that are older than this, such as 7d or 120h.", default=...
    ),
    horizon: str | None = option("How long a message can be delivered again; 101h by default."),
    done: DoneName = "txmq_done",
    schema: SchemaName = None,
) -> None:
    """Remove old rows of finished work; run it from a timer, once a day."""
    older_s = duration_of(older_than, "--older-than")
    least_s = None if horizon is None else duration_of(horizon, "--horizon")
    with open_database(database) as engine:
        from txmq.idempotent import UniqueKeyTable

        guard = UniqueKeyTable(engine, table=done, schema=schema)
        # Only a guard with an asyncio engine returns a coroutine.
        removed = cast("int", guard.clean(older_s, horizon=least_s))
        say(f"{quantity(removed, 'row')} removed from {done}")


@contextmanager
def open_database(url: str) -> Iterator[Any]:
    """Connect to a database inside this context; its errors end the program.

    Raises:
        typer.Exit: The database cannot do it.
    """
    with database_errors():
        from txmq.databases.engines import engine_of

        engine = engine_of(url)
        try:
            yield engine
        finally:
            engine.dispose()


@contextmanager
def database_errors() -> Iterator[None]:
    """Print an error of a database in one line, and end the program.

    Raises:
        typer.Exit: The database cannot do it.
    """
    try:
        with exit_on_errors():
            yield
    except ModuleNotFoundError as error:
        # A broker runs without these packages.
        if error.name not in _EXTRA:
            raise
        fail(f"this command needs {error.name}: pip install 'txmq[sql]'")
