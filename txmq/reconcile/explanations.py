"""What people write about breaks and proofs: one JSON record per line, in append-only files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from txmq.errors import ReconcileRefused, UsageError
from txmq.reconcile.storage import Directory, open_folder
from txmq.reconcile.summary import FIGURES, digest_of

__all__ = [
    "BreakNote",
    "BreakNotes",
    "Difference",
    "Explanation",
    "Explanations",
    "ProofExplanation",
]


class Difference(Struct, frozen=True):
    """A difference to explain between two values of a proof that should be equal."""

    id: str
    """Stable over days and runs while the difference lasts."""
    proof: str
    bank: str | None
    account: str | None
    """The account or the transfer."""
    currency: str | None
    amounts: tuple[int, ...]
    """Found less expected; ``double-entry`` has one for each kind of booking."""
    first_seen: str = ""
    """The business date that it comes from; empty in files of txmq 0.1.0."""


class Explanation(Struct, frozen=True):
    """An explanation of a break, or the withdrawal of one."""

    FILE: ClassVar = "explanations.jsonl"

    break_id: str
    class_: str = msgspec.field(name="class")
    by: str
    reason: str
    at_ms: int
    is_withdrawn: bool = False
    figures: dict[str, Any] | None = None
    """The break's ``FIGURES`` at that time. An explanation without them has no effect."""
    proofs: dict[str, tuple[int, ...]] = {}
    """The differences of its transfer in proofs at that time: their amounts, by id."""

    @classmethod
    def of(
        cls,
        item: Mapping[str, Any],
        by: str,
        reason: str,
        now_ms: int,
        differences: Iterable[Difference] = (),
    ) -> Explanation:
        """Explain a break. It stops counting as one from the next run until its facts change.

        The break is a row of ``ITEMS`` without masks. Differences of proofs that name its transfer
        are explained with it.

        Raises:
            UsageError: The name or the reason is missing.
        """
        class_ = item["was"] or item["class"]  # An explained break has its own class in `was`.
        proofs = {one.id: one.amounts for one in differences if one.account == item["key"]}
        figures = {name: item[name] for name in FIGURES}
        by, reason = _words(by, reason)
        return cls(item["break_id"], class_, by, reason, now_ms, figures=figures, proofs=proofs)


class ProofExplanation(Struct, frozen=True):
    """An explanation of a proof's difference, or the withdrawal of one."""

    FILE: ClassVar = "proof-explanations.jsonl"

    difference: Difference
    by: str
    reason: str
    at_ms: int
    first: str
    last: str | None
    """The first and the last business date on which it counts, while the amounts stay the same;
    ``None`` if it has no last date."""
    is_withdrawn: bool = False

    @classmethod
    def of(
        cls,
        difference: Difference,
        by: str,
        reason: str,
        now_ms: int,
        first: str,
        last: str | None = None,
    ) -> ProofExplanation:
        """Explain a difference from a business date on, up to a last one if it is given.

        Raises:
            UsageError: The name or the reason is missing, or the last date is before the first.
        """
        if last is not None and last < first:
            raise UsageError(f"--until {last} is before {first}, the date of the difference")
        return cls(difference, *_words(by, reason), now_ms, first, last)

    def holds_on(self, date: str) -> bool:
        """True if it counts on a business date."""
        return self.first <= date and (self.last is None or date <= self.last)


class BreakNote(Struct, frozen=True):
    """Who works on a break. An empty field keeps the former value. No result depends on notes."""

    FILE: ClassVar = "notes.jsonl"

    break_id: str
    by: str
    at_ms: int
    owner: str = ""
    ticket: str = ""
    due: str = ""
    comment: str = ""


class BreakNotes(NamedTuple):
    """All notes on a break, combined."""

    owner: str = ""
    ticket: str = ""
    due: str = ""
    comments: tuple[BreakNote, ...] = ()
    """The notes with a comment, oldest first."""


Record = TypeVar("Record", Explanation, ProofExplanation, BreakNote)
Explained = TypeVar("Explained", Explanation, ProofExplanation)


class Explanations:
    """The explanations and notes in a directory of results; a break's last explanation is valid.

    Every method raises :class:`ReconcileRefused` if it cannot read a file, for example one that
    was changed by hand.
    """

    def __init__(self, directory: Directory) -> None:
        self._folder = open_folder(directory)

    def add(self, made: Sequence[Record]) -> None:
        """Write records of one kind: all of them, or none."""
        if made:
            with self._folder.lock_signatures():
                records = [*self._read(type(made[0])), *made]
                self._folder.replace(made[0].FILE, msgspec.json.Encoder().encode_lines(records))

    def withdraw(self, id_: str, by: str, reason: str, now_ms: int) -> None:
        """Withdraw the explanation of a break, or those of a proof's difference.

        Raises:
            UsageError: It has no explanation, or the name or the reason is missing.
        """
        breaks = [one for one in self.in_force() if one.break_id == id_]
        proofs = [one for one in self.proofs_in_force() if one.difference.id == id_]
        if not breaks and not proofs:
            remedy = "give the whole id, as txmq reconcile breaks --all or proofs --all shows it"
            raise UsageError(f"{id_} has no explanation: {remedy}")
        by, reason = _words(by, reason)
        news = {"by": by, "reason": reason, "at_ms": now_ms, "is_withdrawn": True}
        self.add([msgspec.structs.replace(one, **news) for one in breaks])
        self.add([msgspec.structs.replace(one, **news) for one in proofs])

    def notes(self) -> dict[str, BreakNotes]:
        """The notes on each break."""
        found: dict[str, BreakNotes] = {}
        for note in self._read(BreakNote):
            before = found.get(note.break_id, BreakNotes())
            found[note.break_id] = BreakNotes(
                note.owner or before.owner,
                note.ticket or before.ticket,
                note.due or before.due,
                (*before.comments, note) if note.comment else before.comments,
            )
        return found

    def in_force(self) -> list[Explanation]:
        """The valid explanations of breaks, by break id."""
        valid = _valid(self._read(Explanation), lambda one: one.break_id)
        return [one for one in valid if one.figures is not None]

    def proofs_in_force(self) -> list[ProofExplanation]:
        """The valid explanations of differences, by id and first date."""
        # A later one does not replace the one of an earlier date: that date may run again.
        return _valid(self._read(ProofExplanation), lambda one: (one.difference.id, one.first))

    @property
    def digest(self) -> str:
        """A hash of the valid explanations; empty without any."""
        valid: list[Explanation | ProofExplanation] = [*self.in_force(), *self.proofs_in_force()]
        held = [msgspec.structs.replace(one, at_ms=0) for one in valid]
        return digest_of(held) if held else ""

    def _read(self, type_: type[Record]) -> list[Record]:
        try:
            return msgspec.json.Decoder(type_).decode_lines(self._folder.read(type_.FILE))
        except FileNotFoundError:
            return []
        except msgspec.DecodeError as error:
            why = f"is not a file of {type_.FILE.removesuffix('.jsonl')}: {error}"
            raise ReconcileRefused(f"{self._folder}/{type_.FILE} {why}") from error


def _valid(every: list[Explained], key: Callable[[Explained], Any]) -> list[Explained]:
    last = {key(one): one for one in every}
    return [last[name] for name in sorted(last) if not last[name].is_withdrawn]


def _words(by: str, reason: str) -> tuple[str, str]:
    if not by.strip() or not reason.strip():
        why = "an explanation needs a name and a reason"
        raise UsageError(f"{why}: give them with --by and --reason")
    return by.strip(), reason.strip()
