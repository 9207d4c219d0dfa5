"""Topics: listed, created, shown, changed and deleted, and tried with a message."""

from __future__ import annotations

from typing import Any, Final

from txmq.client import Admin
from txmq.client.names import check_name
from txmq.console.forms import ChangePreview, check_repeated, required
from txmq.console.markup import link, url_of
from txmq.console.pages.lists import row_page
from txmq.console.visits import ChangeDone, ChangeForm, ChangeRoute, PageContent, PageRoute, Visit
from txmq.errors import IllegalOperation, TxmqError, UsageError
from txmq.limits import QUEUES_OF_NEW_TOPICS
from txmq.message import Message
from txmq.ops.topics import TopicChange, check_new_topic, description_of, own_topics, permission_of
from txmq.protocol.codes import Perm
from txmq.text import quantity

__all__ = ["CHANGES", "PAGES"]

QUEUES_MAX: Final = 1_000
"""Queues at one broker that a form may ask for; more is a slip of the keyboard."""
_FIGURES: Final = ("lag", "in_s", "out_s", "messages", "queues", "brokers", "updated")
_PERMS: Final = {
    "rw": (Perm.READ | Perm.WRITE, "read and write"),
    "r": (Perm.READ, "read only"),
    "w": (Perm.WRITE, "write only"),
    "none": (Perm(0), "neither"),
}
_NAMED_MAX: Final = 10


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


async def show_change(visit: Visit) -> PageContent:
    """Ask for new settings of a topic, or show what they would change."""
    name = visit.required("name")
    if not visit.text("queues") and not visit.text("perm"):
        known = await visit.admin.topic_config(name)
        values = {
            "title": name,
            "noun": "topic",
            "path": "/topic",
            "configs": {at: description_of(config) for at, config in known.items()},
            "queues": max(config.write_queue_nums for config in known.values()),
            "perm": permission_of(known.values()),
            "perms": {perm: words for perm, (_, words) in _PERMS.items()},
            "queues_max": QUEUES_MAX,
        }
        return PageContent("topic_change.html", values)
    change = _change(visit, name)
    refusal, facts = "", {}
    sentences = ["The change takes effect at once. Clients follow within 30 s by default."]
    try:
        planned = await change.plan(visit.admin)
    except IllegalOperation as error:
        refusal = f"This cannot be done now. {_without_command(str(error), change)}"
    else:
        for at, plan in planned.items():
            facts[at] = f"{description_of(plan.before)} → {description_of(plan.after)}"
        if all(plan.before == plan.after for plan in planned.values()):
            refusal = "The topic has these settings already. Go back, and choose others."
        queues = change.queues
        if queues and any(plan.after.read_queue_nums > queues for plan in planned.values()):
            sentences.append(
                f"First step: new messages go to the first {quantity(queues, 'queue')} only, and "
                "consumers still read all. When all groups have consumed the messages of the "
                "others, and at least 30 s later, make the same change again. That removes them."
            )
        elif queues and any(plan.before.read_queue_nums > queues for plan in planned.values()):
            sentences.append("Second step: the queues that no group needs any more are removed.")
        if any(not plan.after.perm & Perm.WRITE for plan in planned.values()):
            sentences.append("Sends to the topic fail. Its messages stay.")
        if any(not plan.after.perm & Perm.READ for plan in planned.values()):
            sentences.append("Consumers receive nothing from the topic. Its messages stay.")
    return ChangePreview(
        title=f"Change {name}",
        eyebrow="Topic",
        sentences=tuple(sentences),
        facts=facts,
        action=link(
            "/topic/change", name=name, queues=visit.text("queues"), perm=visit.text("perm")
        ),
        button="Change",
        back=link("/topic/change", name=name),
        refusal=refusal,
        repeated=name,
        repeated_name="name of the topic",
    ).content()


async def make_change(form: ChangeForm) -> ChangeDone:
    """Change the queues or the permission of a topic."""
    visit, name = form.visit, form.visit.required("name")
    check_repeated(form.fields, "name of the topic", name)
    done = await _change(visit, name).make(visit.admin)
    now = "; ".join(f"{description_of(config)} at {at}" for at, config in done.items())
    return ChangeDone(url_of("/topic", name=name), f"topic {name} has {now}")


def _change(visit: Visit, name: str) -> TopicChange:
    check_name("topic", name)
    text, perm = visit.text("queues"), visit.text("perm")
    queues: int | None = None
    if text:
        queues = int(text) if text.isdecimal() and len(text) < 6 else 0
        if not 1 <= queues <= QUEUES_MAX:
            raise UsageError(f"a topic has 1 to {QUEUES_MAX} queues at each broker, not {text!r}")
    if perm and perm not in _PERMS:
        raise UsageError(f"the permission is {', '.join(_PERMS)}, not {perm!r}")
    if queues is None and not perm:
        raise UsageError("name what to change: the queues or the permission")
    allowed = int(_PERMS[perm][0]) if perm else None
    return TopicChange(name, queues, allowed, None, None, may_shrink=True)


def _without_command(text: str, change: TopicChange) -> str:
    """The reason of a refusal; this page takes the place of the command in it."""
    return text.replace(f"run again: {change.command}", "make the change again here")


async def show_deletion(visit: Visit) -> PageContent:
    """Show what the deletion of a topic destroys."""
    name = visit.required("name")
    facts: dict[str, object] = {}
    sentences = [f"All messages of {name} are deleted at all brokers. Nothing brings them back."]
    route = await visit.admin.route(name)
    facts["brokers"] = ", ".join(sorted(route.addresses))
    try:
        queues = await visit.admin.topic_status(name)
        groups = await visit.admin.topic_groups(name)
    except TxmqError as error:
        sentences.append(f"How many messages it has is not known: {str(error).strip()}")
    else:
        messages = sum(queue.max_offset - queue.min_offset for queue in queues)
        facts["messages"] = f"{messages} in {quantity(len(queues), 'queue')}"
        if groups:
            more = f" and {len(groups) - _NAMED_MAX} more" if len(groups) > _NAMED_MAX else ""
            facts["consumed by"] = ", ".join(groups[:_NAMED_MAX]) + more
            sentences.append("Groups that consume the topic lose what they have not consumed.")
    sentences.append(
        "If brokers create topics by themselves, the next message of a producer creates an empty "
        "topic of this name."
    )
    return ChangePreview(
        title=f"Delete {name}",
        eyebrow="Topic",
        sentences=tuple(sentences),
        facts=facts,
        action=link("/topic/deletion", name=name),
        button="Delete",
        back=link("/topic", name=name),
        repeated=name,
        repeated_name="name of the topic",
        is_bad=True,
    ).content()


async def delete(form: ChangeForm) -> ChangeDone:
    """Delete a topic with its messages."""
    name = form.visit.required("name")
    check_repeated(form.fields, "name of the topic", name)
    await form.visit.admin.delete_topic(name)
    return ChangeDone("/topics", f"topic {name} is deleted, with its messages")


PAGES: Final = (
    PageRoute("/topics", show_list),
    PageRoute("/topic", show_one),
    PageRoute("/topic/change", show_change),
    PageRoute("/topic/deletion", show_deletion),
)
CHANGES: Final = (
    ChangeRoute("/topics", create, show_list),
    ChangeRoute("/topic", send, show_one),
    ChangeRoute("/topic/change", make_change, show_change),
    ChangeRoute("/topic/deletion", delete, show_deletion),
)
