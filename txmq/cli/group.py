"""``txmq group``: consumer groups created, watched, moved and deleted."""

from typing import Annotated

import typer

from txmq.cli.common import NAMES_DEFAULT, AsJson, Cluster, Names, Yes, ask, confirm, moment_of
from txmq.cli.known_names import check_group, check_topic, is_system_group
from txmq.cli.output import print_result, print_rows, say, table
from txmq.client import Admin
from txmq.client.values import GroupConnections, OffsetMove, QueueProgress
from txmq.errors import ConsumerOffline
from txmq.quantity import quantity

__all__ = ["app", "consequence_of"]

app = typer.Typer(no_args_is_help=True, help="Create, watch, move and delete consumer groups.")

Name = Annotated[str, typer.Argument(help="The group.")]


@app.command()
def create(
    name: Name,
    *,
    retries: Annotated[
        int | None,
        typer.Option(min=0, help="Retries of a message before it is a dead letter; 16 if new."),
    ] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--no-enabled", help="Whether it may consume.")
    ] = None,
    broker: Annotated[str | None, typer.Option(help="Only at this broker.")] = None,
    cluster: Cluster = None,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Create or change a consumer group; settings that are not named stay."""
    ask(
        names,
        lambda admin: admin.create_group(
            name, retries=retries, enabled=enabled, broker=broker, cluster=cluster
        ),
        changes=True,
    )
    settings = [] if retries is None else [quantity(retries, "retry", "retries")]
    settings += [] if enabled is None else ["may consume" if enabled else "may not consume"]
    text = "; ".join([f"group {name} exists", *settings])
    print_result({"group": name, "retries": retries, "enabled": enabled}, text, json=json)


@app.command("list")
def list_(
    *,
    everything: Annotated[bool, typer.Option("--all", help="Also groups of the system.")] = False,
    cluster: Cluster = None,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """List consumer groups."""
    found = ask(names, lambda admin: admin.groups(cluster=cluster))
    rows = [
        {"group": name, "enabled": config.consume_enable, "retries": config.retry_max_times}
        for name, config in found.items()
        if everything or not is_system_group(name)
    ]
    print_rows(
        rows,
        ["group", "may consume", "retries"],
        [[row["group"], "yes" if row["enabled"] else "no", row["retries"]] for row in rows],
        json=json,
        empty="no groups",
    )


@app.command()
def delete(
    name: Name,
    *,
    keep_offsets: Annotated[
        bool, typer.Option("--keep-offsets", help="Keep its offsets, for a group of this name.")
    ] = False,
    yes: Yes = False,
    cluster: Cluster = None,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Delete a consumer group."""
    ask(names, lambda admin: check_group(admin, name, cluster=cluster))
    confirm(f"delete group {name}?", yes=yes)
    ask(
        names,
        lambda admin: admin.delete_group(name, offsets=not keep_offsets, cluster=cluster),
        changes=True,
    )
    print_result({"group": name, "deleted": True}, f"group {name} is deleted", json=json)


@app.command()
def progress(
    name: Name,
    *,
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    cluster: Cluster = None,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Show the consumer lag of a group in each queue."""

    async def read(admin: Admin) -> list[QueueProgress]:
        found = await admin.group_progress(name, topic, cluster=cluster)
        # Brokers answer the same for an unknown group and for one that has consumed nothing.
        if not found:
            await check_group(admin, name, cluster=cluster)
            if topic is not None:
                await check_topic(admin, topic)
        return found

    found = ask(names, read)
    lag = sum(queue.lag for queue in found)
    fields = ("queue", "broker_offset", "group_offset", "lag", "consumed_ms")
    queues = [{field: getattr(queue, field) for field in fields} for queue in found]
    print_rows(
        {"group": name, "lag": lag, "queues": queues},
        ["topic", "broker", "queue", "stored to", "consumed to", "behind"],
        [
            [
                queue.queue.topic,
                queue.queue.broker,
                queue.queue.number,
                queue.broker_offset,
                queue.group_offset,
                queue.lag,
            ]
            for queue in found
        ],
        json=json,
    )
    if not json:
        say(f"{quantity(lag, 'message')} behind")


@app.command()
def reset(
    name: Name,
    topic: Annotated[str, typer.Argument(help="The topic.")],
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

    async def plan_reset(admin: Admin) -> list[OffsetMove]:
        plan = await admin.plan_reset(name, topic, time_ms, force=not only_back)
        await check_group(admin, name)
        return plan

    plan = ask(names, plan_reset, topic=topic)
    if not json:
        table(["broker", "queue", "now", "then", "difference"], map(_move_row, plan))
    confirm(f"move group {name} in topic {topic}: {consequence_of(plan)}?", yes=yes)
    moved = ask(
        names,
        lambda admin: admin.reset_offset(name, topic, time_ms, force=not only_back),
        changes=True,
        topic=topic,
    )
    before = {move.queue: move.before for move in plan}
    print_result(
        [
            {"queue": queue, "before": before.get(queue), "offset": offset}
            for queue, offset in moved.items()
        ],
        f"group {name} is moved in {quantity(len(moved), 'queue')} of {topic}",
        json=json,
    )


def _move_row(move: OffsetMove) -> list[object]:
    now, difference = "never consumed", ""
    if move.before is not None:
        now, difference = str(move.before), f"{move.after - move.before:+d}"
    return [move.queue.broker, move.queue.number, now, move.after, difference]


def consequence_of(plan: list[OffsetMove]) -> str:
    """How many messages a reset skips, and how many it delivers again."""
    changes = [move.after - move.before for move in plan if move.before is not None]
    skipped, repeated = sum(n for n in changes if n > 0), -sum(n for n in changes if n < 0)
    parts = [f"{quantity(skipped, 'message')} skipped"] if skipped else []
    parts += [f"{quantity(repeated, 'message')} delivered again"] if repeated else []
    return ", ".join(parts) or "no message skipped or delivered again"


@app.command()
def clients(
    name: Name, *, cluster: Cluster = None, names: Names = NAMES_DEFAULT, json: AsJson = False
) -> None:
    """Show the connected consumers of a group."""

    async def read(admin: Admin) -> GroupConnections:
        try:
            return await admin.group_connections(name, cluster=cluster)
        except ConsumerOffline:
            await check_group(admin, name, cluster=cluster)
            raise

    found = ask(names, read)
    print_rows(
        found,
        ["client", "address", "language", "version"],
        [[client.id, client.address, client.language, client.version] for client in found.clients],
        json=json,
    )
    for topic, expression in ({} if json else found.subscriptions).items():
        say(f"subscribed to {topic}: {expression}")
