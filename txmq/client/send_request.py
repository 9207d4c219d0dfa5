"""What one request carries, a message or a batch of them, and what its answer says. Pure.

Everything that is sent goes through here: a producer's messages and an administrator's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from txmq.client.envelope import Envelope
from txmq.client.values import SendResult, SendStatus
from txmq.errors import LocalProtocolError, refusal
from txmq.limits import BATCH_MESSAGES_MAX, SPAN_BYTES_MAX
from txmq.message import Message, Queue, QueueOffset
from txmq.protocol import batch, properties
from txmq.protocol.command import Command
from txmq.protocol.headers import SendAnswer
from txmq.protocol.sends import SendHeaderTemplate, quoted
from txmq.protocol.topics import RETRY

__all__ = [
    "STORED_BYTES",
    "SendRequest",
    "bundled",
    "common_topic",
    "packed_size",
    "result_of",
    "split",
    "travels_alone",
]

_STATUSES: Final = {each.value: each for each in SendStatus}
_OK: Final = SendStatus.OK
_ITEM_BYTES: Final = 22
"""What a batch adds to a body and its properties."""
STORED_BYTES: Final = 512
"""What a broker adds at most to a message that it stores: hosts, times, topic, cluster."""
_ALONE: Final = frozenset((*properties.DELAYS, properties.TRANSACTION))
_NOTHING: Final = b'""'


class SendRequest:
    """One request's load."""

    __slots__ = ("body", "flag", "ids", "is_batch", "properties", "sys_flag", "topic")

    def __init__(self, envelope: Envelope) -> None:
        self.topic = envelope.topic
        self.body = envelope.body
        self.flag = envelope.flag
        self.sys_flag = envelope.sys_flag
        self.properties = quoted(envelope.properties) if envelope.properties else _NOTHING
        self.ids: tuple[str, ...] = (envelope.id,)
        self.is_batch = False

    def head(
        self,
        form: SendHeaderTemplate,
        opaque: int,
        number: int,
        born_ms: int,
        *,
        is_oneway: bool = False,
    ) -> bytes:
        """The frame up to the body.

        Raises:
            LocalProtocolError: The frame would be too large.
        """
        return form.head(
            opaque, number, self.sys_flag, born_ms, self.flag, self.properties, len(self.body),
            is_batch=self.is_batch, is_oneway=is_oneway,
        )  # fmt: skip

    def results(self, answer: Command, queue: Queue) -> list[SendResult]:
        """What became of each message.

        Raises:
            RemoteProtocolError: The answer says nothing that could be understood.
            BrokerRefused: The broker refused; the leaf says whether they are stored all the same.
        """
        if len(self.ids) == 1:
            return [result_of(answer, queue, self.ids[0])]
        whole = result_of(answer, queue, self.ids[0])
        places: Sequence[str] = whole.offset_id.split(",")
        if len(places) != len(self.ids):
            places = [""] * len(self.ids)
        status, stored, first, told = whole.status, whole.queue, whole.offset, whole.transaction_id
        offsets = map(QueueOffset, range(first, first + len(self.ids)))
        return [
            SendResult(status, stored, offset, own_id, place, told)
            for offset, own_id, place in zip(offsets, self.ids, places, strict=True)
        ]


def bundled(envelopes: Sequence[Envelope]) -> SendRequest:
    """Several messages of one topic as one load.

    Raises:
        LocalProtocolError: No batch can hold one of them.
    """
    # Bodies stay as they are: stock brokers and consumers know no compression inside a batch.
    body = batch.pack([(each.flag, each.body, each.properties) for each in envelopes])
    # Of a batch the broker looks at the common properties; it waits where one message does.
    wait = properties.WAIT
    waits = any(properties.find(each.properties, wait) != "false" for each in envelopes)
    common = "" if waits else properties.render({wait: "false"})
    parcel = SendRequest(Envelope(envelopes[0].topic, "", 0, 0, body, common))
    parcel.ids = tuple([each.id for each in envelopes])
    parcel.is_batch = True
    return parcel


def result_of(answer: Command, queue: Queue, own_id: str) -> SendResult:
    """What an answer says of one message, or of a batch as a whole.

    Raises:
        RemoteProtocolError: It says nothing that could be understood.
        BrokerRefused: The broker refused; the leaf says whether it is stored all the same.
    """
    code = answer.code
    status = _OK if code == 0 else _STATUSES.get(code)
    if status is None or (code and not answer.field_map()):
        # A broker that stored a message says where, however safe it is.
        raise refusal(code, answer.remark or "")
    told = answer.read(SendAnswer)
    if told.queue_id != queue.number:
        queue = Queue(queue.topic, queue.broker, told.queue_id)
    offset = QueueOffset(told.queue_offset)
    return SendResult(
        status, queue, offset, own_id, told.msg_id, told.transaction_id, told.recall_handle
    )


def packed_size(envelope: Envelope) -> int:
    """How many bytes a message takes in a batch.

    Raises:
        LocalProtocolError: Its properties hold half a character.
    """
    text = envelope.properties
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as problem:
        raise LocalProtocolError(f"no batch can hold this: {problem}") from problem
    return _ITEM_BYTES + len(envelope.body) + size


def split(envelopes: Sequence[Envelope], bytes_max: int) -> list[list[Envelope]]:
    """Messages in as few batches as hold them, in order; one that is too large stands alone."""
    parts: list[list[Envelope]] = []
    sizes = [packed_size(each) for each in envelopes]
    if _fits(len(sizes), sum(sizes), bytes_max):
        return [list(envelopes)]
    size = stored = 0
    for each, own in zip(envelopes, sizes, strict=True):
        size += own
        stored += own + STORED_BYTES
        is_full = size > bytes_max or stored > SPAN_BYTES_MAX
        if not parts or is_full or len(parts[-1]) >= BATCH_MESSAGES_MAX:
            parts.append([])
            size, stored = own, own + STORED_BYTES
        parts[-1].append(each)
    return parts


def _fits(count: int, size: int, bytes_max: int) -> bool:
    stored = size + count * STORED_BYTES
    return size <= bytes_max and stored <= SPAN_BYTES_MAX and 0 < count <= BATCH_MESSAGES_MAX


def travels_alone(message: Message) -> bool:
    """Whether a message may not be in a batch: it is delayed, retried, or half of a transaction."""
    if message.delay_level or message.deliver_at_ms is not None:
        return True
    if message.deliver_after_s is not None or message.topic.startswith(RETRY):
        return True
    return bool(message.properties) and not _ALONE.isdisjoint(message.properties)


def common_topic(messages: Sequence[Message]) -> str:
    """The topic of messages that may travel in a batch.

    Raises:
        LocalProtocolError: They may not.
    """
    if not isinstance(messages, Sequence):
        hint = "; write send_batch([message])" if isinstance(messages, Message) else ""
        given = type(messages).__name__
        raise LocalProtocolError(f"a batch is a list of messages, not a {given}{hint}")
    try:
        topics = {each.topic: None for each in messages}
    except AttributeError as problem:
        raise LocalProtocolError("a batch is a list of messages, and of nothing else") from problem
    if not topics:
        raise LocalProtocolError("a batch without a message cannot be sent")
    if len(topics) > 1:
        raise LocalProtocolError(f"a batch is of one topic, not of {', '.join(topics)}")
    if True in map(travels_alone, messages):
        at = [travels_alone(each) for each in messages].index(True)
        raise LocalProtocolError(
            f"message {at} of the batch is {_why_alone(messages[at])}, so it travels alone; send it"
        )
    return messages[0].topic


def _why_alone(message: Message) -> str:
    if message.topic.startswith(RETRY):
        return f"for the retry topic {message.topic}"
    if properties.TRANSACTION in message.properties:
        return "half of a transaction"
    return "delayed"
