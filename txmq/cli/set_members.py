"""``txmq cluster remove`` and ``rejoin``: the members of a broker set with a coordinator.

Modules with commands evaluate their annotations at once, because typer reads them when it runs.
"""

import getpass
from typing import Annotated

import typer

from txmq.cli.common import NAMES_DEFAULT, WRONGLY_CALLED, AsJson, Names, ask, fail
from txmq.cli.output import print_result
from txmq.client import Admin

__all__ = ["rejoin", "remove"]

Broker = Annotated[str, typer.Option(help="The name of the set.")]
Operator = Annotated[
    str, typer.Option(show_default="who runs this", help="Who decides; kept with the reason.")
]
Reason = Annotated[str, typer.Option(help="Why; it is kept.")]
Member = Annotated[
    str, typer.Argument(help="The member, as m3, or by its whole name, as m3.0a1b2c3d.")
]


def remove(
    member: Member,
    *,
    reason: Reason,
    broker: Broker = "broker-a",
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
    who = _checked(reason, operator)

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


def rejoin(
    member: Member,
    *,
    reason: Reason,
    broker: Broker = "broker-a",
    operator: Operator = "",
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Let a member back that was removed; it copies what it lacks, and joins the in-sync set."""
    who = _checked(reason, operator)

    async def change(admin: Admin) -> str:
        return await admin.rejoin_member(broker, member, reason=reason, operator=who)

    name = ask(names, change, changes=True)
    print_result(
        {"broker": broker, "member": name, "operator": who, "reason": reason},
        f"{name} may follow {broker} again, by {who}",
        json=json,
    )


def _checked(reason: str, operator: str) -> str:
    if not reason.strip():
        fail("--reason is empty; write why the set changes", WRONGLY_CALLED)
    return operator or getpass.getuser()
