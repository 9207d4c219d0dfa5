"""Producers that are connected, by group."""

from __future__ import annotations

from typing import Final

from txmq.client.values import ConnectedClient
from txmq.console.pages.lists import list_page
from txmq.console.visits import PageContent, PageRoute, Visit
from txmq.errors import RequestNotSupported

__all__ = ["PAGES"]

_CLIENTS_SHOWN: Final = 20
"""The clients of each group in the list; a page about one group shows all."""


async def show(visit: Visit) -> PageContent:
    """Show the connected producers of all groups, or of one."""
    group, cluster = visit.text("group"), visit.settings.cluster
    is_supported = True
    found: dict[str, tuple[ConnectedClient, ...]] = {}
    try:
        found = await visit.admin.producers(cluster=cluster)
    except RequestNotSupported:
        is_supported = False
        if group:
            found = {group: await visit.admin.producer_connections(group, cluster=cluster)}
    names = [name for name in found if not group or name == group]
    page = list_page(names, visit.page_number(), visit.text("search"))
    most = None if group else _CLIENTS_SHOWN
    values = {
        "title": "Producers",
        "group": group,
        "is_supported": is_supported,
        "page": page,
        "rows": [(name, found[name][:most], len(found[name])) for name in page.rows],
        "clients": sum(len(clients) for clients in found.values()),
    }
    return PageContent("producers.html", values)


PAGES: Final = (PageRoute("/producers", show),)
