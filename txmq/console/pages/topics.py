"""Topics: listed, created, shown, changed and deleted, and tested with a message."""

from __future__ import annotations

from typing import Any, Final

from txmq.client import Admin
from txmq.client.names import check_name
from txmq.client.values import QueueStatus
from txmq.console.markup import link, url_of
from txmq.console.pages.parts import ChangePreview, first_of, row_page
from txmq.console.visits import ChangeDone, PageContent, Routes, Visit, render
from txmq.errors import IllegalOperation, TxmqError, UsageError
from txmq.limits import QUEUES_OF_NEW_TOPICS
from txmq.message import Message
from txmq.ops.topics import TopicChange, check_new_topic, description_of, own_topics, permission_of
from txmq.protocol.codes import Perm
from txmq.text import quantity

__all__ = ["routes"]

routes = Routes()

QUEUES_MAX: Final = 1_000
"""The most queues per broker that a form accepts; more is a typo."""
_FIGURES: Final = ("lag", "in_s", "out_s", "messages", "queues", "brokers", "updated")
_PERMS: Final = {
    "rw": (Perm.READ | Perm.WRITE, "read and write"),
    "r": (Perm.READ, "read only"),
    "w": (Perm.WRITE, "write only"),
    "none": (Perm(0), "neither"),
}
_NAMED_MAX: Final = 10


@routes.page("/topics")
async def show_list(visit: Visit) -> PageContent:
    """Show topics with their queues and messages."""
    brokers = await visit.admin.cluster()
    everything = bool(visit.text("all"))
    known = await visit.admin.topics()
    names = known if everything else own_topics(known, brokers)
    page, order = await row_page(
        visit, "/topics", names, lambda name: _row(visit.admin, name), _FIGURES
    )
    return render(
        "topics.html",
        title="Topics",
        page=page,
        order=order._replace(fields={**order.fields, "all": visit.text("all")}),
        everything=everything,
        queues_default=QUEUES_OF_NEW_TOPICS,
        queues_max=QUEUES_MAX,
    )


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
        "messages": _stored(queues),
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


@routes.page("/topic")
async def show_one(visit: Visit) -> PageContent:
    """Show one topic: its queues, its groups, and a form that sends a message."""
    name = visit.required("name")
    queues = await visit.admin.topic_status(name)
    return render(
        "topic.html",
        title="Topic",
        name=name,
        queues=queues,
        messages=_stored(queues),
        groups=await visit.admin.topic_groups(name),
    )


@routes.change("/topics", show_list)
async def create(visit: Visit) -> ChangeDone:
    """Create a topic."""
    name = visit.filled("name", "the name of the topic")
    queues = _queues_in(visit.filled("queues", "the number of queues"))
    await check_new_topic(visit.admin, name, queues, None, visit.cluster)
    route = await visit.admin.create_topic(name, queues, cluster=visit.cluster)
    notice = f"topic {name} has {quantity(queues, 'queue')} at each of {', '.join(route.brokers)}"
    return ChangeDone(url_of("/topic", name=name), notice)


@routes.change("/topic", show_one)
async def send(visit: Visit) -> ChangeDone:
    """Send a message by hand."""
    name = visit.required("name")
    key = visit.typed("key").strip()
    message = Message(
        topic=name,
        # Browsers send each line break of a form as two characters.
        body=visit.typed("body").replace("\r\n", "\n").encode(),
        tags=visit.typed("tag").strip(),
        keys=(key,) if key else (),
    )
    # The first message of an unknown topic would create it.
    await visit.admin.route(name)
    receipt = await visit.admin.send(message)
    notice = f"sent as {receipt.id}, at offset {receipt.offset} of queue {receipt.queue.number}"
    return ChangeDone(url_of("/topic", name=name), notice)


@routes.page("/topic/change")
async def show_change(visit: Visit) -> PageContent:
    """Ask for new settings of a topic, or show what they would change."""
    name = visit.required("name")
    if not visit.text("queues") and not visit.text("perm"):
        known = await visit.admin.topic_config(name)
        return render(
            "topic_change.html",
            title=name,
            noun="topic",
            path="/topic",
            configs={at: description_of(config) for at, config in known.items()},
            queues=max(config.write_queue_nums for config in known.values()),
            perm=permission_of(known.values()),
            perms={perm: words for perm, (_, words) in _PERMS.items()},
            queues_max=QUEUES_MAX,
        )
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
        sentences=sentences,
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


@routes.change("/topic/change", show_change)
async def make_change(visit: Visit) -> ChangeDone:
    """Change the queues or the permission of a topic."""
    name = visit.required("name")
    visit.check_repeated("name of the topic", name)
    done = await _change(visit, name).make(visit.admin)
    now = "; ".join(f"{description_of(config)} at {at}" for at, config in done.items())
    return ChangeDone(url_of("/topic", name=name), f"topic {name} has {now}")


def _change(visit: Visit, name: str) -> TopicChange:
    check_name("topic", name)
    text, perm = visit.text("queues"), visit.text("perm")
    queues = _queues_in(text) if text else None
    if perm and perm not in _PERMS:
        raise UsageError(f"the permission is {', '.join(_PERMS)}, not {perm!r}")
    if queues is None and not perm:
        raise UsageError("name what to change: the queues or the permission")
    allowed = int(_PERMS[perm][0]) if perm else None
    return TopicChange(name, queues, allowed, None, None, may_shrink=True)


def _queues_in(text: str) -> int:
    queues = int(text) if text.isdecimal() and len(text) < 6 else 0
    if not 1 <= queues <= QUEUES_MAX:
        raise UsageError(f"a topic has 1 to {QUEUES_MAX} queues at each broker, not {text!r}")
    return queues


def _stored(queues: list[QueueStatus]) -> int:
    """The messages in all queues of a topic."""
    return sum(queue.max_offset - queue.min_offset for queue in queues)


def _without_command(text: str, change: TopicChange) -> str:
    """A refusal's text, which points to this page instead of a command."""
    return text.replace(f"run again: {change.command}", "make the change again here")


@routes.page("/topic/deletion")
async def show_deletion(visit: Visit) -> PageContent:
    """Show what the deletion of a topic destroys."""
    name = visit.required("name")
    sentences = [f"All messages of {name} are deleted at all brokers. Nothing brings them back."]
    route = await visit.admin.route(name)
    facts = {"brokers": ", ".join(sorted(route.addresses))}
    try:
        queues = await visit.admin.topic_status(name)
        groups = await visit.admin.topic_groups(name)
    except TxmqError as error:
        sentences.append(f"How many messages it has is not known: {str(error).strip()}")
    else:
        facts["messages"] = f"{_stored(queues)} in {quantity(len(queues), 'queue')}"
        if groups:
            facts["consumed by"] = first_of(groups, _NAMED_MAX)
            sentences.append("Groups that consume the topic lose what they have not consumed.")
    sentences.append(
        "If brokers create topics by themselves, the next message of a producer creates an empty "
        "topic of this name."
    )
    return ChangePreview(
        title=f"Delete {name}",
        eyebrow="Topic",
        sentences=sentences,
        facts=facts,
        action=link("/topic/deletion", name=name),
        button="Delete",
        back=link("/topic", name=name),
        repeated=name,
        repeated_name="name of the topic",
        is_bad=True,
    ).content()


@routes.change("/topic/deletion", show_deletion)
async def delete(visit: Visit) -> ChangeDone:
    """Delete a topic with its messages."""
    name = visit.required("name")
    visit.check_repeated("name of the topic", name)
    await visit.admin.delete_topic(name)
    return ChangeDone("/topics", f"topic {name} is deleted, with its messages")
