"""Outboxes of databases: how far behind they are, and single rows retried or put aside."""

from __future__ import annotations

import logging
from typing import Any, Final

from txmq.console.markup import link, url_of
from txmq.console.pages.parts import body_values, require_operator
from txmq.console.visits import ChangeDone, PageContent, Routes, Visit, render
from txmq.errors import TxmqError, UsageError
from txmq.limits import CONSOLE_ROWS
from txmq.ops.queries import for_each, sentence_of
from txmq.text import printable

__all__ = ["routes"]

routes = Routes()

log = logging.getLogger(__name__)

_ID_DIGITS_MAX: Final = 18


@routes.page("/outbox")
async def show_list(visit: Visit) -> PageContent:
    """Show all outboxes with their lag."""
    await require_operator(visit)

    async def row(name: str) -> dict[str, Any]:
        found: dict[str, Any] = {"name": name, "where": visit.outboxes.address_of(name)}
        try:
            summary = await visit.outboxes.ask(name, lambda outbox: outbox.summary())
        except TxmqError as error:
            return found | {"problem": sentence_of(error), "summary": None}
        return found | {"problem": "", "summary": summary}

    rows = await for_each(visit.outboxes.names, row)
    return render("outboxes.html", title="Outboxes", rows=rows)


@routes.page("/outbox/rows")
async def show_rows(visit: Visit) -> PageContent:
    """Show the rows of an outbox, the oldest first."""
    await require_operator(visit)
    name, lane, failed = visit.required("name"), visit.text("lane"), visit.text("failed")
    after = _id_in(visit.text("after") or "0")
    rows = await visit.outboxes.ask(
        name,
        lambda outbox: outbox.waiting(
            after=after, limit=CONSOLE_ROWS + 1, failed_only=bool(failed), lane=lane or None
        ),
    )
    shown = rows[:CONSOLE_ROWS]
    fields = {"name": name, "lane": lane, "failed": failed}
    return render(
        "outbox_rows.html",
        title="Rows of an outbox",
        **fields,
        after=after,
        rows=shown,
        next=link("/outbox/rows", **fields, after=shown[-1].id) if len(rows) > len(shown) else "",
        first=link("/outbox/rows", **fields),
    )


@routes.page("/outbox/row")
async def show_row(visit: Visit) -> PageContent:
    """Show one row with its message, and the forms that change it."""
    await require_operator(visit)
    name, row_id = visit.required("name"), _id_in(visit.required("id"))
    row, message = await visit.outboxes.ask(name, lambda outbox: outbox.show(row_id))
    return render(
        "outbox_row.html",
        title="Row of an outbox",
        name=name,
        row=row,
        message=message,
        **body_values(visit, message.body, "/outbox/row", name=name, id=row_id),
    )


@routes.change("/outbox/retry", show_row)
async def retry(visit: Visit) -> ChangeDone:
    """Make relays retry a row that was put aside."""
    await require_operator(visit)
    name, row_id = visit.required("name"), _id_in(visit.required("id"))
    await visit.outboxes.ask(name, lambda outbox: outbox.retry([row_id]))
    log.warning("%s has relays retry row %d of outbox %s", printable(visit.person), row_id, name)
    notice = f"relays try row {row_id} of {name} again"
    return ChangeDone(url_of("/outbox/rows", name=name), notice)


@routes.change("/outbox/skip", show_row)
async def skip(visit: Visit) -> ChangeDone:
    """Put a row aside; the row keeps the person and the reason."""
    await require_operator(visit)
    name, row_id = visit.required("name"), _id_in(visit.required("id"))
    reason, person = visit.reason(), visit.person
    await visit.outboxes.ask(name, lambda outbox: outbox.skip(row_id, f"{person}: {reason}"))
    said = printable(f"{person} put row {row_id} of outbox {name} aside: {reason}")
    log.warning("%s", said)
    notice = f"row {row_id} of {name} is put aside; later rows of its lane go first"
    return ChangeDone(url_of("/outbox/row", name=name, id=row_id), notice)


def _id_in(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > _ID_DIGITS_MAX:
        raise UsageError(f"{text[:40]!r} is not the id of a row, which is a number")
    return int(text)
