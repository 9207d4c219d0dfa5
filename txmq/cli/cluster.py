"""``txmq cluster``: clusters and their brokers."""

import asyncio
import socket
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from txmq.cli.commands import Answer, Commands, Listing, Watching, listed
from txmq.cli.common import (
    WRONGLY_CALLED,
    AsJson,
    Ask,
    Operator,
    Yes,
    argument,
    confirm,
    exit_on_errors,
    fail,
    flag,
    operator_name,
    option,
)
from txmq.cli.output import as_json, say, table
from txmq.client import Admin
from txmq.client.routes import MASTER
from txmq.errors import (
    IllegalOperation,
    InvalidParameter,
    NoPermission,
    RequestTimeout,
    TxmqError,
    UsageError,
)
from txmq.ops.brokers import copies_of, is_drained
from txmq.ops.moments import time_text
from txmq.ops.rows import ListColumn
from txmq.protocol.codes import RequestCode
from txmq.protocol.copies import SetChange, SetChanged
from txmq.runtime.clock import SystemClock
from txmq.runtime.coordinator import AllowedLoss, Leader, SetCoordinator, View, short_name
from txmq.runtime.network import SystemNetwork
from txmq.text import quantity

__all__ = ["app"]

app = Commands("Show clusters and their brokers.")

SetName = Annotated[str, typer.Option(help="The name of the set.")]
Reason = Annotated[str, typer.Option(help="Why; it is kept.")]
Member = Annotated[
    str, typer.Argument(help="The member, as m3, or by its whole name, as m3.0a1b2c3d.")
]
BrokerName = Annotated[str, typer.Argument(help="The broker.")]

ANSWER_S: Final = 10.0
HAND_OVER_S: Final = 20.0
"""Longer than a leader drains before it hands over."""

_BROKERS: Final = (
    "cluster", "broker", "leader", "address", "epoch", "mode", "copies in sync", "log end",
)  # fmt: skip
_FOLLOWERS: Final = (
    "broker", "follower", "connection", "in sync", "position", "bytes behind", "seconds behind",
)  # fmt: skip
_VERIFIED: Final = ("broker", "member", "damaged parts of its log", "whole log verified at")
_REMOVED: Final = ("broker", "removed member", "at", "by", "reason")


@app.command("list")
@listed(
    [
        *("cluster", "broker", "replica", "address", "version"),
        ListColumn("in/s", "in_per_s"),
        ListColumn("out/s", "out_per_s"),
        "access",
        ListColumn("drained", show=lambda drained: "yes" if drained else ""),
    ],
    empty="no brokers",
)
def list_(*, ask: Ask) -> Listing:
    """List brokers, with the versions and rates of those that answer."""
    return Listing(ask(_brokers))


@app.command()
def status(*, watching: Watching, ask: Ask, json: AsJson = False) -> None:
    """Show the leader of each broker, its followers, and how far each of them is behind."""
    watching.show(
        lambda: ask(copies_of),
        lambda brokers: as_json(brokers) if json else _print_copies(brokers),
    )


def _print_copies(brokers: list[dict[str, Any]]) -> None:
    table(_BROKERS, map(_broker_row, brokers))
    details = {
        _FOLLOWERS: [
            _follower_row(broker["broker"], follower)
            for broker in brokers
            for follower in broker.get("followers", [])
        ],
        _VERIFIED: [row for broker in brokers for row in _verified_rows(broker)],
        _REMOVED: [
            [broker["broker"], one["name"], time_text(one["at_ms"]), one["operator"], one["reason"]]
            for broker in brokers
            for one in broker.get("removed", [])
        ],
    }
    for headings, rows in details.items():
        if rows:
            table(headings, rows)
    for broker in brokers:
        if "problem" in broker:
            say(f"{broker['broker']} gave no answer: {broker['problem']}")
        elif not broker["followers"]:
            say(f"{broker['broker']} has no followers: its log has one copy")


def _broker_row(broker: dict[str, Any]) -> list[object]:
    start = [broker["cluster"], broker["broker"]]
    if "problem" in broker:
        return [*start, "", broker["address"], "", "", "", ""]
    in_sync = f"{broker['in_sync']}, at least {broker['min_in_sync']}"
    end = [broker["epoch"], broker["mode"], in_sync, broker["log_end"]]
    return [*start, broker["name"], broker["address"], *end]


def _follower_row(broker: str, follower: dict[str, Any]) -> list[object]:
    position, behind = follower["position"], follower["bytes_behind"]
    seconds = follower["seconds_behind"]
    return [
        broker,
        follower["name"],
        follower["address"] or "not connected",
        "yes" if follower["in_sync"] else "no",
        "unknown" if position is None else position,
        "unknown" if behind is None else behind,
        "unknown"
        if seconds is None
        else f"{'more than ' if follower['is_longer'] else ''}{seconds:.1f}",
    ]


def _verified_rows(broker: dict[str, Any]) -> list[list[object]]:
    """A row for each log that reports damage or the time of its last verification."""
    if "problem" in broker:
        return []
    leader = {**broker, "name": broker["name"] or "leader"}
    return [
        [
            broker["broker"],
            member["name"],
            member["damaged_parts"],
            time_text(member["verified_ms"]) if member["verified_ms"] else "not yet",
        ]
        for member in (leader, *broker["followers"])
        if member["damaged_parts"] or member["verified_ms"]
    ]


class NewLeader(NamedTuple):
    """The result of a hand-over."""

    leader: Leader
    epoch: int
    former: str
    ms: int


@app.command()
def promote(
    member: str = argument(
        "With --coordinator: the member, as m3, or by the whole name that it logs at its "
        "start, as m3.0a1b2c3d.",
        default="",
    ),
    *,
    reason: Reason,
    data: Path | None = option(
        "Without a coordinator: the directory of the follower.", metavar="DIR"
    ),
    coordinator: str = option(
        "The etcd of the set: etcd://h1:2379,h2:2379.", default="", metavar="ADDRS"
    ),
    broker: SetName = "broker-a",
    cluster: str = option("The cluster of the set.", default="DefaultCluster"),
    operator: Operator = "",
    allow_data_loss: bool = flag("Lose what this member has not copied.", "--allow-data-loss"),
) -> Answer:
    """Make another member of a broker set its leader.

    With a coordinator, the leader hands over to the member, which must be in sync. The leader first
    answers the requests that it has accepted, so nothing is lost.

    If the set has no leader, its members elect one, provided that one of them is in sync.
    Otherwise name the member that should lead, and add --allow-data-loss: acknowledged messages
    that it has not copied are lost.

    Without a coordinator, stop the old leader for good first: two leaders would each accept
    messages that the other lacks. Then promote the stopped follower's directory, and start it with
    brokerRole=ASYNC_MASTER or SYNC_MASTER.
    """
    if not reason.strip():
        fail("--reason is empty; write why this follower leads from now on", WRONGLY_CALLED)
    if bool(coordinator) == (data is not None) or bool(coordinator) != bool(member):
        fail(
            "name a MEMBER and its --coordinator, or the directory of a follower with --data",
            WRONGLY_CALLED,
        )
    who = operator_name(operator)
    if data is not None:
        return _promote_directory(data, reason.strip(), who, allow_data_loss=allow_data_loss)
    wanted = AllowedLoss(member, who, reason.strip(), SystemClock().wall_ms(), ())
    return _promote_member(coordinator, cluster, broker, wanted, allow_data_loss=allow_data_loss)


def _promote_directory(data: Path, reason: str, operator: str, *, allow_data_loss: bool) -> Answer:
    from txmq_broker.offline.promotion import promote as promote_directory

    if not (data / "config").is_dir():
        fail(f"{data} is not the directory of a follower", WRONGLY_CALLED)
    try:
        done = promote_directory(
            data,
            reason,
            operator=operator,
            host=socket.gethostname(),
            allow_data_loss=allow_data_loss,
        )
    except UsageError as error:
        fail(str(error), WRONGLY_CALLED)
    except (TxmqError, OSError) as error:
        fail(f"{data} cannot be promoted: {error}")
    newest = f", its newest record is of {time_text(done.last_ms)}" if done.last_ms else ""
    return Answer(
        {"data": str(data), "epoch": done.epoch, "end": done.end, "last_ms": done.last_ms},
        f"{data} leads from epoch {done.epoch} on: its log ends at position {done.end}{newest}; "
        "start it with brokerRole=ASYNC_MASTER or SYNC_MASTER",
    )


def _promote_member(
    coordinator: str, cluster: str, broker: str, wanted: AllowedLoss, *, allow_data_loss: bool
) -> Answer:
    from txmq_broker.replication.etcd import etcd_coordinator

    with exit_on_errors():
        store = etcd_coordinator(coordinator, cluster, broker)
        try:
            done = asyncio.run(_promote(store, wanted, broker, allow_data_loss=allow_data_loss))
        except InvalidParameter as error:
            fail(str(error), WRONGLY_CALLED)
    if isinstance(done, AllowedLoss):
        former = ", ".join(map(short_name, done.former)) or "unknown"
        return Answer(
            {"broker": broker, **done._asdict()},
            f"{done.member} may lead {broker} now, by {done.operator}; in sync before: {former}",
        )
    member, address = done.leader
    facts = {"broker": broker, "member": member, "address": address, "epoch": done.epoch}
    return Answer(
        {**facts, "former": [done.former], "ms": done.ms},
        f"{member} leads {broker} at {address} in epoch {done.epoch}, {done.ms} ms after "
        f"{done.former} was asked to hand over",
    )


async def _promote(
    store: SetCoordinator, wanted: AllowedLoss, broker: str, *, allow_data_loss: bool
) -> AllowedLoss | NewLeader:
    seen = await store.view()
    if seen.leader is None:
        return await _accept(store, seen, wanted, broker, allow_data_loss=allow_data_loss)
    if allow_data_loss:
        raise IllegalOperation(
            f"{seen.leader.member} leads {broker} in epoch {seen.epoch}, so nothing has to be "
            "lost; leave out --allow-data-loss, and it hands over"
        )
    try:
        async with asyncio.timeout(HAND_OVER_S):
            return await _hand_over(store, seen, seen.leader, wanted)
    except TimeoutError as error:
        raise RequestTimeout(
            f"{seen.leader.member} has not handed over within {HAND_OVER_S:g} s; see who leads "
            "with: txmq cluster status"
        ) from error


async def _hand_over(
    store: SetCoordinator, seen: View, leader: Leader, wanted: AllowedLoss
) -> NewLeader:
    from txmq_broker.replication.set_acts import HAND_OVER
    from txmq_broker.services.own_connections import own_connections

    clock = SystemClock()
    pool = own_connections(SystemNetwork(), clock)
    began = clock.monotonic()
    change = SetChange(HAND_OVER, wanted.member, wanted.operator, wanted.reason)
    try:
        connection = await pool.connection(leader.address)
        found = await connection.request(RequestCode.CHANGE_SET, change, timeout_s=ANSWER_S)
    finally:
        await pool.close()
    member = found.read(SetChanged).member
    while seen.leader is None or seen.leader.member == leader.member:
        seen = await store.changed(seen)
    ms = round((clock.monotonic() - began) * 1000)
    if seen.leader.member != member:
        raise IllegalOperation(
            f"{seen.leader.member} leads in epoch {seen.epoch}: {member} did not come in time"
        )
    return NewLeader(seen.leader, seen.epoch, leader.member, ms)


async def _accept(
    store: SetCoordinator, seen: View, loss: AllowedLoss, broker: str, *, allow_data_loss: bool
) -> AllowedLoss:
    from txmq_broker.replication.set_acts import find_member

    if not (seen.in_sync or allow_data_loss):
        raise UsageError(
            f"no member of a broker set {broker!r} has ever led; check the name, or if its etcd "
            "has lost its data, add --allow-data-loss"
        )
    if short_name(loss.member) == loss.member:
        loss = loss._replace(member=find_member(loss.member, seen.members, seen.in_sync))
    if not allow_data_loss and loss.member in seen.in_sync:
        raise IllegalOperation(
            f"{loss.member} is in sync: it leads as soon as it is started, unless its log says why "
            "not; then add --allow-data-loss"
        )
    if not allow_data_loss:
        in_sync = ", ".join(seen.in_sync)
        raise UsageError(
            f"{loss.member} may lack messages that {broker} acknowledged. In sync: {in_sync}; "
            "start one of these if you can. To lose what it lacks, add --allow-data-loss"
        )
    loss = loss._replace(former=seen.in_sync)
    if await store.allow_loss(seen, loss) is None:
        raise IllegalOperation(f"{broker} has changed at this moment; run the command again")
    return loss


@app.command()
def remove(
    member: Member,
    *,
    reason: Reason,
    broker: SetName = "broker-a",
    operator: Operator = "",
    allow_refused_sends: bool = flag(
        "Remove it even if fewer than replication.min_in_sync copies are in sync then.",
        "--allow-refused-sends",
    ),
    ask: Ask,
) -> Answer:
    """Remove a follower from a broker set with a coordinator.

    The member leaves the in-sync set, and the leader sends it nothing more, even if it starts with
    another directory. It keeps its data and keeps asking the leader, but cannot lead.
    `txmq cluster rejoin` lets it back in.
    """
    who = _operator_of(reason, operator)

    async def change(admin: Admin) -> str:
        return await admin.remove_member(
            broker,
            member,
            reason=reason,
            operator=who,
            allow_refused_sends=allow_refused_sends,
        )

    name = ask(change, changes=True)
    return Answer(
        {"broker": broker, "member": name, "operator": who, "reason": reason},
        f"removed {name} from {broker}, by {who}",
    )


@app.command()
def rejoin(
    member: Member,
    *,
    reason: Reason,
    broker: SetName = "broker-a",
    operator: Operator = "",
    ask: Ask,
) -> Answer:
    """Let a removed member back in; it copies the records it lacks, and joins the in-sync set."""
    who = _operator_of(reason, operator)

    async def change(admin: Admin) -> str:
        return await admin.rejoin_member(broker, member, reason=reason, operator=who)

    name = ask(change, changes=True)
    return Answer(
        {"broker": broker, "member": name, "operator": who, "reason": reason},
        f"{name} may follow {broker} again, by {who}",
    )


def _operator_of(reason: str, operator: str) -> str:
    if not reason.strip():
        fail("--reason is empty; write why the set changes", WRONGLY_CALLED)
    return operator_name(operator)


@app.command()
def drain(broker: BrokerName, *, ask: Ask) -> Answer:
    """Make producers send to other brokers, before this one is stopped; consumers still read it.

    All name servers withdraw the write permission of its topics. Producers follow within 30 s by
    default. The broker itself does not change: when it registers a change of any of its topics, all
    of them are writable again. So change and create no topics until it is stopped.
    """
    changed = ask(lambda admin: admin.forbid_writing(broker), changes=True)
    return _drained(broker, changed, "for reading only", is_writable=False)


@app.command()
def undrain(broker: BrokerName, *, yes: Yes = False, ask: Ask) -> Answer:
    """Let producers send to a drained broker again.

    Name servers do not remember the permissions that they withdrew. They now permit reads and
    writes of all its topics, even of topics that had another permission before, until the broker
    registers a change of its topics.
    """
    confirm(f"permit reads and writes of all topics of broker {broker}?", yes=yes)
    changed = ask(lambda admin: admin.allow_writing(broker), changes=True)
    return _drained(broker, changed, "for reading and writing", is_writable=True)


def _drained(broker: str, changed: dict[str, int], words: str, *, is_writable: bool) -> Answer:
    topics = max(changed.values(), default=0)
    text = f"{quantity(topics, 'topic')} of broker {broker}: {words}, at {', '.join(changed)}"
    return Answer({"broker": broker, "writable": is_writable, "topics": changed}, text)


async def _brokers(admin: Admin) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for broker in await admin.cluster():
        for replica, address in sorted(broker.addresses.items()):
            stats: dict[str, str] = {}
            drained: bool | None = None
            if replica == MASTER:
                try:
                    drained = await is_drained(admin, broker.name)
                    stats = await admin.broker_stats(broker.name)
                except NoPermission as error:
                    stats = {"access": str(error).partition(",")[0]}
                except TxmqError as error:
                    # This list must show brokers that are down, and still show the others.
                    stats = {"brokerVersionDesc": f"does not answer: {str(error).strip()}"}
            rows.append(
                {
                    "cluster": broker.cluster,
                    "broker": broker.name,
                    "replica": replica,
                    "address": address,
                    "version": stats.get("brokerVersionDesc", ""),
                    "in_per_s": _first(stats, "putTps"),
                    "out_per_s": _first(stats, "getTransferedTps", "getTransferredTps"),
                    "access": stats.get("access", ""),
                    "drained": drained,
                }
            )
    return rows


def _first(stats: dict[str, str], *keys: str) -> str:
    # The text has three averages: over 10 seconds, 1 minute, 10 minutes.
    for key in keys:
        if stats.get(key):
            return stats[key].split()[0]
    return ""
