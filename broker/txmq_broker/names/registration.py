"""The body of request 103: empty, JSON, or a compressed stream of length-prefixed parts."""

from __future__ import annotations

from typing import Final

from txmq.errors import InternalError, RemoteProtocolError
from txmq.protocol.bodies import DataVersion, RegistrationBody, TopicConfig, TopicConfigs
from txmq.protocol.checksum import crc32
from txmq.protocol.codes import SysFlag
from txmq.protocol.compression import decompress
from txmq.protocol.headers import BrokerRegistration

__all__ = ["read_registration"]

_POSITIVE: Final = 0x7FFFFFFF
_PARTS: Final = 5


def read_registration(header: BrokerRegistration, body: bytes) -> TopicConfigs:
    """The topics a broker registers.

    Raises:
        InternalError: The checksum differs; RocketMQ answers with the same code.
        RemoteProtocolError: The body does not match the header.
    """
    if header.body_crc32 and header.body_crc32 != crc32(body) & _POSITIVE:
        raise InternalError("crc32 not match")
    if not body:
        return TopicConfigs()
    if not header.compressed:
        return RegistrationBody.read(body).topic_config_serialize_wrapper
    # The rest after the topics (filter servers, mappings of static topics) is not needed.
    pieces = _Pieces(decompress(int(SysFlag.COMPRESSED), body))
    version = DataVersion.read(pieces.chunk())
    topics = [_topic(pieces.text()) for _ in range(pieces.number())]
    return TopicConfigs(
        data_version=version, topic_config_table={topic.topic_name: topic for topic in topics}
    )


class _Pieces:
    """A reader of length-prefixed parts."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        found = int.from_bytes(self._take(4), "big", signed=True)
        if found < 0:
            raise RemoteProtocolError("registration: a negative length")
        return found

    def chunk(self) -> bytes:
        return self._take(self.number())

    def text(self) -> str:
        try:
            return self.chunk().decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"registration: not UTF-8: {error.reason}") from error

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise RemoteProtocolError("registration: the body ends too early")
        found = self._data[self._at : end]
        self._at = end
        return found


def _topic(text: str) -> TopicConfig:
    # 5.x adds a sixth part, attributes as JSON, which may contain blanks.
    parts = text.split(" ", _PARTS)
    if len(parts) < _PARTS:
        raise RemoteProtocolError(f"registration: {text!r} does not describe a topic")
    name, reads, writes, perm, filter_type = parts[:_PARTS]
    try:
        return TopicConfig(
            topic_name=name,
            read_queue_nums=int(reads),
            write_queue_nums=int(writes),
            perm=int(perm),
            topic_filter_type=filter_type,
        )
    except ValueError as error:
        raise RemoteProtocolError(f"registration: {text!r} does not describe a topic") from error
