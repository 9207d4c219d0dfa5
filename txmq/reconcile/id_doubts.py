"""Doubts about the ids of items, and suggestions which two items may be one transfer; pure.

Ids match letter by letter. Programs change them on the way: they trim blanks, change capitals or
the Unicode form, or cut long ids. Such a transfer falls apart into two items, which are named here
and never matched: a person decides.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from txmq.reconcile.tables import ITEMS

__all__ = ["LONG", "with_doubts"]

LONG: Final = 200
"""The maximum of characters of an id; programs are likely to cut longer ones."""
_SIDES: Final = (("debits", "debited"), ("messages", "ordered"), ("credits", "credited"))
"""The sides of a transfer: the column of their number, and that of their sum."""
_READ: Final = ("key", "currency", "payer", "payee", "returns", *chain.from_iterable(_SIDES))


def with_doubts(items: pa.Table) -> pa.Table:
    """Items with ``id_doubt`` and ``suggestion``; as ``ITEMS``."""
    rows = items.select(_READ).to_pylist()
    groups: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        bank, _, row["id"] = row["key"].partition("/")
        groups[bank, _trimmed(row["id"]).casefold()[:LONG]].append(row)
    for group in groups.values():
        ids = [row["id"] for row in group]
        doubts = [
            ("blanks", any(id_ != id_.strip() for id_ in ids)),
            ("form", any(id_ != unicodedata.normalize("NFC", id_) for id_ in ids)),
            ("case", len({_trimmed(id_)[:LONG] for id_ in ids}) > 1),
            ("length", any(len(id_) > LONG for id_ in ids)),
        ]
        named = ", ".join(name for name, is_so in doubts if is_so) or None
        for row in group:
            row |= {"id_doubt": named, "suggestion": None}
        if len(group) == 2 and _may_be_one(*group):
            one, other = group
            one["suggestion"], other["suggestion"] = other["key"], one["key"]
    for name in ("id_doubt", "suggestion"):
        values = pa.array((row[name] for row in rows), pa.string())
        items = items.set_column(ITEMS.names.index(name), items.field(name), values)
    return items


def _trimmed(id_: str) -> str:
    return unicodedata.normalize("NFC", id_).strip()


def _may_be_one(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """True if each has sides that the other one lacks, and all else is equal."""
    pair = one, other
    sums = {row[sum_] for row in pair for count, sum_ in _SIDES if row[count]}
    return (
        all(one[count] + other[count] <= 1 for count, _ in _SIDES)
        and all(any(row[count] for count, _ in _SIDES) and not row["returns"] for row in pair)
        and len(sums) == 1
        and one["currency"] == other["currency"]
        and all(len({row[name] for row in pair} - {None}) <= 1 for name in ("payer", "payee"))
    )
