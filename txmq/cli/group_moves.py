"""``txmq group reset``, ``skip`` and ``clone``: groups moved to other offsets."""

import getpass
from typing import Annotated

import typer

from txmq.cli.common import (
    NAMES_DEFAULT,
    WRONGLY_CALLED,
    AsJson,
    Names,
    Yes,
    ask,
    ask_each,
    confirm,
    fail,
    moment_of,
)
from txmq.cli.output import print_result, progress_bar, table
from txmq.client import Admin
from txmq.client.admin.offsets import TO_THE_END
from txmq.client.values import OffsetMove
from txmq.errors import ConsumerOffline, IllegalOperation, UsageError
from txmq.message import Queue, QueueOffset
from txmq.ops.groups import consequence_of
from txmq.ops.known_names import check_group
from txmq.text import quantity

__all__ = ["clone", "reset", "skip"]

Name = Annotated[str, typer.Argument(help="The group.")]
Topic = Annotated[str, typer.Argument(help="The topic.")]


def reset(
    name: Name,
    topic: Topic,
    *,
    to: Annotated[
        str,
        typer.Option(help="earliest, latest, 2024-05-01T12:00, 2h (ago), milliseconds since 1970."),
    ],
    only_back: Annotated[
        bool, typer.Option("--only-back", help="Skip no message that is not consumed yet.")
    ] = False,
    yes: Yes = False,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Move a group to the messages stored at a moment; shows the change, and asks."""
    time_ms = moment_of(to, "--to")
    _move(name, topic, time_ms, may_skip=not only_back, yes=yes, names=names, json=json)


def skip(
    name: Name,
    topic: Annotated[str | None, typer.Argument(help="The topic.")] = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="In all topics in which the group has an offset.")
    ] = False,
    offset: Annotated[
        int | None, typer.Option(min=0, help="Only this message of a queue, which is damaged.")
    ] = None,
    through: Annotated[
        int | None,
        typer.Option(min=0, help="Also what is damaged from --offset up to this message."),
    ] = None,
    queue: Annotated[int | None, typer.Option(min=0, help="The queue of the message.")] = None,
    broker: Annotated[
        str | None, typer.Option(help="The broker of the queue, if several have the topic.")
    ] = None,
    reason: Annotated[
        str, typer.Option(help="Why a damaged message is skipped; the broker's audit keeps it.")
    ] = "",
    operator: Annotated[
        str, typer.Option(show_default="who runs this", help="Who decides; kept with the reason.")
    ] = "",
    yes: Yes = False,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Skip all messages that a group has not consumed yet; shows how many, and asks.

    With --offset it skips a damaged message at which the group is stuck, and no other: the group
    receives every message before and behind it, and every whole one up to --through.
    """
    if offset is not None:
        _skip_damaged(
            name, topic, queue, broker, offset, through, reason, operator or getpass.getuser(),
            everything=everything, yes=yes, names=names, json=json,
        )  # fmt: skip
        return
    if any(option is not None for option in (through, queue, broker)) or reason or operator:
        fail("--offset names the damaged message to skip", WRONGLY_CALLED)
    if (topic is None) is not everything:
        fail("name a topic, or add --all", WRONGLY_CALLED)
    if topic is not None:
        _move(name, topic, TO_THE_END, may_skip=True, yes=yes, names=names, json=json)
        return
    plan = ask(names, lambda admin: _plan_of_all(admin, name))
    topics = sorted({move.queue.topic for move in plan})
    if not json:
        counts = {
            topic: _lag([move for move in plan if move.queue.topic == topic]) for topic in topics
        }
        table(["topic", "messages skipped"], counts.items())
    confirm(
        f"move group {name} in {quantity(len(topics), 'topic')}: {consequence_of(plan)}?", yes=yes
    )

    async def skip_each(admin: Admin) -> dict[Queue, QueueOffset]:
        moved: dict[Queue, QueueOffset] = {}
        with progress_bar("topics", len(topics)) as advance:
            for one in topics:
                moved |= await admin.reset_offset(name, one, TO_THE_END)
                advance()
        return moved

    moved = ask(names, skip_each, changes=True)
    where = f"{quantity(len(moved), 'queue')} of {quantity(len(topics), 'topic')}"
    print_result(_moves(plan, moved), f"group {name} is moved in {where}", json=json)


def _skip_damaged(
    name: str,
    topic: str | None,
    number: int | None,
    broker: str | None,
    offset: int,
    through: int | None,
    reason: str,
    operator: str,
    *,
    everything: bool,
    yes: bool,
    names: str,
    json: bool,
) -> None:
    if topic is None or number is None or not reason.strip() or everything:
        fail("with --offset name the topic, --queue and --reason", WRONGLY_CALLED)
    last = offset if through is None else through
    if last < offset:
        fail(f"--through {last} lies before --offset {offset}", WRONGLY_CALLED)

    async def find_queue(admin: Admin) -> Queue:
        brokers = {one.broker for one in (await admin.route(topic)).readable}
        if broker is None and len(brokers) > 1:
            raise UsageError(
                f"{quantity(len(brokers), 'broker')} have the topic {topic}; name one with "
                f"--broker: {', '.join(sorted(brokers))}"
            )
        return Queue(topic, broker or next(iter(brokers), ""), number)

    queue = ask(names, find_queue, topic=topic)
    where = f"{topic}/{number} at {queue.broker}"
    what = f"message {offset}" if last == offset else f"what is damaged in {offset} to {last}"
    confirm(f"have group {name} skip {what} of {where}? It will not receive it.", yes=yes)
    ask(
        names,
        lambda admin: admin.skip_damaged(
            name, queue, offset, last, operator=operator, reason=reason
        ),
        changes=True,
        topic=topic,
    )
    made = {"group": name, "queue": queue, "offset": offset, "through": last}
    print_result(
        made | {"operator": operator, "reason": reason},
        f"group {name} skips {what} of {where}",
        json=json,
    )


async def _plan_of_all(admin: Admin, name: str) -> list[OffsetMove]:
    await check_group(admin, name)
    topics = sorted({found.queue.topic for found in await admin.group_progress(name)})
    plans = await ask_each(
        topics, lambda topic: admin.plan_reset(name, topic, TO_THE_END), "topics"
    )
    return [move for plan in plans for move in plan]


def _lag(plan: list[OffsetMove]) -> int:
    return sum(move.after - move.before for move in plan if move.before is not None)


def _move(
    name: str, topic: str, time_ms: int, *, may_skip: bool, yes: bool, names: str, json: bool
) -> None:
    async def plan_reset(admin: Admin) -> list[OffsetMove]:
        plan = await admin.plan_reset(name, topic, time_ms, force=may_skip)
        await check_group(admin, name)
        return plan

    plan = ask(names, plan_reset, topic=topic)
    _print_plan(plan, json=json)
    confirm(f"move group {name} in topic {topic}: {consequence_of(plan)}?", yes=yes)
    moved = ask(
        names,
        lambda admin: admin.reset_offset(name, topic, time_ms, force=may_skip),
        changes=True,
        topic=topic,
    )
    text = f"group {name} is moved in {quantity(len(moved), 'queue')} of {topic}"
    print_result(_moves(plan, moved), text, json=json)


def _moves(plan: list[OffsetMove], moved: dict[Queue, QueueOffset]) -> list[dict[str, object]]:
    before = {move.queue: move.before for move in plan}
    return [
        {"queue": queue, "before": before.get(queue), "offset": offset}
        for queue, offset in moved.items()
    ]


def clone(
    source: Annotated[str, typer.Argument(help="The group whose offsets to copy.")],
    target: Annotated[str, typer.Argument(help="The group that gets them.")],
    topic: Topic,
    *,
    yes: Yes = False,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Give a group the offsets of another group in a topic; shows the change, and asks.

    The group that gets them must have no connected consumers: they would commit their own offsets
    over the new ones.
    """
    if source == target:
        fail("a group cannot be cloned onto itself; name two groups", WRONGLY_CALLED)

    async def plan_clone(admin: Admin) -> list[OffsetMove]:
        plan = await admin.plan_clone(source, target, topic)
        await check_group(admin, source)
        if not plan:
            raise IllegalOperation(f"group {source!r} has no offset in topic {topic!r}")
        await _check_stopped(admin, target, topic)
        return plan

    plan = ask(names, plan_clone, topic=topic)
    _print_plan(plan, json=json)
    confirm(f"move group {target} in topic {topic}: {consequence_of(plan)}?", yes=yes)
    ask(names, lambda admin: admin.clone_offsets(source, target, topic), changes=True, topic=topic)
    print_result(
        [{"queue": move.queue, "before": move.before, "offset": move.after} for move in plan],
        f"group {target} has the offsets of {source} in {quantity(len(plan), 'queue')} of {topic}",
        json=json,
    )


async def _check_stopped(admin: Admin, group: str, topic: str) -> None:
    for cluster in await admin.clusters_of(topic):
        try:
            found = await admin.group_connections(group, cluster=cluster)
        except ConsumerOffline:
            continue
        raise IllegalOperation(
            f"group {group!r} has {quantity(len(found.clients), 'connected consumer')}, such as "
            f"{found.clients[0].id}; stop them first"
        )


def _print_plan(plan: list[OffsetMove], *, json: bool) -> None:
    if not json:
        table(["broker", "queue", "now", "then", "difference"], map(_move_row, plan))


def _move_row(move: OffsetMove) -> list[object]:
    now, difference = "never consumed", ""
    if move.before is not None:
        now, difference = str(move.before), f"{move.after - move.before:+d}"
    return [move.queue.broker, move.queue.number, now, move.after, difference]
