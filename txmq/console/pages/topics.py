"""Topics: listed, created, shown with their queues, and tried with a message."""

from __future__ import annotations

from typing import Any, Final

from txmq.client import Admin
from txmq.console.forms import required
from txmq.console.markup import url_of
from txmq.console.pages.lists import row_page
from txmq.console.visits import ChangeDone, ChangeForm, ChangeRoute, PageContent, PageRoute, Visit
from txmq.errors import TxmqError, UsageError
from txmq.limits import QUEUES_OF_NEW_TOPICS
from txmq.message import Message
from txmq.ops.topics import check_new_topic, own_topics
from txmq.text import quantity

__all__ = ["CHANGES", "PAGES"]

QUEUES_MAX: Final = 1_000
"""Queues at one broker that a form may ask for; more is a slip of the keyboard."""
_FIGURES: Final = ("lag", "in_s", "out_s", "messages", "queues", "brokers", "updated")


async def show_list(visit: Visit) -> PageContent:
    """Show topics with their queues and messages."""
    brokers = await visit.admin.cluster()
    everything = bool(visit.text("all"))
    names = await visit.admin.topics()
    if not everything:
        names = own_topics(names, brokers)
    page, order = await row_page(
        visit, "/topics", names, lambda name: _row(visit.admin, name), _FIGURES
    )
    values = {
        "title": "Topics",
        "page": page,
        "order": order._replace(fields={**order.fields, "all": visit.text("all")}),
        "everything": everything,
        "now_ms": visit.clock.wall_ms(),
        "queues_default": QUEUES_OF_NEW_TOPICS,
        "queues_max": QUEUES_MAX,
    }
    return PageContent("topics.html", values)


async def _row(admin: Admin, name: str) -> dict[str, Any]:
    try:
        queues = await admin.topic_status(name)
    except TxmqError as error:
        return {"name": name, "problem": str(error).strip()}
    row: dict[str, Any] = {
        "name": name,
        "problem": "",
        "queues": len(queues),
        "brokers": len({queue.queue.broker for queue in queues}),
        "messages": sum(queue.max_offset - queue.min_offset for queue in queues),
        "updated": max((queue.updated_ms for queue in queues), default=0) or None,
        "in_s": None,
        "out_s": None,
        "lag": None,
        "group": "",
    }
    try:
        traffic = await admin.traffic(name)
    except TxmqError:
        return row  # An account may see the topic, but not its groups.
    row["in_s"] = traffic[0].in_per_second
    groups = [group for group in traffic if group.group]
    if groups:
        last = max(groups, key=lambda group: group.lag)
        row["out_s"] = sum(group.out_per_second for group in groups)
        row["lag"], row["group"] = last.lag, last.group
    return row


async def show_one(visit: Visit) -> PageContent:
    """Show one topic: its queues, its groups, and a form that sends a message."""
    name = visit.required("name")
    queues = await visit.admin.topic_status(name)
    values = {
        "title": "Topic",
        "name": name,
        "queues": queues,
        "messages": sum(queue.max_offset - queue.min_offset for queue in queues),
        "groups": await visit.admin.topic_groups(name),
        "now_ms": visit.clock.wall_ms(),
    }
    return PageContent("topic.html", values)


async def create(form: ChangeForm) -> ChangeDone:
    """Create a topic."""
    name = required(form.fields, "name", "the name of the topic")
    text = required(form.fields, "queues", "the number of queues")
    queues = int(text) if text.isdecimal() and len(text) < 6 else 0
    if not 1 <= queues <= QUEUES_MAX:
        raise UsageError(f"a topic has 1 to {QUEUES_MAX} queues at each broker, not {text!r}")
    admin, cluster = form.visit.admin, form.visit.settings.cluster
    await check_new_topic(admin, name, queues, None, cluster)
    route = await admin.create_topic(name, queues, cluster=cluster)
    at = ", ".join(route.brokers)
    return ChangeDone(
        url_of("/topic", name=name),
        f"topic {name} has {quantity(queues, 'queue')} at each of {at}",
    )


async def send(form: ChangeForm) -> ChangeDone:
    """Send a message by hand."""
    name = form.visit.required("name")
    key = form.fields.get("key", "").strip()
    message = Message(
        topic=name,
        # Browsers send each line break of a form as two characters.
        body=form.fields.get("body", "").replace("\r\n", "\n").encode(),
        tags=form.fields.get("tag", "").strip(),
        keys=(key,) if key else (),
    )
    # The first message of an unknown topic would create it.
    await form.visit.admin.route(name)
    receipt = await form.visit.admin.send(message)
    notice = f"sent as {receipt.id}, at offset {receipt.offset} of queue {receipt.queue.number}"
    return ChangeDone(url_of("/topic", name=name), notice)


PAGES: Final = (PageRoute("/topics", show_list), PageRoute("/topic", show_one))
CHANGES: Final = (
    ChangeRoute("/topics", create, show_list),
    ChangeRoute("/topic", send, show_one),
)
