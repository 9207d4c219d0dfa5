"""Sign-off: one person prepares a day's result, another one reviews it, and both sign its hash.

Signatures are only ever added. A signature is valid while its result is in force: a run of the
day with other inputs has another result, which is unsigned. A new result of the day before
invalidates the signatures too, since this result was made from the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, TypeAlias

from msgspec import Struct

from txmq.errors import UsageError
from txmq.reconcile.storage import Folder
from txmq.reconcile.summary import Run, SignOff

__all__ = ["Role", "Signature", "lock_signatures", "objections", "sign_offs"]

Role: TypeAlias = Literal["preparer", "reviewer"]


class Signature(Struct, frozen=True):
    """The signature of a person under a result."""

    role: Role
    by: str
    at_ms: int
    run_id: str
    result_digest: str
    note: str = ""
    despite: str = ""
    """Why it is given although there are breaks or failed proofs."""


@contextmanager
def lock_signatures(folder: Folder) -> Iterator[None]:
    """Lock the files that people write, such as signatures; runs do not wait for this lock.

    Raises:
        UsageError: Another process writes them.
    """
    try:
        with folder.at("runs").lock():
            yield
    except BlockingIOError as error:
        raise UsageError(
            f"another person signs or explains a break in {folder} at this moment; try again"
        ) from error


def sign_offs(signatures: Iterable[Signature]) -> dict[str, SignOff]:
    """The signatures of each result of a day by its digest, in the order of their preparation."""
    found: dict[str, SignOff] = {}
    prepared: dict[str, tuple[str, int, str, str]] = {}
    for one in signatures:
        digest, words = one.result_digest, (one.by, one.at_ms, one.note, one.despite)
        if one.role == "preparer":
            prepared[digest], found[digest] = words, SignOff(digest, *words)
        elif digest in prepared:
            found[digest] = SignOff(digest, *prepared[digest], *words)
    return found


def objections(
    wanted: Signature, run: Run, given: Mapping[str, SignOff], outdated: str | None
) -> Iterator[str]:
    """The reasons why a person cannot sign a result.

    ``given`` are the signatures of the day, and ``outdated`` says why the result is.
    """
    result, day, found = run.result, run.result.business_date, given.get(run.result_digest)
    if result.digest != run.result_digest:
        yield f"the result of {day} changed since run {run.run_id} wrote it: run the day again"
    if outdated is not None:
        yield outdated
    if not result.is_final:
        yield f"{day} was not over when its books were read: run it again, and sign the result"
    if found is None and wanted.role == "reviewer":
        yield (
            f"{day} was run again with other inputs since it was prepared, and has a new "
            "result: a preparer must sign the new one first"
            if given
            else f"the result of {day} is not prepared yet: a preparer must sign it first"
        )
    if found is not None and found.is_complete:
        yield f"{found.preparer} and {found.reviewer} have signed this result already"
    is_preparer = found is not None and found.preparer.casefold() == wanted.by.casefold()
    if found is not None and (wanted.role == "preparer" or is_preparer):
        yield f"{found.preparer} has prepared this result: another person must review it"
    if not wanted.by:
        yield f"the name of the {wanted.role} is missing: give it with --by"
    if result.unsolved and not wanted.despite:
        yield (
            f"the result of {day} has {result.unsolved}: explain them and run the day again, "
            "or sign with --despite REASON"
        )
    if wanted.despite and not result.unsolved:
        yield f"the result of {day} has no breaks and no failed proofs: omit --despite"
