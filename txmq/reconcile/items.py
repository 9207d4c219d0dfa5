"""The items of a day; pure.

An item lives for several days: it is new, carried on, explained, closed, perhaps reopened.

Ids must match exactly. Some programs change them on the way: they trim blanks, change capitals or
the Unicode form, or cut long ids. The transfer then splits into two items. They are marked here but
never matched: a person decides.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import defaultdict
from collections.abc import Mapping
from datetime import date
from functools import cache
from itertools import chain
from typing import Any, Final, NamedTuple

import pyarrow as pa

from txmq.reconcile.classes import Class
from txmq.reconcile.explanations import Explanation
from txmq.reconcile.rules import Day, Rules
from txmq.reconcile.summary import BUCKETS, FIGURES
from txmq.reconcile.tables import ITEMS
from txmq.reconcile.transfer import TransferRows

__all__ = ["HISTORY", "LONG", "BreakLife", "folded", "with_doubts"]

HISTORY: Final = 32
"""The most changes that an item's history keeps: the first, and the latest ones."""
LONG: Final = 200
"""Programs are likely to cut ids that have more characters than this."""
_SIDES: Final = (("debits", "debited"), ("messages", "ordered"), ("credits", "credited"))
"""For each side of a transfer, the columns with its count and its sum."""
_READ: Final = ("key", "currency", "payer", "payee", "returns", *chain.from_iterable(_SIDES))


class BreakLife(NamedTuple):
    """Carries the items of the day before into this day.

    An explanation, found by its break id, is valid while the break keeps its class and figures.
    """

    rules: Rules
    day: date
    explanations: Mapping[str, Explanation]

    def item(self, today: Mapping[str, Any] | None, rows: TransferRows) -> dict[str, Any] | None:
        """An item's row of ``ITEMS``; ``None`` if the transfer is agreed and was not open.

        ``today`` has the columns that the facts of this day determine, and ``rows`` what earlier
        days left of the transfer. An item without news (``None``) only gets a day older: money must
        not vanish because a day has passed.
        """
        before = rows.item
        # The class of the facts alone, without an explanation.
        own_before = before and (before["was"] or before["class"])
        if today is None:
            assert before is not None
            today = {**before, "class": own_before}
        own = today["class"]
        is_agreed = Class(own).group == "agreed"
        if is_agreed and before is None:
            return None
        # Stable over days and runs.
        break_id = hashlib.sha256(f"{self.rules.name}\0{today['key']}".encode()).hexdigest()[:16]
        figures = {name: today[name] for name in FIGURES}
        note = None if is_agreed else self.explanations.get(break_id)
        if note is not None and (note.class_, note.figures) != (own, figures):
            note = None  # The break has changed since it was explained.
        class_ = own if note is None else Class.EXPLAINED.value
        is_same = before is not None and own == own_before and figures.items() <= before.items()
        status = _status(is_agreed, note is not None, is_same, rows)
        # A reopened item continues the history that was closed last. The last change in a history
        # begins with its date, so the greatest one is the latest.
        past = max(rows.histories, key=lambda text: text.rpartition(",")[2], default="")
        history = before["history"] if before else past
        if before is None or not is_same or before["class"] != class_:
            # The last booking closes an item; its moment identifies that booking.
            closing = f" {today['last_ms']}" if status == "closed" else ""
            changes = [*filter(None, history.split(",")), f"{self.day} {own} {status}{closing}"]
            history = ",".join([*changes[:1], *changes[1:][1 - HISTORY :]])
        first_seen = before["first_seen"] if before else self.day.isoformat()
        age = _age(self.rules.day, first_seen, self.day)
        return {
            **today,
            "break_id": break_id,
            "class": class_,
            "was": None if note is None else own,
            "group": Class(class_).group,
            "status": status,
            "first_seen": first_seen,
            "age_days": age,
            "bucket": BUCKETS[sum(age > most for most in (0, 1, 3, 7))],
            "history": history,
            "explained_by": note and note.by,
            "explanation": note and note.reason,
            # These depend on all items of the day.
            "id_doubt": None,
            "suggestion": None,
        }


@cache
def _age(calendar: Day, first_seen: str, today: date) -> int:
    """An age in business days, computed once for all items that were first seen on a day."""
    return calendar.age(date.fromisoformat(first_seen), today)


def _status(is_agreed: bool, is_explained: bool, is_same: bool, rows: TransferRows) -> str:
    if is_agreed:
        return "closed"
    if is_explained:
        return "explained"
    if rows.item is None:
        return "reopened" if rows.was_agreed else "new"
    return "open" if is_same else "changed"


def folded(key: str) -> str:
    """The part of a key that programs do not change; items with equal ones may be one transfer."""
    bank, _, id_ = key.partition("/")
    return f"{bank}/{_trimmed(id_).casefold()[:LONG]}"


def with_doubts(items: pa.Table) -> pa.Table:
    """Fill in the ``id_doubt`` and ``suggestion`` of items; as ``ITEMS``.

    ``items`` must have all items whose :func:`folded` keys are equal.
    """
    items = items.select(ITEMS.names)
    rows = items.select(_READ).to_pylist()
    groups: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        row["id"] = row["key"].partition("/")[2]
        groups[folded(row["key"])].append(row)
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
