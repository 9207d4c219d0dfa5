"""``txmq cluster promote``: a follower leads because a person says so.

Modules with commands evaluate their annotations at once, because typer reads them when it runs.
"""

import asyncio
import getpass
import socket
from pathlib import Path
from typing import Annotated

import typer

from txmq.cli.cluster_status import short_name
from txmq.cli.common import FAILED, WRONGLY_CALLED, AsJson, fail
from txmq.cli.moments import time_text
from txmq.cli.output import print_result
from txmq.errors import ConfigError, IllegalOperation, TransportError, TxmqError, UsageError
from txmq.runtime.clock import SystemClock
from txmq.runtime.coordinator import AllowedLoss, SetCoordinator, View
from txmq.runtime.etcd import EtcdCoordinator

__all__ = ["promote"]


def promote(
    member: Annotated[
        str,
        typer.Argument(
            help="With --coordinator: the whole name of the member, as it logs it at its start, "
            "m3.0a1b2c3d."
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
    """Let a follower lead that does not lead by itself.

    With a coordinator members elect a leader themselves, as long as one is left that is in sync.
    If all of those are gone, name the member that is to lead; what was acknowledged and what it
    did not copy is lost. The command is refused while the set has a leader.

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
    loss = AllowedLoss(member, who, reason.strip(), SystemClock().wall_ms(), ())
    _promote_member(coordinator, cluster, broker, loss, allow_data_loss=allow_data_loss, json=json)


def _promote_directory(
    data: Path, reason: str, operator: str, *, allow_data_loss: bool, json: bool
) -> None:
    from txmq_broker.promotion import promote as promote_directory

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
    loss: AllowedLoss,
    *,
    allow_data_loss: bool,
    json: bool,
) -> None:
    from txmq_broker.config import etcd_endpoints

    try:
        store = EtcdCoordinator(etcd_endpoints(coordinator), f"{cluster}/{broker}")
        loss = asyncio.run(_accept(store, loss, broker, allow_data_loss=allow_data_loss))
    except (ConfigError, UsageError) as error:
        fail(str(error), WRONGLY_CALLED)
    except (IllegalOperation, TransportError) as error:
        fail(str(error))
    former = ", ".join(map(short_name, loss.former)) or "unknown"
    print_result(
        {"broker": broker, **loss._asdict()},
        f"{loss.member} may lead {broker} now, by {loss.operator}; in sync before: {former}",
        json=json,
    )


async def _accept(
    store: SetCoordinator, loss: AllowedLoss, broker: str, *, allow_data_loss: bool
) -> AllowedLoss:
    seen = await store.view()
    _check(seen, loss.member, broker)
    in_sync = ", ".join(seen.in_sync)
    if not (seen.in_sync or allow_data_loss):
        raise UsageError(
            f"no member of a broker set {broker!r} has ever led; check the name, or if its etcd "
            "has lost its data, add --allow-data-loss"
        )
    if not allow_data_loss:
        raise UsageError(
            f"{loss.member} may lack messages that {broker} acknowledged. In sync: {in_sync}; "
            "start one of these if you can. To lose what it lacks, add --allow-data-loss"
        )
    loss = loss._replace(former=seen.in_sync)
    if await store.allow_loss(seen, loss) is None:
        raise IllegalOperation(f"{broker} has changed at this moment; run the command again")
    return loss


def _check(seen: View, member: str, broker: str) -> None:
    """Refuse a promotion that is not necessary, or that would have no effect.

    Raises:
        UsageError: The member's name is not whole.
        IllegalOperation: The set has a leader, or the member is in sync.
    """
    if seen.leader is not None:
        raise IllegalOperation(
            f"{seen.leader.member} leads {broker} in epoch {seen.epoch}; stop it to have another "
            "member lead"
        )
    if member in seen.in_sync:
        raise IllegalOperation(f"{member} is in sync: it leads as soon as it is started")
    if short_name(member) == member:
        raise UsageError(
            f"{member!r} is not a whole name; the member logs it at its start, as in "
            f"'this member is {member}.0a1b2c3d'"
        )
