"""The one way by which producers' messages and half messages come into the log.

Requests that follow each other are a run, and a single request is a run of one. A run is checked
from its beginning to the first request that needs a step of its own, and nothing changes so far.
Then the store stages the records of all these requests at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final, TypeAlias

from txmq.errors import BrokerBusy, MessageIllegal, NoPermission
from txmq.limits import GROUP_CHARS_MAX, PROPERTIES_OF_HALF_MAX
from txmq.protocol import properties
from txmq.protocol.codes import SysFlag
from txmq.protocol.command import Command
from txmq.protocol.headers import SendMessage
from txmq.protocol.record import HEAD_BYTES, PREPARED, TYPE_BITS, Postmark
from txmq.protocol.topics import DLQ, RETRY
from txmq_broker.core.admission import Admission
from txmq_broker.core.arrival import NO_TERMS, Arrival, examine, missing_marks, terms_of
from txmq_broker.core.clients import Clients
from txmq_broker.core.coordinator import Coordinator
from txmq_broker.core.identity import Identity
from txmq_broker.core.topics import Topic, Topics
from txmq_broker.store.half_store import NewHalf, RecentDecision
from txmq_broker.store.message_store import MessageStore
from txmq_broker.store.pending_transactions import KEY_MASK, Half, transaction_key
from txmq_broker.store.queue_store import NewRecord

__all__ = ["Ingest", "Sender", "Stored"]

_BORN_V6: Final = int(SysFlag.BORN_HOST_V6)
_STORE_V6: Final = int(SysFlag.STORE_HOST_V6)
_CLIENTS_BITS: Final = ~(_BORN_V6 | _STORE_V6)
"""The flags of a message that its client decides."""
_IPV4_BYTES: Final = 8
_length: Final = Struct(">H").pack
_NOT_JUDGED: Final[dict[str, str]] = {}


Sender: TypeAlias = tuple[Any, bytes]
"""Who sends a run: the key under which :class:`Clients` knows the connection, and the address as
records hold it.
"""

Stored: TypeAlias = tuple[int, int, int, str]
"""What the answer to a send says: the position, the queue's number, the offset, the unique key."""


class Ingest:
    """Checks and stages what producers send."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        coordinator: Coordinator,
        clients: Clients[Any],
        admission: Admission,
        identity: Identity,
    ) -> None:
        self._store = store
        self._topics = topics
        self._coordinator = coordinator
        self._halves = coordinator.halves
        self._clients = clients
        self._admission = admission
        self._cluster = identity.cluster_property
        self._store_host = identity.store_host
        self._body_max = identity.message_size_max
        self._new_key = identity.unique_id

    def stage(  # noqa: C901, PLR0912, PLR0915  the hot path: a call would cost every message
        self,
        requests: Sequence[Command],
        sender: Sender,
        now_ms: int,
        position_max: int,
        cleared: Topic | None = None,
    ) -> list[Stored]:
        """Stage the sends at the beginning of a run.

        It stops at a request that is refused, creates its topic, comes from a consumer that gives a
        message up, lets the broker choose the queue, is a batch, must wait for its time, or repeats
        a half message. It also stops at a half message that does not say so in its properties.

        Args:
            requests: The requests, with their headers decoded.
            sender: Who sends them.
            now_ms: Their time stamp.
            position_max: No record of this span begins after this position.
            cleared: The topic of a single request that had its own step: whether the topic takes
                it, whether it must wait, and whether it repeats another one was checked there.

        Returns:
            What was stored for each of them.
        """
        sendable, cluster, new_key = self._topics.sendable, self._cluster, self._new_key
        store_host, body_max = self._store_host, self._body_max
        client, born_host = sender
        host_bits = host_bits_of(born_host, store_host)
        head_bytes = HEAD_BYTES - 2 * _IPV4_BYTES + len(born_host) + len(store_host)
        halves, room = self._halves, -1
        position = self._store.log.next_position
        new: list[NewRecord] = []
        new_halves: list[NewHalf] = []
        uniques: list[str] = []
        puts: list[tuple[Topic, int]] = []
        keys: set[int] = set()
        topic_name = group_name = ""
        origin: str | None = None
        topic = cleared
        judged: dict[str, str] | None = _NOT_JUDGED
        terms = NO_TERMS
        for request in requests:
            header = request.ext
            if not isinstance(header, SendMessage):
                break
            if header.topic != topic_name or topic is None:
                topic = cleared or sendable.get(header.topic)
                if topic is None:
                    break
                topic_name, queues, patterns = header.topic, topic.queues, topic.patterns
                name_field, key_seed = topic.name_field, topic.key_seed
            group = header.producer_group
            if group != group_name:
                if len(group) > GROUP_CHARS_MAX or not group.isprintable():
                    break
                group_name, origin = group, None
            number, body = header.queue_id, request.body
            if (
                not 0 <= number < len(queues)
                or not 0 < len(body) <= body_max
                or header.batch
                or position > position_max
            ):
                break
            queue = queues[number]
            try:
                data, unique, tags_code, hashes, special = examine(
                    header.properties or "", cluster, key_seed, new_key, patterns
                )
            except MessageIllegal:
                break
            sys_flag = header.sys_flag & _CLIENTS_BITS | host_bits
            half_queue = None
            if special is not None or sys_flag & TYPE_BITS:
                if special is not judged:  # Messages of one pattern share theirs.
                    judged, terms = special, terms_of(special)
                if sys_flag & TYPE_BITS or terms.is_marked:
                    if room < 0:
                        table, opening = halves.pending.table, halves.opening
                        recent, older = halves.recent, halves.older
                        room = self._room_for_halves()
                    key = hash(unique) & KEY_MASK  # transaction_key inlined.
                    if (
                        sys_flag & TYPE_BITS not in (0, PREPARED)
                        or not (terms.group or cleared)
                        or terms.is_delayed
                        or not room
                        or len(data) > PROPERTIES_OF_HALF_MAX
                        or topic_name.startswith((RETRY, DLQ))
                        or key in table
                        or key in opening
                        or key in keys
                        or (cleared is None and (key in recent or key in older))
                    ):
                        break
                    sys_flag |= PREPARED
                    half_queue = halves.half_queue
                    if origin is None:
                        origin = self._clients.producer_id(group, client)
                    owner = terms.group or group
                    new_halves.append((len(new), key, owner, origin, terms.immunity_s))
                    keys.add(key)
                    room -= 1
                elif terms.is_delayed and cleared is None:
                    break
            postmark = (
                sys_flag, header.born_timestamp, born_host, now_ms, store_host,
                header.reconsume_times or 0, 0,
            )  # fmt: skip
            # tail_of inlined.
            tail = name_field + _length(len(data)) + data
            new.append((queue, postmark, header.flag, body, tail, tags_code, hashes, half_queue))
            uniques.append(unique)
            position += head_bytes + len(body) + len(tail)
            if half_queue is None:
                puts.append((topic, len(body)))
        if not new:
            return []
        places = self._store.stage(new, new_halves)
        self._coordinator.tally.prepared += len(new_halves)
        for topic, size in puts:
            topic.put_count += 1
            topic.put_bytes += size
        return [
            (place[1], record[0].number, place[0], unique)
            for place, record, unique in zip(places, new, uniques, strict=True)
        ]

    # Steps of single requests

    def arrival_of(self, header: SendMessage, topic: Topic) -> Arrival:
        """Read the properties of a single send.

        Raises:
            MessageIllegal: They are too long to be stored.
        """
        text = header.properties or ""
        return examine(text, self._cluster, topic.key_seed, self._new_key, topic.patterns)

    def postmark_of(self, header: SendMessage, born_host: bytes, now_ms: int) -> Postmark:
        """What all records of a single send share."""
        store_host = self._store_host
        sys_flag = header.sys_flag & _CLIENTS_BITS | host_bits_of(born_host, store_host)
        attempts = header.reconsume_times or 0
        return sys_flag, header.born_timestamp, born_host, now_ms, store_host, attempts, 0

    def clear_half(
        self, header: SendMessage, topic: Topic, body: bytes, arrival: Arrival
    ) -> Half | RecentDecision | None:
        """Make a half message ready for :meth:`stage`, or find the earlier one with its id.

        Its properties then state that it is one, and its group, even if only the header did.

        Raises:
            MessageIllegal: It cannot be a half message, or its id belongs to another message.
            NoPermission: Its topic takes none.
            ServiceUnavailable: Half messages are refused now.
            BrokerBusy: The limit of open transactions is reached.
        """
        if header.sys_flag & TYPE_BITS not in (0, PREPARED):
            raise MessageIllegal("a message cannot be sent as committed or rolled back")
        if topic.name.startswith((RETRY, DLQ)):
            raise NoPermission(f"half messages cannot go to {topic.name}")
        self._admission.check_halves()
        marks = missing_marks(arrival, header.producer_group)
        header.properties = properties.join(header.properties or "", marks)
        unique = arrival[1]
        known = self._known(transaction_key(unique), topic, unique, body)
        if known is None and not self._room_for_halves():
            most = self._coordinator.settings.pending_max
            self._coordinator.tally.refused += 1
            raise BrokerBusy(
                f"{most} transactions are open, which is the limit; this one was not prepared; "
                "decide some, or raise transaction.pending_max"
            )
        return known

    def _room_for_halves(self) -> int:
        """The number of half messages that may come now."""
        if self._admission.half_reasons:
            return 0
        halves = self._halves
        known = len(halves.pending.table) + len(halves.opening)
        return max(0, self._coordinator.settings.pending_max - known)

    def _known(
        self, key: int, topic: Topic, unique: str, body: bytes
    ) -> Half | RecentDecision | None:
        halves = self._halves
        opening = halves.opening.get(key)
        known: Half | RecentDecision | None
        if opening is not None:
            known = halves.pending.unpack(opening)
        else:
            known = halves.pending.find(key) or halves.find_done(key)
        if known is None:
            return None
        if isinstance(known, Half) and known.queue.topic != topic.name:
            raise MessageIllegal(f"the id {unique} belongs to a transaction of another topic")
        # What is not written yet cannot be read.
        sent = halves.sent_at(known.position) if opening is None else None
        if sent is not None and sent != (unique, topic.name, body):
            raise MessageIllegal(f"the id {unique} belongs to another transaction")
        self._coordinator.tally.repeated += 1
        return known


def host_bits_of(born_host: bytes, store_host: bytes) -> int:
    """The flags of a record that say which of its addresses are IPv6."""
    born = _BORN_V6 if len(born_host) > _IPV4_BYTES else 0
    return born | (_STORE_V6 if len(store_host) > _IPV4_BYTES else 0)
