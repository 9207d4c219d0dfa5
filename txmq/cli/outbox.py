"""``txmq outbox``: shows the rows that wait for relays, retries them and puts them aside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from txmq.cli.commands import Answer, Commands, Listing, listed
from txmq.cli.common import WRONGLY_CALLED, Yes, confirm, fail, flag, option
from txmq.cli.output import body_fields, listing
from txmq.cli.schema import Database, OutboxName, SchemaName, open_database
from txmq.ops.moments import age_of
from txmq.ops.rows import ListColumn
from txmq.text import quantity

if TYPE_CHECKING:
    from txmq.outbox.operator_access import OutboxOperator

__all__ = ["app"]

app = Commands("Show rows that wait for relays; retry them or put them aside.")


class OutboxTable(NamedTuple):
    """The table, and its database."""

    database: Database
    outbox: OutboxName = "txmq_outbox"
    schema: SchemaName = None

    @contextmanager
    def operator(self) -> Iterator[OutboxOperator]:
        """Access to its rows inside this context; errors end the program.

        Raises:
            typer.Exit: The database cannot do it, or there is no row with this id.
        """
        with open_database(self.database) as engine:
            from txmq.outbox.operator_access import OutboxOperator
            from txmq.outbox.table import Outbox

            yield OutboxOperator(Outbox(self.outbox, self.schema), engine)


RowId = Annotated[int, typer.Argument(metavar="ID", min=1, help="The id of the row.")]


@app.command()
def status(
    *,
    table: OutboxTable,
) -> Answer:
    """Show the backlog of an outbox: waiting rows, blocked rows, and relays."""
    with table.operator() as operator:
        found = operator.summary()
    more = "+" if found.is_cut else ""
    fields = {
        "waiting": f"{found.waiting}{more}",
        "oldest": age_of(found.oldest_ms) if found.waiting else "none",
        "blocked": f"{quantity(found.blocked, 'row')}, {quantity(found.blocked_lanes, 'lane')}",
        "put aside": found.put_aside,
        "relays": f"{found.relays} alive in the last minute",
    }
    return Answer(found, lambda: listing(fields))


@app.command("list")
@listed(
    [
        ListColumn("row", "id"),
        "state",
        ListColumn("age", "age_ms", age_of),
        *("lane", "topic"),
        ListColumn("message", "message_id"),
        "problem",
    ],
    empty="no rows",
)
def list_(
    *,
    table: OutboxTable,
    failed: bool = flag("Only rows that no broker takes.", "--failed"),
    lane: str | None = option("Only rows of this lane."),
    after: int = option("Only rows with larger ids.", default=0, min=0),
    limit: int = option("The most rows.", default=100, min=1),
) -> Listing:
    """List the rows of an outbox, the oldest first."""
    with table.operator() as operator:
        rows = operator.waiting(after=after, limit=limit, failed_only=failed, lane=lane)
    more = f"there may be more rows; the next ones: --after {rows[-1].id}" if rows else ""
    return Listing(rows, [more] if len(rows) == limit else [])


@app.command()
def show(
    row: RowId,
    *,
    table: OutboxTable,
) -> Answer:
    """Show a row and its message."""
    with table.operator() as operator:
        found, message = operator.show(row)
    fields = asdict(found) | {
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        **body_fields(message.body),
    }
    shown = fields | {"age_ms": age_of(found.age_ms), "keys": " ".join(message.keys)}
    return Answer(fields, lambda: listing(shown))


@app.command()
def retry(
    rows: Annotated[list[int], typer.Argument(metavar="ID...", help="The ids of the rows.")],
    *,
    table: OutboxTable,
) -> Answer:
    """Let relays retry rows that were put aside.

    In its lane, a retried row comes after the rows that were sent without it. A blocked row needs
    no retry: a relay retries it once a minute.
    """
    with table.operator() as operator:
        changed = operator.retry(rows)
    text = f"relays try {quantity(changed, 'row')} again"
    return Answer({"rows": rows, "retried": changed}, text)


@app.command()
def skip(
    row: RowId,
    *,
    reason: str = option("Why; the row keeps it.", default=...),
    table: OutboxTable,
    yes: Yes = False,
) -> Answer:
    """Put a row aside, so that its lane continues without it; `txmq outbox retry` undoes it.

    A relay that waits for a blocked row notices this within a minute.
    """
    if not reason.strip():
        fail("--reason must not be empty", WRONGLY_CALLED)
    confirm(f"put row {row} of {table.outbox} aside? Later rows of its lane go first.", yes=yes)
    with table.operator() as operator:
        operator.skip(row, reason)
    text = f"row {row} is put aside; undo it with: txmq outbox retry {row}"
    return Answer({"row": row, "put_aside": True, "reason": reason}, text)
