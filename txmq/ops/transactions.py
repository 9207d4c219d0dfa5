"""Decided transactions, and the nine steps of one.

The broker knows when it stored the half message, whom it asked, and who decided. The local
transaction runs at the producer: only the producer's trace or decision reveals its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from txmq.client import Admin
from txmq.client.observe.trace_records import DecisionRecord, SendRecord, TraceRecord
from txmq.client.values import (
    CheckReport,
    RecheckReport,
    TransactionDecision,
    TransactionReport,
)
from txmq.errors import NotFound, RequestNotSupported, TxmqError
from txmq.message import Queue, ReceivedMessage
from txmq.ops.message_scan import ScannedMessage, ScanWish, scan_messages
from txmq.ops.moments import time_text
from txmq.ops.queries import for_each
from txmq.ops.traces import HandlingAttempt, attempts_in
from txmq.protocol import properties
from txmq.protocol.topics import HALF_TOPIC, OP_TOPIC
from txmq.text import quantity

__all__ = [
    "DONE",
    "IMPLIED",
    "NEXT",
    "OPEN",
    "UNKNOWN",
    "DecidedTransaction",
    "TransactionStep",
    "find_decided",
    "find_report",
    "steps_of",
]

DONE: Final = "done"
"""The broker or a trace says that it happened."""
IMPLIED: Final = "implied"
"""It must have happened, because a later step did."""
UNKNOWN: Final = "unknown"
"""It happens at the producer, which has not reported it."""
NEXT: Final = "next"
"""It comes next."""
OPEN: Final = "open"
"""It has not happened yet."""

_STORED: Final = "the broker reports that it is stored"
_ANSWERS: Final = {
    "unknown": ("it answered that it has no decision yet", "wait"),
    "silent": ("it did not answer until the next check", "bad"),
    "lost": ("its connection closed before the answer", "bad"),
    "": ("the broker waits for the answer", "wait"),
}
_WORDS: Final = {"committed": "COMMIT", "rolled_back": "ROLLBACK"}


class TransactionStep(NamedTuple):
    """One line of a transaction's history."""

    number: int
    """From 1 to 9; 0 for an event between two steps, and for consumers."""
    at_ms: int
    """0 if the time is not known."""
    actor: str
    """Who acts: ``producer``, ``broker``, ``database``, ``operator`` or ``consumer``."""
    text: str
    more: str = ""
    """Details: ids, addresses, persons and reasons."""
    status: str = DONE
    mood: str = ""
    """``good``, ``wait`` or ``bad``; otherwise empty."""


def steps_of(
    report: TransactionReport, message: ReceivedMessage, traces: Sequence[TraceRecord]
) -> list[TransactionStep]:
    """The nine steps, the checks between them, and the consumers' attempts, in order.

    Args:
        report: The broker's report.
        message: The half message.
        traces: The clients' traces; empty if they leave none.
    """
    *local, received = _local(report, traces)
    between = [received]
    between += [
        _check(number, check, report.final) for number, check in enumerate(report.checks, 1)
    ]
    between += [_recheck(recheck) for recheck in report.rechecks]
    between += [_parked(item, report) for item in report.decisions if item.kind == "parked"]
    between.sort(key=lambda step: step.at_ms)
    handled = [_handled(attempt) for attempt in attempts_in(traces)]
    begin, end = _begin(report, message, traces), _end(report, message, traces)
    return [*begin, *local, *between, *end, *handled]


def _parked(decision: TransactionDecision, report: TransactionReport) -> TransactionStep:
    checks = quantity(report.check_max, "check")
    return TransactionStep(
        0,
        decision.at_ms,
        "broker",
        f"the broker parks the transaction: {checks} brought no decision",
        "it asks no more, and waits for an operator or a late END",
        mood="bad",
    )


def _begin(
    report: TransactionReport, message: ReceivedMessage, traces: Iterable[TraceRecord]
) -> list[TransactionStep]:
    transaction = report.transaction
    sent = next((item for item in traces if isinstance(item, SendRecord)), None)
    if sent is None:
        status = IMPLIED if _is_by_producer(report.final) else UNKNOWN
        answered = TransactionStep(4, 0, "broker", _STORED, status=status)
    else:
        cost_ms = max(0, sent.cost_ms)
        text, fact, mood = _STORED, f"after {cost_ms} ms", ""
        if not sent.is_success:
            text, mood = "the producer received no good answer", "bad"
            fact = f"the send failed after {cost_ms} ms"
        more = f"the producer's trace: {fact}"
        answered = TransactionStep(4, sent.at_ms + cost_ms, "broker", text, more, mood=mood)
    return [
        TransactionStep(
            1,
            0,
            "producer",
            f"a producer of group {transaction.group} opens the transaction",
            transaction.id,
        ),
        TransactionStep(
            2,
            report.born_ms,
            "producer",
            f"the producer sends the half message for {transaction.queue.topic}",
            f"{transaction.origin or 'a client'} at {report.address}",
        ),
        TransactionStep(
            3,
            transaction.stored_ms,
            "broker",
            f"{transaction.queue.broker} stores it, invisible to consumers",
            f"place {message.offset_id}, offset {transaction.half_offset} of the half messages",
        ),
        answered,
    ]


def _local(report: TransactionReport, traces: Iterable[TraceRecord]) -> list[TransactionStep]:
    final = report.final
    traced = _traced_decision(traces)
    if traced is not None:
        status, word = IMPLIED, _state_word(traced.state)
        more = "the producer's trace says so"
    elif final is not None and _is_by_producer(final):
        status, word, more = IMPLIED, _WORDS[final.kind], "the producer's decision says so"
    else:
        status, word, more = UNKNOWN, "", "only the producer knows it, and has not reported it"
    returned = f"the local transaction returns {word}" if word else "the local transaction returns"
    received = f"the producer receives {word}" if word else "the producer receives the result"
    at_ms = traced.at_ms if traced is not None else 0
    return [
        TransactionStep(5, 0, "database", "the local transaction runs", status=status),
        TransactionStep(6, 0, "database", returned, more, status=status),
        TransactionStep(7, at_ms, "producer", received, status=DONE if traced else status),
    ]


def _end(
    report: TransactionReport, message: ReceivedMessage, traces: Iterable[TraceRecord]
) -> list[TransactionStep]:
    final, transaction = report.final, report.transaction
    if final is None:
        text, more, mood = _outlook(report)
        return [
            TransactionStep(8, 0, "broker", text, more, NEXT, mood),
            TransactionStep(
                9, 0, "broker", "the message becomes visible, or never will", status=OPEN
            ),
        ]
    word = _WORDS[final.kind]
    if final.source == "operator":
        person, _, reason = final.reason.partition(": ")
        decided = TransactionStep(
            8,
            final.at_ms,
            "operator",
            f"{person or 'an operator'} decides by hand: {word}",
            f"reason: {reason}" if reason else "",
            mood="wait",
        )
    elif final.source == "check":
        decided = TransactionStep(
            8, final.at_ms, "producer", f"the broker receives {word}, as the answer to a check"
        )
    else:
        traced = _traced_decision(traces)
        more = f"the producer's trace: decided {time_text(traced.at_ms)}" if traced else ""
        decided = TransactionStep(
            8, final.at_ms, "producer", f"the broker receives {word} from the producer", more
        )
    if final.kind == "committed":
        sees = "see the message"
        if properties.delay_in(message.properties.get) is not None:
            sees += " after its delay"
        text = f"the transaction is committed: consumers of {transaction.queue.topic} {sees}"
        more = f"place {final.offset_id}" if final.offset_id else ""
        ended = TransactionStep(9, final.at_ms, "broker", text, more, mood="good")
    else:
        text = "the transaction is rolled back: the message never becomes visible"
        ended = TransactionStep(9, final.at_ms, "broker", text, mood="good")
    return [decided, ended]


def _outlook(report: TransactionReport) -> tuple[str, str, str]:
    """What comes next for an open transaction, a detail, and the mood."""
    transaction = report.transaction
    group = transaction.group
    if transaction.is_being_decided:
        return "a decision is being written now", "", "wait"
    if transaction.state == "parked" and not report.next_check_ms:
        return "a person must decide, or the producer sends a late END", "", "bad"
    if report.waits_for_producer:
        text = f"the broker asks as soon as a producer of group {group} is connected"
        if report.producers:
            text = f"the broker asks as soon as a producer of group {group} has time"
        connected = quantity(report.producers, "producer of the group is", "producers of it are")
        return text, f"{connected} connected now", "bad"
    more = f"{transaction.checks} of {quantity(report.check_max, 'check')} brought no decision"
    if report.next_check_ms:
        text = "the broker waits for the END; it asks the producer at "
        return text + time_text(report.next_check_ms), more, "wait"
    return "the broker waits for the END, and asks the producer from time to time", more, "wait"


def _check(number: int, check: CheckReport, final: TransactionDecision | None) -> TransactionStep:
    text = f"check {number}: the broker asks {check.client_id}"
    where = f"at {check.address}"
    if check.answer == "decided":
        kind = _WORDS[final.kind] if final is not None else "its decision"
        answer = (
            f"it answered {kind}"
            if final is not None and final.source == "check"
            else "another decision came first"
        )
        mood = ""
    else:
        answer, mood = _ANSWERS.get(check.answer, (check.answer, ""))
    if check.answered_ms:
        answer += f", {max(0, check.answered_ms - check.asked_ms)} ms later"
    return TransactionStep(0, check.asked_ms, "broker", text, f"{where}; {answer}", mood=mood)


def _recheck(recheck: RecheckReport) -> TransactionStep:
    person = recheck.operator or recheck.account or "an operator"
    account = f"account {recheck.account} " if recheck.account else ""
    more = f"{account}at {recheck.address}"
    if recheck.reason:
        more += f"; reason: {recheck.reason}"
    return TransactionStep(
        0, recheck.at_ms, "operator", f"{person} has the broker ask the producers again", more
    )


def _handled(attempt: HandlingAttempt) -> TransactionStep:
    which = f"attempt {attempt.number} of group" if attempt.number else "group"
    text = f"{which} {attempt.group or 'unknown'} handles the message"
    if attempt.cost_ms is None:
        more, mood = "no trace says that it has ended", "wait"
    elif attempt.is_success:
        more, mood = f"{attempt.outcome} after {attempt.cost_ms} ms", "good"
    else:
        more, mood = f"{attempt.outcome} after {attempt.cost_ms} ms; it comes again", "bad"
    return TransactionStep(0, attempt.began_ms, "consumer", text, more, mood=mood)


def _is_by_producer(final: TransactionDecision | None) -> bool:
    return final is not None and final.source in {"producer", "check"}


def _traced_decision(traces: Iterable[TraceRecord]) -> DecisionRecord | None:
    return next((item for item in traces if isinstance(item, DecisionRecord)), None)


def _state_word(state: str) -> str:
    """COMMIT, ROLLBACK or UNKNOWN, from the spelling of stock clients."""
    return {"COMMIT_MESSAGE": "COMMIT", "ROLLBACK_MESSAGE": "ROLLBACK"}.get(state, "UNKNOWN")


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

    There may be a cursor even with fewer than ``count`` decisions: some of those read may belong to
    other groups.

    Raises:
        RequestNotSupported: The brokers do not record who decided, as txmq brokers do.
        UsageError: The cursor belongs to other brokers.
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
