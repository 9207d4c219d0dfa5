"""The life of a break over the days: new, carried on, explained, closed, perhaps reopened; pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from datetime import date
from typing import Any, Final

from txmq.reconcile.classes import Class
from txmq.reconcile.explanations import Explanation
from txmq.reconcile.rules import Rules
from txmq.reconcile.summary import BUCKETS, FIGURES
from txmq.reconcile.transfer import TransferRows

__all__ = ["HISTORY", "BreakLife", "bucket_of"]

HISTORY: Final = 32
"""The maximum of changes in the history of an item: the first, and the latest ones."""


class BreakLife:
    """Carries the items of the day before into this one.

    Args:
        rules: The name, the weekends and the holidays.
        day: The business date.
        explanations: The valid explanations, by break id. Each is valid while the break keeps its
            class and figures.
    """

    def __init__(self, rules: Rules, day: date, explanations: Mapping[str, Explanation]) -> None:
        self._rules = rules
        self._day = day
        self._explanations = explanations
        self._ages: dict[str, int] = {}

    def item(self, today: Mapping[str, Any] | None, rows: TransferRows) -> dict[str, Any] | None:
        """An item's row of ``ITEMS``; ``None`` if the transfer is agreed and was not open.

        An item without news stays the same, a day older: money must not vanish because a day has
        passed.

        Args:
            today: The columns of an item that come from its own day; ``None`` without news.
            rows: The transfer, with what earlier days left of it.
        """
        before = rows.item
        if today is None:
            assert before is not None
            today = {**before, "class": _own_class(before)}
        is_agreed = Class(today["class"]).group == "agreed"
        if is_agreed and before is None:
            return None
        break_id = _break_id(self._rules.name, today["key"])
        own = today["class"]
        note = None if is_agreed else self._explanations.get(break_id)
        if note is not None and not _is_about(note, today):
            note = None
        class_ = own if note is None else Class.EXPLAINED.value
        is_same = before is not None and all(
            today[name] == (_own_class(before) if name == "class" else before[name])
            for name in ("class", *FIGURES)
        )
        status = _status(is_agreed, note is not None, is_same, rows)
        history = before["history"] if before else _latest(rows.histories)
        if before is None or not is_same or before["class"] != class_:
            history = _shorten(history, self._change(own, status, today["last_ms"]))
        first_seen = before["first_seen"] if before else self._day.isoformat()
        age = self._age(first_seen)
        return {
            **today,
            "break_id": break_id,
            "class": class_,
            "was": None if note is None else own,
            "group": Class(class_).group,
            "status": status,
            "first_seen": first_seen,
            "age_days": age,
            "bucket": bucket_of(age),
            "history": history,
            "explained_by": note and note.by,
            "explanation": note and note.reason,
            # These depend on all items of the day.
            "id_doubt": None,
            "suggestion": None,
        }

    def _change(self, class_: str, status: str, last_ms: int) -> str:
        # The last booking closes an item; its moment identifies that booking.
        closing = f" {last_ms}" if status == "closed" else ""
        return f"{self._day} {class_} {status}{closing}"

    def _age(self, first_seen: str) -> int:
        if first_seen not in self._ages:
            first = date.fromisoformat(first_seen)
            self._ages[first_seen] = self._rules.day.age(first, self._day)
        return self._ages[first_seen]


def bucket_of(age: int) -> str:
    """The bucket of an age in business days."""
    return BUCKETS[sum(age > most for most in (0, 1, 3, 7))]


def _break_id(name: str, key: str) -> str:
    """The same on every day and in every run."""
    return hashlib.sha256(f"{name}\0{key}".encode()).hexdigest()[:16]


def _own_class(item: Mapping[str, Any]) -> str:
    """The class of the facts alone, without an explanation."""
    class_: str = item["was"] or item["class"]
    return class_


def _is_about(note: Explanation, item: Mapping[str, Any]) -> bool:
    """True if the break did not change since it was explained."""
    figures = {name: item[name] for name in FIGURES}
    return note.class_ == item["class"] and note.figures == figures


def _status(is_agreed: bool, is_explained: bool, is_same: bool, rows: TransferRows) -> str:
    if is_agreed:
        return "closed"
    if is_explained:
        return "explained"
    if rows.item is None:
        return "reopened" if rows.was_agreed else "new"
    return "open" if is_same else "changed"


def _latest(histories: Collection[str]) -> str:
    """The history of the time that was closed last; its last change begins with the date."""
    return max(histories, key=lambda history: history.rpartition(",")[2], default="")


def _shorten(history: str, change: str) -> str:
    """Add a change; keep the first one, and the latest."""
    changes = [*filter(None, history.split(",")), change]
    if len(changes) > HISTORY:
        changes = [changes[0], *changes[1 - HISTORY :]]
    return ",".join(changes)
