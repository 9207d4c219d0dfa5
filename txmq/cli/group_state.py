"""``txmq group status`` and ``monitor``: what consumers report, and how far groups are behind."""

from typing import Annotated, Any

import typer

from txmq.cli.common import FAILED, NAMES_DEFAULT, AsJson, Cluster, Names, ask, ask_each
from txmq.cli.lists import EVERY_DEFAULT, Every, Listing, Watch, listed, watched
from txmq.cli.output import as_json, say, table
from txmq.client import Admin, ConsumerReport
from txmq.errors import ConsumerOffline, TxmqError
from txmq.ops.groups import WAITING_COLUMN, is_of_system
from txmq.ops.known_names import check_group
from txmq.ops.moments import age_of
from txmq.ops.rows import ListColumn
from txmq.runtime.clock import SystemClock
from txmq.text import quantity

__all__ = ["monitor", "status"]


def status(
    name: Annotated[str, typer.Argument(help="The group.")],
    *,
    cluster: Cluster = None,
    watch: Watch = False,
    every: Every = EVERY_DEFAULT,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Show what each consumer of a group reports: its queues, offsets and fetched messages.

    It also names consumers whose subscriptions differ, because such a group loses messages.
    """

    async def read(admin: Admin) -> list[dict[str, Any]]:
        try:
            online = await admin.group_connections(name, cluster=cluster)
        except ConsumerOffline:
            await check_group(admin, name, cluster=cluster)
            raise

        async def report(client: str) -> dict[str, Any]:
            try:
                return _fields(await admin.consumer_report(name, client, cluster=cluster))
            except TxmqError as error:
                # The other consumers are shown all the same.
                return {"client": client, "problem": str(error).strip()}

        return await ask_each([client.id for client in online.clients], report, "consumers")

    def show(consumers: list[dict[str, Any]]) -> None:
        if json:
            as_json({"group": name, "consumers": consumers})
        else:
            _print_consumers(consumers)

    watched(lambda: ask(names, read), show, watch=watch, every=every)


def _fields(report: ConsumerReport) -> dict[str, Any]:
    return {
        "client": report.client,
        "orderly": report.is_orderly,
        "started_ms": report.started_ms,
        "subscriptions": dict(report.subscriptions),
        "queues": [
            {"queue": held.queue, "offset": held.offset, "fetched": held.fetched}
            for held in report.queues
        ],
    }


def _print_consumers(consumers: list[dict[str, Any]]) -> None:
    now_ms = SystemClock().wall_ms()
    answering = [consumer for consumer in consumers if "problem" not in consumer]
    table(
        ["client", "order", "running for", "queues", "fetched"],
        [
            [
                consumer["client"],
                "orderly" if consumer["orderly"] else "concurrent",
                age_of(now_ms - consumer["started_ms"]) if consumer["started_ms"] else "",
                len(consumer["queues"]),
                sum(held["fetched"] for held in consumer["queues"]),
            ]
            for consumer in answering
        ],
    )
    table(
        ["topic", "broker", "queue", "client", "consumed to", "fetched"],
        [
            [
                held["queue"].topic,
                held["queue"].broker,
                held["queue"].number,
                consumer["client"],
                held["offset"],
                held["fetched"],
            ]
            for consumer in answering
            for held in consumer["queues"]
        ],
    )
    for consumer in consumers:
        if "problem" in consumer:
            say(f"{consumer['client']} does not report: {consumer['problem']}")
    if len({tuple(sorted(consumer["subscriptions"].items())) for consumer in answering}) > 1:
        say("the consumers have different subscriptions, so the group loses messages:")
        for consumer in answering:
            words = [f"{topic} {text}" for topic, text in sorted(consumer["subscriptions"].items())]
            say(f"{consumer['client']} consumes {', '.join(words)}")


@listed(
    [
        ListColumn("group", "group"),
        ListColumn("behind", "lag"),
        WAITING_COLUMN,
        ListColumn("oldest", "delay_ms", lambda delay: "" if delay is None else age_of(delay)),
        ListColumn("out/s", "per_second", lambda rate: "" if rate is None else f"{rate:.1f}"),
        ListColumn("consumers", "consumers"),
        ListColumn("topics", "topics", lambda topics: "" if topics is None else len(topics)),
    ],
    empty="no groups",
)
def monitor(
    *,
    lag_max: Annotated[
        int | None,
        typer.Option(
            "--lag-max",
            min=0,
            help="Show only groups with more messages behind or waiting, and exit with 1.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also groups of the system.")] = False,
    cluster: Cluster = None,
    names: Names = NAMES_DEFAULT,
) -> Listing:
    """Show how far all groups are behind, how fast they consume, and their consumers.

    "waiting" counts messages that a group failed to handle and receives again later; "oldest" is
    the age of the oldest unread message.

    With --lag-max, a script or a timer learns from the exit code that a group is too far behind.
    """

    async def read(admin: Admin) -> list[dict[str, Any]]:
        groups = await admin.groups(cluster=cluster)
        wanted = [name for name in groups if everything or not is_of_system(name)]
        return await ask_each(wanted, lambda name: _progress(admin, name, cluster), "groups")

    rows = ask(names, read)
    warnings = [
        f"without group {row['group']}: {row['problem']}" for row in rows if "problem" in row
    ]
    shown = [row for row in rows if "problem" not in row]
    if lag_max is None:
        return Listing(shown, warnings=warnings)
    behind = [row for row in shown if row["unconsumed"] > lag_max]
    empty = f"no group has more than {quantity(lag_max, 'message')} behind or waiting"
    return Listing(behind, warnings=warnings, code=FAILED if behind else 0, empty=empty)


async def _progress(admin: Admin, name: str, cluster: str | None) -> dict[str, Any]:
    try:
        found = await admin.group_lag(name, cluster=cluster)
        try:
            consumers = len((await admin.group_connections(name, cluster=cluster)).clients)
        except ConsumerOffline:
            consumers = 0
    except TxmqError as error:
        return {"group": name, "problem": str(error).strip()}  # The others are shown all the same.
    return {
        "group": name,
        "lag": found.lag,
        "retries": found.retries,
        "unconsumed": found.unconsumed,
        "delay_ms": found.oldest_ms,
        "per_second": found.per_second,
        "consumers": consumers,
        "topics": list(found.topics),
    }
