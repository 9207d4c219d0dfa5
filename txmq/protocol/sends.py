"""The header of a send, 310 or 320, written by hand: a producer writes one for every message.

It says exactly what :func:`txmq.protocol.command.request` would say; a test holds it to that.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import msgspec

from txmq.errors import LocalProtocolError
from txmq.limits import FRAME_BYTES_MAX
from txmq.protocol.command import ONEWAY, VERSION

__all__ = ["SendForm", "quoted"]

_WORDS: Final = Struct(">II")
_SINGLE: Final = 310
_BATCH: Final = 320


def quoted(text: str) -> bytes:
    """A text as a header holds it.

    Raises:
        LocalProtocolError: It holds half a character.
    """
    try:
        return msgspec.json.encode(text)
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"no header can hold this: {error}") from error


class SendForm:
    """What all sends of one group to one topic at one broker have in common, with blanks.

    Args:
        group: The producer group.
        topic: The topic.
        template: The topic whose settings a new one takes over.
        queues_of_new: Queues that a new topic shall have.
        broker: The broker's name.

    Raises:
        LocalProtocolError: A name holds half a character.
    """

    __slots__ = ("_batch", "_single")

    def __init__(
        self, group: str, topic: str, template: str, queues_of_new: int, broker: str
    ) -> None:
        # A percent sign is part of some topics' names, and would be taken for a blank.
        whose, what, like, where = (
            quoted(name).replace(b"%", b"%%") for name in (group, topic, template, broker)
        )
        names = b',"extFields":{"a":%b,"b":%b,"c":%b,' % (whose, what, like)
        begins = names + b'"d":"%d",' % queues_of_new
        blanks = b'"e":"%d","f":"%d","g":"%d","h":"%d","i":%b,"j":"0","k":"false",'
        ends = (
            b',"n":%b},"flag":%%d,"language":"JAVA","opaque":%%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}' % (where, VERSION)
        )
        self._single = b'{"code":%d' % _SINGLE + begins + blanks + b'"m":"false"' + ends
        self._batch = b'{"code":%d' % _BATCH + begins + blanks + b'"m":"true"' + ends

    def head(
        self,
        opaque: int,
        queue_id: int,
        sys_flag: int,
        born_ms: int,
        flag: int,
        properties: bytes,
        body_bytes: int,
        *,
        is_batch: bool = False,
        is_oneway: bool = False,
    ) -> bytes:
        """Everything of a frame that comes before its body.

        Args:
            opaque: The request's number.
            queue_id: The queue.
            sys_flag: What was done to the body, and what kind of message it is.
            born_ms: When it is sent.
            flag: The application's own.
            properties: Those of the message, :func:`quoted`.
            body_bytes: How long the body is.
            is_batch: Whether the body holds several messages.
            is_oneway: Whether no answer is wanted.

        Raises:
            LocalProtocolError: The frame would exceed what any peer accepts.
        """
        header = (self._batch if is_batch else self._single) % (
            queue_id, sys_flag, born_ms, flag, properties, ONEWAY if is_oneway else 0, opaque
        )  # fmt: skip
        size = len(header)
        if size + body_bytes + 8 > FRAME_BYTES_MAX:
            raise LocalProtocolError(
                f"a frame of {size + body_bytes + 8} bytes exceeds {FRAME_BYTES_MAX}"
            )
        return _WORDS.pack(4 + size + body_bytes, size) + header
