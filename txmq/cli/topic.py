"""``txmq topic``: topics created, changed, shown and deleted."""

from shlex import quote
from typing import Annotated, Final

import typer

from txmq.cli.common import (
    NAMES_DEFAULT,
    WRONGLY_CALLED,
    AsJson,
    Cluster,
    Names,
    Yes,
    ask,
    confirm,
    fail,
)
from txmq.cli.known_names import check_topic
from txmq.cli.output import as_json, note, print_result, print_rows, say
from txmq.cli.topic_change import TopicChange
from txmq.cli.topic_rows import fields_of, permission_of, topic_rows
from txmq.client import Admin, Route
from txmq.client.names import check_name
from txmq.errors import TopicExists, TopicNotFound
from txmq.protocol.bodies import TopicConfig
from txmq.protocol.codes import Perm
from txmq.quantity import quantity

__all__ = ["app", "check_new_topic"]

app = typer.Typer(no_args_is_help=True, help="Create, change, show and delete topics.")

Name = Annotated[str, typer.Argument(help="The topic.")]

_PERMS: Final = {"rw": Perm.READ | Perm.WRITE, "r": Perm.READ, "w": Perm.WRITE}


@app.command()
def create(
    name: Name,
    *,
    queues: Annotated[int, typer.Option(min=1, help="Queues at each broker.")] = 8,
    broker: Annotated[str | None, typer.Option(help="Only at this broker.")] = None,
    cluster: Cluster = None,
    perm: Annotated[str, typer.Option(help="Its permission: rw, r or w.")] = "rw",
    order: Annotated[
        bool, typer.Option("--order", help="Keep its queues while a broker is away.")
    ] = False,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Create a topic, and return when clients can find it; `txmq topic update` changes one."""
    allowed = _perm_of(perm)

    async def create_topic(admin: Admin) -> Route:
        await check_new_topic(admin, name, queues, broker, cluster)
        return await admin.create_topic(
            name, queues, broker, cluster=cluster, perm=allowed, order=order
        )

    route = ask(names, create_topic, changes=True)
    text = f"topic {name} has {quantity(queues, 'queue')} at each of {', '.join(route.brokers)}"
    print_result({"topic": name, "queues": queues, "brokers": route.brokers}, text, json=json)


async def check_new_topic(
    admin: Admin, name: str, queues: int, broker: str | None, cluster: str | None
) -> None:
    """Pass if no broker that is to have the topic has it already.

    Raises:
        LocalProtocolError: The topic name is invalid.
        TopicExists: A broker has it.
        TransportError: No name server answers.
    """
    check_name("topic", name)
    try:
        route = await admin.route(name)
    except TopicNotFound:
        return
    known = await admin.cluster()
    chosen = {
        at.name for at in known if broker in (None, at.name) and cluster in (None, at.cluster)
    }
    if having := sorted(chosen & set(route.addresses)):
        only = f" --broker {quote(broker)}" if broker is not None else ""
        raise TopicExists(
            f"topic {name!r} exists already at {', '.join(having)}; change it with: "
            f"txmq topic update {quote(name)} --queues {queues}{only}"
        )


@app.command()
def update(
    name: Name,
    *,
    queues: Annotated[int | None, typer.Option(min=1, help="Queues at each broker.")] = None,
    perm: Annotated[str | None, typer.Option(help="Its permission: rw, r or w.")] = None,
    order: Annotated[
        bool | None,
        typer.Option("--order/--no-order", help="Keep its queues while a broker is away."),
    ] = None,
    broker: Annotated[str | None, typer.Option(help="Only at this broker.")] = None,
    shrink: Annotated[
        bool, typer.Option("--shrink", help="Remove queues, in two steps: run it twice.")
    ] = False,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Change a topic; settings that are not named stay.

    Fewer queues need --shrink and two runs. The first run closes the queues for new messages. The
    second run removes the queues, when all groups have consumed their messages.
    """
    if (queues, perm, order) == (None, None, None):
        fail("name what to change: --queues, --perm or --order", WRONGLY_CALLED)
    wanted = TopicChange(
        name, queues, None if perm is None else _perm_of(perm), order, broker, shrink
    )
    done = ask(names, wanted.make, changes=True, topic=name)
    if json:
        as_json([{"broker": at, **fields_of(config)} for at, config in done.items()])
        return
    for at, config in done.items():
        say(f"topic {name} at {at}: {_description(config)}")
    if queues is not None and any(config.read_queue_nums > queues for config in done.values()):
        say(
            f"new messages go to the first {quantity(queues, 'queue')} only; when all groups have "
            "consumed the messages of the others, and at least 30 s from now, remove those with: "
            f"{wanted.command}"
        )


def _perm_of(text: str) -> Perm:
    allowed = _PERMS.get(text)
    if allowed is None:
        raise typer.BadParameter(f"{text!r} is not one of rw, r, w", param_hint="--perm")
    return allowed


def _description(config: TopicConfig) -> str:
    write, read = config.write_queue_nums, config.read_queue_nums
    counted = quantity(read, "queue")
    if write != read:
        counted = f"{quantity(write, 'queue')} to write, {read} to read"
    return f"{counted}, {permission_of([config])}" + (", ordered" if config.order else "")


@app.command("list")
def list_(
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Also topics of the system, retries and dead letters.")
    ] = False,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """List topics with their queues, permission and messages, summed over all brokers."""
    found = ask(names, lambda admin: topic_rows(admin, everything=everything))
    print_rows(
        found.rows,
        ["topic", "read queues", "write queues", "permission", "messages"],
        [["" if value is None else value for value in row.values()] for row in found.rows],
        json=json,
        empty="no topics",
    )
    for broker, why in found.silent.items():
        note(f"txmq: without broker {broker}: {why}")


@app.command()
def status(name: Name, *, names: Names = NAMES_DEFAULT, json: AsJson = False) -> None:
    """Show the queues of a topic."""
    found = ask(names, lambda admin: admin.topic_status(name), topic=name)
    print_rows(
        found,
        ["broker", "queue", "oldest", "next", "messages"],
        [
            [
                queue.queue.broker,
                queue.queue.number,
                queue.min_offset,
                queue.max_offset,
                queue.max_offset - queue.min_offset,
            ]
            for queue in found
        ],
        json=json,
    )


@app.command()
def route(name: Name, *, names: Names = NAMES_DEFAULT, json: AsJson = False) -> None:
    """Show which brokers have a topic, and where they listen."""
    found = ask(names, lambda admin: admin.route(name), topic=name)
    rows = [
        {
            "broker": broker,
            "addresses": found.addresses[broker],
            "readable": sum(queue.broker == broker for queue in found.readable),
            "writable": sum(queue.broker == broker for queue in found.writable),
        }
        for broker in sorted(found.addresses)
    ]
    print_rows(
        rows,
        ["broker", "replica", "address", "read queues", "write queues"],
        [
            [row["broker"], replica, address, row["readable"], row["writable"]]
            for row in rows
            for replica, address in sorted(found.addresses[str(row["broker"])].items())
        ],
        json=json,
    )


@app.command()
def delete(
    name: Name,
    *,
    yes: Yes = False,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Delete a topic and its messages at all brokers."""
    ask(names, lambda admin: check_topic(admin, name))
    confirm(f"delete topic {name} with all its messages?", yes=yes)
    ask(names, lambda admin: admin.delete_topic(name), changes=True, topic=name)
    print_result({"topic": name, "deleted": True}, f"topic {name} is deleted", json=json)
