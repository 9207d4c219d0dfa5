"""The members of a group, as one broker lists them."""

from __future__ import annotations

from txmq.client.session import Session
from txmq.errors import ConsumerOffline, TopicNotFound, TxmqError
from txmq.protocol.bodies import ConsumerIds
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import GroupHeader

__all__ = ["members_of"]


async def members_of(group: str, topic: str, session: Session) -> list[str]:
    """The ids of a group's consumers, sorted, from one broker that has the topic.

    Raises:
        TopicNotFound: No broker has the topic.
        TransportError: No broker answers.
        BrokerRefused: A broker refuses, or lists no member.
    """
    route = await session.route(topic)
    brokers = route.brokers
    # Any broker is enough; use another one each time, because one may be down.
    first = session.entropy.below(len(brokers)) if brokers else 0
    error: TxmqError = TopicNotFound(f"topic {topic} has no queues")
    for step in range(len(brokers)):
        address = route.reader(brokers[(first + step) % len(brokers)])
        try:
            answer = await session.request(
                address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(group)
            )
        except TxmqError as failed:
            error = failed
            continue
        found = ConsumerIds.read(answer.body).consumer_id_list
        if found:
            # A client that lost its connection is listed twice until the broker notices. Counted
            # twice, it would leave a share of the queues without a consumer.
            return sorted(set(found))
        error = ConsumerOffline(f"{address} knows no consumer of {group}")
    session.forget(topic)
    raise error
