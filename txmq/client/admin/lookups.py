"""Look up stored messages: by place in a log, by key, by the producer's id."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from txmq.client.admin.cluster import ClusterCalls
from txmq.client.received_message import opened
from txmq.client.values import BrokerInfo
from txmq.errors import LocalProtocolError, NotFound, RemoteProtocolError, TopicNotFound
from txmq.message import ReceivedMessage
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import fields_of
from txmq.protocol.headers import MessagePosition, MessageQuery
from txmq.protocol.record import split_offset_id, unpack, unpack_all

__all__ = ["LookupCalls"]

TIME_MAX: Final = 2**63 - 1

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""The field that marks the key as a message's id."""

UNIQUE_KEY_HITS: Final = 32
"""The maximum number of messages for one id, since a message may be sent again."""


class LookupCalls(ClusterCalls):
    """Requests about single messages."""

    async def view(self, offset_id: str) -> ReceivedMessage:
        """The message at the place that an offset id names.

        Raises:
            LocalProtocolError: The offset id is invalid.
            TransportError: The broker it names does not answer.
            BrokerRefused: No message is stored at that place.
        """
        try:
            address, position = split_offset_id(offset_id)
        except RemoteProtocolError as error:
            raise LocalProtocolError(str(error)) from error
        answer = await self._session.request(
            address, RequestCode.VIEW_MESSAGE_BY_ID, MessagePosition(position)
        )
        holders = [info.name for info in await self.cluster() if address in info.addresses.values()]
        return opened(unpack(answer.body)[0], holders[0] if holders else "")

    async def query(
        self, topic: str, key: str, *, count: int = 64, begin_ms: int = 0, end_ms: int = TIME_MAX
    ) -> list[ReceivedMessage]:
        """The messages of a topic that carry a key, oldest first.

        Args:
            topic: The topic.
            key: The key.
            count: The maximum number of messages from each broker.
            begin_ms: Stored at this time or later.
            end_ms: Stored at this time or earlier.

        Raises:
            TopicNotFound: No broker has the topic.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        header = fields_of(MessageQuery(topic, key, count, begin_ms, end_ms))
        found = await self._query(topic, header)
        # Brokers look up by hash; drop messages whose key only has the same hash.
        return [message for message in found if key in message.keys]

    async def find(self, topic: str, message_id: str) -> ReceivedMessage:
        """The message with a producer's id; the first one if it was sent twice.

        Raises:
            NotFound: No broker has it.
            TopicNotFound: No broker has the topic.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        header = fields_of(MessageQuery(topic, message_id, UNIQUE_KEY_HITS, 0, TIME_MAX))
        header[UNIQUE_KEY_QUERY] = "true"
        for message in await self._query(topic, header):
            if message.id == message_id:
                return message
        raise NotFound(f"topic {topic} has no message {message_id}")

    async def search(
        self, topic: str, text: str, brokers: Iterable[BrokerInfo], *, count: int = 32
    ) -> list[ReceivedMessage]:
        """The messages of a topic that have a text as a key or as their id, oldest first.

        It asks the brokers without looking for the topic's route, so a search of very many topics
        neither asks name servers nor keeps their routes.

        Args:
            topic: The topic; brokers without it have no such message.
            text: A whole key, or a producer's id.
            brokers: The brokers to ask, from :meth:`cluster`.
            count: The maximum number of messages from each broker.

        Raises:
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        header = MessageQuery(topic, text, count, 0, TIME_MAX)
        found: list[ReceivedMessage] = []
        for broker in brokers:
            address = broker.addresses[min(broker.addresses)]
            try:
                answer = await self._session.request(address, RequestCode.QUERY_MESSAGE, header)
            except (NotFound, TopicNotFound):
                continue
            # Brokers look up by hash; drop messages whose key only has the same hash.
            found += [
                message
                for message in (opened(record, broker.name) for record in unpack_all(answer.body))
                if text in message.keys or text == message.id
            ]
        return sorted(found, key=lambda message: message.stored_ms)

    async def _query(self, topic: str, header: dict[str, str]) -> list[ReceivedMessage]:
        route = await self._session.route(topic)
        found: list[ReceivedMessage] = []
        for broker in route.brokers:
            address = route.reader(broker)
            try:
                answer = await self._session.request(address, RequestCode.QUERY_MESSAGE, header)
            except NotFound:
                continue
            found += [opened(record, broker) for record in unpack_all(answer.body)]
        return sorted(found, key=lambda message: (message.stored_ms, message.queue, message.offset))
