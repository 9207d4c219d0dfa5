"""One request or answer, and the frame that carries it.

A frame is a 4-byte length, then a word with the header's form in its top byte and the header's
length in the low 24 bits, then the header, in JSON or in RocketMQ's binary form, then the body.
The reader keeps only bytes that arrived, and refuses a length over the limit before it allocates
memory. It also refuses a header that is too long, or has too many fields, before decoding it:
a server serves nobody else while it decodes a stranger's header.

A header is decoded in two steps. The fields of a request stay as bytes until :meth:`Command.read`
decodes them straight into typed attributes.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Collection, Sequence
from struct import Struct
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from txmq.errors import LocalProtocolError, RemoteProtocolError
from txmq.limits import (
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    HEADER_BYTES_USUAL,
    HEADER_FIELDS_MAX,
    LAX_HEADER_BYTES_MAX,
)
from txmq.protocol import fastjson, header_binary
from txmq.protocol.codes import LANGUAGES, RequestCode, language_name
from txmq.protocol.header_binary import BinaryHeader
from txmq.protocol.headers import EndTransaction, Header, PullMessage, SendMessageV2, SignedSend
from txmq.text import quantity

__all__ = [
    "BINARY",
    "JSON",
    "ONEWAY",
    "VERSION",
    "Command",
    "Frame",
    "FrameReader",
    "answer",
    "decode",
    "decode_run",
    "decode_whole",
    "encode",
    "fields_of",
    "frame",
]

JSON = 0
"""The header is a JSON object."""

BINARY = 1
"""The header is in RocketMQ's binary form."""

_OTHER_NAMES_MAX: Final = 16
"""Names in a header outside ``extFields``; RocketMQ has eight."""

_TOO_MANY_FIELDS: Final = f"a header has more than {HEADER_FIELDS_MAX} fields"

_WORDS = Struct(">II")
_TLS_HELLO = 0x1603
"""The first bytes of a TLS handshake: its type, and the first byte of a version."""


Frame: TypeAlias = tuple[int, bytes, bytes]
"""One frame: the header's form, the header, the body. A plain tuple, because every message needs
one and a named tuple took three times as long to make.
"""


class FrameReader:
    """Collects received bytes and returns complete frames."""

    __slots__ = ("_limit", "_wanted", "has_long_header", "held")

    def __init__(self, limit: int = FRAME_BYTES_MAX) -> None:
        self._limit = limit
        # One buffer, not a list of pieces: a peer that writes single bytes must not cost more.
        self.held: bytearray = bytearray()
        """Bytes of an incomplete frame."""
        self.has_long_header: bool = False
        """Whether a frame had a header that may take milliseconds to decode; the caller resets
        it."""
        self._wanted = 8

    def feed(self, data: bytes) -> list[Frame]:
        """Add received bytes and return the frames they complete, in order.

        Raises:
            RemoteProtocolError: The lengths are inconsistent or over the limit, the header has
                too many fields, or its form is unknown. Earlier frames in the same data are lost
                with the connection.
        """
        frames: list[Frame] = []
        at, end = 0, len(data)
        if held := self.held:
            at = self._wanted - len(held)
            if end < at:
                held += data
                return frames
            self.held = bytearray()
            if self._wanted > _WORDS.size:
                # Join only this frame: the read may hold many more.
                held += data[:at]
                frames.append(self._whole_frame(held))
            else:
                data = bytes(held) + data
                at, end = 0, len(data)
        while end - at >= 8:
            length, word = _WORDS.unpack_from(data, at)
            header_length = word & 0xFFFFFF
            if (
                length + 4 > self._limit
                or length < 4 + header_length
                or header_length > HEADER_BYTES_MAX
                or word > 0x1FFFFFF
            ):
                if length >> 16 == _TLS_HELLO:
                    raise RemoteProtocolError(
                        "the peer speaks TLS, which is off here; turn it on with tls.mode, or off "
                        "at the peer"
                    )
                raise RemoteProtocolError(
                    f"a frame claims {quantity(length, 'byte')} with a header of {header_length} "
                    f"in form {word >> 24}; the limits are {self._limit} and {HEADER_BYTES_MAX}"
                )
            stop = at + 4 + length
            if stop > end:
                self._wanted = stop - at
                break
            middle = at + 8 + header_length
            header = data[at + 8 : middle]
            if header_length > HEADER_BYTES_USUAL:
                self._check_long(word >> 24, header)
            frames.append((word >> 24, header, data[middle:stop]))
            at = stop
        else:
            self._wanted = 8
        if at < end:
            self.held += data[at:]
        return frames

    def _whole_frame(self, data: bytearray) -> Frame:
        """A frame from its bytes, whose lengths are valid."""
        _, word = _WORDS.unpack_from(data)
        middle = 8 + (word & 0xFFFFFF)
        view = memoryview(data)
        kind, header = word >> 24, bytes(view[8:middle])
        if len(header) > HEADER_BYTES_USUAL:
            self._check_long(kind, header)
        return kind, header, bytes(view[middle:])

    def _check_long(self, kind: int, header: bytes) -> None:
        """Refuse a long JSON header with too many fields. Decoding a binary one stops at the limit.

        The scan takes a fraction of the time of decoding. Quotes inside a text are escaped with a
        backslash, so the count is never too high. It may be too low, for example if names are
        followed by a blank; decoding counts these again.
        """
        self.has_long_header = True
        if kind == JSON:
            names = header.count(b'":') - header.count(b'\\":')
            if names > HEADER_FIELDS_MAX + _OTHER_NAMES_MAX:
                raise RemoteProtocolError(_TOO_MANY_FIELDS)


def frame(kind: int, header: bytes, body: bytes = b"") -> bytes:
    """Encode one frame.

    Raises:
        LocalProtocolError: The frame or its header would exceed the size that peers accept.
    """
    length = 4 + len(header) + len(body)
    if length + 4 > FRAME_BYTES_MAX:
        raise LocalProtocolError(f"a frame of {length + 4} bytes exceeds {FRAME_BYTES_MAX}")
    if len(header) > HEADER_BYTES_MAX:
        raise LocalProtocolError(f"a header of {len(header)} bytes exceeds {HEADER_BYTES_MAX}")
    return _WORDS.pack(length, kind << 24 | len(header)) + header + body


VERSION: Final = 409
"""The version we send: RocketMQ 4.9.8. Above 232 Java clients allow SQL92 filters."""

LANGUAGE: Final = "JAVA"
"""The language in our headers. Stock brokers send no other."""

RESPONSE: Final = 1
ONEWAY: Final = 2

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
H = TypeVar("H", bound=Header)

_decoders: Final[dict[type[Header], msgspec.json.Decoder[Any]]] = {}
_wire_names: Final[dict[type[Header], tuple[tuple[str, str], ...]]] = {}
_NO_FIELDS: Final = (b"", b"null")
_field_decoder: Final = msgspec.json.Decoder(dict[str, str])
_plain_decoder: Final = msgspec.json.Decoder()


class Command(msgspec.Struct, rename={"ext": "extFields"}, gc=False):
    """One request or answer, header and body."""

    code: Int32
    opaque: Int32 = 0
    flag: Int32 = 0
    version: Int32 = 0
    language: str | int | None = None
    remark: str | None = None
    ext: msgspec.Raw = msgspec.Raw(b"")
    kind: int = JSON
    body: bytes = b""
    fields: dict[str, str] | None = None

    @property
    def is_answer(self) -> bool:
        """Whether it is an answer."""
        return bool(self.flag & RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether its sender expects no answer."""
        return bool(self.flag & ONEWAY)

    @property
    def client_language(self) -> str:
        """The sender's language by name."""
        return language_name(self.language)

    def read(self, shape: type[H]) -> H:
        """Decode the fields as one kind of header.

        Raises:
            RemoteProtocolError: A field is missing or has the wrong type.
        """
        ext = self.ext
        if isinstance(ext, shape):
            return ext
        if self.fields is None and not isinstance(ext, Header):
            try:
                decoder = _decoders.get(shape)
                if decoder is None:
                    decoder = _decoders[shape] = msgspec.json.Decoder(shape, strict=False)
                found: H = decoder.decode(ext)
            except fastjson.NOT_STRICT:
                # Bare numbers or booleans, or fastjson's dialect: take the slow path.
                pass
            else:
                return found
        try:
            return msgspec.convert(self.field_map(), shape, strict=False)
        except msgspec.ValidationError as error:
            raise RemoteProtocolError(f"{shape.__name__}: {error}") from error

    def field_map(self) -> dict[str, str]:
        """All fields as texts, by wire name. Sends, pulls and ENDs return only the declared fields.

        Raises:
            RemoteProtocolError: The fields are not a map.
        """
        ext = self.ext
        if self.fields is None and isinstance(ext, Header):
            self.fields = fields_of(ext)
        elif self.fields is None:
            self.fields = _fields_in(bytes(ext))
        return self.fields


class _Typed(Command, gc=False, kw_only=True):
    """A request whose fields are decoded together with the rest.

    A peer cannot set ``kind`` and ``fields``: a header with another value than the default is
    refused.
    """

    kind: Literal[0] = 0
    fields: None = None


class _Send(_Typed, gc=False, kw_only=True):
    """A send of one message, which is the most frequent request, or of a batch."""

    ext: SendMessageV2  # type: ignore[valid-type]


class _SignedSend(_Typed, gc=False, kw_only=True):
    """A send with a signature and no unknown field."""

    ext: SignedSend


class _End(_Typed, gc=False, kw_only=True):
    """The END of a transaction."""

    ext: EndTransaction  # type: ignore[assignment]


class _Pull(_Typed, gc=False, kw_only=True):
    """A pull."""

    ext: PullMessage  # type: ignore[assignment]


_command_decoder: Final = msgspec.json.Decoder(Command)
_send: Final = (msgspec.json.Decoder(_Send, strict=False).decode, int(RequestCode.SEND_MESSAGE_V2))
_batch: Final = (_send[0], int(RequestCode.SEND_BATCH_MESSAGE))
_end: Final = (msgspec.json.Decoder(_End, strict=False).decode, int(RequestCode.END_TRANSACTION))
_pull: Final = (msgspec.json.Decoder(_Pull, strict=False).decode, int(RequestCode.PULL_MESSAGE))
_decode_signed_send: Final = msgspec.json.Decoder(_SignedSend, strict=False).decode
_by_beginning: Final[dict[bytes, tuple[Callable[[bytes], Command], int]]] = {
    b'{"code":310,': _send,
    b'{"code": 310': _send,  # Python's json writes a blank.
    b'{"code":320,': _batch,
    b'{"code":37,"': _end,
    b'{"code": 37,': _end,
    b'{"code":11,"': _pull,
}
_BEGINNING: Final = 12
_SENDS: Final = frozenset(text for text, known in _by_beginning.items() if known is _send)


def decode_whole(part: Frame) -> Command:
    """Decode a frame's header, and keep all of its fields for :meth:`Command.field_map`.

    A signature covers fields that no handler reads. Only a usual send is decoded straight into its
    header, :class:`~txmq.protocol.headers.SignedSend`, from which all of its fields can be rebuilt.

    Raises:
        RemoteProtocolError: The header is invalid in its declared form.
    """
    kind, header, body = part
    if kind == BINARY:
        return _decode_binary(header, body)
    command: Command
    if header[:_BEGINNING] in _SENDS:
        try:
            command = _decode_signed_send(header)
        except fastjson.NOT_STRICT:
            pass  # It has no signature, or more fields than a usual send.
        else:
            if command.code == _send[1]:
                command.body = body
                return command
    try:
        command = _command_decoder.decode(header)
    except fastjson.NOT_STRICT:
        command = _decode_lax(header)
    else:
        command.fields = None
    command.kind = JSON
    command.body = body
    return command


def decode(part: Frame) -> Command:
    """Decode a frame's header.

    Raises:
        RemoteProtocolError: The header is invalid in its declared form.
    """
    kind, header, body = part
    if kind == BINARY:
        return _decode_binary(header, body)
    try:
        known = _by_beginning.get(header[:_BEGINNING])
        if known is not None:
            decode_typed, code = known
            command = decode_typed(header)
            if command.code == code:
                command.body = body
                return command
            # The code has more digits, or occurs twice.
        command = _command_decoder.decode(header)
    except fastjson.NOT_STRICT:
        command = _decode_lax(header)
    else:
        command.fields = None
    command.kind = JSON
    command.body = body
    return command


def decode_run(parts: Sequence[Frame], at: int, most: int, codes: Collection[int]) -> list[Command]:
    """Decode a frame together with the requests of the same kind that directly follow it.

    Args:
        parts: The frames of one read.
        at: The index of the first one.
        most: The largest number of frames.
        codes: The requests that are decoded together; others are decoded alone.

    Raises:
        RemoteProtocolError: The header of the first one is invalid in its declared form.
    """
    first = parts[at]
    beginning = first[1][:_BEGINNING]
    known = _by_beginning.get(beginning)
    if known is None or known[1] not in codes or first[0] != JSON:
        return [decode(first)]
    decode_typed, code = known
    run: list[Command] = []
    try:
        for kind, header, body in parts[at : at + most]:
            if header[:_BEGINNING] != beginning or kind != JSON:
                break
            command = decode_typed(header)
            if command.code != code or command.flag & RESPONSE:
                break
            if body:
                command.body = body
            run.append(command)
    except fastjson.NOT_STRICT:
        pass  # A first frame takes the slow path; a later one starts the next run.
    return run or [decode(first)]


def _decode_binary(header: bytes, body: bytes) -> Command:
    read = header_binary.unpack(header)
    return Command(
        code=read.code,
        opaque=read.opaque,
        flag=read.flag,
        version=read.version,
        language=read.language,
        remark=read.remark,
        kind=BINARY,
        body=body,
        fields=read.fields,
    )


def _decode_lax(header: bytes) -> Command:
    value = _loads(header)
    if not isinstance(value, dict):
        raise RemoteProtocolError("a header is not a JSON object")
    ext = value.pop("extFields", None)
    for ours in ("body", "kind", "fields", "ext"):
        value.pop(ours, None)
    try:
        command = msgspec.convert(value, Command, strict=False)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"header: {error}") from error
    command.fields = _texts(ext) if ext is not None else {}
    return command


def _fields_in(text: bytes) -> dict[str, str]:
    if text in _NO_FIELDS:
        return {}
    try:
        found = _field_decoder.decode(text)
    except fastjson.NOT_STRICT:
        return _texts(_loads(text))
    if len(found) > HEADER_FIELDS_MAX:
        raise RemoteProtocolError(_TOO_MANY_FIELDS)
    return found


def _loads(text: bytes) -> fastjson.Value:
    """Decode strict JSON of any shape, or a short text in fastjson's dialect."""
    try:
        found: fastjson.Value = _plain_decoder.decode(text)
    except fastjson.NOT_STRICT:
        return fastjson.loads(text, LAX_HEADER_BYTES_MAX)
    return found


def _texts(value: fastjson.Value) -> dict[str, str]:
    if not isinstance(value, dict):
        raise RemoteProtocolError("extFields is not a JSON object")
    if len(value) > HEADER_FIELDS_MAX:
        raise RemoteProtocolError(_TOO_MANY_FIELDS)
    texts: dict[str, str] = {}
    for name, field in value.items():
        if isinstance(name, str) and field is not None:
            texts[name] = _text(field)
    return texts


def _text(value: fastjson.Value) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise RemoteProtocolError("a header field is neither text nor number")


def answer(
    to: Command,
    code: int = 0,
    header: Header | dict[str, str] | None = None,
    *,
    body: bytes = b"",
    remark: str | None = None,
) -> bytes:
    """Encode the answer to a request, in the request's form.

    Raises:
        LocalProtocolError: It is too large, or a text holds a lone surrogate.
    """
    return encode(code, to.opaque, header, body=body, flag=RESPONSE, remark=remark, kind=to.kind)


def encode(
    code: int,
    opaque: int,
    header: Header | dict[str, str] | None = None,
    *,
    body: bytes = b"",
    flag: int = 0,
    remark: str | None = None,
    kind: int = JSON,
) -> bytes:
    """Encode a request, or with the flag :data:`RESPONSE` an answer.

    Raises:
        LocalProtocolError: It is too large, or a text holds a lone surrogate.
    """
    if (
        type(header) is EndTransaction
        and (code, kind, flag, remark) == _PLAIN_END
        and header.others is None
    ):
        return _encode_end(opaque, header, body)
    fields = header if isinstance(header, dict) else fields_of(header) if header else {}
    if kind == BINARY and -(2**15) <= code < 2**15:
        language = LANGUAGES.index(LANGUAGE)
        head = BinaryHeader(code, language, VERSION, opaque, flag, remark, fields)
        return frame(BINARY, header_binary.pack(head), body)
    # Keys in Java's order and no white space: some clients split this text without parsing it.
    value: dict[str, object] = {"code": code}
    if fields:
        value["extFields"] = fields
    value["flag"] = flag
    value["language"] = LANGUAGE
    value["opaque"] = opaque
    if remark is not None:
        value["remark"] = remark
    value["serializeTypeCurrentRPC"] = "JSON"
    value["version"] = VERSION
    try:
        text = msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"a header cannot hold this text: {error}") from error
    return frame(JSON, text, body)


_PLAIN_END: Final = (_end[1], JSON, 0, None)
_END_BEGIN: Final = (
    b'{"code":37,"extFields":{"producerGroup":%b,"tranStateTableOffset":"%d",'
    b'"commitLogOffset":"%d","commitOrRollback":"%d","fromTransactionCheck":"%b"'
)
_END_REST: Final = (
    b'},"flag":0,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":409}'
)


def _encode_end(opaque: int, end: EndTransaction, body: bytes) -> bytes:
    """Encode an END. Every transaction sends one; :func:`encode` would take three times as long."""
    text = msgspec.json.encode
    try:
        header = _END_BEGIN % (
            text(end.producer_group), end.tran_state_table_offset, end.commit_log_offset,
            end.commit_or_rollback, b"true" if end.from_transaction_check else b"false",
        )  # fmt: skip
        if end.msg_id is not None:
            header += b',"msgId":' + text(end.msg_id)
        if end.transaction_id is not None:
            header += b',"transactionId":' + text(end.transaction_id)
        if end.topic is not None:
            header += b',"topic":' + text(end.topic)
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"a header cannot hold this text: {error}") from error
    return frame(JSON, header + _END_REST % opaque, body)


def fields_of(header: Header) -> dict[str, str]:
    """A header's fields as texts for the wire, without those that are ``None``."""
    kind = type(header)
    names = _wire_names.get(kind)
    if names is None:
        pairs = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
        names = _wire_names[kind] = tuple(pairs)
    fields: dict[str, str] = {}
    for ours, theirs in names:
        value = getattr(header, ours)
        if value is True or value is False:
            fields[theirs] = "true" if value else "false"
        elif type(value) is bytes:
            fields[theirs] = b2a_base64(value, newline=False).decode()
        elif value is not None:
            fields[theirs] = str(value)
    return fields
