"""``txmq cluster``: clusters and their brokers."""

import typer

from txmq.cli.cluster_status import print_copies
from txmq.cli.common import NAMES_DEFAULT, AsJson, Names, ask
from txmq.cli.lists import EVERY_DEFAULT, Every, Listing, Watch, listed, watched
from txmq.cli.set_members import rejoin, remove
from txmq.cli.set_promotion import promote
from txmq.cli.write_permission import drain, undrain
from txmq.client import Admin
from txmq.client.routes import MASTER
from txmq.errors import NoPermission, TxmqError
from txmq.ops.brokers import copies_of, is_drained
from txmq.ops.rows import ListColumn

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Show clusters and their brokers.")


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
        lambda brokers: print_copies(brokers, json=json),
        watch=watch,
        every=every,
    )


app.command()(promote)
app.command()(remove)
app.command()(rejoin)
app.command()(drain)
app.command()(undrain)


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
