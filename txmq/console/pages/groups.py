"""Consumer groups, shown, moved, changed and deleted; and the producers that are connected."""

from __future__ import annotations

from typing import Any, Final

from txmq.client.values import ConnectedClient, GroupConnections
from txmq.console.markup import link, url_of
from txmq.console.pages.parts import ChangePreview, list_page, row_page
from txmq.console.visits import ChangeDone, PageContent, Routes, Visit, render
from txmq.errors import ConsumerOffline, RequestNotSupported, TxmqError, UsageError
from txmq.ops.groups import consequence_of, is_of_system, lag_words
from txmq.ops.known_names import check_group
from txmq.text import quantity

__all__ = ["routes"]

routes = Routes()

_MOMENT_CHARS_MAX: Final = 16
"""Enough digits for any time in milliseconds since 1970."""
_RETRIES_MAX: Final = 10_000
_ENABLED: Final = {"yes": True, "no": False}
_CLIENTS_SHOWN: Final = 20
"""The clients of each group in the list; a page about one group shows all."""


@routes.page("/groups")
async def show_list(visit: Visit) -> PageContent:
    """Show consumer groups with their lag."""
    known = await visit.admin.groups(cluster=visit.cluster)
    names = [name for name in known if not is_of_system(name)]

    async def row(name: str) -> dict[str, Any]:
        found: dict[str, Any] = {"name": name, "enabled": known[name].consume_enable}
        try:
            behind = await visit.admin.group_lag(name, cluster=visit.cluster)
        except TxmqError as error:
            return found | {"problem": str(error).strip(), "lag": None, "clients": None}
        connections = await _connections(visit, name)
        return found | {
            "problem": "",
            "lag": behind.lag,
            "behind": lag_words(behind),
            "clients": 0 if connections is None else len(connections.clients),
        }

    page, order = await row_page(visit, "/groups", names, row, ("lag", "clients", "enabled"))
    return render("groups.html", title="Groups", page=page, order=order, rows=page.rows)


@routes.page("/group")
async def show_one(visit: Visit) -> PageContent:
    """Show one group: its lag in every queue, its clients, and a form that moves it."""
    name = visit.required("name")
    progress = await visit.admin.group_progress(name, cluster=visit.cluster)
    behind = await visit.admin.group_lag(name, cluster=visit.cluster)
    connections = await _connections(visit, name)
    if not progress and connections is None:
        # Brokers give the same answer for an unknown group and for one that has consumed nothing.
        await check_group(visit.admin, name, cluster=visit.cluster)
    return render(
        "group.html",
        title="Group",
        name=name,
        progress=progress,
        behind=lag_words(behind),
        most=max((queue.lag for queue in progress), default=0),
        connections=connections,
        topics=sorted({queue.queue.topic for queue in progress}),
    )


@routes.page("/group/reset")
async def show_reset(visit: Visit) -> PageContent:
    """Show what a reset would change, and ask the visitor to type the group's name."""
    name, topic, to = visit.required("name"), visit.required("topic"), visit.required("to")
    # A duration such as "2h" counts back from now, so the form carries the moment that it means.
    moment = visit.moment(to)
    plan = await visit.admin.plan_reset(name, topic, moment)
    return render(
        "reset.html",
        title="Move a group",
        name=name,
        topic=topic,
        to=to,
        moment=moment,
        plan=plan,
        consequence=consequence_of(plan),
    )


@routes.change("/group/reset", show_reset)
async def reset(visit: Visit) -> ChangeDone:
    """Move a group to the messages stored at a moment."""
    name, topic, to = visit.required("name"), visit.required("topic"), visit.required("to")
    visit.check_repeated("name of the group", name)
    moment = visit.filled("moment", "the moment of the preview")
    if not moment.removeprefix("-").isdecimal() or len(moment) > _MOMENT_CHARS_MAX:
        raise UsageError("the moment of the preview is not a number; open the preview again")
    await check_group(visit.admin, name, cluster=visit.cluster)
    moved = await visit.admin.reset_offset(name, topic, int(moment))
    queues = quantity(len(moved), "queue")
    return ChangeDone(
        url_of("/group", name=name), f"group {name} is moved to {to} in {queues} of {topic}"
    )


async def _connections(visit: Visit, name: str) -> GroupConnections | None:
    try:
        return await visit.admin.group_connections(name, cluster=visit.cluster)
    except ConsumerOffline:
        return None


@routes.page("/group/change")
async def show_change(visit: Visit) -> PageContent:
    """Ask for new settings of a group, or show what they would change."""
    name = visit.required("name")
    await check_group(visit.admin, name, cluster=visit.cluster)
    known = (await visit.admin.groups(cluster=visit.cluster)).get(name)
    enabled = True if known is None else known.consume_enable
    retries = 16 if known is None else known.retry_max_times
    if not visit.text("enabled") and not visit.text("retries"):
        return render(
            "group_change.html",
            title=name,
            noun="consumer group",
            path="/group",
            enabled=enabled,
            retries=retries,
            most=_RETRIES_MAX,
        )
    wanted_enabled, wanted_retries = _wanted(visit)
    sentences: list[str] = []
    if wanted_enabled is not None and wanted_enabled != enabled:
        sentences.append(
            f"Consumers of {name} receive messages again."
            if wanted_enabled
            else f"Consumers of {name} receive nothing, and its lag grows, until you let it "
            "consume again."
        )
    if wanted_retries is not None and wanted_retries != retries:
        sentences.append(
            f"A message that fails becomes a dead letter after "
            f"{quantity(wanted_retries, 'retry', 'retries')}, not after {retries}."
        )
    return ChangePreview(
        title=f"Change {name}",
        eyebrow="Consumer group",
        sentences=sentences or ("Nothing changes.",),
        facts={
            "may consume": f"{_word(enabled)} → {_word(wanted_enabled, enabled)}",
            "retries": f"{retries} → {retries if wanted_retries is None else wanted_retries}",
        },
        action=link(
            "/group/change", name=name, enabled=visit.text("enabled"), retries=visit.text("retries")
        ),
        button="Change",
        back=link("/group/change", name=name),
        refusal="" if sentences else "The group has these settings already.",
        repeated=name,
        repeated_name="name of the group",
    ).content()


@routes.change("/group/change", show_change)
async def make_change(visit: Visit) -> ChangeDone:
    """Change the settings of a group."""
    name = visit.required("name")
    visit.check_repeated("name of the group", name)
    await check_group(visit.admin, name, cluster=visit.cluster)
    enabled, retries = _wanted(visit)
    await visit.admin.create_group(name, enabled=enabled, retries=retries, cluster=visit.cluster)
    return ChangeDone(url_of("/group", name=name), f"group {name} has its new settings")


def _wanted(visit: Visit) -> tuple[bool | None, int | None]:
    enabled, text = visit.text("enabled"), visit.text("retries")
    if enabled and enabled not in _ENABLED:
        raise UsageError(f"whether a group may consume is yes or no, not {enabled!r}")
    if text and not (text.isdecimal() and len(text) < 6 and int(text) <= _RETRIES_MAX):
        raise UsageError(f"a message has 0 to {_RETRIES_MAX} retries, not {text!r}")
    if not enabled and not text:
        raise UsageError("name what to change: whether it may consume, or its retries")
    return _ENABLED.get(enabled), int(text) if text else None


def _word(enabled: bool | None, default: bool = True) -> str:
    return "yes" if (default if enabled is None else enabled) else "no"


@routes.page("/group/deletion")
async def show_deletion(visit: Visit) -> PageContent:
    """Show what the deletion of a group destroys."""
    name, cluster = visit.required("name"), visit.cluster
    await check_group(visit.admin, name, cluster=cluster)
    behind = await visit.admin.group_lag(name, cluster=cluster)
    connections = await _connections(visit, name)
    clients = 0 if connections is None else len(connections.clients)
    sentences = [
        f"The settings of {name} are deleted at all brokers, and its offsets, unless you keep them."
    ]
    if clients:
        sentences.append(
            f"{quantity(clients, 'consumer is', 'consumers are')} connected. Stop them first: "
            "their next heartbeat may create the group again."
        )
    return ChangePreview(
        title=f"Delete {name}",
        eyebrow="Consumer group",
        sentences=sentences,
        facts={
            "messages behind": lag_words(behind),
            "topics": ", ".join(behind.topics) or "none",
            "connected clients": clients,
        },
        action=link("/group/deletion", name=name),
        button="Delete",
        back=link("/group", name=name),
        ticks={"keep": "Keep its offsets, for a group of this name"},
        repeated=name,
        repeated_name="name of the group",
        is_bad=True,
    ).content()


@routes.change("/group/deletion", show_deletion)
async def delete(visit: Visit) -> ChangeDone:
    """Delete a consumer group."""
    name = visit.required("name")
    visit.check_repeated("name of the group", name)
    await check_group(visit.admin, name, cluster=visit.cluster)
    offsets = not visit.typed("keep")
    await visit.admin.delete_group(name, offsets=offsets, cluster=visit.cluster)
    kept = "" if offsets else "; its offsets are kept"
    return ChangeDone("/groups", f"group {name} is deleted{kept}")


@routes.page("/producers")
async def show_producers(visit: Visit) -> PageContent:
    """Show the connected producers of all groups, or of one."""
    group, cluster = visit.text("group"), visit.cluster
    is_supported = True
    found: dict[str, tuple[ConnectedClient, ...]] = {}
    try:
        found = await visit.admin.producers(cluster=cluster)
    except RequestNotSupported:
        is_supported = False
        if group:
            found = {group: await visit.admin.producer_connections(group, cluster=cluster)}
    names = [name for name in found if not group or name == group]
    page = list_page(names, visit.page_number(), visit.text("search"))
    most = None if group else _CLIENTS_SHOWN
    return render(
        "producers.html",
        title="Producers",
        group=group,
        is_supported=is_supported,
        page=page,
        rows=[(name, found[name][:most], len(found[name])) for name in page.rows],
        clients=sum(len(clients) for clients in found.values()),
    )
