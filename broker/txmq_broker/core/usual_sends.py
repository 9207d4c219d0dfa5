"""Messages and half messages that are only to be stored, as nearly all are.

Many arrive together, so one loop stages them all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

from txmq.limits import GROUP_CHARS_MAX, PROPERTIES_OF_HALF_MAX
from txmq.protocol import templates
from txmq.protocol.checksum import crc32
from txmq.protocol.command import ONEWAY, Command
from txmq.protocol.headers import SendMessage, SendMessageV2
from txmq.protocol.record import head_of
from txmq.remoting.connection import Connection
from txmq_broker.core.arrival import (
    BORN_V6,
    CLIENTS_BITS,
    PREPARED,
    STORE_V6,
    TRANSACTION_BITS,
    examine,
)
from txmq_broker.core.clients import Clients
from txmq_broker.core.coordinator import Coordinator
from txmq_broker.core.topics import Topics
from txmq_broker.store.entry_group import stage_entries
from txmq_broker.store.half_reader import HIDDEN
from txmq_broker.store.pending_transactions import KEY_MASK, LAYOUTS
from txmq_broker.store.queue_store import ENTRY, ConsumeQueue

__all__ = ["UsualSends"]

_length: Final = Struct(">H").pack


class UsualSends:
    """Stages the usual sends at the beginning of a run.

    A send is usual if it has one message for a queue of an open topic and no special property; or a
    half message as stock clients send it, whose id is new.

    Args:
        topics: The topics.
        coordinator: Prepares half messages otherwise.
        clients: The connected producers.
        store_host: The broker's address, as records hold it.
        cluster: The encoded property with this broker's cluster.
        new_key: Creates an id for a message without one.
        body_max: The largest size of a body.
    """

    def __init__(
        self,
        topics: Topics,
        coordinator: Coordinator,
        clients: Clients[Connection],
        store_host: bytes,
        cluster: str,
        new_key: Callable[[], str],
        body_max: int,
    ) -> None:
        self._topics = topics
        self._coordinator = coordinator
        self._clients = clients
        self._store_host = store_host
        self._store_host_hex = store_host.hex().upper().encode()
        self._cluster = cluster
        self._new_key = new_key
        self._body_max = body_max

    def stage(  # noqa: C901, PLR0912, PLR0915  the hot path: a call would cost every message
        self,
        connection: Connection,
        requests: Sequence[Command],
        now_ms: int,
        position_max: int,
        *,
        has_room_for_halves: bool,
    ) -> list[bytes]:
        """Stage usual sends.

        Args:
            connection: Their connection.
            requests: The sends.
            now_ms: Their time stamp.
            position_max: No record of this span begins after this position.
            has_room_for_halves: Whether half messages are accepted.

        Returns:
            The answers to the usual ones. The next request needs a handler of its own.
        """
        sendable, coordinator, body_max = self._topics.sendable, self._coordinator, self._body_max
        store_host, host_hex, born_host = (
            self._store_host,
            self._store_host_hex,
            connection.born_host,
        )
        cluster, new_key = self._cluster, self._new_key
        halves = coordinator.halves
        pending, opening, half_queue, log = (
            halves.pending,
            halves.opening,
            halves.half_queue,
            halves.log,
        )
        table, recent, older, uses = pending.table, halves.recent, halves.older, pending.owner_uses
        pack_entry, layouts, pack_two = ENTRY.pack, LAYOUTS, LAYOUTS[2].pack
        sent_one, read_properties = templates.sent_one, examine
        room = coordinator.settings.pending_max - len(table) - len(opening)
        host_bits = (BORN_V6 if len(born_host) > 8 else 0) | (
            STORE_V6 if len(store_host) > 8 else 0
        )
        first = position = log.next_position
        shown: defaultdict[ConsumeQueue, list[bytes]] = defaultdict(list)
        key_hashes: list[int] = []
        key_positions: list[int] = []
        pieces: list[bytes] = []
        answers: list[bytes] = []
        keys: list[int] = []
        positions: list[int] = []
        entries: list[bytes] = []
        topic_name = group_name = origin = ""
        topic = usual_special = None
        owners: dict[ConsumeQueue, int] = {}
        try:
            for request in requests:
                header: SendMessage = request.ext  # type: ignore[assignment]  # A cast costs a call.
                if type(header) is not SendMessageV2 or request.flag & ONEWAY:
                    break
                if header.topic != topic_name or topic is None:
                    topic = sendable.get(header.topic)
                    if topic is None:
                        break
                    topic_name, queues, patterns = topic.name, topic.queues, topic.patterns
                    name_field, key_seed = topic.name_field, topic.key_seed
                    is_for_returns = topic_name[0] == "%"
                group = header.producer_group
                if group != group_name:
                    if len(group) > GROUP_CHARS_MAX or not group.isprintable():
                        break
                    group_name, usual_special, owners = group, None, {}
                    origin = self._clients.producer_id(group, connection)
                number, body = header.queue_id, request.body
                if (
                    not 0 <= number < len(queues)
                    or not 0 < len(body) <= body_max
                    or header.batch
                    or position > position_max
                ):
                    break
                queue = queues[number]
                data, unique, tags_code, hashes, special = read_properties(
                    header.properties or "", cluster, key_seed, new_key, patterns
                )
                sys_flag = header.sys_flag & CLIENTS_BITS | host_bits
                postmark = (
                    sys_flag, header.born_timestamp, born_host, now_ms, store_host,
                    header.reconsume_times or 0, 0,
                )  # fmt: skip
                tail = name_field + _length(len(data)) + data
                if special is None and not sys_flag & TRANSACTION_BITS:
                    offset = queue.next_offset
                    head, size = head_of(
                        number, header.flag, offset, position, postmark, body, len(tail)
                    )
                    checksum = crc32(tail, crc32(body, crc32(head)))
                    answer = sent_one(request, host_hex, position, number, offset, unique)
                    shown[queue].append(pack_entry(position, size, tags_code, checksum))
                    key_hashes += hashes
                    key_positions += (position,) * len(hashes)
                    queue.next_offset = offset + 1
                    topic.put_count += 1
                    topic.put_bytes += len(body)
                else:
                    key = hash(unique) & KEY_MASK
                    if special is None:
                        break
                    if special is not usual_special:  # Messages of one pattern share theirs.
                        if (
                            len(special) != 2
                            or not special.get("TRAN_MSG")
                            or not group
                            or special.get("PGROUP") != group
                        ):
                            break
                        usual_special = special
                    if (
                        sys_flag & TRANSACTION_BITS != PREPARED
                        or not has_room_for_halves
                        or is_for_returns
                        or len(data) > PROPERTIES_OF_HALF_MAX
                        or key in table
                        or key in opening
                        or key in recent
                        or key in older
                        or room <= 0
                    ):
                        break
                    offset = half_queue.next_offset
                    head, size = head_of(
                        number, header.flag, offset, position, postmark, body, len(tail)
                    )
                    checksum = crc32(tail, crc32(body, crc32(head)))
                    answer = sent_one(request, host_hex, position, number, offset, unique)
                    entries.append(pack_entry(position, size, tags_code, checksum ^ HIDDEN))
                    owner = owners.get(queue)
                    if owner is None:
                        owner = owners[queue] = pending.owner_of(queue, group, origin)
                    uses[owner] += 1
                    if len(hashes) == 2:  # A call without a star takes half the time.
                        one, other = hashes
                        packed = pack_two(
                            offset, position, size, tags_code, checksum, owner, 0, one, other, 0,
                            False,
                        )  # fmt: skip
                    else:
                        packed = layouts[len(hashes)].pack(
                            offset, position, size, tags_code, checksum, owner, 0, *hashes, 0, False
                        )
                    opening[key] = packed
                    keys.append(key)
                    positions.append(position)
                    half_queue.next_offset = offset + 1
                    room -= 1
                pieces += head, body, tail
                position += size
                answers.append(answer)
        except Exception:  # noqa: BLE001, S110 - this send is served alone next, and refused
            pass
        if answers:
            log.last_ms = now_ms
            log.staged += pieces
            log.next_position = position
            if keys:
                coordinator.tally.prepared += len(keys)
                halves.staged.append((keys, positions, b"".join(entries), 0))
            if shown:
                stage_entries(halves.queues, shown, first, key_hashes, key_positions)
        return answers
