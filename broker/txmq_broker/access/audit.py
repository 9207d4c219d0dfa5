"""A record of what operators did: JSON lines in the data directory, synced one by one.

Every request that changes something for others is here, allowed or refused: topics, groups,
offsets, settings, routes, members of broker sets, and decisions on transactions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from hashlib import sha256
from typing import Any, Final

import msgspec

from txmq.errors import BrokerRefused, RemoteProtocolError
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command, FrameReader, answer, decode
from txmq.protocol.operations import ListAudit
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq.runtime.clock import Clock
from txmq.runtime.coordinator import View
from txmq.runtime.disk import Disk, File
from txmq.security.signatures import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from txmq_broker.access.audit_pages import FOLDER, audit_files, audit_page

__all__ = ["AUDITED", "AuditEntry", "AuditLog", "account_of", "entries_about", "read_audit"]

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
        _CODE.SKIP_DAMAGED,
        _CODE.CONSUME_MESSAGE_DIRECTLY,
        _CODE.UPDATE_BROKER_CONFIG,
        _CODE.UPDATE_AND_CREATE_ACL_CONFIG,
        _CODE.DELETE_ACL_CONFIG,
        _CODE.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        _CODE.CLEAN_EXPIRED_CONSUMEQUEUE,
        _CODE.CLEAN_UNUSED_TOPIC,
        _CODE.DELETE_EXPIRED_COMMITLOG,
        _CODE.DECIDE_TRANSACTION,
        _CODE.RECHECK_TRANSACTION,
        _CODE.RECHECK_TRANSACTIONS,
        _CODE.CHANGE_SET,
        _CODE.RECALL_DELAYED,
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

FILE_BYTES_MAX: Final = 16 * 1024**2
FILES_KEPT: Final = 16
"""A file is full at this size; older files than these are deleted."""
_TEXT_CHARS_MAX: Final = 2000
"""The characters of a field or a body that an entry keeps."""
_BODY_BYTES_READ: Final = 4 * (_TEXT_CHARS_MAX + 1)
"""The bytes of a body that are decoded for them; a character has at most four."""
_SEAL_CHARS: Final = 32
_LINES_SHOWN: Final = 5
_HIDDEN: Final = frozenset((ACCESS_KEY, SIGNATURE, SECURITY_TOKEN, "secretKey"))
"""Fields that are shown apart, and those with secrets: of the sender, or of a new account."""
_COUNTED: Final = frozenset((_CODE.RECHECK_TRANSACTIONS,))
"""Requests whose answers say how much they changed."""
_NO_FIELDS: Final[Mapping[str, str]] = {}


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request of an operator."""

    at_ms: int
    request: str
    """The name of the request code."""
    peer: str
    """The address that it came from."""
    account: str = ""
    """The access key it was signed with, or the subject of the client's certificate."""
    fields: Mapping[str, str] = {}
    body: str = ""
    refused: str = ""
    """Why it was refused; empty if it was carried out, or is being carried out."""


class AuditLog:
    """Appends to the newest file of the folder.

    Each file begins with its owner and number, and each line ends with a seal: the hash of the line
    and of the seal before it. So a line that was changed, removed or taken from another broker is
    noticed, unless its author computes all seals again.
    """

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._owner = ""
        self._file: File | None = None
        self._number = 0
        self._size = 0
        self._seal = b""
        self._is_torn = False

    def open(self, owner: str) -> None:
        """Check the newest file, which later entries continue.

        Args:
            owner: The identity of the directory's log.
        """
        self._owner = owner
        if names := audit_files(self._disk):
            # Read now: all clients would wait while the first entry reads it.
            newest = _AuditFile(self._disk, names[-1], owner)
            for warning in newest.warnings():
                log.warning("%s", warning)
            self._number, self._size, self._seal = newest.number, newest.size, newest.seal
            self._is_torn = newest.is_torn

    def watched(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same handlers, of which the audited ones leave an entry, and the one that lists the
        entries.
        """
        found = {
            code: self._watched(handler) if code in AUDITED else handler
            for code, handler in handlers.items()
        }
        return found | {_CODE.LIST_AUDIT: self.list_entries}

    def list_entries(self, connection: Connection, request: Command) -> bytes:
        """7720: what operators did, newest first, a page at a time."""
        del connection
        return answer(request, body=audit_page(self._disk, request.read(ListAudit)).write())

    def _watched(self, handler: Handler) -> Handler:
        @wraps(handler)
        def handle(connection: Connection, request: Command) -> bytes | None:
            try:
                found = handler(connection, request)
            except BrokerRefused as error:
                self.note(connection, request, refused=str(error))
                raise
            self.note(connection, request, result=_result(request, found))
            return found

        return handle

    def note(
        self,
        connection: Connection,
        request: Command,
        *,
        refused: str = "",
        result: Mapping[str, str] = _NO_FIELDS,
    ) -> None:
        """Append an entry. If the disk refuses, the request goes on, and the log says so."""
        try:
            fields = request.field_map()
        except RemoteProtocolError as error:
            # Handlers read only the fields that they know, so the request may be carried out.
            fields = {"?": str(error)}
        entry = AuditEntry(
            self._clock.wall_ms(),
            RequestCode(request.code).name,
            connection.address,
            account_of(connection, fields),
            {
                name: _cut(text)
                for name, text in {**fields, **result}.items()
                if name not in _HIDDEN
            },
            # Not the whole: a stranger's 16 MiB that are not UTF-8 took 0.2 s.
            _cut(request.body[:_BODY_BYTES_READ].decode(errors="replace")),
            _cut(refused),
        )
        try:
            self.append(entry)
        except OSError as error:
            log.error("an entry of the audit could not be written (%s): %s", error, entry)  # noqa: TRY400

    def append(self, entry: AuditEntry) -> None:
        """Append an entry.

        Raises:
            OSError: The disk refuses.
        """
        if self._file is None or self._size >= FILE_BYTES_MAX:
            self._open_file()
        self._append(msgspec.json.encode(entry))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, text: bytes) -> None:
        assert self._file is not None
        seal = _seal(self._seal, text)
        line = b'%b,"seal":"%b"}\n' % (text[:-1], seal)
        self._file.write(self._size, line)
        self._file.sync()
        self._size += len(line)
        self._seal = seal

    def _open_file(self) -> None:
        """Continue the newest file, or begin the next one if that is full."""
        names = audit_files(self._disk)
        is_next = not names or self._size >= FILE_BYTES_MAX
        self.close()
        number = self._number + is_next
        self._file = self._disk.open(f"{FOLDER}/{number:06}.jsonl", create=True)
        self._number = number
        if is_next:
            self._size, self._seal, self._is_torn = 0, b"", False
            self._append(msgspec.json.encode({"owner": self._owner, "number": self._number}))
        elif self._is_torn:
            # The next line must not become the end of the torn one.
            self._file.write(self._size, b"\n")
            self._size += 1
            self._is_torn = False
        for name in names[: -FILES_KEPT + 1]:
            self._disk.remove(f"{FOLDER}/{name}")


class _AuditFile:
    """One file as it was read."""

    def __init__(self, disk: Disk, name: str, owner: str = "") -> None:
        self.path = f"{FOLDER}/{name}"
        self.number = int(name.removesuffix(".jsonl"))
        self.entries: list[AuditEntry] = []
        self.seal = b""
        self._broken: list[int] = []
        self._owner = owner
        self._head: Mapping[str, Any] = {}
        file = disk.open(self.path)
        try:
            data = file.read(0, file.size())
        finally:
            file.close()
        self.size = len(data)
        self.is_torn = bool(data) and not data.endswith(b"\n")
        for number, line in enumerate(data.split(b"\n"), 1):
            if line:
                self._read(number, line)

    def _read(self, number: int, line: bytes) -> None:
        text, mark, tail = line.rpartition(b',"seal":"')
        text, seal = text + b"}", tail.removesuffix(b'"}')
        if not mark or _seal(self.seal, text) != seal:
            self._broken.append(number)
        self.seal = seal
        try:
            if number == 1:
                self._head = msgspec.json.decode(text, type=dict[str, Any])
            else:
                self.entries.append(msgspec.json.decode(text, type=AuditEntry))
        except msgspec.DecodeError:
            if number not in self._broken:
                self._broken.append(number)

    def warnings(self) -> Iterator[str]:
        """What is wrong with the file."""
        found = self._head.get("owner"), self._head.get("number")
        if self._owner and found != (self._owner, self.number):
            yield f"{self.path} belongs to another broker, or its beginning is missing"
        if self._broken:
            lines = ", ".join(map(str, self._broken[:_LINES_SHOWN]))
            yield f"{self.path}: line {lines} is torn or changed, or one before it was removed"


def read_audit(disk: Disk, warn: Callable[[str], None]) -> Iterator[AuditEntry]:
    """The entries, oldest first. ``warn`` receives what is wrong with a file."""
    for name in audit_files(disk):
        file = _AuditFile(disk, name)
        for warning in file.warnings():
            warn(warning)
        yield from file.entries


def entries_about(before: View) -> Iterator[AuditEntry]:
    """The entries about a leadership that an operator made possible, or asked for."""
    where = "the coordinator"
    if before.loss is not None:
        loss = before.loss
        fields = {
            "member": loss.member,
            "reason": loss.reason,
            "in_sync_before": ", ".join(loss.former),
        }
        yield AuditEntry(loss.at_ms, "PROMOTE", where, loss.operator, fields)
    if before.hand_over is not None:
        act = before.hand_over
        fields = {"member": act.member, "reason": act.reason}
        yield AuditEntry(act.at_ms, "HAND_OVER", where, act.operator, fields)


def _result(request: Command, reply: bytes | None) -> Mapping[str, str]:
    if reply is None or request.code not in _COUNTED:
        return _NO_FIELDS
    return decode(FrameReader().feed(reply)[0]).field_map()


def _seal(before: bytes, text: bytes) -> bytes:
    return sha256(before + text).hexdigest()[:_SEAL_CHARS].encode()


def account_of(connection: Connection, fields: Mapping[str, str]) -> str:
    """The access key of a request, or else the subject of its client's certificate."""
    subject = connection.subject
    return _cut(fields.get(ACCESS_KEY) or ("" if subject is None else subject.text))


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_CHARS_MAX else f"{text[: _TEXT_CHARS_MAX - 1]}…"
