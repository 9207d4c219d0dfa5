"""Sign-off: one person prepares a day's result, another one reviews it, and both sign its hash.

Signatures are only ever added. A signature is valid while its result is in force: a run of the
day with other inputs has another result, which is unsigned. A new result of the day before
invalidates the signatures too, since this result was made from the old one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from txmq.errors import ReconcileRefused, UsageError
from txmq.reconcile.chain import why_outdated
from txmq.reconcile.file_systems import Directory, open_folder
from txmq.reconcile.storage import Folder
from txmq.reconcile.summary import Run, SignatureState, SignOff

__all__ = ["Role", "Signature", "Signatures", "lock_signatures", "same_person"]

_FILE: Final = "signoffs.json"

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


def same_person(one: str, other: str) -> bool:
    """True if two names belong to one person, ignoring case, width and spaces."""
    return _plain(one).casefold() == _plain(other).casefold()


@contextmanager
def lock_signatures(folder: Folder) -> Iterator[None]:
    """Lock the files that people write, such as signatures; runs do not wait for this lock.

    Raises:
        UsageError: Another process writes them.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(folder.at("runs").lock())
        except BlockingIOError as error:
            raise UsageError(
                f"another person signs or explains a break in {folder} at this moment; try again"
            ) from error
        yield


class Signatures:
    """The signatures in a directory of results."""

    def __init__(self, directory: Directory) -> None:
        self._folder = open_folder(directory)

    def sign(
        self, role: Role, run: Run, name: str, now_ms: int, note: str = "", despite: str = ""
    ) -> SignOff:
        """Sign the result of a run, first as its preparer and then as its reviewer.

        ``despite`` says why the signer signs although there are breaks or failed proofs.

        Raises:
            UsageError: The result was changed, was made before the day was over, or the day
                before has a newer one; this part is signed already, or the first one is not; one
                person signs twice; the name is empty; or ``despite`` is missing or not needed.
        """
        with lock_signatures(self._folder):
            if (why := next(self._objections(role, run, name, despite), None)) is not None:
                raise UsageError(why)
            day = run.result.business_date
            of_run = run.run_id, run.result_digest
            one = Signature(role, _plain(name), now_ms, *of_run, note.strip(), despite.strip())
            text = msgspec.json.format(msgspec.json.encode([*self.all(day), one]))
            self._of_day(day).replace(_FILE, text + b"\n")
        return self._by_result(run)[run.result_digest]

    def state(self, run: Run) -> SignatureState:
        """The state of a result's sign-off; ``invalidated`` if another result was signed, or if
        the day before has a newer result.
        """
        state = msgspec.structs.replace(run, sign_off=self.last(run)).signature
        is_outdated = state != "unsigned" and self.outdated(run) is not None
        return "invalidated" if is_outdated else state

    def outdated(self, run: Run) -> str | None:
        """The reason why a result is outdated, signed or not; ``None`` if it is valid."""
        return why_outdated(self._folder, run)

    def of(self, run: Run) -> SignOff | None:
        """The signatures of exactly this result; ``None`` without any."""
        return self._by_result(run).get(run.result_digest)

    def last(self, run: Run) -> SignOff | None:
        """The same, or else the last signatures of another result of the day."""
        found = self._by_result(run)
        return found.get(run.result_digest) or next(reversed(found.values()), None)

    def all(self, day: str) -> list[Signature]:
        """All signatures of a day, oldest first.

        Raises:
            ReconcileRefused: The file cannot be read; it was changed by hand.
        """
        folder = self._of_day(day)
        try:
            return msgspec.json.decode(folder.read(_FILE), type=list[Signature])
        except FileNotFoundError:
            return []
        except msgspec.DecodeError as error:
            raise ReconcileRefused(
                f"{folder}/{_FILE} is not a file of signatures: {error}"
            ) from error

    def signed_runs(self, day: str) -> set[str]:
        """The signed runs of a day; none of their files is ever replaced."""
        return {signature.run_id for signature in self.all(day)}

    def _of_day(self, day: str) -> Folder:
        return self._folder.at("runs", day)

    def _by_result(self, run: Run) -> dict[str, SignOff]:
        """The signatures of each result of a day, in the order of their preparation."""
        found: dict[str, SignOff] = {}
        for one in self.all(run.result.business_date):
            digest = one.result_digest
            if one.role == "preparer":
                found[digest] = SignOff(digest, one.by, one.at_ms, one.note, one.despite)
            elif digest in found:
                found[digest] = msgspec.structs.replace(
                    found[digest],
                    reviewer=one.by,
                    reviewed_ms=one.at_ms,
                    reviewed_note=one.note,
                    reviewed_despite=one.despite,
                )
        return found

    def _objections(self, role: Role, run: Run, name: str, despite: str) -> Iterator[str]:
        """The reasons why a person cannot sign a result."""
        result, day = run.result, run.result.business_date
        if result.digest != run.result_digest:
            yield f"the result of {day} changed since run {run.run_id} wrote it: run the day again"
        if (why := self.outdated(run)) is not None:
            yield why
        if not result.is_final:
            yield f"{day} was not over when its books were read: run it again, and sign the result"
        yield from self._objections_to_order(role, run, name)
        if not _plain(name):
            yield f"the name of the {role} is missing: give it with --by"
        if result.unsolved and not despite.strip():
            yield (
                f"the result of {day} has {result.unsolved}: explain them and run the day again, "
                "or sign with --despite REASON"
            )
        if despite.strip() and not result.unsolved:
            yield f"the result of {day} has no breaks and no failed proofs: omit --despite"

    def _objections_to_order(self, role: Role, run: Run, name: str) -> Iterator[str]:
        found, day = self.of(run), run.result.business_date
        if found is None and role == "reviewer":
            if self.state(run) == "invalidated":
                yield (
                    f"{day} was run again with other inputs since it was prepared, and has a new "
                    "result: a preparer must sign the new one first"
                )
            yield f"the result of {day} is not prepared yet: a preparer must sign it first"
        if found is not None and found.is_complete:
            yield f"{found.preparer} and {found.reviewer} have signed this result already"
        if found is not None and (role == "preparer" or same_person(found.preparer, name)):
            yield f"{found.preparer} has prepared this result: another person must review it"


def _plain(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).split())
