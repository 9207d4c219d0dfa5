"""``txmq group``: creates, watches, moves and deletes consumer groups."""

from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import typer

from txmq.cli.commands import Answer, Commands, Listing, Watching, listed
from txmq.cli.common import (
    FAILED,
    WRONGLY_CALLED,
    AsJson,
    Ask,
    AtBroker,
    Cluster,
    Operator,
    TopicArgument,
    Yes,
    argument,
    ask_each,
    confirm,
    fail,
    flag,
    moment_of,
    operator_name,
    option,
)
from txmq.cli.output import as_json, progress_bar, say, table
from txmq.client import Admin, ConsumerReport
from txmq.client.admin.offsets import TO_THE_END
from txmq.client.values import GroupConnections, GroupLag, OffsetMove, QueueProgress
from txmq.errors import ConsumerOffline, IllegalOperation, TxmqError, UsageError
from txmq.message import Queue, QueueOffset
from txmq.ops.groups import WAITING_COLUMN, consequence_of, is_of_system, lag_words
from txmq.ops.known_names import check_group, check_topic
from txmq.ops.moments import age_of
from txmq.ops.rows import ListColumn
from txmq.runtime.clock import SystemClock
from txmq.text import quantity

__all__ = ["app"]

app = Commands("Create, watch, move and delete consumer groups.")

Name = Annotated[str, typer.Argument(help="The group.")]


@app.command()
def create(
    name: Name,
    *,
    retries: int | None = option(
        "Retries of a message before it is a dead letter; 16 if new.", min=0
    ),
    enabled: bool | None = option("Whether it may consume.", "--enabled/--no-enabled"),
    broker: AtBroker = None,
    cluster: Cluster = None,
    ask: Ask,
) -> Answer:
    """Create or change a consumer group; omitted settings keep their values."""
    ask(
        lambda admin: admin.create_group(
            name, retries=retries, enabled=enabled, broker=broker, cluster=cluster
        ),
        changes=True,
    )
    settings = [] if retries is None else [quantity(retries, "retry", "retries")]
    settings += [] if enabled is None else ["may consume" if enabled else "may not consume"]
    text = "; ".join([f"group {name} exists", *settings])
    return Answer({"group": name, "retries": retries, "enabled": enabled}, text)


@app.command("list")
@listed(
    [
        "group",
        ListColumn("may consume", "enabled", lambda enabled: "yes" if enabled else "no"),
        "retries",
    ],
    empty="no groups",
)
def list_(
    *,
    everything: bool = flag("Also groups of the system.", "--all"),
    cluster: Cluster = None,
    ask: Ask,
) -> Listing:
    """List consumer groups."""
    found = ask(lambda admin: admin.groups(cluster=cluster))
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
    keep_offsets: bool = flag("Keep its offsets, for a group of this name.", "--keep-offsets"),
    yes: Yes = False,
    cluster: Cluster = None,
    ask: Ask,
) -> Answer:
    """Delete a consumer group."""
    ask(lambda admin: check_group(admin, name, cluster=cluster))
    confirm(f"delete group {name}?", yes=yes)
    ask(
        lambda admin: admin.delete_group(name, offsets=not keep_offsets, cluster=cluster),
        changes=True,
    )
    return Answer({"group": name, "deleted": True}, f"group {name} is deleted")


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
    topic: str | None = option("Only this topic."),
    cluster: Cluster = None,
    ask: Ask,
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
    queues, found = ask(read)
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


@app.command()
def reset(
    name: Name,
    topic: TopicArgument,
    *,
    to: str = option(
        "earliest, latest, 2024-05-01T12:00, 2h (ago), milliseconds since 1970.", default=...
    ),
    only_back: bool = flag("Skip no message that is not consumed yet.", "--only-back"),
    yes: Yes = False,
    ask: Ask,
    json: AsJson = False,
) -> Answer:
    """Move a group's offsets to a point in time; shows the change, and asks first."""
    move = GroupMove(ask, name, yes, json)
    return move.to(topic, moment_of(to, "--to"), may_skip=not only_back)


@app.command()
def skip(
    name: Name,
    topic: str | None = argument("The topic.", default=None),
    *,
    everything: bool = flag("In all topics in which the group has an offset.", "--all"),
    offset: int | None = option("Only this message of a queue, which is damaged.", min=0),
    through: int | None = option("Also what is damaged from --offset up to this message.", min=0),
    queue: int | None = option("The queue of the message.", min=0),
    broker: str | None = option("The broker of the queue, if several have the topic."),
    reason: str = option(
        "Why a damaged message is skipped; the broker's audit keeps it.", default=""
    ),
    operator: Operator = "",
    yes: Yes = False,
    ask: Ask,
    json: AsJson = False,
) -> Answer:
    """Skip all messages that a group has not consumed yet; shows how many, and asks first.

    With --offset it skips only a damaged message at which the group is stuck: the group still
    receives every message before and after it, and every intact one up to --through.
    """
    move = GroupMove(ask, name, yes, json)
    if offset is not None:
        if topic is None or queue is None or not reason.strip() or everything:
            fail("with --offset name the topic, --queue and --reason", WRONGLY_CALLED)
        last = offset if through is None else through
        if last < offset:
            fail(f"--through {last} lies before --offset {offset}", WRONGLY_CALLED)
        why = {"operator": operator_name(operator), "reason": reason}
        return move.past_damage(topic, queue, broker, (offset, last), why)
    if any(option is not None for option in (through, queue, broker)) or reason or operator:
        fail("--offset names the damaged message to skip", WRONGLY_CALLED)
    if (topic is None) is not everything:
        fail("name a topic, or add --all", WRONGLY_CALLED)
    if topic is None:
        return move.to_all_ends()
    return move.to(topic, TO_THE_END, may_skip=True)


class GroupMove(NamedTuple):
    """A move of a group's offsets, which the user sees and confirms first."""

    ask: Ask
    group: str
    yes: bool
    json: bool

    def to(self, topic: str, time_ms: int, *, may_skip: bool) -> Answer:
        """Move the group in a topic to a moment."""
        group = self.group

        async def plan_reset(admin: Admin) -> list[OffsetMove]:
            plan = await admin.plan_reset(group, topic, time_ms, force=may_skip)
            await check_group(admin, group)
            return plan

        plan = self.ask(plan_reset, topic=topic)
        self.agree(plan, f"topic {topic}")
        moved = self.ask(
            lambda admin: admin.reset_offset(group, topic, time_ms, force=may_skip),
            changes=True,
            topic=topic,
        )
        text = f"group {group} is moved in {quantity(len(moved), 'queue')} of {topic}"
        return Answer(_moves(plan, moved), text)

    def to_all_ends(self) -> Answer:
        """Move the group to the ends of all topics in which it has an offset."""
        group = self.group

        async def plan_all(admin: Admin) -> list[OffsetMove]:
            await check_group(admin, group)
            topics = sorted({found.queue.topic for found in await admin.group_progress(group)})
            plans = await ask_each(
                topics, lambda topic: admin.plan_reset(group, topic, TO_THE_END), "topics"
            )
            return [move for plan in plans for move in plan]

        plan = self.ask(plan_all)
        skipped = dict.fromkeys(sorted({move.queue.topic for move in plan}), 0)
        for move in plan:
            if move.before is not None:
                skipped[move.queue.topic] += move.after - move.before
        if not self.json:
            table(["topic", "messages skipped"], skipped.items())
        topics = quantity(len(skipped), "topic")
        confirm(f"move group {group} in {topics}: {consequence_of(plan)}?", yes=self.yes)

        async def skip_each(admin: Admin) -> dict[Queue, QueueOffset]:
            moved: dict[Queue, QueueOffset] = {}
            with progress_bar("topics", len(skipped)) as advance:
                for topic in skipped:
                    moved |= await admin.reset_offset(group, topic, TO_THE_END)
                    advance()
            return moved

        moved = self.ask(skip_each, changes=True)
        text = f"group {group} is moved in {quantity(len(moved), 'queue')} of {topics}"
        return Answer(_moves(plan, moved), text)

    def past_damage(
        self,
        topic: str,
        number: int,
        broker: str | None,
        offsets: tuple[int, int],
        why: dict[str, str],
    ) -> Answer:
        """Skip the damaged messages between two offsets of a queue.

        Args:
            topic: The topic.
            number: The number of the queue.
            broker: Its broker; ``None`` if only one broker has the topic.
            offsets: The first and the last offset.
            why: The operator and the reason.
        """
        first, last = offsets

        async def find_queue(admin: Admin) -> Queue:
            brokers = {one.broker for one in (await admin.route(topic)).readable}
            if broker is None and len(brokers) > 1:
                raise UsageError(
                    f"{quantity(len(brokers), 'broker')} have the topic {topic}; name one with "
                    f"--broker: {', '.join(sorted(brokers))}"
                )
            return Queue(topic, broker or next(iter(brokers), ""), number)

        queue = self.ask(find_queue, topic=topic)
        where = f"{topic}/{number} at {queue.broker}"
        what = f"message {first}" if last == first else f"what is damaged in {first} to {last}"
        question = f"have group {self.group} skip {what} of {where}? It will not receive it."
        confirm(question, yes=self.yes)
        self.ask(
            lambda admin: admin.skip_damaged(self.group, queue, first, last, **why),
            changes=True,
            topic=topic,
        )
        return Answer(
            {"group": self.group, "queue": queue, "offset": first, "through": last, **why},
            f"group {self.group} skips {what} of {where}",
        )

    def agree(self, plan: list[OffsetMove], where: str) -> None:
        """Show the moves of a plan, unless a program reads the output, and ask for consent.

        Raises:
            typer.Exit: The user cannot answer.
            typer.Abort: The user refuses.
        """
        if not self.json:
            table(["broker", "queue", "now", "then", "difference"], map(_move_row, plan))
        confirm(f"move group {self.group} in {where}: {consequence_of(plan)}?", yes=self.yes)


def _move_row(move: OffsetMove) -> list[object]:
    now, difference = "never consumed", ""
    if move.before is not None:
        now, difference = str(move.before), f"{move.after - move.before:+d}"
    return [move.queue.broker, move.queue.number, now, move.after, difference]


def _moves(plan: list[OffsetMove], moved: dict[Queue, QueueOffset]) -> list[dict[str, object]]:
    before = {move.queue: move.before for move in plan}
    return [
        {"queue": queue, "before": before.get(queue), "offset": offset}
        for queue, offset in moved.items()
    ]


@app.command()
def clone(
    source: Annotated[str, typer.Argument(help="The group whose offsets to copy.")],
    target: Annotated[str, typer.Argument(help="The group that gets them.")],
    topic: TopicArgument,
    *,
    yes: Yes = False,
    ask: Ask,
    json: AsJson = False,
) -> Answer:
    """Copy the offsets of a group in a topic to another group; shows the change, and asks first.

    The target group must have no connected consumers: they would overwrite the new offsets with
    their own.
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

    plan = ask(plan_clone, topic=topic)
    GroupMove(ask, target, yes, json).agree(plan, f"topic {topic}")
    ask(lambda admin: admin.clone_offsets(source, target, topic), changes=True, topic=topic)
    return Answer(
        [{"queue": move.queue, "before": move.before, "offset": move.after} for move in plan],
        f"group {target} has the offsets of {source} in {quantity(len(plan), 'queue')} of {topic}",
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


@app.command()
def status(
    name: Name,
    *,
    cluster: Cluster = None,
    watching: Watching,
    ask: Ask,
    json: AsJson = False,
) -> None:
    """Show what each consumer of a group reports: its queues, offsets and fetched messages.

    It also reports different subscriptions, because they make a group lose messages.
    """

    async def read(admin: Admin) -> list[dict[str, Any]]:
        online = await _connections(admin, name, cluster)

        async def report(client: str) -> dict[str, Any]:
            try:
                return _consumer_fields(await admin.consumer_report(name, client, cluster=cluster))
            except TxmqError as error:
                return {"client": client, "problem": str(error).strip()}

        return await ask_each([client.id for client in online.clients], report, "consumers")

    def show(consumers: list[dict[str, Any]]) -> None:
        if json:
            as_json({"group": name, "consumers": consumers})
        else:
            _print_consumers(consumers)

    watching.show(lambda: ask(read), show)


async def _connections(admin: Admin, name: str, cluster: str | None) -> GroupConnections:
    try:
        return await admin.group_connections(name, cluster=cluster)
    except ConsumerOffline:
        await check_group(admin, name, cluster=cluster)
        raise


def _consumer_fields(report: ConsumerReport) -> dict[str, Any]:
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


@app.command()
@listed(
    [
        "group",
        ListColumn("behind", "lag"),
        WAITING_COLUMN,
        ListColumn("oldest", "delay_ms", lambda delay: "" if delay is None else age_of(delay)),
        ListColumn("out/s", "per_second", lambda rate: "" if rate is None else f"{rate:.1f}"),
        "consumers",
        ListColumn("topics", "topics", lambda topics: "" if topics is None else len(topics)),
    ],
    empty="no groups",
)
def monitor(
    *,
    lag_max: int | None = option(
        "Show only groups with more messages behind or waiting, and exit with 1.", min=0
    ),
    everything: bool = flag("Also groups of the system.", "--all"),
    cluster: Cluster = None,
    ask: Ask,
) -> Listing:
    """Show how far all groups are behind, how fast they consume, and their consumers.

    "waiting" counts messages that a group failed to handle and receives again later; "oldest" is
    the age of the oldest unread message.

    With --lag-max, the exit code tells a script or a timer whether a group is too far behind.
    """

    async def read(admin: Admin) -> list[dict[str, Any]]:
        groups = await admin.groups(cluster=cluster)
        wanted = [name for name in groups if everything or not is_of_system(name)]
        return await ask_each(wanted, lambda name: _group_row(admin, name, cluster), "groups")

    rows = ask(read)
    warnings = [
        f"without group {row['group']}: {row['problem']}" for row in rows if "problem" in row
    ]
    shown = [row for row in rows if "problem" not in row]
    if lag_max is None:
        return Listing(shown, warnings=warnings)
    behind = [row for row in shown if row["unconsumed"] > lag_max]
    empty = f"no group has more than {quantity(lag_max, 'message')} behind or waiting"
    return Listing(behind, warnings=warnings, code=FAILED if behind else 0, empty=empty)


async def _group_row(admin: Admin, name: str, cluster: str | None) -> dict[str, Any]:
    try:
        found = await admin.group_lag(name, cluster=cluster)
        try:
            consumers = len((await admin.group_connections(name, cluster=cluster)).clients)
        except ConsumerOffline:
            consumers = 0
    except TxmqError as error:
        return {"group": name, "problem": str(error).strip()}  # The other groups are still shown.
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


@app.command()
@listed(
    [ListColumn("client", "id"), "address", "language", "version"],
    empty="no consumer is connected",
)
def clients(name: Name, *, cluster: Cluster = None, ask: Ask) -> Listing:
    """Show the connected consumers of a group."""
    found = ask(lambda admin: _connections(admin, name, cluster))
    return Listing(
        found.clients,
        [f"subscribed to {topic}: {text}" for topic, text in found.subscriptions.items()],
        as_json=lambda chosen: replace(found, clients=tuple(chosen)),
    )
