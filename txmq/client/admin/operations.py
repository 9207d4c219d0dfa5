"""What operators ask a txmq broker: its audit, its delayed messages, where its settings come from.

Apache RocketMQ answers "not supported".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Final, Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from txmq.client.admin.cluster import ClusterCalls
from txmq.protocol import recall
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import Header, RecallAnswer
from txmq.protocol.operations import (
    AuditPage,
    DelayedPage,
    ListAudit,
    ListDelayed,
    RecallDelayed,
    SettingEntry,
    SettingsView,
)

__all__ = ["OperationCalls"]

ALL_LEVELS: Final = -1

P = TypeVar("P", AuditPage, DelayedPage)


class _PagedList(NamedTuple, Generic[P]):
    """A list that brokers give in pages."""

    code: RequestCode
    page: type[P]
    rows_max: int
    """The rows of one page."""
    count: Callable[[P], int]


_AUDIT: Final = _PagedList(RequestCode.LIST_AUDIT, AuditPage, 500, lambda page: len(page.entries))
_DELAYED: Final = _PagedList(
    RequestCode.LIST_DELAYED, DelayedPage, 100, lambda page: len(page.messages)
)


class OperationCalls(ClusterCalls):
    """Requests of operators to one txmq broker."""

    async def audit(
        self,
        broker: str,
        *,
        since_ms: int = 0,
        until_ms: int = 0,
        person: str = "",
        action: str = "",
        refused: bool = False,
        limit: int = 100,
        before: str = "",
    ) -> AuditPage:
        """What operators did to a broker, newest first, and the place to go on at.

        Args:
            broker: The broker.
            since_ms: Only entries of this moment or later.
            until_ms: Only entries before this moment; 0 for all.
            person: Only entries whose account, operator or address contains this text.
            action: Only requests whose name contains this text, such as ``TOPIC``.
            refused: Only refused requests.
            limit: The maximum number of entries.
            before: The place to go on at, from the result of another call.

        Raises:
            ConfigError: The broker is unknown.
            InvalidParameter: The place is invalid.
            RequestNotSupported: The broker is not a txmq broker.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses.
        """

        def request(place: str, count: int) -> ListAudit:
            return ListAudit(place, since_ms, until_ms, person, action, refused, count)

        pages = [page async for page in self._pages(broker, _AUDIT, request, before, limit)]
        return replace(pages[-1], entries=[entry for page in pages for entry in page.entries])

    async def delayed(
        self,
        broker: str,
        *,
        level: int | None = None,
        from_ms: int = 0,
        limit: int = 100,
        after: str = "",
    ) -> DelayedPage:
        """The messages that wait at a broker, in order of their times, and the place to go on at.

        Args:
            broker: The broker.
            level: Only messages of this delay level, or with a time of their own for 0.
            from_ms: Only messages that are due then or later.
            limit: The maximum number of messages.
            after: The place to go on at, from the result of another call.

        Raises:
            ConfigError: The broker is unknown.
            InvalidParameter: The place is invalid.
            RequestNotSupported: The broker is not a txmq broker.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses.
        """

        def request(place: str, count: int) -> ListDelayed:
            return ListDelayed(ALL_LEVELS if level is None else level, from_ms, place, count)

        pages = [page async for page in self._pages(broker, _DELAYED, request, after, limit)]
        return replace(pages[-1], messages=[found for page in pages for found in page.messages])

    async def recall_delayed(self, topic: str, handle: str, *, operator: str, reason: str) -> str:
        """Recall a delayed message by hand; the broker's audit keeps the operator and the reason.

        Args:
            topic: Its topic.
            handle: Its recall handle, from its sender or from :meth:`delayed`.
            operator: Who decides.
            reason: Why.

        Returns:
            The message's id.

        Raises:
            IllegalOperation: The handle is invalid, or the message is already visible.
            InvalidParameter: Operator or reason is missing.
            ConfigError: The broker of the handle is unknown.
            TopicNotFound: The topic does not exist at the broker.
            RequestNotSupported: The broker is not a txmq broker.
            TransportError: The broker does not answer; it may have recalled the message.
            BrokerRefused: The broker refuses for another reason.
        """
        address = await self._master(recall.decode(handle).broker)
        wanted = RecallDelayed(topic, handle, operator, reason)
        answer = await self._session.request(address, RequestCode.RECALL_DELAYED, wanted)
        return answer.read(RecallAnswer).msg_id

    async def broker_settings(self, broker: str) -> list[SettingEntry]:
        """The settings of a broker with their defaults, and where their values come from.

        Raises:
            ConfigError: The broker is unknown.
            RequestNotSupported: The broker is not a txmq broker.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses.
        """
        address = await self._master(broker)
        answer = await self._session.request(address, RequestCode.SHOW_SETTINGS)
        return SettingsView.read(answer.body).settings

    async def _pages(
        self,
        broker: str,
        pages: _PagedList[P],
        request: Callable[[str, int], Header],
        place: str,
        limit: int,
    ) -> AsyncGenerator[P, None]:
        """The pages of a list from a place on, until they have as many rows as the limit."""
        address = await self._master(broker)
        left = limit
        while True:
            header = request(place, min(left, pages.rows_max))
            answer = await self._session.request(address, pages.code, header)
            page = pages.page.read(answer.body)
            yield page
            left -= pages.count(page)
            place = page.next
            if not place or left <= 0:
                return

    async def _master(self, broker: str) -> str:
        (address,) = (await self._masters(broker=broker)).values()
        return address
