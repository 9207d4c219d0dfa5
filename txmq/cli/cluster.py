"""``txmq cluster``: clusters and their brokers."""

import getpass
import socket
from pathlib import Path
from typing import Annotated

import typer

from txmq.cli.common import FAILED, NAMES_DEFAULT, WRONGLY_CALLED, AsJson, Names, ask, fail
from txmq.cli.moments import time_text
from txmq.cli.output import print_result, print_rows
from txmq.client import Admin
from txmq.client.routes import MASTER
from txmq.errors import NoPermission, TxmqError, UsageError

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Show clusters and their brokers.")


@app.callback()
def cluster() -> None:
    """Show clusters and their brokers."""


@app.command("list")
def list_(*, names: Names = NAMES_DEFAULT, json: AsJson = False) -> None:
    """List brokers; those that answer with their version and rates."""
    rows = ask(names, _brokers)
    columns = ["cluster", "broker", "replica", "address", "version", "in/s", "out/s", "access"]
    print_rows(rows, columns, [row.values() for row in rows], json=json)


async def _brokers(admin: Admin) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for broker in await admin.cluster():
        for replica, address in sorted(broker.addresses.items()):
            stats: dict[str, str] = {}
            if replica == MASTER:
                try:
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
                }
            )
    return rows


def _first(stats: dict[str, str], *keys: str) -> str:
    # The text has three averages: over 10 seconds, 1 minute, 10 minutes.
    for key in keys:
        if stats.get(key):
            return stats[key].split()[0]
    return ""


@app.command()
def promote(
    *,
    data: Annotated[
        Path,
        typer.Option("--data", metavar="DIR", help="The follower's directory; it is stopped."),
    ],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; the directory keeps it.")
    ],
    allow_data_loss: Annotated[
        bool,
        typer.Option(
            "--allow-data-loss", help="Also a copy that never had all that its leader had."
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Make a follower's directory one that leads, without a coordinator.

    Stop its leader for good first: of two leaders, each has messages that the other one lacks. Then
    start the directory with brokerRole=ASYNC_MASTER or SYNC_MASTER. With a coordinator, the members
    elect a leader themselves.
    """
    from txmq_broker.promotion import promote as promote_directory

    if not reason.strip():
        fail("--reason is empty; write why this follower leads from now on", WRONGLY_CALLED)
    if not (data / "config").is_dir():
        fail(f"{data} is not the directory of a follower", WRONGLY_CALLED)
    try:
        done = promote_directory(
            data,
            reason.strip(),
            operator=getpass.getuser(),
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
