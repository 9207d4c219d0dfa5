"""Consumer groups: their lag, their clients, and their offsets moved."""

from __future__ import annotations

from typing import Any, Final

from txmq.client.values import GroupConnections
from txmq.console.forms import required
from txmq.console.markup import url_of
from txmq.console.pages.lists import row_page
from txmq.console.previews import check_repeated
from txmq.console.visits import ChangeDone, ChangeForm, ChangeRoute, PageContent, PageRoute, Visit
from txmq.errors import ConsumerOffline, TxmqError, UsageError
from txmq.ops.groups import consequence_of, is_of_system, lag_words
from txmq.ops.known_names import check_group
from txmq.ops.moments import moment_ms
from txmq.text import quantity

__all__ = ["CHANGES", "PAGES"]

_MOMENT_CHARS_MAX: Final = 16
"""Milliseconds since 1970, for longer than clocks will count."""


async def show_list(visit: Visit) -> PageContent:
    """Show consumer groups with their lag."""
    known = await visit.admin.groups(cluster=visit.settings.cluster)
    names = [name for name in known if not is_of_system(name)]

    async def row(name: str) -> dict[str, Any]:
        found: dict[str, Any] = {"name": name, "enabled": known[name].consume_enable}
        try:
            behind = await visit.admin.group_lag(name, cluster=visit.settings.cluster)
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
    values = {"title": "Groups", "page": page, "order": order, "rows": page.rows}
    return PageContent("groups.html", values)


async def show_one(visit: Visit) -> PageContent:
    """Show one group: its lag in every queue, its clients, and a form that moves it."""
    name = visit.required("name")
    progress = await visit.admin.group_progress(name, cluster=visit.settings.cluster)
    behind = await visit.admin.group_lag(name, cluster=visit.settings.cluster)
    connections = await _connections(visit, name)
    if not progress and connections is None:
        # Brokers answer the same for an unknown group and for one that has consumed nothing.
        await check_group(visit.admin, name, cluster=visit.settings.cluster)
    values = {
        "title": "Group",
        "name": name,
        "progress": progress,
        "behind": lag_words(behind),
        "most": max((queue.lag for queue in progress), default=0),
        "connections": connections,
        "topics": sorted({queue.queue.topic for queue in progress}),
    }
    return PageContent("group.html", values)


async def show_reset(visit: Visit) -> PageContent:
    """Show what a reset would change, and ask for the group's name once more."""
    name, topic, to = visit.required("name"), visit.required("topic"), visit.required("to")
    # A duration such as "2h" is counted from now on, and the form repeats the moment that it means.
    moment = _moment(visit, to)
    plan = await visit.admin.plan_reset(name, topic, moment)
    values = {
        "title": "Move a group",
        "name": name,
        "topic": topic,
        "to": to,
        "moment": moment,
        "plan": plan,
        "consequence": consequence_of(plan),
    }
    return PageContent("reset.html", values)


async def reset(form: ChangeForm) -> ChangeDone:
    """Move a group to the messages stored at a moment."""
    visit = form.visit
    name, topic, to = visit.required("name"), visit.required("topic"), visit.required("to")
    check_repeated(form.fields, "name of the group", name)
    moment = required(form.fields, "moment", "the moment of the preview")
    if not moment.removeprefix("-").isdecimal() or len(moment) > _MOMENT_CHARS_MAX:
        raise UsageError("the moment of the preview is not a number; open the preview again")
    await check_group(visit.admin, name, cluster=visit.settings.cluster)
    moved = await visit.admin.reset_offset(name, topic, int(moment))
    queues = quantity(len(moved), "queue")
    return ChangeDone(
        url_of("/group", name=name), f"group {name} is moved to {to} in {queues} of {topic}"
    )


def _moment(visit: Visit, text: str) -> int:
    try:
        return moment_ms(text, visit.clock.wall_ms())
    except ValueError as error:
        raise UsageError(f"{text!r} is not a moment; write {error}") from error


async def _connections(visit: Visit, name: str) -> GroupConnections | None:
    try:
        return await visit.admin.group_connections(name, cluster=visit.settings.cluster)
    except ConsumerOffline:
        return None


PAGES: Final = (
    PageRoute("/groups", show_list),
    PageRoute("/group", show_one),
    PageRoute("/group/reset", show_reset),
)
CHANGES: Final = (ChangeRoute("/group/reset", reset, show_reset),)
