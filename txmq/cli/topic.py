"""``txmq topic``: topics made, shown and removed."""

from typing import Annotated, Final

import typer

from txmq.cli.asking import NAMES_DEFAULT, AsJson, Cluster, Names, ask
from txmq.cli.output import as_json, say, table
from txmq.client import Admin
from txmq.protocol.codes import Perm
from txmq.protocol.topics import DLQ, RETRY

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Make, show and remove topics.")

Name = Annotated[str, typer.Argument(help="The topic.")]

_PERMS: Final = {"rw": Perm.READ | Perm.WRITE, "r": Perm.READ, "w": Perm.WRITE}
_OF_THE_SYSTEM: Final = (
    "TBW102",
    "SELF_TEST_TOPIC",
    "BenchmarkTest",
    "OFFSET_MOVED_EVENT",
    "SCHEDULE_TOPIC_XXXX",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "RMQ_SYS_",
    "rmq_sys_",
    RETRY,
    DLQ,
)


@app.command()
def create(
    name: Name,
    *,
    queues: Annotated[int, typer.Option(min=1, help="Queues at each broker.")] = 8,
    broker: Annotated[str | None, typer.Option(help="Only at this broker.")] = None,
    cluster: Cluster = None,
    perm: Annotated[str, typer.Option(help="What it allows: rw, r or w.")] = "rw",
    order: Annotated[
        bool, typer.Option("--order", help="Keep its queues while a broker is away.")
    ] = False,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Make a topic, or change it, and return when clients can find it."""
    allowed = _PERMS.get(perm)
    if allowed is None:
        raise typer.BadParameter(f"{perm!r} is none of rw, r, w", param_hint="--perm")
    route = ask(
        names,
        lambda admin: admin.create_topic(
            name, queues, broker, cluster=cluster, perm=allowed, order=order
        ),
        changes=True,
    )
    if json:
        as_json({"topic": name, "queues": queues, "brokers": route.brokers})
    else:
        say(f"topic {name} has {queues} queues at each of {', '.join(route.brokers)}")


@app.command("list")
def list_(
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Those of the system, retries and dead letters too.")
    ] = False,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """List topics."""

    async def listed(admin: Admin) -> list[str]:
        found = await admin.topics()
        if everything:
            return found
        # Brokers keep a topic in their own name and one in their cluster's.
        brokers = await admin.cluster()
        own = {each.name for each in brokers} | {each.cluster for each in brokers}
        own |= {f"{each.cluster}_REPLY_TOPIC" for each in brokers}
        return [each for each in found if each not in own and not each.startswith(_OF_THE_SYSTEM)]

    found = ask(names, listed)
    if json:
        as_json(found)
    else:
        for each in found or ["no topics"]:
            say(each)


@app.command()
def status(name: Name, *, names: Names = NAMES_DEFAULT, json: AsJson = False) -> None:
    """Show what is in the queues of a topic."""
    found = ask(names, lambda admin: admin.topic_status(name))
    if json:
        as_json(found)
        return
    table(
        ["broker", "queue", "oldest", "next", "messages"],
        [
            [
                each.queue.broker,
                each.queue.number,
                each.min_offset,
                each.max_offset,
                each.max_offset - each.min_offset,
            ]
            for each in found
        ],
    )


@app.command()
def route(name: Name, *, names: Names = NAMES_DEFAULT, json: AsJson = False) -> None:
    """Show which brokers have a topic, and where they listen."""
    found = ask(names, lambda admin: admin.route(name))
    rows = [
        {
            "broker": broker,
            "addresses": found.addresses[broker],
            "readable": sum(each.broker == broker for each in found.readable),
            "writable": sum(each.broker == broker for each in found.writable),
        }
        for broker in sorted(found.addresses)
    ]
    if json:
        as_json(rows)
        return
    table(
        ["broker", "replica", "address", "read queues", "write queues"],
        [
            [row["broker"], replica, address, row["readable"], row["writable"]]
            for row in rows
            for replica, address in sorted(found.addresses[str(row["broker"])].items())
        ],
    )


@app.command()
def delete(
    name: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Remove a topic and its messages everywhere."""
    if not yes:
        typer.confirm(f"remove topic {name} with all its messages?", abort=True, err=True)
    ask(names, lambda admin: admin.delete_topic(name), changes=True)
    if json:
        as_json({"topic": name, "deleted": True})
    else:
        say(f"topic {name} is removed")
