"""Several messages in one body, as in request 320."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple, TypeAlias

from txmq.errors import LocalProtocolError, RemoteProtocolError
from txmq.limits import BATCH_MESSAGES_MAX, PROPERTIES_BYTES_MAX
from txmq.text import quantity

__all__ = ["BatchColumns", "BatchItem", "EqualMessages", "equal_messages", "pack", "unpack"]

_HEAD = Struct(">IIIiI")
_READ_HEAD = Struct(">I8xiI")
_SHORT = Struct(">H")
HEAD_BYTES: Final = _HEAD.size
_FIXED_BYTES = _HEAD.size + _SHORT.size
_EQUAL_MESSAGES_MAX: Final = 1024
"""Messages in a batch that is split at once; its struct format takes some 200 bytes for each."""


BatchItem: TypeAlias = tuple[int, bytes, str]
"""One message of a batch: flag, body, and properties as text."""


def pack(items: Iterable[BatchItem]) -> bytes:
    """Write a batch.

    Raises:
        LocalProtocolError: A message's properties are too long or hold half a character, or its
            flag is not a 32-bit number.
    """
    pieces: list[bytes] = []
    try:
        for flag, body, text in items:
            property_bytes = text.encode()
            length = len(property_bytes)
            if length > PROPERTIES_BYTES_MAX:
                raise LocalProtocolError(
                    f"properties of {length} bytes exceed {PROPERTIES_BYTES_MAX}"
                )
            size = len(body)
            pieces += (
                _HEAD.pack(_FIXED_BYTES + size + length, 0, 0, flag, size),
                body,
                _SHORT.pack(length),
                property_bytes,
            )
    except (StructError, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"a batch cannot hold this message: {error}") from error
    return b"".join(pieces)


def unpack(data: bytes) -> list[BatchItem]:
    """Read a batch.

    Raises:
        RemoteProtocolError: Its lengths are inconsistent, it is empty, or it has too many messages.
    """
    items: list[BatchItem] = []
    at, stop = 0, len(data)
    head, short = _READ_HEAD.unpack_from, _SHORT.unpack_from
    try:
        for _ in range(BATCH_MESSAGES_MAX):
            if at == stop:
                break
            size, flag, body_length = head(data, at)
            start = at + HEAD_BYTES
            middle = start + body_length
            end = middle + 2 + short(data, middle)[0]
            if end != at + size or end > stop:
                claimed = quantity(size, "byte")
                raise RemoteProtocolError(f"a batch's message of {claimed} holds {end - at}")
            items.append((flag, data[start:middle], data[middle + 2 : end].decode()))
            at = end
        else:
            if at < stop:
                raise RemoteProtocolError(f"a batch holds more than {BATCH_MESSAGES_MAX} messages")
    except (StructError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"a batch is broken: {error}") from error
    if not items:
        raise RemoteProtocolError("a batch is empty")
    return items


class EqualMessages(NamedTuple):
    """The first message of a batch whose messages may all have equal sizes."""

    messages: int
    head: bytes
    """The bytes before each body."""
    flag: int
    body_size: int
    properties: bytes
    """The first message's properties."""


def equal_messages(data: bytes) -> EqualMessages | None:
    """Read the first message of a batch; ``None`` if the others cannot all have its size.

    :class:`BatchColumns` finds out whether they do.
    """
    if len(data) < 2 * _FIXED_BYTES:
        return None
    size, flag, body_size = _READ_HEAD.unpack_from(data)
    messages, rest = divmod(len(data), size or 1)
    start = _FIXED_BYTES + body_size
    if rest or start > size or not 1 < messages <= _EQUAL_MESSAGES_MAX:
        return None
    if _SHORT.unpack_from(data, start - _SHORT.size)[0] != size - start:
        return None
    return EqualMessages(messages, data[:HEAD_BYTES], flag, body_size, data[start:size])


class BatchColumns:
    """Splits a whole batch at once if its messages equal a sample in their flags, sizes and parts
    of their properties.

    Args:
        equal: The sample, and the number of messages.
        ends: Where the parts of the sample's properties end, beginning with 0. The second, fourth
            and so on may differ; the last one may not.

    Attributes:
        equal: The sample, and the number of messages.
    """

    def __init__(self, equal: EqualMessages, ends: Sequence[int]) -> None:
        parts = [equal.properties[start:end] for start, end in pairwise(ends)]
        # The properties' size belongs to their first part, and the next message's head to the last.
        parts[0] = _SHORT.pack(len(equal.properties)) + parts[0]
        sizes = [equal.body_size, *map(len, parts)]
        last = "".join([f"{size}s" for size in sizes])
        sizes[-1] += HEAD_BYTES
        others = "".join([f"{size}s" for size in sizes])
        self.equal = equal
        step = len(sizes)
        self._head = equal.head
        self._middle = [
            (slice(number + 1, None, step), part)
            for number, part in list(enumerate(parts[:-1], 1))[::2]
        ]
        self._ends = slice(step, -1, step)
        self._end = parts[-1]
        self._end_and_head = parts[-1] + equal.head
        self._columns = [slice(number, None, step) for number in range(1, step, 2)]
        self._unpack = Struct(f"{HEAD_BYTES}s" + others * (equal.messages - 1) + last).unpack

    def cut(self, data: bytes) -> list[tuple[bytes, ...]] | None:
        """Return a tuple of all bodies, then one tuple for each part of the properties that may
        differ. ``None`` if the messages differ elsewhere.

        Raises:
            struct.error: The batch has another size.
        """
        values, messages = self._unpack(data), self.equal.messages
        if values[0] != self._head or values[-1] != self._end:
            return None
        for places, part in self._middle:
            if values[places].count(part) != messages:
                return None
        if values[self._ends].count(self._end_and_head) != messages - 1:
            return None
        return [values[places] for places in self._columns]
