"""``txmq cluster``: clusters and their brokers."""

import asyncio
import getpass
import socket
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from txmq.cli.common import (
    FAILED,
    NAMES_DEFAULT,
    WRONGLY_CALLED,
    AsJson,
    Names,
    Yes,
    ask,
    confirm,
    fail,
)
from txmq.cli.lists import EVERY_DEFAULT, Every, Listing, Watch, listed, watched
from txmq.cli.output import as_json, print_result, say, table
from txmq.client import Admin
from txmq.client.routes import MASTER
from txmq.errors import (
    BrokerRefused,
    ConfigError,
    IllegalOperation,
    InvalidParameter,
    NoPermission,
    RequestTimeout,
    TransportError,
    TxmqError,
    UsageError,
)
from txmq.ops.brokers import copies_of, is_drained
from txmq.ops.moments import time_text
from txmq.ops.queries import sentence_of
from txmq.ops.rows import ListColumn
from txmq.protocol.codes import RequestCode
from txmq.protocol.copies import SetChange, SetChanged
from txmq.runtime.clock import SystemClock
from txmq.runtime.coordinator import AllowedLoss, Leader, SetCoordinator, View, short_name
from txmq.runtime.network import SystemNetwork
from txmq.text import quantity

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Show clusters and their brokers.")

SetName = Annotated[str, typer.Option(help="The name of the set.")]
Operator = Annotated[
    str, typer.Option(show_default="who runs this", help="Who decides; kept with the reason.")
]
Reason = Annotated[str, typer.Option(help="Why; it is kept.")]
Member = Annotated[
    str, typer.Argument(help="The member, as m3, or by its whole name, as m3.0a1b2c3d.")
]
BrokerName = Annotated[str, typer.Argument(help="The broker.")]

ANSWER_S: Final = 10.0
HAND_OVER_S: Final = 20.0
"""The longest that a leader drains before it hands over, and some more."""

_BROKERS: Final = (
    "cluster", "broker", "leader", "address", "epoch", "mode", "copies in sync", "log end",
)  # fmt: skip
_FOLLOWERS: Final = (
    "broker", "follower", "connection", "in sync", "position", "bytes behind", "seconds behind",
)  # fmt: skip
_VERIFIED: Final = ("broker", "member", "damaged parts of its log", "whole log verified at")
_REMOVED: Final = ("broker", "removed member", "at", "by", "reason")


@app.callback()
def cluster() -> None:
    """Show clusters and their brokers."""


@app.command("list")
@listed(
    [
        ListColumn("cluster", "cluster"),
        ListColumn("broker", "broker"),
        ListColumn("replica", "replica"),
        ListColumn("address", "address"),
        ListColumn("version", "version"),
        ListColumn("in/s", "in_per_s"),
        ListColumn("out/s", "out_per_s"),
        ListColumn("access", "access"),
        ListColumn("drained", "drained", lambda drained: "yes" if drained else ""),
    ],
    empty="no brokers",
)
def list_(*, names: Names = NAMES_DEFAULT) -> Listing:
    """List brokers; those that answer with their version and rates."""
    return Listing(ask(names, _brokers))


@app.command()
def status(
    *,
    watch: Watch = False,
    every: Every = EVERY_DEFAULT,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Show the leader of each broker, its followers, and how far each of them is behind."""
    watched(
        lambda: ask(names, copies_of),
        lambda brokers: _print_copies(brokers, json=json),
        watch=watch,
        every=every,
    )


def _print_copies(brokers: list[dict[str, Any]], *, json: bool) -> None:
    """Print the brokers and their followers as two tables, or as JSON."""
    if json:
        as_json(brokers)
        return
    table(_BROKERS, map(_broker_row, brokers))
    followers = [
        _follower_row(broker["broker"], follower)
        for broker in brokers
        for follower in broker.get("followers", [])
    ]
    if followers:
        table(_FOLLOWERS, followers)
    verified = [row for broker in brokers for row in _verified_rows(broker)]
    if verified:
        table(_VERIFIED, verified)
    removed = [
        [broker["broker"], one["name"], time_text(one["at_ms"]), one["operator"], one["reason"]]
        for broker in brokers
        for one in broker.get("removed", [])
    ]
    if removed:
        table(_REMOVED, removed)
    for broker in brokers:
        if "problem" in broker:
            say(f"{broker['broker']} does not tell: {broker['problem']}")
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
    return [
        broker,
        follower["name"],
        follower["address"] or "not connected",
        "yes" if follower["in_sync"] else "no",
        _number_text(follower["position"]),
        _number_text(follower["bytes_behind"]),
        _seconds_text(follower),
    ]


def _verified_rows(broker: dict[str, Any]) -> list[list[object]]:
    """Which logs are damaged, and when each was verified; of those that say so."""
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


def _number_text(number: int | None) -> object:
    return "unknown" if number is None else number


def _seconds_text(follower: dict[str, Any]) -> str:
    seconds = follower["seconds_behind"]
    if seconds is None:
        return "unknown"
    return f"more than {seconds:.1f}" if follower["is_longer"] else f"{seconds:.1f}"


class NewLeader(NamedTuple):
    """The end of a hand-over."""

    leader: Leader
    epoch: int
    former: str
    ms: int


@app.command()
def promote(
    member: Annotated[
        str,
        typer.Argument(
            help="With --coordinator: the member, as m3, or by the whole name that it logs at its "
            "start, as m3.0a1b2c3d."
        ),
    ] = "",
    *,
    reason: Reason,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Without a coordinator: the directory of the follower."),
    ] = None,
    coordinator: Annotated[
        str, typer.Option(metavar="ADDRS", help="The etcd of the set: etcd://h1:2379,h2:2379.")
    ] = "",
    broker: SetName = "broker-a",
    cluster: Annotated[str, typer.Option(help="The cluster of the set.")] = "DefaultCluster",
    operator: Operator = "",
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Lose what this member has not copied.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Have another member of a broker set lead.

    With a coordinator the leader hands over to the member, which has to be in sync: the leader
    answers what it has accepted, and nothing is lost.

    If the set has no leader, members elect one themselves, as long as one is left that is in sync.
    If all of those are gone, name the member that is to lead, and add --allow-data-loss; what was
    acknowledged and what it did not copy is lost.

    Without a coordinator stop the leader for good first: of two leaders, each has messages that the
    other one lacks. Then promote the stopped follower's directory, and start it with
    brokerRole=ASYNC_MASTER or SYNC_MASTER.
    """
    if not reason.strip():
        fail("--reason is empty; write why this follower leads from now on", WRONGLY_CALLED)
    if bool(coordinator) == (data is not None) or bool(coordinator) != bool(member):
        fail(
            "name a MEMBER and its --coordinator, or the directory of a follower with --data",
            WRONGLY_CALLED,
        )
    who = operator or getpass.getuser()
    if data is not None:
        _promote_directory(data, reason.strip(), who, allow_data_loss=allow_data_loss, json=json)
        return
    wanted = AllowedLoss(member, who, reason.strip(), SystemClock().wall_ms(), ())
    _promote_member(
        coordinator, cluster, broker, wanted, allow_data_loss=allow_data_loss, json=json
    )


def _promote_directory(
    data: Path, reason: str, operator: str, *, allow_data_loss: bool, json: bool
) -> None:
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
        fail(f"{data} cannot be promoted: {error}", FAILED)
    newest = f", its newest record is of {time_text(done.last_ms)}" if done.last_ms else ""
    print_result(
        {"data": str(data), "epoch": done.epoch, "end": done.end, "last_ms": done.last_ms},
        f"{data} leads from epoch {done.epoch} on: its log ends at position {done.end}{newest}; "
        "start it with brokerRole=ASYNC_MASTER or SYNC_MASTER",
        json=json,
    )


def _promote_member(
    coordinator: str,
    cluster: str,
    broker: str,
    wanted: AllowedLoss,
    *,
    allow_data_loss: bool,
    json: bool,
) -> None:
    from txmq_broker.replication.etcd import etcd_coordinator

    try:
        store = etcd_coordinator(coordinator, cluster, broker)
        done = asyncio.run(_promote(store, wanted, broker, allow_data_loss=allow_data_loss))
    except (ConfigError, UsageError, InvalidParameter) as error:
        fail(str(error), WRONGLY_CALLED)
    except (BrokerRefused, TransportError) as error:
        fail(sentence_of(error))
    if isinstance(done, AllowedLoss):
        former = ", ".join(map(short_name, done.former)) or "unknown"
        print_result(
            {"broker": broker, **done._asdict()},
            f"{done.member} may lead {broker} now, by {done.operator}; in sync before: {former}",
            json=json,
        )
        return
    member, address = done.leader
    print_result(
        {
            "broker": broker,
            "member": member,
            "address": address,
            "epoch": done.epoch,
            "former": [done.former],
            "ms": done.ms,
        },
        f"{member} leads {broker} at {address} in epoch {done.epoch}, {done.ms} ms after "
        f"{done.former} was asked to hand over",
        json=json,
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
    allow_refused_sends: Annotated[
        bool,
        typer.Option(
            "--allow-refused-sends",
            help="Remove it even if fewer than replication.min_in_sync copies are in sync then.",
        ),
    ] = False,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Remove a follower from a broker set with a coordinator.

    It leaves the in-sync set, and the leader sends it nothing more, whatever directory it has. The
    member keeps its directory, goes on asking, and cannot lead. `txmq cluster rejoin` lets it back.
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

    name = ask(names, change, changes=True)
    print_result(
        {"broker": broker, "member": name, "operator": who, "reason": reason},
        f"removed {name} from {broker}, by {who}",
        json=json,
    )


@app.command()
def rejoin(
    member: Member,
    *,
    reason: Reason,
    broker: SetName = "broker-a",
    operator: Operator = "",
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Let a member back that was removed; it copies what it lacks, and joins the in-sync set."""
    who = _operator_of(reason, operator)

    async def change(admin: Admin) -> str:
        return await admin.rejoin_member(broker, member, reason=reason, operator=who)

    name = ask(names, change, changes=True)
    print_result(
        {"broker": broker, "member": name, "operator": who, "reason": reason},
        f"{name} may follow {broker} again, by {who}",
        json=json,
    )


def _operator_of(reason: str, operator: str) -> str:
    if not reason.strip():
        fail("--reason is empty; write why the set changes", WRONGLY_CALLED)
    return operator or getpass.getuser()


@app.command()
def drain(broker: BrokerName, *, names: Names = NAMES_DEFAULT, json: AsJson = False) -> None:
    """Make producers send to other brokers, before this one is stopped; consumers still read it.

    All name servers withdraw the write permission of its topics. Producers follow within 30 s by
    default. The broker stays as it is: when it registers a change of any of its topics, all of them
    are writable again, so change and create none until it is stopped.
    """
    changed = ask(names, lambda admin: admin.forbid_writing(broker), changes=True)
    _print_drained(broker, changed, "for reading only", json=json, is_writable=False)


@app.command()
def undrain(
    broker: BrokerName, *, yes: Yes = False, names: Names = NAMES_DEFAULT, json: AsJson = False
) -> None:
    """Let producers send to a broker again that was drained.

    Name servers do not remember what they withdrew. They now permit reads and writes of all its
    topics, also of topics that had another permission before, until the broker registers a change
    of its topics.
    """
    confirm(f"permit reads and writes of all topics of broker {broker}?", yes=yes)
    changed = ask(names, lambda admin: admin.allow_writing(broker), changes=True)
    _print_drained(broker, changed, "for reading and writing", json=json, is_writable=True)


def _print_drained(
    broker: str, changed: dict[str, int], words: str, *, json: bool, is_writable: bool
) -> None:
    topics = max(changed.values(), default=0)
    text = f"{quantity(topics, 'topic')} of broker {broker}: {words}, at {', '.join(changed)}"
    value = {"broker": broker, "writable": is_writable, "topics": changed}
    print_result(value, text, json=json)


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
