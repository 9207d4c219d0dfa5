"""What operators ask a txmq broker: its audit, its delayed messages, where its settings come from.

Apache RocketMQ answers "not supported".
"""

from __future__ import annotations

from typing import Final

from txmq.client.admin.cluster import ClusterCalls
from txmq.protocol import recall
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import RecallAnswer
from txmq.protocol.operations import (
    AuditedRequest,
    AuditPage,
    DelayedEntry,
    DelayedPage,
    ListAudit,
    ListDelayed,
    RecallDelayed,
    SettingEntry,
    SettingsView,
)

__all__ = ["OperationCalls"]

_AUDIT_PAGE: Final = 500
_DELAYED_PAGE: Final = 100
ALL_LEVELS: Final = -1


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
        address = await self._master(broker)
        found: list[AuditedRequest] = []
        while True:
            count = min(limit - len(found), _AUDIT_PAGE)
            wanted = ListAudit(before, since_ms, until_ms, person, action, refused, count)
            answer = await self._session.request(address, RequestCode.LIST_AUDIT, wanted)
            page = AuditPage.read(answer.body)
            found += page.entries
            before = page.next
            if not before or len(found) >= limit:
                return AuditPage(found, before)

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
        address = await self._master(broker)
        found: list[DelayedEntry] = []
        wanted_level = ALL_LEVELS if level is None else level
        while True:
            count = min(limit - len(found), _DELAYED_PAGE)
            wanted = ListDelayed(wanted_level, from_ms, after, count)
            answer = await self._session.request(address, RequestCode.LIST_DELAYED, wanted)
            page = DelayedPage.read(answer.body)
            found += page.messages
            after = page.next
            if not after or len(found) >= limit:
                return DelayedPage(found, page.levels, page.waiting, after)

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

    async def _master(self, broker: str) -> str:
        (address,) = (await self._masters(broker=broker)).values()
        return address
