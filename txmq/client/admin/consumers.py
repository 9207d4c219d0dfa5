"""Requests that brokers pass on to one connected consumer."""

from __future__ import annotations

from typing import Final

import msgspec

from txmq.client.admin.cluster import ClusterCalls
from txmq.client.values import ConsumerReport, HandledMessage, HeldQueueReport
from txmq.errors import ConsumerOffline, RemoteProtocolError
from txmq.message import Queue, QueueOffset, ReceivedMessage
from txmq.protocol.bodies import (
    ConsumedDirectly,
    ConsumerConnections,
    ConsumerState,
    HeldQueue,
    read_with_queue_map,
)
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import ConsumeDirectly, GroupHeader
from txmq.protocol.record import split_offset_id

__all__ = ["ConsumerCalls"]

CALL_S: Final = 15.0
"""A broker waits 10 s for the consumer."""

_CONSUMED: Final = frozenset(("CR_SUCCESS", "CR_COMMIT"))
_PARTS: Final = ("properties", "subscriptionSet")


class ConsumerCalls(ClusterCalls):
    """Requests to one consumer, through its broker."""

    async def consumer_report(
        self, group: str, client: str, *, cluster: str | None = None
    ) -> ConsumerReport:
        """What a connected consumer reports about itself: its subscriptions and queues.

        Args:
            group: The group.
            client: The id of the client.
            cluster: The cluster, if there are several.

        Raises:
            ConsumerOffline: No broker has a connection of this client.
            ConsumeTimeout: The client does not answer the broker.
            ConfigError: The cluster is unknown, or must be named because there are several.
            TransportError: A broker does not answer.
            BrokerRefused: The broker refuses for another reason.
            RemoteProtocolError: The report cannot be read.
        """
        for address in (await self._masters(cluster=cluster)).values():
            if client in await self._consumers_at(address, group):
                break
        else:
            raise ConsumerOffline(f"no consumer {client} of group {group} is connected")
        header = ConsumeDirectly(group, client, jstack_enable=False)
        answer = await self._session.request(
            address, RequestCode.GET_CONSUMER_RUNNING_INFO, header, timeout_s=CALL_S
        )
        held, whole = read_with_queue_map(answer.body, "mqTable", HeldQueue)
        try:
            known = {name: whole[name] for name in _PARTS if whole.get(name)}
            state = msgspec.convert(known, ConsumerState, strict=False)
        except msgspec.ValidationError as error:
            raise RemoteProtocolError(f"the report of consumer {client}: {error}") from error
        started = state.properties.get("PROP_CONSUMER_START_TIMESTAMP", "")
        return ConsumerReport(
            client=client,
            is_orderly=state.properties.get("PROP_CONSUMEORDERLY", "").lower() == "true",
            started_ms=int(started) if started.isdecimal() else None,
            subscriptions={found.topic: found.sub_string for found in state.subscription_set},
            queues=tuple(
                HeldQueueReport(
                    Queue(queue.topic, queue.broker_name, queue.queue_id),
                    QueueOffset(entry.commit_offset),
                    entry.cached_msg_count,
                )
                for queue, entry in sorted(held.items())
            ),
        )

    async def consume_directly(
        self, group: str, message: ReceivedMessage, client: str | None = None
    ) -> HandledMessage:
        """Let one connected consumer handle a stored message now, whatever its offsets.

        The group's offsets do not change, and a failure does not make the message come again.

        Args:
            group: The group.
            message: The message.
            client: The id of the client; by default one of those that are connected.

        Raises:
            ConsumerOffline: No such consumer is connected to the broker that has the message.
            ConsumeTimeout: The consumer did not answer in time; it may still handle the message.
            TransportError: The broker does not answer; the consumer may have handled the message.
            BrokerRefused: The broker refuses for another reason.
        """
        address, _ = split_offset_id(message.offset_id)
        online = await self._consumers_at(address, group)
        if not online or (client is not None and client not in online):
            wanted = f"no consumer {client}" if client is not None else "no consumer"
            raise ConsumerOffline(f"{wanted} of group {group} is connected to the broker {address}")
        chosen = client if client is not None else online[0]
        header = ConsumeDirectly(group, chosen, message.offset_id)
        answer = await self._session.request(
            address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, timeout_s=CALL_S
        )
        done = ConsumedDirectly.read(answer.body)
        return HandledMessage(
            client=chosen,
            is_consumed=done.consume_result in _CONSUMED,
            result=done.consume_result,
            remark=done.remark,
            spent_ms=done.spent_time_mills,
        )

    async def _consumers_at(self, address: str, group: str) -> list[str]:
        """The ids of a group's consumers that are connected to one broker."""
        try:
            answer = await self._session.request(
                address, RequestCode.GET_CONSUMER_CONNECTION_LIST, GroupHeader(group)
            )
        except ConsumerOffline:
            return []
        found = ConsumerConnections.read(answer.body).connection_set
        return sorted({connection.client_id for connection in found})
