"""The folders of extracts and results, on this machine or on a file system that Spark reaches.

This is the one port to these files. An object store cannot rename a folder, so a writer puts files
where no reader looks yet, and one small file, written last, puts them in force.

A location is opened as an Arrow file system, by the URI that Hadoop's programs use, and with the
settings in their ``core-site.xml``.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from txmq.errors import ConfigError, ReconcileRefused
from txmq.reconcile.rules import SCHEMES
from txmq.runtime.disk import LocalDisk, sync_path

__all__ = ["LEASE_S", "Directory", "Folder", "LocalFolder", "open_folder"]

LEASE_S: Final = 120
"""A process counts as dead if it has not renewed its claim for this many seconds."""
_RENEW_S: Final = 20
_ROWS_AT_ONCE: Final = 1 << 17
_NEW: Final = re.compile(r"\.([^/]+)\.new$")
_WAIT: Final = "wait until it has ended, and try again"
_SITE: Final = "core-site.xml"
_HINTS: Final = {
    "hdfs": "install Hadoop's client, and set JAVA_HOME, HADOOP_HOME and "
    "CLASSPATH=$(hadoop classpath --glob)",
    "s3a": f"see fs.s3a.* in {_SITE} of HADOOP_CONF_DIR, and AWS_* of the environment",
    "gs": "see GOOGLE_APPLICATION_CREDENTIALS of the environment",
    "abfss": "see AZURE_* of the environment",
}


class Folder:
    """A folder on a remote file system; its URI names it in messages.

    In an object store a file appears when it is closed, and replaces an older one. Other file
    systems show unfinished files, and a move does not replace a file.

    Every method raises ``OSError`` if the file system fails, and ``FileNotFoundError`` if a file
    that it needs does not exist.
    """

    local: Path | None = None
    """The path on this machine; ``None`` if the folder is elsewhere."""

    def __init__(self, system: FileSystem, path: str, uri: str, *, has_objects: bool) -> None:
        self.uri = uri
        self._system = system
        self._path = path
        self._has_objects = has_objects

    def __str__(self) -> str:
        return self.uri

    @property
    def spark_path(self) -> str:
        """The folder's path for Spark."""
        return self.uri if "://" in self.uri else f"file://{Path(self.uri).absolute()}"

    def at(self, *names: str) -> Folder:
        """A folder below this one."""
        tail = "/".join(names)
        uri = f"{self.uri}/{tail}"
        return Folder(self._system, self._at(tail), uri, has_objects=self._has_objects)

    def files(self, pattern: str | None = None) -> list[str]:
        """The paths of the files below, sorted: all of them, or those that match a pattern.

        Each part of a pattern such as ``????-??-??/current`` matches one name. A folder that does
        not exist has no files.
        """
        is_deep = pattern is None or "/" in pattern
        below = FileSelector(self._path, allow_not_found=True, recursive=is_deep)
        paths = [info.path for info in self._system.get_file_info(below) if info.is_file]
        names = {_NEW.sub(r"\1", path.removeprefix(f"{self._path}/")) for path in paths}
        if pattern is not None:
            # An absolute pattern must match the whole path.
            names = {name for name in names if PurePosixPath(f"/{name}").match(f"/{pattern}")}
        return sorted(names)

    def exists(self, name: str) -> bool:
        """True if a file exists."""
        return any(map(self._is_there, self._names(name)))

    def read(self, name: str) -> bytes:
        """The bytes of a file."""
        # A file that is being replaced may move between two attempts.
        for one in (*self._names(name), name):
            with suppress(FileNotFoundError), self._system.open_input_stream(self._at(one)) as file:
                return bytes(file.read())
        raise FileNotFoundError(f"{self}/{name} does not exist")

    def batches(
        self, names: Sequence[str], columns: Sequence[str] = (), where: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of Parquet files in pieces, so that few are in memory at once.

        They have all columns, or those of ``columns`` that exist; ``where`` filters the rows.

        Raises:
            pyarrow.ArrowException: A file is not Parquet.
        """
        for name in names:
            # A dataset would decode whole row groups.
            with pq.ParquetFile(self._at(name), filesystem=self._system) as file:
                there = [column for column in columns if column in file.schema_arrow.names] or None
                for batch in file.iter_batches(_ROWS_AT_ONCE, columns=there, use_threads=False):
                    yield batch if where is None else batch.filter(where)

    def pieces(self, *columns: str, where: pc.Expression | None = None) -> Iterator[pa.Table]:
        """The rows of the table in this folder; see :meth:`batches`.

        Raises:
            ReconcileRefused: The folder has no files, or one cannot be read.
        """
        if not (parts := self.files("*.parquet")):
            raise ReconcileRefused(f"{self} has no files: run the day again")
        try:
            for batch in self.batches(parts, columns, where):
                yield pa.Table.from_batches([batch])
        except (OSError, pa.ArrowException) as error:
            raise ReconcileRefused(f"{self} cannot be read: {error}") from error

    def rows(self, *columns: str, where: pc.Expression | None = None) -> Iterator[dict[str, Any]]:
        """The rows of the table in this folder, one by one; see :meth:`pieces`."""
        return (row for piece in self.pieces(*columns, where=where) for row in piece.to_pylist())

    def write(self, name: str, data: bytes) -> None:
        """Write a new file; no reader may know its name before it is complete."""
        self._make_room(name)
        with self._system.open_output_stream(self._at(name)) as file:
            file.write(data)

    def replace(self, name: str, data: bytes) -> None:
        """Replace a small file; after a crash it is the old or the new one."""
        if self._has_objects:
            self.write(name, data)
            return
        _, new = self._names(name)
        if self._is_there(new) and not self._is_there(name):
            # A killed process had removed the old file.
            self._system.move(self._at(new), self._at(name))
        # Readers take the ``.new`` file if the old one is missing, so it must be complete then.
        draft = new if self._is_there(name) else f".{name}.draft"
        self.write(draft, data)
        self._delete(name)
        self._system.move(self._at(draft), self._at(name))

    def remove(self, name: str) -> None:
        """Remove a file; harmless if it does not exist."""
        for one in reversed(self._names(name)):
            self._delete(one)

    def remove_all(self) -> None:
        """Remove the folder and all files below; harmless if it does not exist."""
        if self._system.get_file_info(self._path).type != FileType.NotFound:
            self._system.delete_dir(self._path)

    @contextmanager
    def drafting(self, place: str) -> Iterator[Callable[[], None]]:
        """Lock the folder, and empty a folder below for drafts, now and at the end.

        See :meth:`lock`.
        """
        with self.lock() as check_lock:
            drafts = self.at(place)
            drafts.remove_all()  # A killed process left them.
            try:
                yield check_lock
            finally:
                # If this fails, the next process does it. Without the lock, the drafts may be
                # another process's.
                with suppress(OSError, ReconcileRefused):
                    check_lock()
                    drafts.remove_all()

    @contextmanager
    def staging(self) -> Iterator[tuple[Folder, Callable[[], None]]]:
        """Make an empty folder for files that a folder below will take; see :meth:`lock`.

        Raises:
            ReconcileRefused: Another process is staging files here.
        """
        with self.drafting(".drafts") as check_lock:
            yield self.at(".drafts", secrets.token_hex(8)), check_lock

    def take(self, draft: Folder, last: str = "") -> bool:
        """Move the files of a draft here, and remove the draft; the parts of a table are numbered.

        The file ``last`` follows all others. If it is here already, nothing changes, and the answer
        is False.
        """
        if last and self.exists(last):
            return False
        self.remove_all()  # A process that died may have left files, perhaps in other parts.
        parts = draft.files("part-*")
        for name in draft.files():
            if name != last and name[0] not in "._":  # Spark's own files.
                new = f"part-{parts.index(name):05d}.parquet" if name in parts else name
                self._make_room(new)
                self._system.move(draft._at(name), self._at(new))
        self._sync()
        if last:
            self.replace(last, draft.read(last))
        draft.remove_all()
        return True

    @contextmanager
    def lock(self, who: str = "another run works") -> Iterator[Callable[[], None]]:
        """Keep other writers out of the folder.

        The block receives a function that raises :class:`ReconcileRefused` if the lock was lost.

        Raises:
            ReconcileRefused: Another process writes there; ``who`` is its description.
        """
        # Arrow can neither lock a file nor create one only if it does not exist. But all of these
        # file systems list a file as soon as it is written: if two processes write claims and then
        # list them, at least one sees the other's. They never both go on; perhaps neither does. A
        # killed process leaves its claim. Only the file system's clock decides how old a claim is.
        own, ended = f"claims/{secrets.token_hex(8)}", threading.Event()
        author = f"{socket.gethostname()} {os.getpid()}\n".encode()

        def renew() -> None:
            while not ended.wait(_RENEW_S):
                with suppress(OSError):  # A store that does not answer may answer the next time.
                    if self._is_there(own):
                        self.write(own, author)

        def check() -> None:
            if not self._is_there(own):
                raise ReconcileRefused(
                    f"{self}/{own} is gone: this process did not renew its claim for {LEASE_S} "
                    f"seconds, and another one may write into {self}; run it again"
                )

        self.write(own, author)
        infos = self._system.get_file_info(FileSelector(self._at("claims")))
        times = {f"claims/{info.base_name}": info.mtime_ns / 1e9 for info in infos}
        now = times.pop(own, 0)
        for other, time in times.items():
            if now - time < LEASE_S:
                self._delete(own)
                raise ReconcileRefused(
                    f"{who} in {self} ({self}/{other} claims it; the claim of a process that was "
                    f"killed is void after {LEASE_S} seconds): {_WAIT}"
                )
            self._delete(other)
        renewal = threading.Thread(target=renew, name="txmq-claim", daemon=True)
        renewal.start()
        try:
            yield check
        finally:
            ended.set()
            renewal.join()  # It could write the claim once more.
            with suppress(OSError):  # If this fails, the claim expires.
                self._delete(own)

    def lock_signatures(self) -> AbstractContextManager[object]:
        """Lock the files that people write, such as signatures; runs do not wait for this lock."""
        return self.at("runs").lock("another person signs or explains a break")

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _names(self, name: str) -> tuple[str, ...]:
        """The names under which the latest version of a small file may be."""
        # The second is a file that is about to replace another one.
        return (name,) if self._has_objects else (name, f".{name}.new")

    def _is_there(self, name: str) -> bool:
        info = self._system.get_file_info(self._at(name))
        return bool(info.type != FileType.NotFound)

    def _delete(self, name: str) -> None:
        if self._is_there(name):
            self._system.delete_file(self._at(name))

    def _sync(self) -> None:
        """Sync the files below; a remote file system does so itself."""

    def _make_room(self, name: str) -> None:
        """Make the folder of a file."""
        if not self._has_objects:
            self._system.create_dir(self._at(name).rpartition("/")[0], recursive=True)


class LocalFolder(Folder):
    """A folder on this machine, perhaps named by a ``viewfs`` URI."""

    local: Path

    def __init__(self, path: str | Path, uri: str | None = None) -> None:
        self.local = Path(path)
        super().__init__(LocalFileSystem(), str(path), uri or str(path), has_objects=False)

    def __str__(self) -> str:
        return str(self.local)

    def at(self, *names: str) -> Folder:
        """See :meth:`Folder.at`."""
        return LocalFolder(self.local.joinpath(*names), "/".join((self.uri, *names)))

    def replace(self, name: str, data: bytes) -> None:
        """See :meth:`Folder.replace`."""
        LocalDisk(self.local).replace(name, data)

    def remove(self, name: str) -> None:
        """See :meth:`Folder.remove`."""
        LocalDisk(self.local).remove(name)

    @contextmanager
    def lock(self, who: str = "another run works") -> Iterator[Callable[[], None]]:
        """See :meth:`Folder.lock`; the death of the process releases it."""
        try:
            held = LocalDisk(self.local).lock()
        except BlockingIOError as error:
            raise ReconcileRefused(f"{who} in {self}: {_WAIT}") from error
        try:
            yield lambda: None
        finally:
            held.release()

    def _sync(self) -> None:
        self.local.mkdir(parents=True, exist_ok=True)  # A draft may have had no files.
        for path in (*self.local.rglob("*"), self.local, self.local.parent):
            sync_path(path)


Directory: TypeAlias = str | Path | Folder
"""A path, the URI of a folder, or an open folder."""


def open_folder(directory: Directory) -> Folder:
    """Open the ``directory`` of the rules; an open folder is returned unchanged.

    Raises:
        ConfigError: Python does not know the file system, or a setting is invalid.
        ReconcileRefused: The file system does not answer.
    """
    if isinstance(directory, Folder):
        return directory
    uri = str(directory).rstrip("/")
    place = urlsplit(uri)
    if place.scheme not in SCHEMES:
        return LocalFolder(directory)
    settings = _hadoop_settings()
    if place.scheme == "viewfs":
        target = _link(uri, place.netloc or "default", place.path, settings)
        folder = open_folder(target.removeprefix("file://"))
        folder.uri = uri
        return folder
    try:
        if place.scheme == "s3a":
            system, path = _s3(settings), f"{place.netloc}{place.path}"
        else:
            system, path = FileSystem.from_uri(uri)
        # Ask once, so that a wrong name or password is an error now, and not later in the run.
        system.get_file_info(path)
    except (ImportError, ValueError, NotImplementedError, pa.ArrowException, OSError) as error:
        kind = ReconcileRefused if isinstance(error, OSError) else ConfigError
        why, hint = str(error).partition("\n")[0], _HINTS[place.scheme]
        raise kind(f"directory {uri!r} cannot be reached from Python: {why}; {hint}") from error
    return Folder(system, path, uri, has_objects=system.type_name in {"s3", "gcs"})


def _s3(settings: Mapping[str, str]) -> FileSystem:
    """The object store of the scheme ``s3a``; AWS's environment fills in what no setting names."""
    from pyarrow.fs import S3FileSystem

    endpoint = settings.get("fs.s3a.endpoint", "")
    scheme, _, host = endpoint.rpartition("://")
    is_plain = settings.get("fs.s3a.connection.ssl.enabled", "true").lower() == "false"
    return S3FileSystem(
        allow_delayed_open=True,  # A small file takes one request, and no partial upload is left.
        access_key=settings.get("fs.s3a.access.key"),
        secret_key=settings.get("fs.s3a.secret.key"),
        session_token=settings.get("fs.s3a.session.token"),
        region=settings.get("fs.s3a.endpoint.region"),
        endpoint_override=host or None,
        scheme=(scheme or ("http" if is_plain else "https")) if host else None,
    )


def _link(uri: str, table: str, path: str, settings: Mapping[str, str]) -> str:
    """The target of a path in the mount table of a ``viewfs``."""
    before = f"fs.viewfs.mounttable.{table}.link."
    links = {
        key.removeprefix(before).rstrip("/"): target.rstrip("/")
        for key, target in settings.items()
        if key.startswith(before)
    }
    for link in sorted(links, key=len, reverse=True):
        if f"{path}/".startswith(f"{link}/"):
            return links[link] + path.removeprefix(link)
    why = f"no link of the mount table {table!r} covers {path}"
    remedy = f"add {before}/... to {_SITE} of HADOOP_CONF_DIR"
    raise ConfigError(f"directory {uri!r}: {why}; {remedy}")


def _hadoop_settings() -> dict[str, str]:
    """The settings in Hadoop's ``core-site.xml``; none without the file."""
    home = os.environ.get("HADOOP_CONF_DIR")
    path = Path(home or "", _SITE)
    if not home or not path.exists():
        return {}
    try:
        found = ET.parse(path)  # noqa: S314 - its author may run Spark
    except (OSError, ET.ParseError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return {
        one.findtext("name", "").strip(): one.findtext("value", "").strip()
        for one in found.iter("property")
    }
