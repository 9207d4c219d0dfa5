"""12, 33: find stored messages by key, by unique key, or by id."""

from __future__ import annotations

from itertools import islice

from txmq.errors import CorruptRecord, InternalError, NotFound
from txmq.limits import PULL_BYTES_MAX
from txmq.protocol import properties
from txmq.protocol import record as records
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command, answer
from txmq.protocol.headers import MessagePosition, MessageQuery, QueryAnswer
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq.text import quantity
from txmq_broker.parts import ReadParts
from txmq_broker.store.queue_store import keys_in

__all__ = ["QueryHandlers"]

_FOUND_MAX = 64
_LOOKED_AT_MAX = 4096
_UNIQUE = "_UNIQUE_KEY_QUERY"


class QueryHandlers:
    """Serves single messages."""

    def __init__(self, parts: ReadParts) -> None:
        self._topics = parts.topics
        self._store = parts.store

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.QUERY_MESSAGE: self.by_key,
            RequestCode.VIEW_MESSAGE_BY_ID: self.by_id,
        }

    def by_key(self, _: Connection, request: Command) -> bytes:
        """12: a topic's messages with a key, newest first, stored within a time range.

        A damaged message may or may not have the key. It is left out if others are found, and the
        remark then names it.
        """
        header = request.read(MessageQuery)
        only_unique = request.field_map().get(_UNIQUE, "").lower() == "true"
        self._topics.get(header.topic)
        wanted = 32 if only_unique else max(1, min(header.max_num, _FOUND_MAX))
        begin, end = header.begin_timestamp, header.end_timestamp
        found: list[bytes] = []
        damaged: list[CorruptRecord] = []
        size = 0
        places = self._store.positions_of_key(header.topic, header.key, begin, end)
        for position in islice(places, _LOOKED_AT_MAX):
            try:
                data = self._store.record_bytes(position, is_indexed=True)
            except CorruptRecord as error:
                self._store.damage.note(error)
                damaged.append(error)
                continue
            if data is None or not _carries(data, header.topic, header.key, only_unique):
                continue
            if not begin <= records.stored_ms_of(data) <= end:
                continue
            found.append(data)
            size += len(data)
            if len(found) >= wanted or size >= PULL_BYTES_MAX:
                break
        if damaged and not found:
            raise InternalError(_about(damaged))
        if not found:
            raise NotFound("can not find message, maybe time range not correct")
        state = QueryAnswer(self._store.log.last_ms, self._store.log.end)
        remark = _about(damaged) if damaged else None
        return answer(request, 0, state, body=b"".join(found), remark=remark)

    def by_id(self, _: Connection, request: Command) -> bytes:
        """33: the message at a position of the log."""
        position = request.read(MessagePosition).offset
        data = self._store.record_bytes(position)
        if data is None:
            raise InternalError(f"can not find message by the offset, {position}")
        return answer(request, body=data)


def _about(damaged: list[CorruptRecord]) -> str:
    many = quantity(len(damaged), "message")
    return f"{many} that may have the key cannot be read, such as the first: {damaged[0]}"


def _carries(data: bytes, topic: str, key: str, only_unique: bool) -> bool:
    record, _ = records.unpack(data)
    if record.topic != topic:
        return False
    if only_unique:
        return properties.find(record.properties, properties.UNIQUE_KEY) == key
    return key in keys_in(record.properties)
