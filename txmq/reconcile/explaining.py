"""Explanations: what people have said about breaks, line by line, and what they have taken back."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from txmq.errors import ReconcileRefused, UsageError
from txmq.reconcile.signing import desk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Explanation", "Explanations"]

_FILE = "explanations.jsonl"
_DDL = (
    "break_id STRING NOT NULL, class STRING NOT NULL, explained_by STRING NOT NULL, "
    "explanation STRING NOT NULL"
)


class Explanation(Struct, frozen=True):
    """What somebody has said about a break, or that nothing said about it holds any more."""

    break_id: str
    class_: str = msgspec.field(name="class")
    by: str
    reason: str
    at_ms: int
    is_withdrawn: bool = False


class Explanations:
    """Those of a directory of results; the last one about a break holds.

    Args:
        directory: Where the results are.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)

    def explain(self, break_id: str, class_: str, by: str, reason: str, now_ms: int) -> Explanation:
        """Say what a break is; it is none from the next run on, while its class is the same.

        Args:
            break_id: The break.
            class_: What it is; of one that is explained already, what it was.
            by: Who says it.
            reason: In words.
            now_ms: When.

        Raises:
            UsageError: There is no name or no reason.
        """
        return self._add(Explanation(break_id, class_, by.strip(), reason.strip(), now_ms))

    def withdraw(self, break_id: str, by: str, reason: str, now_ms: int) -> Explanation:
        """Take back what was said about a break.

        Raises:
            UsageError: Nothing was said about it, or there is no name or no reason.
        """
        found = {each.break_id: each for each in self.in_force()}.get(break_id)
        if found is None:
            raise UsageError(f"nobody has explained the break {break_id}")
        gone = Explanation(break_id, found.class_, by.strip(), reason.strip(), now_ms, True)
        return self._add(gone)

    def all(self) -> list[Explanation]:
        """Every line, oldest first.

        Raises:
            ReconcileRefused: Somebody has changed the file by hand, and it cannot be read.
        """
        path = self._directory / _FILE
        try:
            lines = path.read_bytes().splitlines()
            return [msgspec.json.decode(each, type=Explanation) for each in lines if each.strip()]
        except FileNotFoundError:
            return []
        except msgspec.DecodeError as problem:
            raise ReconcileRefused(f"{path} holds no explanations: {problem}") from problem

    def in_force(self) -> list[Explanation]:
        """Those that hold, by the breaks' ids."""
        last = {each.break_id: each for each in self.all()}
        return [last[each] for each in sorted(last) if not last[each].is_withdrawn]

    @property
    def digest(self) -> str:
        """The same while the same explanations hold; empty where none does."""
        held = [(each.break_id, each.class_, each.by, each.reason) for each in self.in_force()]
        return hashlib.sha256(msgspec.json.encode(held)).hexdigest() if held else ""

    def frame(self, spark: SparkSession) -> DataFrame | None:
        """Those that hold: break_id, class, explained_by, explanation; none where none does."""
        rows = [(each.break_id, each.class_, each.by, each.reason) for each in self.in_force()]
        return spark.createDataFrame(rows, _DDL) if rows else None

    def _add(self, one: Explanation) -> Explanation:
        if not one.by or not one.reason:
            raise UsageError("an explanation has a name and a reason, so that others can ask")
        with desk(self._directory) as disk:
            lines = [msgspec.json.encode(each) for each in (*self.all(), one)]
            disk.replace(_FILE, b"\n".join(lines) + b"\n")
        return one
