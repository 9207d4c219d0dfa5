"""``txmq outbox``: the rows that wait for relays, shown, retried and put aside."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txmq.cli.common import WRONGLY_CALLED, AsJson, Yes, confirm, fail
from txmq.cli.lists import Listing, listed
from txmq.cli.output import as_json, listing, print_result
from txmq.cli.schema import Database, OutboxName, SchemaName, database_errors
from txmq.errors import NotFound
from txmq.ops.moments import age_of
from txmq.ops.rows import ListColumn
from txmq.text import quantity

if TYPE_CHECKING:
    from txmq.message import Message
    from txmq.outbox.operator_access import OutboxOperator

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True, help="Show rows that wait for relays; retry them or put them aside."
)

RowId = Annotated[int, typer.Argument(metavar="ID", min=1, help="The id of the row.")]


@app.command()
def status(
    *,
    database: Database,
    outbox: OutboxName = "txmq_outbox",
    schema: SchemaName = None,
    json: AsJson = False,
) -> None:
    """Show how far behind an outbox is: rows that wait, blocked ones, and relays."""
    with _operator(database, outbox, schema) as operator:
        found = operator.summary()
    if json:
        as_json(found)
        return
    more = "+" if found.is_cut else ""
    listing(
        {
            "waiting": f"{found.waiting}{more}",
            "oldest": age_of(found.oldest_ms) if found.waiting else "none",
            "blocked": f"{quantity(found.blocked, 'row')}, {quantity(found.blocked_lanes, 'lane')}",
            "put aside": found.put_aside,
            "relays": f"{found.relays} alive in the last minute",
        }
    )


@app.command("list")
@listed(
    [
        ListColumn("row", "id"),
        ListColumn("state", "state"),
        ListColumn("age", "age_ms", age_of),
        ListColumn("lane", "lane"),
        ListColumn("topic", "topic"),
        ListColumn("message", "message_id"),
        ListColumn("problem", "problem"),
    ],
    empty="no rows",
)
def list_(
    *,
    database: Database,
    outbox: OutboxName = "txmq_outbox",
    schema: SchemaName = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only rows that no broker takes.")
    ] = False,
    lane: Annotated[str | None, typer.Option(help="Only rows of this lane.")] = None,
    after: Annotated[int, typer.Option(min=0, help="Only rows with larger ids.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="The most rows.")] = 100,
) -> Listing:
    """List the rows of an outbox, the oldest first."""
    with _operator(database, outbox, schema) as operator:
        rows = operator.waiting(after=after, limit=limit, failed_only=failed, lane=lane)
    more = f"there may be more rows; the next ones: --after {rows[-1].id}" if rows else ""
    return Listing(rows, [more] if len(rows) == limit else [])


@app.command()
def show(
    row: RowId,
    *,
    database: Database,
    outbox: OutboxName = "txmq_outbox",
    schema: SchemaName = None,
    json: AsJson = False,
) -> None:
    """Show a row and its message."""
    with _operator(database, outbox, schema) as operator:
        found, message = operator.show(row)
    fields = asdict(found) | _message_fields(message)
    if json:
        as_json(fields)
    else:
        listing(fields | {"age_ms": age_of(found.age_ms), "keys": " ".join(message.keys)})


@app.command()
def retry(
    rows: Annotated[list[int], typer.Argument(metavar="ID...", help="The ids of the rows.")],
    *,
    database: Database,
    outbox: OutboxName = "txmq_outbox",
    schema: SchemaName = None,
    json: AsJson = False,
) -> None:
    """Have relays try rows again that were put aside.

    In its lane such a row follows the rows that continued without it. A blocked row needs no retry:
    a relay tries it once a minute.
    """
    with _operator(database, outbox, schema) as operator:
        changed = operator.retry(rows)
    text = f"relays try {quantity(changed, 'row')} again"
    print_result({"rows": rows, "retried": changed}, text, json=json)


@app.command()
def skip(
    row: RowId,
    *,
    reason: Annotated[str, typer.Option(help="Why; the row keeps it.")],
    database: Database,
    outbox: OutboxName = "txmq_outbox",
    schema: SchemaName = None,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Put a row aside, so that its lane continues without it; `txmq outbox retry` undoes it.

    A relay that waits for a blocked row follows within a minute.
    """
    if not reason.strip():
        fail("--reason must not be empty", WRONGLY_CALLED)
    confirm(f"put row {row} of {outbox} aside? Later rows of its lane go first.", yes=yes)
    with _operator(database, outbox, schema) as operator:
        operator.skip(row, reason)
    text = f"row {row} is put aside; undo it with: txmq outbox retry {row}"
    print_result({"row": row, "put_aside": True, "reason": reason}, text, json=json)


@contextmanager
def _operator(database: str, outbox: str, schema: str | None) -> Iterator[OutboxOperator]:
    with database_errors():
        from txmq.databases.engines import engine_of
        from txmq.outbox.operator_access import OutboxOperator
        from txmq.outbox.table import Outbox

        engine = engine_of(database)
        try:
            yield OutboxOperator(Outbox(outbox, schema), engine)
        except NotFound as error:
            fail(str(error))
        finally:
            engine.dispose()


def _message_fields(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
    }
    try:
        fields["body"] = message.body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(message.body).decode()
    return fields
