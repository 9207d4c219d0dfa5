"""Dead letters: counted by group, listed with their reasons, and resent."""

from __future__ import annotations

from collections import Counter
from typing import Final

from txmq.client.admin.dead_letters import provenance
from txmq.client.admin.messages import TIME_MAX
from txmq.console.markup import url_of
from txmq.console.pages.parts import body_values, list_page
from txmq.console.visits import ChangeDone, PageContent, Routes, Visit, render
from txmq.errors import UsageError
from txmq.limits import CONSOLE_RESENT_MAX, CONSOLE_ROWS
from txmq.ops.queries import for_each
from txmq.ops.resend import BEFORE, RESENT, LetterFilter, ResendResult, ResendRun
from txmq.protocol import properties
from txmq.protocol.topics import DLQ

__all__ = ["routes"]

routes = Routes()

RESEND_S: Final = 60.0


@routes.page("/dead-letters")
async def show_groups(visit: Visit) -> PageContent:
    """Show the groups that have dead letters."""
    topics = await visit.admin.topics()
    names = [topic.removeprefix(DLQ) for topic in topics if topic.startswith(DLQ)]
    page = list_page(names, visit.page_number(), visit.text("search"))
    counted = await for_each(page.rows, visit.admin.dead_letter_groups)
    return render(
        "dead_letter_groups.html",
        title="Dead letters",
        page=page,
        rows=[letters for found in counted for letters in found],
    )


@routes.page("/dead-letters/group")
async def show_list(visit: Visit) -> PageContent:
    """Show the dead letters of a group, the oldest first."""
    group, number = visit.required("group"), visit.page_number()
    start = (number - 1) * CONSOLE_ROWS
    letters = visit.admin.dead_letters(group, start=start, count=CONSOLE_ROWS + 1)
    found = [letter async for letter in letters]
    return render(
        "dead_letters.html",
        title="Dead letters of a group",
        group=group,
        rows=found[:CONSOLE_ROWS],
        number=number,
        has_more=len(found) > CONSOLE_ROWS,
        reason_of=properties.DEAD_REASON,
        topic_of=properties.RETRY_TOPIC,
        resent_max=CONSOLE_RESENT_MAX,
    )


@routes.page("/dead-letter")
async def show_one(visit: Visit) -> PageContent:
    """Show one dead letter."""
    group, name = visit.required("group"), visit.required("id")
    letter = await visit.admin.dead_letter(group, name)
    copy = await visit.admin.resent_copy(group, letter)
    return render(
        "dead_letter.html",
        title="Dead letter",
        group=group,
        message=letter,
        reason_of=properties.DEAD_REASON,
        topic_of=properties.RETRY_TOPIC,
        resent="" if copy is None else provenance(copy),
        **body_values(visit, letter.body, "/dead-letter", group=group, id=name),
    )


@routes.change("/dead-letter", show_one)
async def resend_one(visit: Visit) -> ChangeDone:
    """Resend one dead letter to its group."""
    group, name = visit.required("group"), visit.required("id")
    run = _run(visit, group, force=bool(visit.typed("again")))
    (result,) = await run.these([name], visit.admin)
    if result.outcome == BEFORE:
        raise UsageError("it was resent before; tick the box to resend it once more")
    if result.outcome != RESENT:
        raise UsageError(f"{result.outcome}: {result.note}")
    notice = f"{result.id} is resent to {group}, {result.note}"
    return ChangeDone(url_of("/dead-letters/group", group=group), notice)


@routes.change("/dead-letters/group", show_list, RESEND_S)
async def resend_all(visit: Visit) -> ChangeDone:
    """Resend the dead letters of a group that were not resent before."""
    group = visit.required("group")
    run = _run(visit, group, force=False)
    visit.check_repeated("name of the group", group)
    wanted = LetterFilter(group, 0, TIME_MAX, None)
    results = await run.all(wanted, visit.admin, most=CONSOLE_RESENT_MAX)
    notice = f"dead letters of {group}: {_counts(results)}"
    if sum(result.outcome == RESENT for result in results) >= CONSOLE_RESENT_MAX:
        notice += "; there may be more, so resend all once more"
    failed = next((result for result in results if result.outcome not in {RESENT, BEFORE}), None)
    if failed is not None:
        notice += f"; the first that was not resent: {failed.note}"
    return ChangeDone(url_of("/dead-letters/group", group=group), notice)


def _run(visit: Visit, group: str, *, force: bool) -> ResendRun:
    return ResendRun(group, visit.reason(), visit.person, force=force)


def _counts(results: list[ResendResult]) -> str:
    counts = Counter(result.outcome for result in results)
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "none left"
