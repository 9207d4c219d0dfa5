"""10, 310, 320: messages arrive. The way from here to the disk is the broker's hottest path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.core.admission import Admission
from broker.core.groups import Groups
from broker.core.topics import RETRY, Topic, Topics
from broker.flusher import Flusher
from broker.identity import Identity
from broker.store.key_index import key_hash, keys_in
from broker.store.message_store import MessageStore
from txmq.errors import GroupNotFound, InternalError, MessageIllegal, NoPermission, TopicNotFound
from txmq.limits import PROPERTIES_BYTES_MAX
from txmq.protocol import answers, batch, java, properties
from txmq.protocol.codes import RequestCode, SysFlag
from txmq.protocol.command import Command
from txmq.protocol.headers import SendMessage, SendMessageV2
from txmq.protocol.record import tail_of
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy

__all__ = ["SendHandlers"]

_BORN_V6: Final = int(SysFlag.BORN_HOST_V6)
_STORE_V6: Final = int(SysFlag.STORE_HOST_V6)
_CLIENTS_BITS: Final = ~int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
_TRANSACTION_BITS: Final = int(SysFlag.ROLLED_BACK)


class SendHandlers:
    """Stores what producers send."""

    def __init__(
        self,
        identity: Identity,
        topics: Topics,
        groups: Groups,
        store: MessageStore,
        flusher: Flusher,
        admission: Admission,
        clock: Clock,
        entropy: Entropy,
        topics_changed: Callable[[], None],
    ) -> None:
        self._identity = identity
        self._topics = topics
        self._groups = groups
        self._store = store
        self._flusher = flusher
        self._admission = admission
        self._clock = clock
        self._entropy = entropy
        self._topics_changed = topics_changed
        self._cluster = f"CLUSTER\x01{identity.cluster}\x02"
        self._store_host = identity.store_host
        self._store_host_hex = identity.store_host.hex().upper()
        self._store_bits = _STORE_V6 if len(identity.store_host) > 8 else 0
        self._body_max = identity.message_size_max

    def table(self) -> dict[int, Handler]:
        """Which request goes where."""
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send_v2,
            RequestCode.SEND_BATCH_MESSAGE: self.send_v2,
        }

    def send(self, connection: Connection, request: Command) -> bytes | None:
        """10: the long spelling."""
        return self._take(connection, request, request.read(SendMessage))

    def send_v2(self, connection: Connection, request: Command) -> bytes | None:
        """310 and 320: the short one."""
        return self._take(connection, request, request.read(SendMessageV2))

    def _take(self, connection: Connection, request: Command, header: SendMessage) -> bytes | None:
        self._admission.check()
        self._flusher.refuse_if_behind()
        topic = self._topics.for_sending(header.topic) or self._create(header)
        number = header.queue_id
        if number < 0:
            number = self._entropy.below(topic.config.write_queue_nums)
        elif number >= len(topic.queues):
            raise InternalError(f"topic {topic.name} has no queue {number}")
        body = request.body
        if len(body) > self._body_max:
            raise MessageIllegal(f"a body has at most {self._body_max} bytes, not {len(body)}")
        if not body:
            raise MessageIllegal("the body is empty")
        if header.batch:
            items = self._batch(request, header)
        else:
            items = [batch.BatchItem(header.flag, body, header.properties or "")]
        answer = self._append(connection, request, header, topic, number, items)
        if request.is_oneway:
            self._flusher.plan_turn()
        else:
            self._flusher.staged(connection, request, answer)
        return None

    def _append(
        self,
        connection: Connection,
        request: Command,
        header: SendMessage,
        topic: Topic,
        number: int,
        items: list[batch.BatchItem],
    ) -> bytes:
        now_ms = max(self._clock.wall_ms(), self._store.last_ms)
        born_host = connection.born_host
        sys_flag = header.sys_flag & _CLIENTS_BITS | self._store_bits
        if len(born_host) > 8:
            sys_flag |= _BORN_V6
        queue = topic.queues[number]
        prepared = [self._prepare(topic, header, text, now_ms) for _, _, text in items]
        ids: list[str] = []
        first_offset = queue.next_offset
        for (flag, body, _), (tail, unique, tags_code, hashes) in zip(items, prepared, strict=True):
            _, position = self._store.append(
                queue, flag, sys_flag, header.born_timestamp, born_host, now_ms,
                self._store_host, header.reconsume_times or 0, body, tail, tags_code, hashes,
            )  # fmt: skip
            ids.append("%s%016X" % (self._store_host_hex, position))
            topic.put_bytes += len(body)
        topic.put_count += len(items)
        offset_ids = ids[0] if len(ids) == 1 else ",".join(ids)
        return answers.sent(request, offset_ids, number, first_offset, unique)

    def _prepare(
        self, topic: Topic, header: SendMessage, text: str, now_ms: int
    ) -> tuple[bytes, str, int, tuple[int, ...]]:
        """Everything that can be refused, before anything is staged."""
        if "WAIT\x01" in text:
            text = properties.without(text, properties.WAIT)
        if "TRAN_MSG\x01" in text or "DELAY\x01" in text:
            _refuse_unserved(text, header)
        unique = properties.find(text, properties.UNIQUE_KEY)
        if unique is None:
            unique = self._identity.unique_id(now_ms)
            text = properties.join(text, f"UNIQ_KEY\x01{unique}\x02")
        if "CLUSTER\x01" in text:
            text = properties.without(text, properties.CLUSTER)
        property_bytes = properties.join(text, self._cluster).encode()
        if len(property_bytes) > PROPERTIES_BYTES_MAX:
            raise MessageIllegal(
                f"properties have at most {PROPERTIES_BYTES_MAX} bytes, not {len(property_bytes)}"
            )
        tag = properties.find(text, properties.TAGS)
        tags_code = java.string_hash(tag) if tag else 0
        seed = topic.key_seed
        hashes = tuple([key_hash(seed, key) for key in keys_in(text)])
        return tail_of(topic.name_bytes, property_bytes), unique, tags_code, hashes

    def _create(self, header: SendMessage) -> Topic:
        now_ms = self._clock.wall_ms()
        if header.topic.startswith(RETRY):
            group = self._groups.find(header.topic.removeprefix(RETRY))
            if group is None:
                raise GroupNotFound(f"no group has the retry topic {header.topic}")
            made = self._topics.create_for_group(header.topic, group.retry_queue_nums, now_ms)
            self._topics_changed()
            return made
        if header.default_topic == "":
            raise TopicNotFound(f"topic[{header.topic}] not exist, apply first please!")
        wanted = header.default_topic_queue_nums
        made = self._topics.create_by_sending(header.topic, header.default_topic, wanted, now_ms)
        self._topics_changed()
        return made

    def _batch(self, request: Command, header: SendMessage) -> list[batch.BatchItem]:
        if header.topic.startswith(RETRY):
            raise MessageIllegal("a batch cannot go to a retry topic")
        if request.code == RequestCode.SEND_MESSAGE and not _looks_like_batch(request.body):
            # The C++ client marks a body of its own making as a batch; RocketMQ stores it as one.
            return [batch.BatchItem(header.flag, request.body, header.properties or "")]
        shared = header.properties or ""
        return [
            batch.BatchItem(flag, body, properties.join(text, shared))
            for flag, body, text in batch.unpack(request.body)
        ]


def _looks_like_batch(body: bytes) -> bool:
    return len(body) >= 22 and body[4:12] == b"\0" * 8


def _refuse_unserved(text: str, header: SendMessage) -> None:
    found = properties.parse(text)
    if found.get(properties.TRANSACTION, "").lower() == "true" or (
        header.sys_flag & _TRANSACTION_BITS
    ):
        raise NoPermission("this broker does not take half messages yet")
    if found.get(properties.DELAY, "0") not in ("0", ""):
        raise NoPermission("this broker does not delay messages yet")

