"""Brokers of ours that answer as those of Apache RocketMQ 4.9.8 do about transactions.

There the topic of op messages has no settings, and neither has that of half messages before the
first round of checks, one minute after the first start. So no name server knows them, and a pull is
refused with code 17. The requests 30, 31, 321 and 33 look into the store and ask for no settings.
"""

from unittest.mock import patch

import msgspec

from txmq.errors import InternalError, RequestNotSupported, TopicNotFound
from txmq.protocol import command
from txmq.protocol.bodies import TopicConfigs
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import (
    MessagePosition,
    OffsetAnswer,
    PullMessage,
    QueueEntriesQuery,
    QueueHeader,
)
from txmq.protocol.topics import OP_TOPIC
from txmq_broker.names.routes import RouteRegistry

OF_OP_RECORD = 1 << 50
"""Our broker stores an op record and the message that it makes visible at one position, and 4.9.8
at two; so the positions of op records get a bit of their own.
"""


def hidden_from_names(brokers, topics):
    """While this is entered, no name server learns these topics from these brokers."""
    real = RouteRegistry.register

    def register(registry, who, offer, *rest):
        if who.broker_name in brokers:
            table = offer.topic_config_table
            kept = {name: table[name] for name in table if name not in topics}
            offer = TopicConfigs(offer.data_version, kept)
        return real(registry, who, offer, *rest)

    return patch.object(RouteRegistry, "register", register)


class RocketMQ49:
    """Takes over some requests to a running broker; the others have the same answers in 4.9.8.

    Attributes:
        entries_a_file: The entries in one file of an index, which bound an answer; 300,000 there.
        minimum: The smallest offset of a topic's queue 0, if retention has deleted earlier ones.
        deleted: Positions that the log no longer has, although an index may still name them.
        swapped: Positions whose record is shown at another one, by that one.
        refusals: What the broker raises instead of an answer, by request code.
    """

    def __init__(self, broker, hidden=(OP_TOPIC,)):
        self.broker, self.hidden = broker, hidden
        self.entries_a_file = 7
        self.minimum, self.deleted, self.swapped, self.refusals = {}, set(), {}, {}
        self._op_entries = {}
        ours = dict(broker._dispatch.handlers)

        def serve(code, handler):
            def served(connection, request):
                if code in self.refusals:
                    raise self.refusals[code]
                return handler(request) or ours[code](connection, request)

            broker._dispatch.serve({code: served})

        serve(RequestCode.PULL_MESSAGE, self.pull)
        serve(RequestCode.GET_MIN_OFFSET, self.oldest)
        serve(RequestCode.QUERY_CONSUME_QUEUE, self.entries)
        serve(RequestCode.VIEW_MESSAGE_BY_ID, self.by_position)
        serve(RequestCode.LIST_TRANSACTIONS, self.unknown)

    def unknown(self, request):
        raise RequestNotSupported(f" request type {request.code} not supported")

    def pull(self, request):
        topic = request.read(PullMessage).topic
        if topic in self.hidden:
            raise TopicNotFound(f"topic[{topic}] not exist, apply first please!")

    def oldest(self, request):
        minimum = self.minimum.get(request.read(QueueHeader).topic)
        return minimum and command.answer(request, 0, OffsetAnswer(minimum))

    def entries(self, request):
        header = request.read(QueueEntriesQuery)
        where = f"{header.queue_id}@{header.topic}"
        queue = self.broker.store.find_queue(header.topic, header.queue_id)
        if queue is None:
            raise InternalError(f"{where} is not exist!")
        low, high = self.minimum.get(header.topic, queue.min_offset), queue.max_offset
        start = header.index
        if not low <= start < high:
            # The answer is a success without a body, so it does not tell the bounds either.
            return command.answer(request, remark=f"Index {start} of {where} is not exist!")
        file_end = (start // self.entries_a_file + 1) * self.entries_a_file
        end = min(start + header.count, high, file_end)
        rows = []
        for entry in self._entries(queue, start, end):
            position, size, tags, _ = entry
            if header.topic == OP_TOPIC:
                position |= OF_OP_RECORD
                self._op_entries[position] = entry
            row = {"physicOffset": position, "physicSize": size, "tagsCode": tags}
            rows.append({"eval": False, **row})
        body = {"maxQueueIndex": high, "minQueueIndex": low, "queueData": rows}
        return command.answer(request, body=msgspec.json.encode(body))

    def by_position(self, request):
        position = request.read(MessagePosition).offset
        if position in self.deleted:
            raise InternalError(f"can not find message by the offset, {position}")
        entry = self._op_entries.get(self.swapped.get(position, position))
        if entry is None:
            return None
        store = self.broker.store
        data = store.halves.shown(store.find_queue(OP_TOPIC, 0), entry)
        return command.answer(request, body=data)

    def positions_of_op_records(self):
        queue = self.broker.store.find_queue(OP_TOPIC, 0)
        entries = self._entries(queue, queue.min_offset, queue.max_offset)
        return [entry[0] | OF_OP_RECORD for entry in entries]

    @staticmethod
    def _entries(queue, start, end):
        return [queue.read(at, 1)[0] for at in range(start, end)]
