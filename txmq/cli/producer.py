"""``txmq producer``: the producers that are connected."""

from txmq.cli.commands import Commands, Listing, listed
from txmq.cli.common import Ask, Cluster, option
from txmq.client import Admin, ConnectedClient
from txmq.errors import RequestNotSupported
from txmq.ops.known_names import check_producer_group
from txmq.ops.rows import CLIENT_COLUMNS, client_row

__all__ = ["app"]

app = Commands("Show the producers that are connected.")


@app.command("list")
@listed(CLIENT_COLUMNS, empty="no producer is connected")
def list_(
    *,
    group: str = option("Only this producer group.", default=""),
    cluster: Cluster = None,
    ask: Ask,
) -> Listing:
    """List the producers that are connected to any broker, by group."""

    async def read(admin: Admin) -> dict[str, tuple[ConnectedClient, ...]]:
        if not group:
            try:
                return await admin.producers(cluster=cluster)
            except RequestNotSupported as error:
                error.add_note("name a group with --group, which older brokers answer too")
                raise
        found = await admin.producer_connections(group, cluster=cluster)
        if not found:
            await check_producer_group(admin, group)
        return {group: found}

    found = ask(read)
    return Listing([client_row(name, client) for name in found for client in found[name]])
