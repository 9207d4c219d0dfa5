"""A record of what operators did: JSON lines in the data directory, synced one by one.

Every request that changes something for others is here, allowed or refused: topics, groups,
offsets, settings, routes, and decisions on transactions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import wraps
from typing import Final

import msgspec

from txmq.errors import BrokerRefused
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command
from txmq.protocol.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq.runtime.clock import Clock
from txmq.runtime.disk import Disk, File

__all__ = ["AUDITED", "AuditEntry", "AuditLog", "read_audit"]

log = logging.getLogger(__name__)

_CODE = RequestCode
AUDITED: Final = frozenset(
    {
        _CODE.UPDATE_AND_CREATE_TOPIC,
        _CODE.DELETE_TOPIC_IN_BROKER,
        _CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        _CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        _CODE.DELETE_SUBSCRIPTIONGROUP,
        _CODE.INVOKE_BROKER_TO_RESET_OFFSET,
        _CODE.CLONE_GROUP_OFFSET,
        _CODE.CONSUME_MESSAGE_DIRECTLY,
        _CODE.UPDATE_BROKER_CONFIG,
        _CODE.CLEAN_EXPIRED_CONSUMEQUEUE,
        _CODE.CLEAN_UNUSED_TOPIC,
        _CODE.DELETE_EXPIRED_COMMITLOG,
        _CODE.DECIDE_TRANSACTION,
        _CODE.RECHECK_TRANSACTION,
        _CODE.RESUME_CHECK_HALF_MESSAGE,
        _CODE.PUT_KV_CONFIG,
        _CODE.DELETE_KV_CONFIG,
        _CODE.WIPE_WRITE_PERM_OF_BROKER,
        _CODE.ADD_WRITE_PERM_OF_BROKER,
        _CODE.DELETE_TOPIC_IN_NAMESRV,
        _CODE.REGISTER_TOPIC_IN_NAMESRV,
        _CODE.UPDATE_NAMESRV_CONFIG,
    }
)
"""The requests that are recorded."""

FOLDER: Final = "audit"
FILE_BYTES_MAX: Final = 16 * 1024**2
FILES_KEPT: Final = 16
"""A file is full at this size; older files than these are deleted."""
_TEXT_CHARS_MAX: Final = 2000
"""The characters of a field or a body that an entry keeps."""
_HIDDEN: Final = frozenset((ACCESS_KEY, SIGNATURE, SECURITY_TOKEN))


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request of an operator."""

    at_ms: int
    request: str
    """The name of the request code."""
    peer: str
    """The address that it came from."""
    account: str = ""
    """The access key it was signed with."""
    fields: Mapping[str, str] = {}
    body: str = ""
    refused: str = ""
    """Why it was refused; empty if it was carried out, or is being carried out."""


class AuditLog:
    """Appends to the newest file of the folder."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._file: File | None = None
        self._number = 0
        self._size = 0

    def watched(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same handlers, of which the audited ones leave an entry."""
        return {
            code: self._watched(handler) if code in AUDITED else handler
            for code, handler in handlers.items()
        }

    def _watched(self, handler: Handler) -> Handler:
        @wraps(handler)
        def handle(connection: Connection, request: Command) -> bytes | None:
            try:
                found = handler(connection, request)
            except BrokerRefused as error:
                self.note(connection, request, refused=str(error))
                raise
            self.note(connection, request)
            return found

        return handle

    def note(self, connection: Connection, request: Command, *, refused: str = "") -> None:
        """Append an entry. If the disk refuses, the request goes on, and the log says so."""
        fields = request.field_map()
        entry = AuditEntry(
            self._clock.wall_ms(),
            RequestCode(request.code).name,
            connection.address,
            _cut(fields.get(ACCESS_KEY, "")),
            {name: _cut(text) for name, text in fields.items() if name not in _HIDDEN},
            _cut(request.body.decode(errors="replace")),
            _cut(refused),
        )
        try:
            self._append(msgspec.json.encode(entry) + b"\n")
        except OSError as error:
            log.error("an entry of the audit could not be written (%s): %s", error, entry)  # noqa: TRY400

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, line: bytes) -> None:
        if self._file is None or self._size >= FILE_BYTES_MAX:
            self._open_next()
        assert self._file is not None
        self._file.write(self._size, line)
        self._file.sync()
        self._size += len(line)

    def _open_next(self) -> None:
        is_full = self._file is not None
        self.close()
        names = _files(self._disk)
        self._number = _number(names[-1]) if names else 1
        if is_full:
            self._number += 1
        self._file = self._disk.open(f"{FOLDER}/{self._number:06}.jsonl", create=True)
        self._size = self._file.size()
        if self._size and self._file.read(self._size - 1, 1) != b"\n":
            # A crash tore the last line; the next one must not become its end.
            self._file.write(self._size, b"\n")
            self._size += 1
        for name in names[: -FILES_KEPT + 1]:
            self._disk.remove(f"{FOLDER}/{name}")


def read_audit(disk: Disk) -> Iterator[AuditEntry]:
    """The entries, oldest first; a line that a crash has torn is left out."""
    for name in _files(disk):
        file = disk.open(f"{FOLDER}/{name}")
        try:
            lines = file.read(0, file.size()).split(b"\n")
        finally:
            file.close()
        for line in lines:
            if line:
                try:
                    yield msgspec.json.decode(line, type=AuditEntry)
                except msgspec.DecodeError:
                    continue


def _files(disk: Disk) -> list[str]:
    return sorted(name for name in disk.names(FOLDER) if name.endswith(".jsonl"))


def _number(name: str) -> int:
    return int(name.removesuffix(".jsonl"))


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_CHARS_MAX else f"{text[: _TEXT_CHARS_MAX - 1]}…"
