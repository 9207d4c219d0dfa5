"""``txmq cluster promote``: a follower leads because a person says so.

Modules with commands evaluate their annotations at once, because typer reads them when it runs.
"""

import asyncio
import getpass
import socket
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from txmq.cli.common import FAILED, WRONGLY_CALLED, AsJson, fail
from txmq.cli.output import print_result
from txmq.errors import (
    BrokerRefused,
    ConfigError,
    IllegalOperation,
    InvalidParameter,
    RequestTimeout,
    TransportError,
    TxmqError,
    UsageError,
)
from txmq.ops.moments import time_text
from txmq.ops.queries import sentence_of
from txmq.protocol.codes import RequestCode
from txmq.protocol.copies import SetChange, SetChanged
from txmq.runtime.clock import SystemClock
from txmq.runtime.coordinator import AllowedLoss, Leader, SetCoordinator, View, short_name
from txmq.runtime.network import SystemNetwork
from txmq_broker.replication.etcd import etcd_coordinator

__all__ = ["promote"]

ANSWER_S: Final = 10.0
HAND_OVER_S: Final = 20.0
"""The longest that a leader drains before it hands over, and some more."""


class NewLeader(NamedTuple):
    """The end of a hand-over."""

    leader: Leader
    epoch: int
    former: str
    ms: int


def promote(
    member: Annotated[
        str,
        typer.Argument(
            help="With --coordinator: the member, as m3, or by the whole name that it logs at its "
            "start, as m3.0a1b2c3d."
        ),
    ] = "",
    *,
    reason: Annotated[str, typer.Option(help="Why; it is kept.")],
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Without a coordinator: the directory of the follower."),
    ] = None,
    coordinator: Annotated[
        str, typer.Option(metavar="ADDRS", help="The etcd of the set: etcd://h1:2379,h2:2379.")
    ] = "",
    broker: Annotated[str, typer.Option(help="The name of the set.")] = "broker-a",
    cluster: Annotated[str, typer.Option(help="The cluster of the set.")] = "DefaultCluster",
    operator: Annotated[
        str, typer.Option(show_default="who runs this", help="Who decides; kept with the reason.")
    ] = "",
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
    from txmq_broker.roles.promotion import promote as promote_directory

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
