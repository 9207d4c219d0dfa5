"""Delayed messages: listed by level and time, and recalled one by one."""

from __future__ import annotations

from typing import Final

from txmq.console.markup import link, url_of
from txmq.console.pages.parts import ChangePreview, choose_broker
from txmq.console.visits import ChangeDone, PageContent, Routes, Visit, render
from txmq.errors import RequestNotSupported, UsageError
from txmq.limits import CONSOLE_ROWS
from txmq.ops.moments import age_of, time_text
from txmq.ops.rows import delayed_row
from txmq.protocol import recall
from txmq.protocol.operations import DelayedPage

__all__ = ["routes"]

routes = Routes()

_OWN_TIME: Final = "own"


@routes.page("/delayed")
async def show_list(visit: Visit) -> PageContent:
    """Show the delayed messages at a broker, the next one due first."""
    choice = await choose_broker(visit)
    level, after = visit.text("level"), visit.text("after")
    is_supported = True
    page = DelayedPage([], [], 0)
    try:
        page = await visit.admin.delayed(
            choice.name,
            level=_level(level),
            from_ms=visit.moment_in("from"),
            limit=CONSOLE_ROWS,
            after=after,
        )
    except RequestNotSupported:
        is_supported = False
    address = {"broker": visit.text("broker"), "level": level, "from": visit.text("from")}
    levels = [entry for entry in page.levels if entry.waiting]
    return render(
        "delayed.html",
        title="Delayed",
        choice=choice,
        typed=address,
        is_supported=is_supported,
        waiting=page.waiting,
        levels=levels,
        all_levels=page.levels,
        own=page.waiting - sum(entry.waiting for entry in levels),
        rows=[
            delayed_row(choice.name, entry) | {"in": _wait(entry.due_ms - visit.now_ms)}
            for entry in page.messages
        ],
        later=link("/delayed", **address, after=page.next) if page.next else "",
        first=link("/delayed", **address) if after else "",
        is_filtered=bool(level or visit.text("from") or after),
    )


def _wait(wait_ms: int) -> str:
    return f"in {age_of(wait_ms)}" if wait_ms > 0 else "now"


@routes.page("/delayed/recall")
async def show_recall(visit: Visit) -> PageContent:
    """Show which message a recall stops."""
    handle = recall.decode(visit.required("handle"))
    return ChangePreview(
        title="Recall a message",
        eyebrow=f"Delayed message of {handle.topic}",
        sentences=(
            f"No consumer of {handle.topic} ever receives this message.",
            "A recall cannot be undone.",
            "If its producer repeated it, all messages with this id are recalled.",
        ),
        facts={
            "topic": handle.topic,
            "id": handle.message_id,
            "due": time_text(handle.due_ms),
            "broker": handle.broker,
        },
        action=link("/delayed/recall", handle=visit.required("handle")),
        button="Recall",
        back=link("/delayed", broker=handle.broker),
        wants_reason=True,
        repeated=handle.topic,
        repeated_name="topic",
        is_bad=True,
    ).content()


@routes.change("/delayed/recall", show_recall)
async def recall_one(visit: Visit) -> ChangeDone:
    """Recall a delayed message."""
    text = visit.required("handle")
    handle = recall.decode(text)
    reason = visit.reason()
    visit.check_repeated("topic", handle.topic)
    message_id = await visit.admin.recall_delayed(
        handle.topic, text, operator=visit.person, reason=reason
    )
    notice = f"message {message_id} of {handle.topic} is recalled, by {visit.person}"
    return ChangeDone(url_of("/delayed", broker=handle.broker), notice)


def _level(text: str) -> int | None:
    if not text:
        return None
    if text == _OWN_TIME:
        return 0
    if not text.isdecimal() or len(text) > 3:
        raise UsageError(f"a delay level is a number from 1 on, or {_OWN_TIME!r}, not {text!r}")
    return int(text)
