"""The audit: a record of operators' requests, as JSON lines that are synced one by one.

Every request that changes something for others is recorded, allowed or refused: changes of topics,
groups, offsets, settings, routes and members of broker sets, and decisions on transactions.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec

from txmq.errors import BrokerRefused, InvalidParameter, RemoteProtocolError
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command, FrameReader, answer, decode
from txmq.protocol.operations import AuditedRequest, AuditPage, ListAudit
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq.runtime.clock import Clock
from txmq.runtime.coordinator import View
from txmq.runtime.disk import Disk, File
from txmq.security.signatures import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE

__all__ = [
    "AUDITED",
    "FOLDER",
    "AuditEntry",
    "AuditLog",
    "account_of",
    "audit_files",
    "audit_page",
    "entries_about",
    "is_wanted",
    "read_audit",
]

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
"""Only the newest files are kept; a new one begins when the last has ``FILE_BYTES_MAX``."""
_TEXT_CHARS_MAX: Final = 2000
"""The maximum number of characters of a field or a body in an entry."""
_BODY_BYTES_READ: Final = 4 * (_TEXT_CHARS_MAX + 1)
"""The bytes of a body that are decoded to get these characters, which have up to four bytes."""
_SEAL_CHARS: Final = 32
_LINES_SHOWN: Final = 5
_HIDDEN: Final = frozenset((ACCESS_KEY, SIGNATURE, SECURITY_TOKEN, "secretKey"))
"""Fields that an entry shows elsewhere, and fields with secrets."""
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
    """Why it was refused; empty if it was accepted."""


class AuditLog:
    """Appends to the newest file of the folder.

    Each file begins with its owner and number. Each line ends with a seal: the hash of the line and
    of the previous seal. So a reader detects a line that was changed, removed or taken from another
    broker, unless all later seals were recomputed too.
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
            # Read now; otherwise all clients would wait while the first entry reads the file.
            newest = _AuditFile(self._disk, names[-1], owner)
            for warning in newest.warnings():
                log.warning("%s", warning)
            self._number, self._size, self._seal = newest.number, newest.size, newest.seal
            self._is_torn = newest.is_torn

    def watched(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The handlers, wrapped so that audited requests leave an entry, and the handler that lists
        the entries.
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
        """Append an entry. If the disk refuses, log an error and let the request continue."""
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
            # Only its beginning: decoding 16 MiB that are not UTF-8 took 0.2 s.
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
            # End the torn line, so that the next entry does not continue it.
            self._file.write(self._size, b"\n")
            self._size += 1
            self._is_torn = False
        for name in names[: -FILES_KEPT + 1]:
            self._disk.remove(f"{FOLDER}/{name}")


class _AuditFile:
    """The contents of one file."""

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
        """The faults of the file."""
        found = self._head.get("owner"), self._head.get("number")
        if self._owner and found != (self._owner, self.number):
            yield f"{self.path} belongs to another broker, or its beginning is missing"
        if self._broken:
            lines = ", ".join(map(str, self._broken[:_LINES_SHOWN]))
            yield f"{self.path}: line {lines} is torn or changed, or one before it was removed"


def read_audit(disk: Disk, warn: Callable[[str], None]) -> Iterator[AuditEntry]:
    """The entries, oldest first; ``warn`` receives the faults of files."""
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


FOLDER: Final = "audit"

PAGE_ENTRIES_MAX: Final = 500
READ_BYTES: Final = 256 * 1024
"""The number of bytes that are read at once."""
REQUEST_BYTES_MAX: Final = 512 * 1024
"""One request reads this many bytes, in a few milliseconds; the answer says where to continue."""

_END: Final = 10**12 - 1
"""The end of a file, whatever its size."""
_PLACE: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,12})")


class AuditPlace(NamedTuple):
    """A file of the audit, and the end of its entries that are still unread."""

    number: int
    end: int

    def __str__(self) -> str:
        return f"{self.number}:{self.end}"


def audit_files(disk: Disk) -> list[str]:
    """The names of the files, the oldest first."""
    return sorted(name for name in disk.names(FOLDER) if name.endswith(".jsonl"))


def audit_page(disk: Disk, wanted: ListAudit) -> AuditPage:
    """The entries that a request wants.

    Raises:
        InvalidParameter: The place to begin at is invalid.
        OSError: The disk fails.
    """
    numbers = [int(name.removesuffix(".jsonl")) for name in audit_files(disk)]
    place = _start(numbers, wanted.before)
    count = max(1, min(wanted.count, PAGE_ENTRIES_MAX))
    found: list[AuditedRequest] = []
    room = REQUEST_BYTES_MAX
    while place is not None and room > 0:
        file = disk.open(f"{FOLDER}/{place.number:06}.jsonl")
        try:
            end = min(place.end, file.size())
            start, lines = _lines_before(file, end)
        finally:
            file.close()
        room -= end - start
        for at, line in reversed(lines):
            entry = _entry(line)
            if entry is None:
                continue
            if entry.at_ms < wanted.since_ms:
                return AuditPage(found)
            if is_wanted(entry, wanted):
                found.append(entry)
                if len(found) == count:
                    return AuditPage(found, str(AuditPlace(place.number, at)))
        place = AuditPlace(place.number, start) if start > 0 else _file_before(numbers, place)
    return AuditPage(found, "" if place is None else str(place))


def _start(numbers: list[int], before: str) -> AuditPlace | None:
    if not before:
        return AuditPlace(numbers[-1], _END) if numbers else None
    match = _PLACE.fullmatch(before)
    if match is None:
        raise InvalidParameter(f"before must be a place of an answer, not {before[:40]!r}")
    place = AuditPlace(int(match[1]), int(match[2]))
    # The file may have been deleted since the last page.
    return place if place.number in numbers else _file_before(numbers, place)


def _file_before(numbers: list[int], place: AuditPlace) -> AuditPlace | None:
    older = [number for number in numbers if number < place.number]
    return AuditPlace(older[-1], _END) if older else None


def _lines_before(file: File, end: int) -> tuple[int, list[tuple[int, bytes]]]:
    """Where the last whole lines before a position begin, and the lines with their positions."""
    size = READ_BYTES
    while True:
        start = max(0, end - size)
        data = file.read(start, end - start)
        cut = data.find(b"\n") + 1 if start else 0
        if start == 0 or 0 < cut < len(data):
            break
        size *= 2  # One line is longer than the window.
    lines = []
    at = start + cut
    for line in data[cut:].splitlines(keepends=True):
        lines.append((at, line))
        at += len(line)
    return start + cut, lines


def _entry(line: bytes) -> AuditedRequest | None:
    try:
        entry = msgspec.json.decode(line, type=AuditEntry)
    except msgspec.DecodeError:
        return None  # The head of a file, or a line that a crash has torn.
    return AuditedRequest(**msgspec.structs.asdict(entry))


def is_wanted(entry: AuditedRequest, wanted: ListAudit) -> bool:
    """Whether an entry matches a request; the caller checks ``since_ms``."""
    if wanted.until_ms and entry.at_ms >= wanted.until_ms:
        return False
    if wanted.refused and not entry.refused:
        return False
    if wanted.action.casefold() not in entry.request.casefold():
        return False
    people = (entry.account, entry.fields.get("operator", ""), entry.peer)
    return any(wanted.person.casefold() in person.casefold() for person in people)
