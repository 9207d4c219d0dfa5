"""Who belongs to a group, as one broker has it."""

from __future__ import annotations

from txmq.client.session import Session
from txmq.errors import ConsumerOffline, TopicNotFound, TxmqError
from txmq.protocol.bodies import ConsumerIds
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import GroupHeader

__all__ = ["members_of"]


async def members_of(group: str, topic: str, session: Session) -> list[str]:
    """The ids of a group's consumers, sorted; some broker that has the topic says it.

    Raises:
        TopicNotFound: No broker has the topic.
        TransportError: Nobody says.
        BrokerRefused: A broker refuses, or names nobody.
    """
    route = await session.route(topic)
    brokers = route.brokers
    # Any will do; another one each time, as one of them may be down.
    first = session.entropy.below(len(brokers)) if brokers else 0
    problem: TxmqError = TopicNotFound(f"topic {topic} has no queues")
    for step in range(len(brokers)):
        address = route.reader(brokers[(first + step) % len(brokers)])
        try:
            answer = await session.request(
                address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(group)
            )
        except TxmqError as failed:
            problem = failed
            continue
        found = ConsumerIds.read(answer.body).consumer_id_list
        if found:
            # A client that lost its connection is listed twice until the broker has noticed; a
            # share of the queues would fall to nobody.
            return sorted(set(found))
        problem = ConsumerOffline(f"{address} knows nobody who consumes for {group}")
    session.forget(topic)
    raise problem
