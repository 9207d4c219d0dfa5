"""The settings of a broker: listed with their sources, and changed after a preview."""

from __future__ import annotations

from typing import Any, Final

from txmq.console.markup import link, url_of
from txmq.console.pages.parts import ChangePreview, choose_broker
from txmq.console.visits import ChangeDone, PageContent, Routes, Visit, render
from txmq.errors import NotFound, UsageError
from txmq.ops.rows import SOURCES, setting_rows, setting_texts

__all__ = ["routes"]

routes = Routes()

_VALUE_CHARS_MAX: Final = 1_000


@routes.page("/settings")
async def show_list(visit: Visit) -> PageContent:
    """Show the settings of a broker."""
    choice = await choose_broker(visit)
    search, only = visit.text("search"), visit.text("only")
    rows = [_described(row) for row in await setting_rows(visit.admin, choice.name)]
    wanted = search.casefold()
    shown = [
        row
        for row in rows
        if wanted in f"{row['setting']} {row['key']} {row['value']} {row['text']}".casefold()
        and (only != "changed" or row["source"] in {"start", "change"})
        and (only != "changeable" or row["can_change"] is not False)
    ]
    return render(
        "settings.html",
        title="Settings",
        choice=choice,
        search=search,
        only=only,
        rows=shown,
        total=len(rows),
        sources=SOURCES,
        has_sources=any(row["source"] for row in rows),
    )


@routes.page("/settings/change")
async def show_change(visit: Visit) -> PageContent:
    """Ask for the new value of a setting, or show what that value will change."""
    choice = await choose_broker(visit)
    row = await _row(visit, choice.name)
    name, value = row["setting"], visit.text("value")
    if not value or value == row["value"] or row["can_change"] is False:
        return render(
            "setting.html",
            title=name,
            broker=choice.name,
            row=row,
            source=SOURCES.get(row["source"], row["source"]),
            value=value or row["value"],
            is_same=bool(value) and value == row["value"],
        )
    keeps = (
        "The change lasts until the broker stops. To keep it, also write it to the broker's file."
        if row["source"]
        else "Brokers of Apache RocketMQ also write the new value to their file."
    )
    facts: dict[str, object] = {"old value": row["value"], "new value": value}
    if row["default"] is not None:
        facts["default"] = row["default"]
    if row["key"]:
        facts["setting of txmq"] = row["key"]
    others = [other for other in choice.names if other != choice.name]
    return ChangePreview(
        title=f"Change {name}",
        eyebrow=f"Setting of {choice.name}",
        sentences=(
            f"{name} changes from {row['value'] or 'empty'} to {value}, now and without a restart.",
            keeps,
        ),
        facts=facts,
        action=link("/settings/change", broker=choice.name, name=name, value=value),
        button="Change",
        back=link("/settings", broker=choice.name),
        ticks={"everywhere": f"Also change it at {', '.join(others)}"} if others else {},
    ).content()


@routes.change("/settings/change", show_change)
async def make_change(visit: Visit) -> ChangeDone:
    """Change a setting of one broker, or of all."""
    choice = await choose_broker(visit)
    row = await _row(visit, choice.name)
    name, value = row["setting"], visit.required("value").strip()
    if row["can_change"] is False:
        raise UsageError(f"only a restart changes {name}; set it in the file of the broker")
    if len(value) > _VALUE_CHARS_MAX:
        raise UsageError(f"a value has at most {_VALUE_CHARS_MAX} characters")
    at = choice.names if visit.typed("everywhere") else [choice.name]
    changed: list[str] = []
    for broker in at:
        changed += await visit.admin.change_broker_config({name: value}, broker=broker)
    notice = f"{name} is {value} at {', '.join(changed)}"
    return ChangeDone(url_of("/settings", broker=choice.name, search=name), notice)


async def _row(visit: Visit, broker: str) -> dict[str, Any]:
    name = visit.required("name")
    for row in await setting_rows(visit.admin, broker):
        if row["setting"] == name:
            return _described(row)
    raise NotFound(f"broker {broker} has no setting {name!r}; go back to the list")


def _described(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"text": setting_texts().get(row["key"], "")}
