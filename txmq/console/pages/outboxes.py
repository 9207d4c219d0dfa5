"""Outboxes of databases: how far behind they are, and single rows retried and put aside."""

from __future__ import annotations

import logging
from typing import Any, Final

from txmq.console.body_view import body_view
from txmq.console.forms import required
from txmq.console.markup import link, url_of
from txmq.console.visits import (
    ChangeDone,
    ChangeForm,
    ChangeRoute,
    PageContent,
    PageRoute,
    Visit,
    require_operator,
)
from txmq.errors import TxmqError, UsageError
from txmq.limits import CONSOLE_ROWS, REASON_CHARS_MAX
from txmq.ops.queries import for_each, sentence_of
from txmq.text import printable

__all__ = ["CHANGES", "PAGES"]

log = logging.getLogger(__name__)

_ID_DIGITS_MAX: Final = 18


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

    values = {"title": "Outboxes", "rows": await for_each(visit.outboxes.names, row)}
    return PageContent("outboxes.html", values)


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
    has_more = len(rows) > CONSOLE_ROWS
    rows = rows[:CONSOLE_ROWS]
    fields = {"name": name, "lane": lane, "failed": failed}
    values = {
        "title": "Rows of an outbox",
        "name": name,
        "lane": lane,
        "failed": failed,
        "after": after,
        "rows": rows,
        "next": link("/outbox/rows", **fields, after=rows[-1].id) if has_more else "",
        "first": link("/outbox/rows", **fields),
    }
    return PageContent("outbox_rows.html", values)


async def show_row(visit: Visit) -> PageContent:
    """Show one row with its message, and the forms that change it."""
    await require_operator(visit)
    name, row_id = visit.required("name"), _id_in(visit.required("id"))
    row, message = await visit.outboxes.ask(name, lambda outbox: outbox.show(row_id))
    values = {
        "title": "Row of an outbox",
        "name": name,
        "row": row,
        "message": message,
        "body": body_view(message.body, visit.text("as")),
        "body_link": {
            form: link("/outbox/row", name=name, id=row_id, **{"as": form})
            for form in ("json", "text", "hex")
        },
        "reason_max": REASON_CHARS_MAX,
    }
    return PageContent("outbox_row.html", values)


async def retry(form: ChangeForm) -> ChangeDone:
    """Have relays try a row again that was put aside."""
    visit = form.visit
    await require_operator(visit)
    name, row_id = visit.required("name"), _id_in(visit.required("id"))
    await visit.outboxes.ask(name, lambda outbox: outbox.retry([row_id]))
    person = visit.session.person
    log.warning("%s has relays retry row %d of outbox %s", printable(person), row_id, name)
    to = url_of("/outbox/rows", name=name)
    return ChangeDone(to, f"relays try row {row_id} of {name} again")


async def skip(form: ChangeForm) -> ChangeDone:
    """Put a row aside; the row keeps the person and the reason."""
    visit = form.visit
    await require_operator(visit)
    name, row_id = visit.required("name"), _id_in(visit.required("id"))
    reason = required(form.fields, "reason", "the reason")
    if len(reason) > REASON_CHARS_MAX:
        raise UsageError(f"the reason has at most {REASON_CHARS_MAX} characters")
    person = visit.session.person
    await visit.outboxes.ask(name, lambda outbox: outbox.skip(row_id, f"{person}: {reason}"))
    said = printable(f"{person} put row {row_id} of outbox {name} aside: {reason}")
    log.warning("%s", said)
    return ChangeDone(
        url_of("/outbox/row", name=name, id=row_id),
        f"row {row_id} of {name} is put aside; later rows of its lane go first",
    )


def _id_in(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > _ID_DIGITS_MAX:
        raise UsageError(f"{text[:40]!r} is not the id of a row, which is a number")
    return int(text)


PAGES: Final = (
    PageRoute("/outbox", show_list),
    PageRoute("/outbox/rows", show_rows),
    PageRoute("/outbox/row", show_row),
)
CHANGES: Final = (
    ChangeRoute("/outbox/retry", retry, show_row),
    ChangeRoute("/outbox/skip", skip, show_row),
)
