"""``txmq group``: consumer groups created, watched, moved and deleted."""

from dataclasses import replace
from typing import Annotated

import typer

from txmq.cli.common import NAMES_DEFAULT, AsJson, Cluster, Names, Yes, ask, confirm
from txmq.cli.group_moves import clone, reset, skip
from txmq.cli.group_state import monitor, status
from txmq.cli.lists import Listing, listed
from txmq.cli.output import print_result
from txmq.client import Admin
from txmq.client.values import GroupConnections, GroupLag, QueueProgress
from txmq.errors import ConsumerOffline
from txmq.ops.groups import is_of_system, lag_words
from txmq.ops.known_names import check_group, check_topic
from txmq.ops.rows import ListColumn
from txmq.text import quantity

__all__ = ["app"]

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
@listed(
    [
        ListColumn("group", "group"),
        ListColumn("may consume", "enabled", lambda enabled: "yes" if enabled else "no"),
        ListColumn("retries", "retries"),
    ],
    empty="no groups",
)
def list_(
    *,
    everything: Annotated[bool, typer.Option("--all", help="Also groups of the system.")] = False,
    cluster: Cluster = None,
    names: Names = NAMES_DEFAULT,
) -> Listing:
    """List consumer groups."""
    found = ask(names, lambda admin: admin.groups(cluster=cluster))
    return Listing(
        [
            {"group": name, "enabled": config.consume_enable, "retries": config.retry_max_times}
            for name, config in found.items()
            if everything or not is_of_system(name)
        ]
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
@listed(
    [
        ListColumn("topic", "queue", lambda queue: queue.topic),
        ListColumn("broker", "queue", lambda queue: queue.broker),
        ListColumn("queue", "queue", lambda queue: queue.number, lambda queue: queue.number),
        ListColumn("stored to", "broker_offset"),
        ListColumn("consumed to", "group_offset"),
        ListColumn("behind", "lag"),
    ],
    empty="0 messages behind",
)
def progress(
    name: Name,
    *,
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    cluster: Cluster = None,
    names: Names = NAMES_DEFAULT,
) -> Listing:
    """Show the consumer lag of a group in each queue."""

    async def read(admin: Admin) -> tuple[list[QueueProgress], GroupLag]:
        found = await admin.group_progress(name, topic, cluster=cluster)
        # Brokers answer the same for an unknown group and for one that has consumed nothing.
        if not found:
            await check_group(admin, name, cluster=cluster)
            if topic is not None:
                await check_topic(admin, topic)
        return found, await admin.group_lag(name, topic, cluster=cluster)

    fields = ("queue", "broker_offset", "group_offset", "lag", "consumed_ms")
    queues, found = ask(names, read)
    rows = [{field: getattr(queue, field) for field in fields} for queue in queues]
    total = lag_words(found, " message behind" if found.lag == 1 else " messages behind")
    return Listing(
        rows,
        [total],
        empty=total,
        as_json=lambda chosen: {
            "group": name,
            "lag": sum(row["lag"] for row in chosen),
            "oldest_ms": found.oldest_ms,
            "retries": found.retries,
            "queues": chosen,
        },
    )


app.command()(reset)
app.command()(skip)
app.command()(clone)
app.command()(status)
app.command()(monitor)


@app.command()
@listed(
    [
        ListColumn("client", "id"),
        ListColumn("address", "address"),
        ListColumn("language", "language"),
        ListColumn("version", "version"),
    ],
    empty="no consumer is connected",
)
def clients(name: Name, *, cluster: Cluster = None, names: Names = NAMES_DEFAULT) -> Listing:
    """Show the connected consumers of a group."""

    async def read(admin: Admin) -> GroupConnections:
        try:
            return await admin.group_connections(name, cluster=cluster)
        except ConsumerOffline:
            await check_group(admin, name, cluster=cluster)
            raise

    found = ask(names, read)
    return Listing(
        found.clients,
        [f"subscribed to {topic}: {text}" for topic, text in found.subscriptions.items()],
        as_json=lambda chosen: replace(found, clients=tuple(chosen)),
    )
