"""``txmq topic``: creates, changes, shows and deletes topics."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final

import typer

from txmq.cli.commands import Answer, Commands, Listing, listed
from txmq.cli.common import (
    WRONGLY_CALLED,
    Ask,
    AtBroker,
    Cluster,
    Yes,
    ask_each,
    confirm,
    fail,
    flag,
    option,
)
from txmq.cli.output import say
from txmq.client import Admin, Route
from txmq.limits import QUEUES_OF_NEW_TOPICS
from txmq.ops.known_names import check_topic
from txmq.ops.rows import CLIENT_COLUMNS, ListColumn, consumer_rows
from txmq.ops.topics import TopicChange, check_new_topic, description_of, fields_of, topic_rows
from txmq.protocol.codes import Perm
from txmq.text import quantity

__all__ = ["app"]

app = Commands("Create, change, show and delete topics.")

Name = Annotated[str, typer.Argument(help="The topic.")]

_PERMS: Final = {"rw": Perm.READ | Perm.WRITE, "r": Perm.READ, "w": Perm.WRITE}


@app.command()
def create(
    name: Name,
    *,
    queues: int = option("Queues at each broker.", default=QUEUES_OF_NEW_TOPICS, min=1),
    broker: AtBroker = None,
    cluster: Cluster = None,
    perm: str = option("Its permission: rw, r or w.", default="rw"),
    order: bool = flag("Keep its queues while a broker is away.", "--order"),
    ask: Ask,
) -> Answer:
    """Create a topic, and wait until clients can find it; `txmq topic update` changes one."""
    allowed = _perm_of(perm, "--perm")

    async def create_topic(admin: Admin) -> Route:
        await check_new_topic(admin, name, queues, broker, cluster)
        return await admin.create_topic(
            name, queues, broker, cluster=cluster, perm=allowed, order=order
        )

    route = ask(create_topic, changes=True)
    text = f"topic {name} has {quantity(queues, 'queue')} at each of {', '.join(route.brokers)}"
    return Answer({"topic": name, "queues": queues, "brokers": route.brokers}, text)


@app.command()
def update(
    name: Name,
    *,
    queues: int | None = option("Queues at each broker.", min=1),
    order: bool | None = option("Keep its queues while a broker is away.", "--order/--no-order"),
    broker: AtBroker = None,
    shrink: bool = flag("Remove queues, in two steps: run it twice.", "--shrink"),
    ask: Ask,
) -> Answer:
    """Change the queues of a topic, or their order; `txmq topic permit` changes its permission.

    Removing queues needs --shrink and two runs. The first run closes the surplus queues for new
    messages. The second run removes them, once all groups have consumed their messages.
    """
    if (queues, order) == (None, None):
        fail("name what to change: --queues or --order", WRONGLY_CALLED)
    return _change(TopicChange(name, queues, None, order, broker, shrink), ask)


@app.command()
def permit(
    name: Name,
    perm: Annotated[str, typer.Argument(metavar="rw|r|w|none", help="What clients may do.")],
    *,
    broker: AtBroker = None,
    ask: Ask,
) -> Answer:
    """Permit clients to read and write a topic, or forbid it; its messages stay."""
    allowed = _perm_of(perm, "PERM", {**_PERMS, "none": Perm(0)})
    return _change(TopicChange(name, None, allowed, None, broker, may_shrink=False), ask)


def _change(wanted: TopicChange, ask: Ask) -> Answer:
    done = ask(wanted.make, changes=True, topic=wanted.topic)

    def show() -> None:
        for at, config in done.items():
            say(f"topic {wanted.topic} at {at}: {description_of(config)}")
        queues = wanted.queues
        if queues is not None and any(config.read_queue_nums > queues for config in done.values()):
            say(
                f"new messages go to the first {quantity(queues, 'queue')} only; when all groups "
                "have consumed the messages of the others, and at least 30 s from now, remove "
                f"those with: {wanted.command}"
            )

    return Answer([{"broker": at, **fields_of(config)} for at, config in done.items()], show)


def _perm_of(text: str, option: str, perms: Mapping[str, Perm] = _PERMS) -> Perm:
    allowed = perms.get(text)
    if allowed is None:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(perms)}", param_hint=option)
    return allowed


@app.command("list")
@listed(
    ["topic", "read queues", "write queues", "permission", "messages"],
    empty="no topics",
)
def list_(
    *,
    everything: bool = flag("Also topics of the system, retries and dead letters.", "--all"),
    ask: Ask,
) -> Listing:
    """List topics with their queues, permission and messages, summed over all brokers."""
    counted = partial(ask_each, label="topics")
    found = ask(lambda admin: topic_rows(admin, everything=everything, ask_each=counted))
    warnings = [f"without broker {broker}: {why}" for broker, why in found.silent.items()]
    return Listing(found.rows, warnings=warnings)


@app.command()
@listed(
    [*CLIENT_COLUMNS, ListColumn("subscribed to", "expression")],
    empty="no group consumes this topic",
)
def clients(name: Name, *, ask: Ask) -> Listing:
    """Show the groups that consume a topic, and their connected consumers."""
    return Listing(ask(lambda admin: consumer_rows(admin, name), topic=name))


@app.command()
@listed(
    [
        ListColumn("broker", "queue", lambda queue: queue.broker),
        ListColumn("queue", "queue", lambda queue: queue.number),
        ListColumn("oldest", "min_offset"),
        ListColumn("next", "max_offset"),
        "messages",
    ],
    empty="no queues",
)
def status(name: Name, *, ask: Ask) -> Listing:
    """Show the queues of a topic."""
    return Listing(ask(lambda admin: admin.topic_status(name), topic=name))


@app.command()
@listed(
    [
        *("broker", "replica", "address"),
        ListColumn("read queues", "readable"),
        ListColumn("write queues", "writable"),
    ],
    empty="no broker has it",
)
def route(name: Name, *, ask: Ask) -> Listing:
    """Show which brokers have a topic, and where they listen."""
    found = ask(lambda admin: admin.route(name), topic=name)
    rows = [
        {
            "broker": broker,
            "replica": replica,
            "address": address,
            "readable": sum(queue.broker == broker for queue in found.readable),
            "writable": sum(queue.broker == broker for queue in found.writable),
        }
        for broker in sorted(found.addresses)
        for replica, address in sorted(found.addresses[broker].items())
    ]
    return Listing(rows, as_json=_by_broker)


def _by_broker(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One value for each broker, with the addresses of its replicas."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        value = found.setdefault(row["broker"], {
            "broker": row["broker"],
            "addresses": {},
            "readable": row["readable"],
            "writable": row["writable"],
        })  # fmt: skip
        value["addresses"][row["replica"]] = row["address"]
    return list(found.values())


@app.command()
def delete(name: Name, *, yes: Yes = False, ask: Ask) -> Answer:
    """Delete a topic and its messages at all brokers."""
    ask(lambda admin: check_topic(admin, name))
    confirm(f"delete topic {name} with all its messages?", yes=yes)
    ask(lambda admin: admin.delete_topic(name), changes=True, topic=name)
    return Answer({"topic": name, "deleted": True}, f"topic {name} is deleted")
