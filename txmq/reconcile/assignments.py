"""Who works on a break, until when, and what people wrote about it. No result depends on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from txmq.errors import UsageError
from txmq.reconcile.record_file import add_records, read_records

__all__ = ["Assignment", "BreakNote", "assign", "assignments_of"]

_FILE: Final = "assignments.jsonl"


class BreakNote(Struct, frozen=True, omit_defaults=True):
    """What a person wrote about a break; an empty field leaves the former value."""

    break_id: str
    by: str
    at_ms: int
    owner: str = ""
    ticket: str = ""
    """The link to a ticket."""
    due: str = ""
    """A date."""
    comment: str = ""


class Assignment(Struct, frozen=True):
    """The latest owner, ticket and due date of a break, and all comments, oldest first."""

    owner: str = ""
    ticket: str = ""
    due: str = ""
    comments: tuple[BreakNote, ...] = ()

    def is_overdue(self, today: str) -> bool:
        """True if the due date is over."""
        return bool(self.due) and self.due < today


def assign(directory: str | Path, notes: Sequence[BreakNote]) -> None:
    """Add notes about breaks: all of them, or none.

    Raises:
        UsageError: A name is missing, or a note has neither an owner, a ticket, a due date nor a
            comment.
    """
    for note in notes:
        if not note.by.strip():
            raise UsageError("the name of the person who writes is missing: give it with --by")
        if not (note.owner or note.ticket or note.due or note.comment):
            raise UsageError("nothing to write: give --owner, --ticket, --due or --comment")
    add_records(Path(directory), _FILE, notes)


def assignments_of(directory: str | Path) -> dict[str, Assignment]:
    """The assignment of each break that has notes, by break id.

    Raises:
        ReconcileRefused: The file cannot be read; it was changed by hand.
    """
    found: dict[str, Assignment] = {}
    for note in read_records(Path(directory), _FILE, BreakNote):
        before = found.get(note.break_id, Assignment())
        found[note.break_id] = Assignment(
            note.owner or before.owner,
            note.ticket or before.ticket,
            note.due or before.due,
            (*before.comments, note) if note.comment else before.comments,
        )
    return found
