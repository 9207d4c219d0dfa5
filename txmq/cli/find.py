"""``txmq find``: everything in a cluster whose name, id or key matches a text."""

from __future__ import annotations

import asyncio
import os
import shlex
from typing import Annotated

import typer

from txmq.cli.commands import Answer
from txmq.cli.common import NAMES_DEFAULT, Ask, Cluster, option, stop_at_signals
from txmq.cli.output import note, progress_bar, table
from txmq.client import Admin
from txmq.ops.search import HITS_MAX, ClusterHits, search_cluster, search_further

__all__ = ["find"]


def find(
    text: Annotated[str, typer.Argument(help="A part of a name, or a whole id or key.")],
    *,
    after: str = option(
        "Search only messages, in the topics after this.", default="", metavar="TOPIC"
    ),
    cluster: Cluster = None,
    ask: Ask,
) -> Answer:
    """Find topics, groups, producers, brokers, accounts, transactions and messages.

    Up to 20 of each kind are shown. Messages are searched topic by topic, which takes a while if
    there are thousands of topics. Ctrl-C stops the search and shows the results so far; the last
    line says how to continue.
    """
    found: ClusterHits = ask(lambda admin: _search_all(admin, text, after, cluster))

    def show() -> None:
        rows = [
            (one.kind, one.name, "yes" if one.is_exact else "", one.about) for one in found.hits
        ]
        table(("kind", "name", "exact", "about"), rows, empty="nothing has this name, id or key")
        for line in found.notes:
            note(f"txmq: {line}")
        if found.next:
            note(
                f"txmq: messages were searched in {found.searched:,} of {found.topics:,} topics; "
                f"search on with: {_further(text, found.next, cluster, ask.names)}"
            )

    return Answer(
        {
            "hits": [hit._asdict() for hit in found.hits],
            "counts": found.counts,
            "notes": found.notes,
            "searched_topics": found.searched,
            "topics": found.topics,
            "next": found.next,
        },
        show,
    )


def _further(text: str, after: str, cluster: str | None, names: str) -> str:
    """The command that searches the topics after one, in the same cluster."""
    words = ["txmq", "find", "--after", after]
    if cluster is not None:
        words += ["--cluster", cluster]
    if names != os.environ.get("TXMQ_NAMES", NAMES_DEFAULT):
        words += ["--names", names]
    # A text that begins with a dash would be an option.
    return shlex.join([*words, *(["--"] if text.startswith("-") else []), text])


async def _search_all(admin: Admin, text: str, after: str, cluster: str | None) -> ClusterHits:
    """Search until all topics are searched, enough messages are found, or a signal stops it."""
    stopped = asyncio.Event()
    with stop_at_signals(stopped):
        found = (
            await search_further(admin, text, after, cluster)
            if after
            else await search_cluster(admin, text, cluster)
        )
        with progress_bar("topics" if found.next else "", found.topics) as advance:
            advance(found.searched)
            before = after
            while found.next not in {"", before} and not stopped.is_set():
                if found.counts["message"] >= HITS_MAX:
                    break
                before, searched = found.next, found.searched
                found = found.joined_with(await search_further(admin, text, before, cluster))
                advance(found.searched - searched)
    return found
