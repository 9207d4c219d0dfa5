"""``txmq find``: everything in a cluster that has a name, an id or a key like a text."""

from __future__ import annotations

from typing import Annotated

import typer

from txmq.cli.cluster_search import ClusterHits, search_cluster
from txmq.cli.common import NAMES_DEFAULT, AsJson, Cluster, Names, ask
from txmq.cli.output import as_json, note, print_rows

__all__ = ["find"]


def find(
    text: Annotated[str, typer.Argument(help="A part of a name, or a whole id or key.")],
    *,
    cluster: Cluster = None,
    names: Names = NAMES_DEFAULT,
    json: AsJson = False,
) -> None:
    """Find topics, groups, producers, brokers, accounts, transactions and messages.

    Up to 20 of each kind are shown. Messages are found by their traces, or by looking into each
    topic if the cluster has at most 50.
    """
    found: ClusterHits = ask(names, lambda admin: search_cluster(admin, text, cluster))
    if json:
        as_json(
            {
                "hits": [hit._asdict() for hit in found.hits],
                "counts": found.counts,
                "notes": found.notes,
            }
        )
        return
    print_rows(
        list(found.hits),
        ("kind", "name", "exact", "about"),
        ((hit.kind, hit.name, "yes" if hit.is_exact else "", hit.about) for hit in found.hits),
        json=False,
        empty="nothing has this name, id or key",
    )
    for line in found.notes:
        note(f"txmq: {line}")
