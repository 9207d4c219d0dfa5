"""Explanations of breaks and their withdrawals, one in each line of a file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from txmq.errors import ReconcileRefused, UsageError
from txmq.reconcile.signatures import lock_signatures
from txmq.reconcile.summary import FIGURES, Figures

__all__ = ["Explanation", "Explanations"]

_FILE = "explanations.jsonl"


class Explanation(Struct, frozen=True):
    """An explanation of a break, or the withdrawal of one."""

    break_id: str
    class_: str = msgspec.field(name="class")
    by: str
    reason: str
    at_ms: int
    is_withdrawn: bool = False
    figures: Figures | None = None
    """The break's figures at that time. An explanation without them has no effect."""


class Explanations:
    """The explanations in a directory of results; the last one of a break is valid.

    Args:
        directory: The directory of results.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)

    def explain(self, item: Mapping[str, Any], by: str, reason: str, now_ms: int) -> Explanation:
        """Explain a break. It stops counting as one from the next run until its facts change.

        Args:
            item: The break, as a row of ``ITEMS`` without masks.
            by: The name of the person.
            reason: Why it is not a break.
            now_ms: The time.

        Raises:
            UsageError: The name or the reason is missing.
        """
        class_ = item["was"] or item["class"]  # An explained break has its own class in `was`.
        figures = Figures(**{name: item[name] for name in FIGURES})
        return self._add(
            Explanation(
                item["break_id"], class_, by.strip(), reason.strip(), now_ms, figures=figures
            )
        )

    def withdraw(self, break_id: str, by: str, reason: str, now_ms: int) -> Explanation:
        """Withdraw the explanation of a break.

        Raises:
            UsageError: The break has no explanation, or the name or the reason is missing.
        """
        found = {explanation.break_id: explanation for explanation in self.in_force()}.get(break_id)
        if found is None:
            raise UsageError(f"the break {break_id} has no explanation; see txmq reconcile breaks")
        one = Explanation(
            break_id, found.class_, by.strip(), reason.strip(), now_ms, is_withdrawn=True
        )
        return self._add(one)

    def all(self) -> list[Explanation]:
        """All explanations and withdrawals, oldest first.

        Raises:
            ReconcileRefused: The file cannot be read; it was changed by hand.
        """
        path = self._directory / _FILE
        try:
            lines = path.read_bytes().splitlines()
            return [msgspec.json.decode(line, type=Explanation) for line in lines if line.strip()]
        except FileNotFoundError:
            return []
        except msgspec.DecodeError as error:
            raise ReconcileRefused(f"{path} is not a file of explanations: {error}") from error

    def in_force(self) -> list[Explanation]:
        """The valid explanations, by break id."""
        last = {explanation.break_id: explanation for explanation in self.all()}
        return [
            explanation
            for _, explanation in sorted(last.items())
            if explanation.figures is not None and not explanation.is_withdrawn
        ]

    @property
    def digest(self) -> str:
        """A hash of the valid explanations; empty without any."""
        valid = [
            (one.break_id, one.class_, one.by, one.reason, one.figures) for one in self.in_force()
        ]
        return hashlib.sha256(msgspec.json.encode(valid)).hexdigest() if valid else ""

    def _add(self, one: Explanation) -> Explanation:
        if not one.by or not one.reason:
            raise UsageError(
                "an explanation needs a name and a reason: give them with --by and --reason"
            )
        with lock_signatures(self._directory) as disk:
            lines = [msgspec.json.encode(explanation) for explanation in (*self.all(), one)]
            disk.replace(_FILE, b"\n".join(lines) + b"\n")
        return one
