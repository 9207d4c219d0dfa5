"""``txmq cluster promote`` for a broker set in which nobody may lead.

Modules with commands evaluate their annotations at once, because typer reads them when it runs.
"""

import asyncio
import getpass
from typing import Annotated

import typer

from txmq.cli.cluster_status import short_name
from txmq.cli.common import WRONGLY_CALLED, AsJson, fail
from txmq.cli.output import print_result
from txmq.errors import ConfigError, IllegalOperation, TransportError, UsageError
from txmq.runtime.clock import SystemClock
from txmq.runtime.coordinator import LossDecision, SetCoordinator, View
from txmq.runtime.etcd import EtcdCoordinator

__all__ = ["promote"]


def promote(
    member: Annotated[
        str,
        typer.Argument(help="The whole name, as the member logs it at its start: m3.0a1b2c3d."),
    ],
    *,
    coordinator: Annotated[
        str, typer.Option(metavar="ADDRS", help="The etcd of the set: etcd://h1:2379,h2:2379.")
    ],
    broker: Annotated[str, typer.Option(help="The name of the set.")],
    reason: Annotated[str, typer.Option(help="Why; etcd and the member's audit keep it.")],
    cluster: Annotated[str, typer.Option(help="The cluster of the set.")] = "DefaultCluster",
    operator: Annotated[
        str, typer.Option(show_default="who runs this", help="Who decides; kept with the reason.")
    ] = "",
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Lose what this member has not copied.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Let a member lead although it is not in sync, because all members in sync are gone.

    Messages that were acknowledged and that this member did not copy are lost. The command is
    refused while the set has a leader. A member that is in sync leads by itself once it is started.
    """
    from txmq_broker.config import etcd_endpoints

    if not reason.strip():
        fail("--reason is empty; write why the members in sync do not come back", WRONGLY_CALLED)
    try:
        store = EtcdCoordinator(etcd_endpoints(coordinator), f"{cluster}/{broker}")
        loss = LossDecision(
            member, operator or getpass.getuser(), reason, SystemClock().wall_ms(), ()
        )
        loss = asyncio.run(_accept(store, loss, broker, allow_data_loss=allow_data_loss))
    except (ConfigError, UsageError) as error:
        fail(str(error), WRONGLY_CALLED)
    except (IllegalOperation, TransportError) as error:
        fail(str(error))
    former = ", ".join(map(short_name, loss.former))
    print_result(
        {"broker": broker, **loss._asdict()},
        f"{member} may lead {broker} now, by {loss.operator}; in sync before: {former}",
        json=json,
    )


async def _accept(
    store: SetCoordinator, loss: LossDecision, broker: str, *, allow_data_loss: bool
) -> LossDecision:
    seen = await store.view()
    _check(seen, loss.member, broker)
    in_sync = ", ".join(seen.in_sync)
    if not allow_data_loss:
        raise UsageError(
            f"{loss.member} may lack messages that {broker} acknowledged. In sync: {in_sync}; "
            "start one of these if you can. To lose what it lacks, add --allow-data-loss"
        )
    loss = loss._replace(former=seen.in_sync)
    if await store.accept_loss(seen, loss) is None:
        raise IllegalOperation(f"{broker} has changed at this moment; run the command again")
    return loss


def _check(seen: View, member: str, broker: str) -> None:
    """Refuse a promotion that is not necessary, or that would have no effect.

    Raises:
        UsageError: The set does not exist, or the member's name is not whole.
        IllegalOperation: The set has a leader, or the member is in sync.
    """
    if not seen.in_sync:
        raise UsageError(f"no member of a broker set {broker!r} has ever led; check the name")
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
