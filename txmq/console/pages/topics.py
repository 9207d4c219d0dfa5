"""Topics: listed, created, shown with their queues, and tried with a message."""

from __future__ import annotations

from typing import Any, Final

from txmq.cli.common import for_each
from txmq.cli.topic import check_new_topic
from txmq.cli.topic_rows import own_topics
from txmq.console.forms import required
from txmq.console.markup import url_of
from txmq.console.pages.lists import list_page
from txmq.console.pages.trends import topic_trends
from txmq.console.visits import ChangeDone, ChangeForm, ChangeRoute, PageContent, PageRoute, Visit
from txmq.errors import TxmqError, UsageError
from txmq.limits import QUEUES_OF_NEW_TOPICS
from txmq.message import Message
from txmq.quantity import quantity

__all__ = ["CHANGES", "PAGES"]

QUEUES_MAX: Final = 1_000
"""Queues at one broker that a form may ask for; more is a slip of the keyboard."""


async def show_list(visit: Visit) -> PageContent:
    """Show topics with their queues and messages."""
    brokers = await visit.admin.cluster()
    everything = bool(visit.text("all"))
    names = await visit.admin.topics()
    if not everything:
        names = own_topics(names, brokers)
    page = list_page(names, visit.page_number(), visit.text("search"))

    async def row(name: str) -> dict[str, Any]:
        try:
            queues = await visit.admin.topic_status(name)
        except TxmqError as error:
            return {"name": name, "problem": str(error).strip()}
        messages = sum(queue.max_offset - queue.min_offset for queue in queues)
        return {
            "name": name,
            "problem": "",
            "queues": len(queues),
            "brokers": len({queue.queue.broker for queue in queues}),
            "messages": messages,
            "updated_ms": max((queue.updated_ms for queue in queues), default=0),
        }

    values = {
        "title": "Topics",
        "page": page,
        "everything": everything,
        "rows": await for_each(page.rows, row),
        "now_ms": visit.clock.wall_ms(),
        "queues_default": QUEUES_OF_NEW_TOPICS,
        "queues_max": QUEUES_MAX,
    }
    return PageContent("topics.html", values)


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
        "trends": await topic_trends(visit, name),
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
