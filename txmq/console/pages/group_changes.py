"""A consumer group changed or deleted, after a preview."""

from __future__ import annotations

from typing import Final

from txmq.console.markup import link, url_of
from txmq.console.previews import ChangePreview, check_repeated
from txmq.console.visits import ChangeDone, ChangeForm, ChangeRoute, PageContent, PageRoute, Visit
from txmq.errors import ConsumerOffline, UsageError
from txmq.ops.groups import lag_words
from txmq.ops.known_names import check_group
from txmq.text import quantity

__all__ = ["CHANGES", "PAGES"]

_RETRIES_MAX: Final = 10_000
_ENABLED: Final = {"yes": True, "no": False}


async def show_change(visit: Visit) -> PageContent:
    """Ask for new settings of a group, or show what they would change."""
    name = visit.required("name")
    await check_group(visit.admin, name, cluster=visit.settings.cluster)
    known = (await visit.admin.groups(cluster=visit.settings.cluster)).get(name)
    enabled = True if known is None else known.consume_enable
    retries = 16 if known is None else known.retry_max_times
    if not visit.text("enabled") and not visit.text("retries"):
        values = {
            "title": name,
            "noun": "consumer group",
            "path": "/group",
            "enabled": enabled,
            "retries": retries,
            "most": _RETRIES_MAX,
        }
        return PageContent("group_change.html", values)
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
        sentences=tuple(sentences) or ("Nothing changes.",),
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


async def make_change(form: ChangeForm) -> ChangeDone:
    """Change the settings of a group."""
    visit, name = form.visit, form.visit.required("name")
    check_repeated(form.fields, "name of the group", name)
    await check_group(visit.admin, name, cluster=visit.settings.cluster)
    enabled, retries = _wanted(visit)
    await visit.admin.create_group(
        name, enabled=enabled, retries=retries, cluster=visit.settings.cluster
    )
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


async def show_deletion(visit: Visit) -> PageContent:
    """Show what the deletion of a group destroys."""
    name, cluster = visit.required("name"), visit.settings.cluster
    await check_group(visit.admin, name, cluster=cluster)
    behind = await visit.admin.group_lag(name, cluster=cluster)
    try:
        connections = await visit.admin.group_connections(name, cluster=cluster)
        clients = len(connections.clients)
    except ConsumerOffline:
        clients = 0
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
        sentences=tuple(sentences),
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


async def delete(form: ChangeForm) -> ChangeDone:
    """Delete a consumer group."""
    visit, name = form.visit, form.visit.required("name")
    check_repeated(form.fields, "name of the group", name)
    await check_group(visit.admin, name, cluster=visit.settings.cluster)
    offsets = not form.fields.get("keep")
    await visit.admin.delete_group(name, offsets=offsets, cluster=visit.settings.cluster)
    kept = "" if offsets else "; its offsets are kept"
    return ChangeDone("/groups", f"group {name} is deleted{kept}")


PAGES: Final = (
    PageRoute("/group/change", show_change),
    PageRoute("/group/deletion", show_deletion),
)
CHANGES: Final = (
    ChangeRoute("/group/change", make_change, show_change),
    ChangeRoute("/group/deletion", delete, show_deletion),
)
