"""``txmq backup``: creates, verifies and restores a backup of a broker's directory.

These commands read the directory themselves, and its broker may keep running. They import the
broker's store only when they run, as ``txmq serve`` does.
"""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from txmq.cli.commands import Answer, Commands
from txmq.cli.common import FAILED, WRONGLY_CALLED, AsJson, fail, flag, option
from txmq.cli.log_lines import locked, print_finding, progress_bar, summary_text
from txmq.cli.output import as_json, say
from txmq.errors import StoreError
from txmq.ops.directories import hint_of_brokers
from txmq.ops.moments import time_text
from txmq.runtime.clock import SystemClock
from txmq.runtime.disk import LocalDisk, Lock, ReadOnlyDisk
from txmq.text import quantity

if TYPE_CHECKING:
    from txmq_broker.offline.backup.manifest import BackupManifest
    from txmq_broker.offline.backup.verification import Verification

__all__ = ["app"]

app = Commands("Back up a broker while it runs; verify and restore the backup.")

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the backup.")]

_ALWAYS_THERE: Final = frozenset({"lost+found"})
"""Entries that even an empty file system has."""


@app.command()
def create(
    *,
    data: Path = option("The broker's directory; it may be running.", default=..., metavar="DIR"),
    to: Path = option("The folder of the backup.", default=..., metavar="FOLDER"),
    link: bool = flag(
        "Link complete files of the log instead of copying them. It takes no room, and "
        "protects from deletion only: a damage of the disk is in both.",
        "--link",
    ),
) -> Answer:
    """Create a backup of a broker's directory, or update the backup in the folder.

    The folder holds one backup. Only new data is copied, and the previous backup stays valid until
    the new one is complete. It has everything that the broker acknowledged before the command.
    """
    if not data.is_dir():
        fail(f"{data} is not a directory; name a broker's directory", WRONGLY_CALLED)
    if hint := hint_of_brokers(data):
        fail(f"{data} is not a broker's directory{hint}", WRONGLY_CALLED)
    _refuse_nesting(data, to)
    with _open_folder(to, is_writer=True) as folder:
        manifest, copied = _create(data, to, folder, has_links=link)
    result = _manifest_fields(manifest) | {"to": str(to), "copied_bytes": copied}
    text = (
        f"backup of {time_text(manifest.taken_ms)} in {to}: positions {manifest.start} to "
        f"{manifest.end} in {_files_text(manifest)}; {quantity(copied, 'byte is', 'bytes are')} new"
    )
    return Answer(result, text)


def _create(
    data: Path, to: Path, folder: LocalDisk, *, has_links: bool
) -> "tuple[BackupManifest, int]":
    from txmq_broker.offline.backup.creation import Creation
    from txmq_broker.offline.backup.manifest import BackupRefused

    def link(path: str, place: str) -> None:
        folder.link(data / path, place)

    source = ReadOnlyDisk(data)
    name = f"{platform.node()}:{data.absolute()}"
    with progress_bar(0) as bar:
        creation = Creation(source, folder, link if has_links else None, bar.advance)
        try:
            bar.begin(creation.open(name))
            manifest = creation.run(name, SystemClock().wall_ms)
        except (StoreError, OSError) as error:
            code = WRONGLY_CALLED if isinstance(error, BackupRefused) else FAILED
            text = f"no backup of {data} was created in {to}: {error}"
            if creation.before is not None:
                text += f". The backup of {time_text(creation.before.taken_ms)} stays valid"
            fail(text, code)
    return manifest, creation.copied


@app.command()
def verify(*, folder: Folder, json: AsJson = False) -> None:
    """Read a whole backup, and report all damage and loss; changes nothing.

    Compares every file with its checksum, and checks the contents as txmq log verify does. The
    exit code is 0 if everything is intact, 1 if something is damaged or lost, and 2 if the folder
    has no backup.
    """
    with _open_folder(folder) as disk:
        verification = _verify(disk, json=json)
    if verification.summary.damages or verification.summary.losses:
        raise typer.Exit(FAILED)


@app.command()
def restore(
    *,
    folder: Folder,
    data: Path = option("The directory to fill; empty or missing.", default=..., metavar="DIR"),
    damaged: bool = flag(
        "Restore what is left of a damaged backup, to repair it there.", "--damaged"
    ),
    json: AsJson = False,
) -> None:
    """Verify a backup, and restore it into an empty directory for txmq serve.

    A damaged or incomplete backup is restored only with --damaged. Messages and decisions since
    the backup are missing, and consumers receive some messages again.
    """
    _refuse_nesting(data, folder)
    if data.exists() and not data.is_dir():
        fail(f"{data} is not a directory; name an empty or missing one", WRONGLY_CALLED)
    names = sorted(path.name for path in data.iterdir()) if data.exists() else []
    if strange := [name for name in names if name not in _ALWAYS_THERE]:
        fail(
            f"{data} is not empty: it has {', '.join(strange[:5])}; move it away first, or name "
            "an empty or missing directory",
            WRONGLY_CALLED,
        )
    with _open_folder(folder) as disk:
        verification = _verify(disk, json=json)
        if not (verification.is_restorable or damaged):
            fail(
                f"the backup in {folder} is damaged, and nothing was restored; to restore what is "
                "left of it, add --damaged"
            )
        _restore(disk, verification, data)
    manifest = verification.manifest
    if json:
        as_json(_manifest_fields(manifest) | {"kind": "restored", "data": str(data)})
        return
    moment = time_text(manifest.taken_ms)
    say(f"restored {data} as it was at {moment}: {_files_text(manifest)}")
    say(
        f"messages and decisions since {moment} are missing; groups continue at their offsets of "
        "then, so consumers receive some messages again"
    )
    if verification.is_restorable:
        say(f"start it with: txmq serve --data {data}")
    else:
        say(f"the backup is damaged; repair it with: txmq log verify --data {data} --repair")


def _restore(disk: LocalDisk, verification: "Verification", data: Path) -> None:
    from txmq_broker.offline.backup.restoration import restore as restore_to

    manifest = verification.manifest
    size = sum(file.size for file in manifest.files)
    target = LocalDisk(data)
    lock: Lock | None = None
    try:
        lock = target.lock()
        with progress_bar(size) as bar:
            restore_to(disk, manifest, target, bar.advance, damaged=verification.damaged)
    except (OSError, StoreError) as error:
        fail(f"{data} is not restored completely: {error}; delete it before you restore again")
    finally:
        if lock is not None:
            lock.release()


def _verify(disk: LocalDisk, *, json: bool) -> "Verification":
    from txmq_broker.offline.backup.manifest import BackupRefused
    from txmq_broker.offline.backup.verification import Verification

    try:
        with progress_bar(0) as bar:
            verification = Verification(disk, bar.advance)
            bar.begin(verification.bytes_to_read)
            for finding in verification.findings():
                print_finding(finding, json=json)
    except StoreError as error:
        code = WRONGLY_CALLED if isinstance(error, BackupRefused) else FAILED
        fail(f"{disk.root}: {error}", code)
    if json:
        as_json(verification.summary)
    else:
        manifest = verification.manifest
        say(f"backup of {time_text(manifest.taken_ms)} from {manifest.source}, log {manifest.log}")
        say(summary_text(verification.summary))
    return verification


# Folders


@contextmanager
def _open_folder(folder: Path, *, is_writer: bool = False) -> Iterator[LocalDisk]:
    """Lock the folder of a backup for the block."""
    if not is_writer and not folder.is_dir():
        fail(f"{folder} is not a directory; name the folder of a backup", WRONGLY_CALLED)
    disk = LocalDisk(folder) if is_writer else ReadOnlyDisk(folder)
    with locked(disk, disk.lock, "wait until it has finished") as held:
        yield held


def _refuse_nesting(data: Path, folder: Path) -> None:
    inner, outer = folder.resolve(), data.resolve()
    if inner == outer or outer in inner.parents or inner in outer.parents:
        fail(
            f"neither of {data} and {folder} may be inside the other: a backup beside its broker "
            "is lost together with it; use another folder, best on another disk",
            WRONGLY_CALLED,
        )


def _manifest_fields(manifest: "BackupManifest") -> dict[str, object]:
    fields: dict[str, object] = msgspec.to_builtins(manifest)
    del fields["tables"], fields["version"]
    return fields


def _files_text(manifest: "BackupManifest") -> str:
    return quantity(sum(file.path.startswith("log/") for file in manifest.files), "file")
