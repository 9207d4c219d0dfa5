"""Transactions that are decided, and the report of a single one."""

from __future__ import annotations

from typing import Final, NamedTuple

from txmq.client import Admin, TransactionReport
from txmq.errors import NotFound, RequestNotSupported, TxmqError
from txmq.message import Queue, ReceivedMessage
from txmq.ops.message_scan import ScannedMessage, ScanWish, scan_messages
from txmq.ops.queries import for_each
from txmq.protocol import properties
from txmq.protocol.topics import HALF_TOPIC, OP_TOPIC

__all__ = ["DecidedTransaction", "find_decided", "find_report"]

_KINDS: Final = {"COMMITTED": "committed", "ROLLED_BACK": "rolled back"}
_SOURCES: Final = {
    "PRODUCER": "its producer",
    "CHECK": "an answer to a check",
    "OPERATOR": "an operator",
    "BROKER": "the broker",
}
_DIGITS_MAX: Final = 18


class DecidedTransaction(NamedTuple):
    """A decision, and the transaction that it ended."""

    id: str
    """Empty if the half message was deleted."""
    broker: str
    place: str
    """The place of the decision, which finds the transaction."""
    at_ms: int
    decision: str
    """``committed`` or ``rolled back``."""
    source: str
    reason: str
    """The operator and the reason, if an operator decided."""
    group: str
    topic: str
    keys: tuple[str, ...]


async def find_decided(
    admin: Admin, count: int, cursor: str = "", group: str = ""
) -> tuple[list[DecidedTransaction], str]:
    """The latest decisions, the newest first, and the cursor of the next ones.

    There may be fewer than ``count`` and still a cursor: of the decisions that were read some may
    be of another group.

    Raises:
        RequestNotSupported: The brokers do not keep decisions in the way of txmq.
        UsageError: The cursor is of other brokers.
        TransportError: A broker does not answer.
        BrokerRefused: A broker refuses.
    """
    scan = await scan_messages(admin, ScanWish(topic=OP_TOPIC), count, cursor)
    marked = [one for one in scan.messages if "TXMQ_DECISION" in one.message.properties]
    if scan.messages and not marked:
        raise RequestNotSupported("these brokers do not keep who decided a transaction")

    async def read(scanned: ScannedMessage) -> DecidedTransaction:
        return _row(scanned.message, await _half_of(admin, scanned.message))

    rows = await for_each(
        [one for one in marked if one.message.properties["TXMQ_DECISION"] in _KINDS], read
    )
    return [row for row in rows if not group or row.group == group], scan.next


async def _half_of(admin: Admin, marker: ReceivedMessage) -> ReceivedMessage | None:
    """The half message of a decision; ``None`` if it was deleted."""
    text = marker.body.decode(errors="replace")
    if not text.isdecimal() or len(text) > _DIGITS_MAX:
        return None
    try:
        pulled = await admin.pull(Queue(HALF_TOPIC, marker.queue.broker, 0), int(text), 1)
    except TxmqError:
        return None
    return next((half for half in pulled.messages if half.offset == int(text)), None)


def _row(marker: ReceivedMessage, half: ReceivedMessage | None) -> DecidedTransaction:
    named = marker.properties
    source = named.get("TXMQ_SOURCE", "")
    return DecidedTransaction(
        id="" if half is None else half.id,
        broker=marker.queue.broker,
        place=marker.offset_id,
        at_ms=marker.stored_ms,
        decision=_KINDS[named["TXMQ_DECISION"]],
        source=_SOURCES.get(source, source),
        reason=named.get("TXMQ_REASON", ""),
        group="" if half is None else half.properties.get(properties.PRODUCER_GROUP, ""),
        topic="" if half is None else half.properties.get(properties.REAL_TOPIC, ""),
        keys=() if half is None else half.keys,
    )


async def find_report(
    admin: Admin, name: str, topic: str = "", broker: str | None = None, cluster: str | None = None
) -> tuple[TransactionReport, ReceivedMessage]:
    """The report of a transaction, and its half message.

    Args:
        admin: Asks the brokers.
        name: The id of the transaction, of its half message, or of its visible message.
        topic: Its topic, for a transaction whose id the brokers have forgotten.
        broker: The broker, if several know it.
        cluster: The cluster, if there are several.

    Raises:
        NotFound: No broker knows it.
        TxmqError: As for :meth:`txmq.client.Admin.transaction_report`.
    """
    try:
        return await admin.transaction_report(name, broker=broker, cluster=cluster)
    except NotFound:
        if not topic:
            raise
        visible = await admin.find(topic, name)
        return await admin.transaction_report(
            visible.offset_id, broker=visible.queue.broker, cluster=cluster
        )
