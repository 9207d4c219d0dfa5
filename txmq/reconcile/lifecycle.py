"""The life of a break over the days: new, carried on, explained, closed, perhaps reopened; pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import date
from functools import cache
from typing import Any, Final

from txmq.reconcile.classes import Class
from txmq.reconcile.explanations import Explanation
from txmq.reconcile.rules import Day, Rules
from txmq.reconcile.summary import BUCKETS, FIGURES
from txmq.reconcile.transfer import TransferRows

__all__ = ["HISTORY", "BreakLife"]

HISTORY: Final = 32
"""The maximum of changes in the history of an item: the first, and the latest ones."""


class BreakLife:
    """Carries the items of the day before into this one.

    An explanation, found by its break id, is valid while the break keeps its class and figures.
    """

    def __init__(self, rules: Rules, day: date, explanations: Mapping[str, Explanation]) -> None:
        self._rules = rules
        self._day = day
        self._explanations = explanations

    def item(self, today: Mapping[str, Any] | None, rows: TransferRows) -> dict[str, Any] | None:
        """An item's row of ``ITEMS``; ``None`` if the transfer is agreed and was not open.

        ``today`` has the columns of an item that come from its own day, and ``rows`` what earlier
        days left of the transfer. An item without news stays the same, a day older: money must not
        vanish because a day has passed.
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
        # The same on every day and in every run.
        break_id = hashlib.sha256(f"{self._rules.name}\0{today['key']}".encode()).hexdigest()[:16]
        figures = {name: today[name] for name in FIGURES}
        note = None if is_agreed else self._explanations.get(break_id)
        if note is not None and (note.class_, note.figures) != (own, figures):
            note = None  # The break has changed since it was explained.
        class_ = own if note is None else Class.EXPLAINED.value
        is_same = before is not None and own == own_before and figures.items() <= before.items()
        status = _status(is_agreed, note is not None, is_same, rows)
        # A reopened item continues the history of the time that was closed last; its last change
        # begins with the date.
        past = max(rows.histories, key=lambda text: text.rpartition(",")[2], default="")
        history = before["history"] if before else past
        if before is None or not is_same or before["class"] != class_:
            # The last booking closes an item; its moment identifies that booking.
            closing = f" {today['last_ms']}" if status == "closed" else ""
            changes = [*filter(None, history.split(",")), f"{self._day} {own} {status}{closing}"]
            history = ",".join([*changes[:1], *changes[1:][1 - HISTORY :]])
        first_seen = before["first_seen"] if before else self._day.isoformat()
        age = _age(self._rules.day, first_seen, self._day)
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
