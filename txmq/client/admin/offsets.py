"""Minimum and maximum offsets of queues, and the committed offsets of groups."""

from __future__ import annotations

from typing import Final

from txmq.client.admin.cluster import ClusterCalls, queue_of
from txmq.client.values import OffsetMove
from txmq.errors import ConsumerOffline, NotFound
from txmq.message import Queue, QueueOffset
from txmq.protocol.bodies import read_queue_map
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import (
    CloneOffset,
    Header,
    OffsetAnswer,
    OffsetByTime,
    OffsetCommit,
    OffsetQuery,
    QueueHeader,
    ResetOffset,
)
from txmq.protocol.operations import SkipDamaged

__all__ = ["TO_THE_END", "OffsetCalls"]

TO_THE_END: Final = -1
"""The time that means "after the last message" when offsets are reset."""

AT_OR_AFTER: Final = "LOWER"
"""The boundary that asks for the first message stored at or after a time."""


class OffsetCalls(ClusterCalls):
    """Requests about offsets."""

    async def max_offset(self, queue: Queue) -> QueueOffset:
        """The offset the next message of a queue will have.

        Raises:
            TopicNotFound: The topic does not exist, or not on this broker.
            TransportError: No answer came.
            BrokerRefused: The broker refuses.
        """
        header = QueueHeader(queue.topic, queue.number)
        return await self._ask(queue, RequestCode.GET_MAX_OFFSET, header)

    async def min_offset(self, queue: Queue) -> QueueOffset:
        """The offset of the oldest message a queue still has.

        Raises:
            TopicNotFound: The topic does not exist, or not on this broker.
            TransportError: No answer came.
            BrokerRefused: The broker refuses.
        """
        header = QueueHeader(queue.topic, queue.number)
        return await self._ask(queue, RequestCode.GET_MIN_OFFSET, header)

    async def offset_by_time(self, queue: Queue, time_ms: int) -> QueueOffset:
        """The offset of the first message stored at or after a time, or the end of the queue.

        Before version 5, RocketMQ answers with the nearest message, which may be an older one.

        Raises:
            TopicNotFound: The topic does not exist, or not on this broker.
            TransportError: No answer came.
            BrokerRefused: The broker refuses.
        """
        header = OffsetByTime(queue.topic, queue.number, time_ms, AT_OR_AFTER)
        return await self._ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def committed_offset(self, group: str, queue: Queue) -> QueueOffset | None:
        """The offset a group committed for a queue, or ``None`` if it never did.

        Before version 5, RocketMQ returns 0 instead of "never" for a queue that still has its first
        message.

        Raises:
            TopicNotFound: The topic does not exist, or not on this broker.
            TransportError: No answer came.
            BrokerRefused: The broker refuses.
        """
        header = OffsetQuery(group, queue.topic, queue.number, set_zero_if_not_found=False)
        try:
            return await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except NotFound:
            return None

    async def commit_offset(self, group: str, queue: Queue, offset: int) -> None:
        """Store the offset of the next message a group will consume from a queue.

        Raises:
            TopicNotFound: The topic does not exist, or not on this broker.
            TransportError: No answer came; the subclass says whether the broker may have stored it.
            BrokerRefused: The broker refuses.
        """
        address = await self._session.address_of(queue)
        header = OffsetCommit(group, queue.topic, queue.number, offset)
        await self._session.request(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def reset_offset(
        self, group: str, topic: str, time_ms: int, *, force: bool = True
    ) -> dict[Queue, QueueOffset]:
        """Move a group to the messages stored at a time, and return its new offsets.

        If the group has connected consumers, the broker moves the group and notifies them.
        Otherwise this call writes the offsets.

        Args:
            group: The group.
            topic: The topic.
            time_ms: The time, or :data:`TO_THE_END`.
            force: Whether the group may move forward, past messages it has not consumed.

        Raises:
            TopicNotFound: No broker has the topic.
            TransportError: A broker does not answer. All others were asked as well: if some moved
                the group, a note of the error names them, and its effect is MAYBE.
            BrokerRefused: A broker refuses, with the same note and effect.
        """
        route = await self._session.fresh_route(topic)
        moved: dict[Queue, QueueOffset] = {}
        header = ResetOffset(topic, group, time_ms, force)

        async def reset(broker: str, _: str) -> None:
            try:
                answer = await self._session.request(
                    route.master(broker), RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header
                )
            except ConsumerOffline:
                for queue in route.readable:
                    if queue.broker == broker:
                        moved[queue] = await self._target(group, queue, time_ms, force=force)
                        await self.commit_offset(group, queue, moved[queue])
                return
            table = read_queue_map(answer.body, "offsetTable", int)
            for wire_queue, offset in table.items():
                queue = queue_of(wire_queue)
                moved[queue] = QueueOffset(offset)

        await self._change_each(dict.fromkeys(route.brokers, ""), reset)
        return dict(sorted(moved.items()))

    async def plan_reset(
        self, group: str, topic: str, time_ms: int, *, force: bool = True
    ) -> list[OffsetMove]:
        """The moves that :meth:`reset_offset` would make now, by queue; changes nothing.

        Args:
            group: The group.
            topic: The topic.
            time_ms: The time, or :data:`TO_THE_END`.
            force: Whether the group may move forward, past messages it has not consumed.

        Raises:
            TopicNotFound: No broker has the topic.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        route = await self._session.fresh_route(topic)
        return [
            OffsetMove(
                queue,
                await self.committed_offset(group, queue),
                await self._target(group, queue, time_ms, force=force),
            )
            for queue in sorted(route.readable)
        ]

    async def plan_clone(self, source: str, target: str, topic: str) -> list[OffsetMove]:
        """The moves of ``target`` that :meth:`clone_offsets` would make now; changes nothing.

        Raises:
            TopicNotFound: No broker has the topic.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        route = await self._session.fresh_route(topic)
        return [
            OffsetMove(queue, await self.committed_offset(target, queue), offset)
            for queue in sorted(route.readable)
            if (offset := await self.committed_offset(source, queue)) is not None
        ]

    async def clone_offsets(self, source: str, target: str, topic: str) -> None:
        """Give a group the offsets of another group in a topic.

        The group must have no connected consumers: they would commit their own offsets again.

        Args:
            source: The group to copy from.
            target: The group to copy to.
            topic: The topic.

        Raises:
            TopicNotFound: No broker has the topic.
            TransportError, BrokerRefused: As for :meth:`reset_offset`.
        """
        route = await self._session.fresh_route(topic)
        header = CloneOffset(source, target, topic, offline=True)
        await self._change_each(
            dict.fromkeys(route.brokers, ""),
            lambda broker, _: self._session.request(
                route.master(broker), RequestCode.CLONE_GROUP_OFFSET, header
            ),
        )

    async def skip_damaged(
        self,
        group: str,
        queue: Queue,
        offset: int,
        through: int | None = None,
        *,
        operator: str,
        reason: str,
    ) -> None:
        """Make a group skip a damaged message of a queue, or the damaged ones in a range.

        The group still receives the intact messages of the range, and its offset stays where it is:
        the next pull that reaches the damage continues after it. The broker's audit keeps the
        operator and the reason.

        Args:
            group: The group.
            queue: The queue.
            offset: The offset of the damaged message, the first one of the range.
            through: The last offset of the range; by default ``offset``.
            operator: Who decides.
            reason: Why.

        Raises:
            IllegalOperation: The message at ``offset`` is not damaged.
            InvalidParameter: The queue has no such messages, or operator or reason is missing.
            GroupNotFound: The group does not exist at the broker.
            TopicNotFound: The topic does not exist, or not on this broker.
            RequestNotSupported: The broker is not a txmq broker, or an older one.
            TransportError: No answer came; the subclass says whether the broker may have done it.
            BrokerRefused: The broker refuses for another reason.
        """
        address = await self._session.address_of(queue)
        last = offset if through is None else through
        header = SkipDamaged(group, queue.topic, queue.number, offset, last, operator, reason)
        await self._session.request(address, RequestCode.SKIP_DAMAGED, header)

    async def _target(self, group: str, queue: Queue, time_ms: int, *, force: bool) -> QueueOffset:
        if time_ms == TO_THE_END:
            target = await self.max_offset(queue)
        else:
            target = await self.offset_by_time(queue, time_ms)
        if not force:
            now = await self.committed_offset(group, queue)
            target = target if now is None else min(target, now)
        return target

    async def _ask(self, queue: Queue, code: int, header: Header) -> QueueOffset:
        address = await self._session.address_of(queue, reading=True)
        answer = await self._session.request(address, code, header)
        return QueueOffset(answer.read(OffsetAnswer).offset)
