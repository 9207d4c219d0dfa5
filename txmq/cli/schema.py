"""``txmq schema``: the tables that txmq needs in an application's database."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from txmq.cli.asking import WRONGLY_CALLED, fail
from txmq.cli.output import say
from txmq.errors import ConfigError, ResourceError

__all__ = ["Database", "FenceName", "SchemaName", "app", "told"]

app = typer.Typer(
    no_args_is_help=True, help="Make the tables that transactions need in a database."
)

_EXTRA: Final = {"sqlalchemy", "psycopg"}

Database = Annotated[
    str,
    typer.Option(envvar="TXMQ_DATABASE", help="The database, such as postgresql://user@host/bank."),
]
FenceName = Annotated[str, typer.Option("--fence", help="The fence table.")]
SchemaName = Annotated[
    str | None, typer.Option("--schema", help="Where it is, unless where sessions look first.")
]


@app.command()
def create(
    *,
    database: Database,
    fence: FenceName = "txmq_fence",
    schema: SchemaName = None,
) -> None:
    """Make the fence where it is missing, and see that it can be used."""
    with told():
        from txmq.databases.engines import engine_of
        from txmq.transaction.resources.schema import create_fence

        engine = engine_of(database)
        try:
            is_new = create_fence(engine, fence, schema)
        finally:
            engine.dispose()
        named = f"{schema}.{fence}" if schema else fence
        shown = engine.url.render_as_string(hide_password=True)
        say(f"{named} {'is made' if is_new else 'was there'} in {shown}, and can be used")


@app.command()
def sql(
    *,
    dialect: Annotated[str, typer.Option(metavar="postgresql|mysql|sqlite")],
    fence: FenceName = "txmq_fence",
    schema: SchemaName = None,
) -> None:
    """Print the statements that make the fence, for a migration of your own."""
    with told():
        from txmq.transaction.resources.fence import Fence

        for statement in Fence(fence, schema).ddl(dialect):
            say(f"{statement};\n")


@contextmanager
def told() -> Iterator[None]:
    """Say in one line why something cannot be done with a database.

    Raises:
        typer.Exit: It cannot.
    """
    try:
        yield
    except ConfigError as problem:
        fail(str(problem), WRONGLY_CALLED)
    except ResourceError as problem:
        fail(str(problem))
    except ModuleNotFoundError as problem:
        # Whoever runs a broker has no need of a database.
        if problem.name not in _EXTRA:
            raise
        fail(f"this command needs {problem.name}: pip install 'txmq[sql]'")
