"""One search over everything that has a name or an id."""

from __future__ import annotations

from typing import Any, Final

from txmq.console.markup import url_of
from txmq.console.pages.messages import message_at
from txmq.console.visits import PageContent, Routes, Visit
from txmq.errors import RemoteProtocolError, TxmqError, UsageError
from txmq.ops.search import KINDS, SearchHit, search_cluster, search_further
from txmq.protocol.record import split_offset_id

__all__ = ["routes"]

routes = Routes()

WANTED_CHARS_MAX: Final = 1_000

_TITLES: Final = {
    "topic": "Topics",
    "group": "Consumer groups",
    "producer": "Producers",
    "broker": "Brokers",
    "account": "Accounts",
    "transaction": "Transactions",
    "message": "Messages",
}
_PATHS: Final = {
    "topic": "/topic",
    "group": "/group",
    "transaction": "/transaction",
    "message": "/message",
}
_LISTS: Final = {"topic": "/topics", "group": "/groups"}


@routes.page("/search")
async def show(visit: Visit) -> PageContent:
    """Show what a text finds; a single exact hit opens its own page.

    Each page searches one batch of topics. If it finds nothing, the next page begins by itself,
    until the visitor stops it.
    """
    wanted = visit.text("for")
    if len(wanted) > WANTED_CHARS_MAX:
        raise UsageError(f"a search has at most {WANTED_CHARS_MAX} characters")
    after = visit.text("after")
    values: dict[str, Any] = {
        "title": "Search",
        "wanted": wanted,
        "kinds": (),
        "notes": (),
        "further": "",
        "is_further": bool(wanted and after),
    }
    if not wanted:
        return PageContent("search.html", values)
    if after:
        found = await search_further(visit.admin, wanted, after, visit.cluster)
    elif place := await _place_of(visit, wanted):
        return PageContent("search.html", values, to=place)
    else:
        found = await search_cluster(visit.admin, wanted, visit.cluster)
    # A key may be found in further topics; a name or an id is found once.
    if len(found.exact) == 1 and (not found.next or found.exact[0].name == wanted):
        return PageContent("search.html", values, to=_url_of(found.exact[0]))
    if found.next:
        values["further"] = url_of("/search", **{"for": wanted, "after": found.next})
    values |= {
        "searched": found.searched,
        "topics": found.topics,
        # A batch that failed would begin at the same place again, so only the visitor retries it.
        "is_followed": found.next not in {"", after} and not found.hits,
        "again": url_of("/search", **{"for": wanted}),
        "kinds": [
            {
                "title": _TITLES[kind],
                "count": found.counts[kind],
                "rows": [(hit, _url_of(hit)) for hit in found.hits if hit.kind == kind],
                "all": url_of(_LISTS[kind], search=wanted) if kind in _LISTS else "",
            }
            for kind in KINDS
            if found.counts[kind]
        ],
        "notes": found.notes,
    }
    return PageContent("search.html", values)


def _url_of(hit: SearchHit) -> str:
    """The page of a hit."""
    if hit.kind in _PATHS:
        return url_of(_PATHS[hit.kind], **hit.fields)
    if hit.kind == "producer":
        return url_of("/producers", group=hit.name)
    if hit.kind == "account":
        return url_of("/access/account", key=hit.name)
    return "/cluster"


async def _place_of(visit: Visit, wanted: str) -> str:
    """The page of the message at this place; empty if no message is at this place."""
    try:
        split_offset_id(wanted)
    except RemoteProtocolError:
        return ""
    try:
        await message_at(visit, wanted)
    except TxmqError:
        return ""  # Ids of producers have the same form.
    return url_of("/message", place=wanted)
