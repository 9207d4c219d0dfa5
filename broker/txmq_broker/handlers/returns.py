"""36: consumers return messages that they failed to handle, for a retry or as dead letters."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from txmq.errors import InternalError
from txmq.protocol import properties
from txmq.protocol.codes import RequestCode, SysFlag
from txmq.protocol.command import Command, answer
from txmq.protocol.headers import SendBack
from txmq.protocol.record import Postmark, Record, tail_of, unpack
from txmq.protocol.topics import DLQ, HALF_TOPIC, OP_TOPIC, RETRY, WAITING_TOPICS
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq_broker.core.identity import host_bits
from txmq_broker.core.retry import (
    ATTEMPTS_TOP,
    RetryVerdict,
    apply_verdict,
    judge_retry,
    retry_maximum,
)
from txmq_broker.core.sent_properties import examine
from txmq_broker.core.topics import Topic, check_name, queues_to_write
from txmq_broker.parts import Parts
from txmq_broker.store.delay_store import Unstored

__all__ = ["ReturnHandlers"]

log = logging.getLogger(__name__)

_SAYS_MAXIMUM: Final = 121
"""RocketMQ 3.4.9, the first client version that sends a meaningful maximum."""

_KEPT: Final = ~int(SysFlag.ROLLED_BACK | SysFlag.STORE_HOST_V6)
_NEVER_CONSUMED: Final = frozenset({HALF_TOPIC, OP_TOPIC, *WAITING_TOPICS})
"""Topics whose messages no consumer has received, so none can be returned."""


class ReturnHandlers:
    """Takes returned messages from consumer groups."""

    def __init__(self, parts: Parts, topic_of_group: Callable[[str, int], Topic]) -> None:
        self._identity = parts.identity
        self._topics = parts.topics
        self._groups = parts.groups
        self._clients = parts.clients
        self._store = parts.store
        self._schedule = parts.schedule
        self._statistics = parts.statistics
        self._flusher = parts.flusher
        self._clock = parts.clock
        self._entropy = parts.entropy
        self._topic_of_group = topic_of_group
        self._cluster = parts.identity.cluster_property
        self._store_host = parts.identity.store_host

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, connection: Connection, request: Command) -> bytes | None:
        """36: a consumer failed to handle a message and wants it again later, or never."""
        header = request.read(SendBack)
        group, now_ms = header.group, self._flusher.turn_ms()
        check_name(RETRY + group)
        record = self._message_at(header.offset)
        config = self._groups.get(group, now_ms)
        if config.retry_queue_nums <= 0:
            # As in RocketMQ, for groups without retries.
            log.warning("group %s has no retry queue: %s is dropped", group, record.offset_id)
            return answer(request)
        requested = header.max_reconsume_times if request.version >= _SAYS_MAXIMUM else None
        online = self._clients.consumer_group(group)
        maximum = retry_maximum(requested, online, connection, config)
        verdict = judge_retry(record.attempts, maximum, header.delay_level, header.reason or "")
        verdict, text = apply_verdict(record, group, verdict)
        if verdict.reason:
            topic, number = self._topic_of_group(DLQ + group, 1), 0
            log.info("%s is a dead letter of group %s: %s", record.offset_id, group, verdict.reason)
        else:
            topic = self._topic_of_group(RETRY + group, config.retry_queue_nums)
            number = self._entropy.below(queues_to_write(topic))
        self._put(topic, number, record, text, verdict, now_ms)
        self._count(record, group)
        if not request.is_oneway:
            self._flusher.answer(connection, [request], [answer(request)])
        return None

    def _message_at(self, position: int) -> Record:
        """The message at a position, as a consumer receives it."""
        data = self._store.record_bytes(position)
        record = None if data is None else unpack(data)[0]
        if record is None or record.topic in _NEVER_CONSUMED:
            raise InternalError(f"look message by offset failed, {position}")
        return record

    def _put(
        self,
        topic: Topic,
        number: int,
        record: Record,
        text: str,
        verdict: RetryVerdict,
        now_ms: int,
    ) -> None:
        data, _, tags_code, hashes, _ = examine(
            text, self._cluster, topic.key_seed, self._identity.unique_id
        )
        sys_flag = record.sys_flag & _KEPT | host_bits(record.born_host, self._store_host)
        attempts = min(record.attempts + 1, ATTEMPTS_TOP)
        postmark: Postmark = (
            sys_flag, record.born_ms, record.born_host, now_ms, self._store_host, attempts, 0
        )  # fmt: skip
        flag, body = record.flag, record.body
        if verdict.reason:
            queue, tail = topic.queues[number], tail_of(topic.name_field, data)
            self._store.stage([(queue, postmark, flag, body, tail, tags_code, hashes, None)])
            topic.put_count += 1
            topic.put_bytes += len(body)
        else:
            # The turn's time may be ahead of the clock if the clock was set back.
            clock_ms = self._clock.wall_ms()
            due_time = self._schedule.due_time_of_level(verdict.level, clock_ms)
            message = Unstored(postmark, flag, body, data)
            self._schedule.put(topic.name, number, message, due_time, clock_ms)

    def _count(self, record: Record, group: str) -> None:
        name = properties.find(record.properties, properties.RETRY_TOPIC)
        if name is None or self._topics.by_name.get(name) is None:
            name = record.topic  # An unknown name would add a counter for each forged property.
        self._statistics.meter("SNDBCK_PUT_NUMS", f"{name}@{group}").total += 1
