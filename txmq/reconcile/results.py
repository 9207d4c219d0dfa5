"""The directory of results: the tables and files of each run, and which run is in force.

A run writes into its own directories, and its last step makes it the day's current run. If it
dies before that, the former run stays in force. A rerun has the same id and the same rows, and
leaves complete tables untouched.

    <directory>/results/<table>/business_date=D/run=<run id>/part-00000.parquet …
    <directory>/runs/D/<run id>/run.json, report.html, …
    <directory>/runs/D/current

Tables are written below ``results/.drafts``, which readers of Parquet ignore, and then moved file
by file. A killed run may leave a partial table; no run in force uses it, and the rerun writes it
again.

One person prepares a day's result, another one reviews it, and both sign its hash. Signatures are
never removed. A signature is valid while its result is in force: a run of the day with other
inputs has another result, which is unsigned. A new result of the day before also invalidates the
signatures, since this result was made from the old one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import date, timedelta
from typing import Final, Literal, TypeAlias

import msgspec
import pyarrow as pa
from msgspec import Struct

from txmq.errors import ReconcileRefused, UsageError
from txmq.reconcile.contents import ContentHash
from txmq.reconcile.extract.manifest import FILE, Manifest
from txmq.reconcile.ledgers import TableFile
from txmq.reconcile.storage import Directory, Folder, open_folder
from txmq.reconcile.summary import Past, Run, SignatureState, SignOff, digest_of
from txmq.reconcile.tables import TABLES

__all__ = ["Results", "Role", "open_results", "run_id"]

_DRAFTS: Final = "results/.drafts"
_SIGNATURES: Final = "signoffs.json"
_SIGNED_ERROR: Final = (
    "run {run} of {day} is signed, and {what} would change: raise `version` in the rules to get a "
    "separate run"
)

Role: TypeAlias = Literal["preparer", "reviewer"]


class Signature(Struct, frozen=True):
    """A person's signature on a result."""

    role: Role
    by: str
    at_ms: int
    run_id: str
    result_digest: str
    note: str = ""
    despite: str = ""
    """Why the person signs although there are breaks or failed proofs."""


def run_id(
    day: date, rules_digest: str, extract_id: str, previous: str | None, explained: str = ""
) -> str:
    """A run's id: equal for equal dates, rules and inputs.

    ``previous`` is the digest of the result that this run continues, and ``explained`` the digest
    of the valid explanations.
    """
    return digest_of([day.isoformat(), rules_digest, extract_id, previous or "", explained])[:16]


@contextmanager
def open_results(directory: Directory) -> Iterator[Results]:
    """Open a directory of results for writing, and lock out other runs.

    Raises:
        ReconcileRefused: Another run is writing there, or the directory cannot be written.
    """
    folder = open_folder(directory)
    with ExitStack() as stack:
        try:
            check_lock = stack.enter_context(folder.drafting(_DRAFTS))
        except OSError as error:
            raise ReconcileRefused(
                f"directory {str(folder)!r} cannot be written: {error}"
            ) from error
        yield Results(folder, check_lock)


class Results:
    """The results of runs. Reading is always safe; writers use :func:`open_results`.

    ``check_lock`` raises if another run may write there. Every method raises
    :class:`ReconcileRefused` if it cannot read a file, for example one that was changed by hand.
    """

    def __init__(self, directory: Directory, check_lock: Callable[[], None] = lambda: None) -> None:
        self.folder = open_folder(directory)
        self._check_lock = check_lock

    # Runs

    def days(self, before: date = date.max) -> list[date]:
        """The days that have a run in force, oldest first: all of them, or those before a day."""
        found = self.folder.at("runs").files("????-??-??/current")
        days = (date.fromisoformat(name.partition("/")[0]) for name in found)
        return [day for day in days if day < before]

    def current(self, day: date) -> Run | None:
        """The day's run in force, with its signatures; ``None`` before the first run."""
        run = self._in_force(day)
        return None if run is None else self.with_sign_off(run)

    def previous(self, day: date) -> Run | None:
        """The current run of the latest earlier day; days between may have no run."""
        before = self.days(day)
        return self.current(before[-1]) if before else None

    def trend(self, day: date, most: int) -> tuple[Past, ...]:
        """The latest days before this one, up to ``most``, oldest first."""
        before = self.days(day)
        runs = map(self._in_force, before[max(len(before) - most, 0) :])
        return tuple(run.result.past for run in runs if run is not None)

    def chain(self, run: Run | None, since: date) -> list[Run]:
        """A run and the runs that it continues, back to a date, oldest first.

        Later reruns do not change this chain, so results made from it stay reproducible.
        """
        found: list[Run] = []
        while run is not None and run.day >= since:
            found.append(run)
            if run.previous_run_id is None:
                break
            day = run.day - timedelta(days=1)
            before = self.folder.at("runs", day.isoformat(), run.previous_run_id)
            run = _read_run(before) if before.exists("run.json") else None
        return found[::-1]

    def why_outdated(self, run: Run, last: date | None = None) -> str | None:
        """Why a run, or an earlier one in its chain, is outdated; ``None`` if none is.

        A day that was run again may leave other items to the next day, which no later report would
        show. All earlier days are checked: the day before may itself be outdated. The reason names
        ``last`` as the last day to run again; by default, the run's own day.
        """
        day = own = run.day
        first: tuple[date, date] | None = None
        for earlier in reversed(self.days(own)):
            if (before := self._in_force(earlier)) is None:
                continue
            if before.result.end_ms < run.result.start_ms:
                break  # Days between have no run: the chain begins here.
            if run.previous_digest != before.result_digest:
                first = day, earlier
            day, run = earlier, before
        if first is None:
            return None
        return (
            f"{first[0]} was not made from the result of {first[1]} that is in force: run it "
            f"again, and all after it, with --from {first[0]} --to {last or own}"
        )

    def latest_extract(self, day: date) -> str:
        """The id of the latest extract of a day.

        Raises:
            ReconcileRefused: The day has no extract.
        """
        home = self.folder.at("extracts", day.isoformat())
        found = home.files(f"[!.]*/{FILE}")
        manifests = [Manifest.read(home.at(name.removesuffix(f"/{FILE}"))) for name in found]
        if not manifests:
            raise ReconcileRefused(f"{day} has no extract yet: omit --reuse-extract")
        taken = ((max(one.taken_ms for one in it.sources), it.extract_id) for it in manifests)
        return max(taken)[1]

    def folder_of(self, run: Run) -> Folder:
        """The folder of a run's files."""
        return self.folder.at("runs", run.result.business_date, run.run_id)

    def publish(self, run: Run, files: Mapping[str, bytes]) -> None:
        """Write a run's files, such as ``report.html``, and put the run in force.

        Its signatures are stored separately. The files of a signed run stay as they were when it
        was signed.

        Raises:
            ReconcileRefused: The run is signed, and this result differs.
        """
        assert run.result_digest == run.result.digest
        day = run.result.business_date
        signed = self._signed_run(day, run.run_id)
        if signed is None:
            plain = msgspec.json.encode(msgspec.structs.replace(run, sign_off=None))
            self.write_files(run, {**files, "run.json": msgspec.json.format(plain) + b"\n"})
        elif signed.result_digest != run.result_digest:
            raise ReconcileRefused(_SIGNED_ERROR.format(run=run.run_id, day=day, what="its result"))
        self._check_lock()
        # The last step: no reader sees the run before it.
        named = msgspec.json.encode({"run_id": run.run_id})
        self.folder.at("runs", day).replace("current", named + b"\n")

    def write_files(self, run: Run, files: Mapping[str, bytes]) -> None:
        """Write files of a run again, for example after a signature; its result stays."""
        folder = self.folder_of(run)
        for name, data in files.items():
            folder.replace(name, data)

    # Signatures

    def sign(
        self, role: Role, run: Run, name: str, now_ms: int, note: str = "", despite: str = ""
    ) -> SignOff:
        """Sign the result of a run, first as its preparer and then as its reviewer.

        ``despite`` says why the signer signs although there are breaks or failed proofs.

        Raises:
            UsageError: The result was changed, was made before the day was over, or the day
                before has a newer one; this role has signed already, or the preparer has not; one
                person signs twice; the name is empty; or ``despite`` is missing or not needed.
        """
        day, of_run = run.result.business_date, (run.run_id, run.result_digest)
        # Names that differ only in character width and spaces are the same person.
        by = " ".join(unicodedata.normalize("NFKC", name).split())
        signed = Signature(role, by, now_ms, *of_run, note.strip(), despite.strip())
        with self.folder.lock_signatures():
            given, outdated = self.signatures(day), self.why_outdated(run)
            if why := next(objections(signed, run, sign_offs(given), outdated), None):
                raise UsageError(why)
            text = msgspec.json.format(msgspec.json.encode([*given, signed]))
            self.folder.at("runs", day).replace(_SIGNATURES, text + b"\n")
        return sign_offs([*given, signed])[run.result_digest]

    def signatures(self, day: str) -> list[Signature]:
        """All signatures of a day, oldest first."""
        folder = self.folder.at("runs", day)
        try:
            return msgspec.json.decode(folder.read(_SIGNATURES), type=list[Signature])
        except FileNotFoundError:
            return []
        except msgspec.DecodeError as error:
            why = f"is not a file of signatures: {error}"
            raise ReconcileRefused(f"{folder}/{_SIGNATURES} {why}") from error

    def signature_state(self, run: Run) -> SignatureState:
        """The state of a result's sign-off; ``invalidated`` if another result was signed, or if
        the day before has a newer result.
        """
        state = self.with_sign_off(run).signature
        is_outdated = state != "unsigned" and self.why_outdated(run) is not None
        return "invalidated" if is_outdated else state

    def with_sign_off(self, run: Run) -> Run:
        """A run with its signatures; without any, with the last ones of the day's other results."""
        found = sign_offs(self.signatures(run.result.business_date))
        last = next(reversed(found.values()), None)
        return msgspec.structs.replace(run, sign_off=found.get(run.result_digest, last))

    # Tables

    def table(self, name: str, day: date, run: str) -> Folder:
        """The folder of a table of a run."""
        return self.folder.at("results", name, f"business_date={day}", f"run={run}")

    def files(self, name: str, *runs: Run) -> list[TableFile]:
        """The files of a table of these runs that still exist."""
        tables = [self.table(name, run.day, run.run_id) for run in runs]
        return [
            TableFile(f"{table.spark_path}/{part}")
            for table in tables
            for part in table.files("*.parquet")
        ]

    def draft(self, name: str, run: str) -> Folder:
        """The empty folder into which Spark writes a table of a run."""
        draft = self.folder.at(_DRAFTS, name, f"run={run}")
        draft.remove_all()
        return draft

    def take(self, draft: Folder, name: str, day: date, run: str, content: str) -> None:
        """Take the table that Spark wrote into a draft; ``content`` is the hash of its rows.

        Raises:
            ReconcileRefused: The run is signed, and this table differs from the signed one.
        """
        place = self.table(name, day, run)
        if _has_content(name, place, content):
            draft.remove_all()
            return
        # The same inputs give the same rows, unless txmq or Spark has changed. A signed table
        # stays, unless it was damaged and the new one equals the signed one.
        signed = self._signed_run(day.isoformat(), run)
        if signed is not None and signed.result.contents.get(name) != content:
            raise ReconcileRefused(_SIGNED_ERROR.format(run=run, day=day, what=name))
        current = self._in_force(day)
        if current is not None and current.run_id == run:
            # Not in force until the run is complete again.
            self.folder.at("runs", day.isoformat()).remove("current")
        place.take(draft)

    def verify(self, run: Run, names: Iterable[str] = ()) -> None:
        """Check that a run's tables, all or some, still have the rows that the run wrote.

        Raises:
            ReconcileRefused: A table was changed.
        """
        for name in names or run.result.contents:
            place = self.table(name, run.day, run.run_id)
            if not _has_content(name, place, run.result.contents.get(name)):
                raise ReconcileRefused(
                    f"{name} of {run.day} changed since run {run.run_id} wrote "
                    "them: run the day again"
                )

    def _in_force(self, day: date) -> Run | None:
        """A day's run in force, without signatures."""
        place = self.folder.at("runs", day.isoformat())
        try:
            named = msgspec.json.decode(place.read("current"), type=dict[str, str])
            run = named["run_id"]
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, KeyError) as error:
            raise ReconcileRefused(f"{place}/current does not name a run: {error}") from error
        return _read_run(place.at(run))

    def _signed_run(self, day: str, run: str) -> Run | None:
        """The run if it is signed; the files of a signed run are never replaced."""
        is_signed = any(signature.run_id == run for signature in self.signatures(day))
        return _read_run(self.folder.at("runs", day, run)) if is_signed else None


def sign_offs(signatures: Iterable[Signature]) -> dict[str, SignOff]:
    """The signatures of each result of a day by its digest, in the order of preparation."""
    found: dict[str, SignOff] = {}
    for one in signatures:
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


def objections(
    wanted: Signature, run: Run, given: Mapping[str, SignOff], outdated: str | None
) -> Iterator[str]:
    """The reasons why a person cannot sign a result.

    ``given`` has the signatures of the day; ``outdated`` says why the result is outdated, if it is.
    """
    result, day, found = run.result, run.result.business_date, given.get(run.result_digest)
    if result.digest != run.result_digest:
        yield f"the result of {day} changed since run {run.run_id} wrote it: run the day again"
    if outdated is not None:
        yield outdated
    if not result.is_final:
        remedy = "run it again when it is over, and sign that result"
        yield f"{day} was not over when its books were read: {remedy}"
    if found is None and wanted.role == "reviewer":
        why = f"{day} was run again with other inputs since it was prepared, and has a new result"
        first = f"the result of {day} is not prepared yet: a preparer must sign it first"
        yield f"{why}: a preparer must sign the new one first" if given else first
    if found is not None and found.is_complete:
        yield f"{found.preparer} and {found.reviewer} have signed this result already"
    is_preparer = found is not None and found.preparer.casefold() == wanted.by.casefold()
    if found is not None and (wanted.role == "preparer" or is_preparer):
        yield f"{found.preparer} has prepared this result: another person must review it"
    if not wanted.by:
        yield f"the name of the {wanted.role} is missing: give it with --by"
    if result.unsolved and not wanted.despite:
        remedy = "explain what is left and run the day again, or sign with --despite REASON"
        yield f"the result of {day} has {result.unsolved}: {remedy}"
    if wanted.despite and not result.unsolved:
        yield f"the result of {day} has no breaks and no failed proofs: omit --despite"


def _read_run(folder: Folder) -> Run:
    try:
        return msgspec.json.decode(folder.read("run.json"), type=Run)
    except (OSError, msgspec.DecodeError) as error:
        raise ReconcileRefused(f"{folder}/run.json is not the file of a run: {error}") from error


def _has_content(name: str, place: Folder, content: str | None) -> bool:
    """True if the files of a table have these rows, however they are split into files."""
    found = ContentHash(TABLES[name])
    parts = place.files("[!._]*")  # The files that Spark reads.
    try:
        for batch in place.batches(parts) if parts else ():
            found.add(batch)
    except (OSError, pa.ArrowException):
        return False
    return bool(parts) and found.word == content
