"""Requests to brokers: figures, settings, members, accounts, audit and delayed messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from txmq.client.admin.cluster import ClusterCalls
from txmq.client.routes import MASTER
from txmq.client.values import BrokerCopies, FollowerCopy, FormerMember
from txmq.errors import ConfigError, UsageError
from txmq.protocol import java as java_properties
from txmq.protocol import recall
from txmq.protocol.bodies import TextTable
from txmq.protocol.codes import RequestCode
from txmq.protocol.copies import CopiesView, SetChange, SetChanged
from txmq.protocol.headers import NamedBroker, RecallAnswer, WritePermissionAnswer
from txmq.protocol.operations import (
    AccountChange,
    AccountName,
    Accounts,
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

__all__ = ["BrokerCalls"]

_STORE_S: Final = 10.0
"""Timeout for a change of a broker set, whose store may consist of several servers."""

_ALL_LEVELS: Final = -1
_AUDIT_PAGE: Final = 500
_DELAYED_PAGE: Final = 100


class BrokerCalls(ClusterCalls):
    """Requests to single brokers; Apache RocketMQ refuses some as not supported."""

    async def broker_stats(self, broker: str, *, replica: int = MASTER) -> dict[str, str]:
        """A broker's own statistics, under RocketMQ's names.

        Args:
            broker: The broker.
            replica: The number of a replica that serves reads; by default the master.

        Raises:
            ConfigError: No such broker or replica is known.
            TransportError: The name server or the broker does not answer.
            BrokerRefused: The broker refuses.
        """
        if replica == MASTER:
            address = await self._master(broker)
        else:
            replicas = {info.name: info.addresses for info in await self.cluster()}.get(broker, {})
            if replica not in replicas:
                raise ConfigError(f"the name server knows no replica {replica} of {broker!r}")
            address = replicas[replica]
        answer = await self._session.request(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return TextTable.read(answer.body).table

    async def broker_config(self, broker: str) -> dict[str, str]:
        """The settings of a broker, under RocketMQ's names.

        Raises:
            ConfigError: The broker is unknown.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses.
            RemoteProtocolError: The answer is not a list of settings.
        """
        answer = await self._ask_broker(broker, RequestCode.GET_BROKER_CONFIG)
        return java_properties.loads(answer.body)

    async def change_broker_config(
        self,
        changes: Mapping[str, str],
        *,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Change settings of brokers while they run, under RocketMQ's names.

        A txmq broker keeps the change until it stops. RocketMQ also writes it to its file.

        Args:
            changes: The new values.
            broker: The broker to change; by default, all of the cluster.
            cluster: The cluster, if there are several.

        Returns:
            The names of the changed brokers.

        Raises:
            UsageError: There is nothing to change.
            NoPermission: A broker cannot change one of the settings while it runs.
            ConfigError: Broker or cluster is unknown, or must be named because there are several.
            TransportError: A broker did not answer; it may have made the change.
            BrokerRefused: A broker refuses a value. All others were asked as well: a note of the
                error names those that made the change, and its effect is MAYBE.
        """
        if not changes:
            raise UsageError("there is no setting to change")
        body = java_properties.dumps(changes)
        masters = await self._masters(broker=broker, cluster=cluster)
        await self._send_each(masters, RequestCode.UPDATE_BROKER_CONFIG, body=body)
        return sorted(masters)

    async def broker_settings(self, broker: str) -> list[SettingEntry]:
        """The settings of a broker with their defaults, and where their values come from.

        Raises:
            ConfigError: The broker is unknown.
            RequestNotSupported: The broker is not a txmq broker.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses.
        """
        answer = await self._ask_broker(broker, RequestCode.SHOW_SETTINGS)
        return SettingsView.read(answer.body).settings

    async def forbid_writing(self, broker: str) -> dict[str, int]:
        """Make every name server withdraw the write permission of a broker's topics.

        Producers stop sending to the broker when they next refresh their routes, within 30 s by
        default. Consumers still read from it. The broker itself does not change, and accepts
        messages that still reach it. When it next registers a change of any topic, all its topics
        are writable again: the name servers then adopt the permissions that the broker reports.

        Returns:
            The number of topics, by name server.

        Raises:
            ConfigError: The broker is unknown.
            TransportError: A name server does not answer; a note names those that made the change.
            BrokerRefused: A name server refuses, with the same note.
        """
        return await self._set_writing(broker, RequestCode.WIPE_WRITE_PERM_OF_BROKER)

    async def allow_writing(self, broker: str) -> dict[str, int]:
        """Make every name server permit reads and writes of all topics of a broker.

        That includes topics that had no write permission before :meth:`forbid_writing`: name
        servers do not remember them.

        Returns:
            The number of topics, by name server.

        Raises:
            ConfigError, TransportError, BrokerRefused: As for :meth:`forbid_writing`.
        """
        return await self._set_writing(broker, RequestCode.ADD_WRITE_PERM_OF_BROKER)

    async def _set_writing(self, broker: str, code: RequestCode) -> dict[str, int]:
        await self._masters(broker=broker)  # A name server answers 0 topics for any name.
        changed: dict[str, int] = {}

        async def change(_: str, address: str) -> None:
            answer = await self._session.request(address, code, NamedBroker(broker))
            count = answer.read(WritePermissionAnswer)
            changed[address] = (count.wipe_topic_count or 0) + (count.add_topic_count or 0)

        await self._change_each({name: name for name in self._session.names}, change)
        return changed

    async def copies(self, broker: str) -> BrokerCopies:
        """The copies of a broker's log, from its leader.

        Raises:
            ConfigError: The broker is unknown.
            RequestNotSupported: The broker is not a txmq broker.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses.
        """
        answer = await self._ask_broker(broker, RequestCode.SHOW_COPIES)
        view = CopiesView.read(answer.body)
        followers = tuple(
            FollowerCopy(
                member=entry.member,
                address=entry.address,
                in_sync=entry.is_in_sync,
                position=entry.position,
                bytes_behind=entry.bytes_behind,
                seconds_behind=entry.seconds_behind,
                is_longer=entry.is_longer,
                damaged_parts=entry.damaged_parts,
                verified_ms=entry.verified_ms,
            )
            for entry in view.followers
        )
        return BrokerCopies(
            broker=broker,
            leader=view.member,
            epoch=view.epoch,
            mode=view.mode,
            min_in_sync=view.min_in_sync,
            log_end=view.log_end,
            followers=followers,
            removed=tuple(
                FormerMember(member.name, member.operator, member.reason, member.at_ms)
                for member in view.removed
            ),
            damaged_parts=view.damaged_parts,
            verified_ms=view.verified_ms,
        )

    async def remove_member(
        self,
        broker: str,
        member: str,
        *,
        reason: str,
        operator: str,
        allow_refused_sends: bool = False,
    ) -> str:
        """Remove a member from a broker set: it may neither follow nor lead.

        Args:
            broker: The name of the set.
            member: The member, by its full name or by the name in its settings.
            reason: Why; the set keeps it.
            operator: Who decides; the set keeps it.
            allow_refused_sends: Remove it even if fewer than ``min_in_sync`` copies stay in sync,
                so that the leader refuses sends.

        Returns:
            The name in the member's settings.

        Raises:
            ConfigError: The broker is unknown.
            InvalidParameter: The member is unknown.
            IllegalOperation: It leads, or too few copies would be in sync.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses for another reason.
        """
        change = SetChange("remove", member, operator, reason, allow_refused_sends)
        return await self._change_set(broker, change)

    async def rejoin_member(self, broker: str, member: str, *, reason: str, operator: str) -> str:
        """Let a removed member follow its set again.

        Args, Returns: As for :meth:`remove_member`.

        Raises:
            ConfigError: The broker is unknown.
            IllegalOperation: The member was not removed.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses for another reason.
        """
        return await self._change_set(broker, SetChange("rejoin", member, operator, reason))

    async def hand_over(self, broker: str, member: str, *, reason: str, operator: str) -> str:
        """Make the leader of a broker set hand over to an in-sync follower.

        The leader first answers every request that it has accepted, so nothing is lost. The call
        returns when the store of the set has recorded the hand-over, before the follower leads.

        Args: As for :meth:`remove_member`.

        Returns:
            The member's full name.

        Raises:
            ConfigError: The broker is unknown.
            InvalidParameter: The member is unknown.
            IllegalOperation: The member already leads or is not in sync, or the set has no
                coordinator.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses for another reason.
        """
        return await self._change_set(broker, SetChange("hand-over", member, operator, reason))

    async def _change_set(self, broker: str, change: SetChange) -> str:
        answer = await self._ask_broker(broker, RequestCode.CHANGE_SET, change, _STORE_S)
        return answer.read(SetChanged).member

    async def accounts(self, broker: str) -> Accounts:
        """The accounts of a broker without their secrets, and the addresses that need no account.

        Raises:
            ConfigError: The broker is unknown.
            RequestNotSupported: The broker is a RocketMQ that cannot list accounts.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses, or has no accounts.
        """
        answer = await self._ask_broker(broker, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
        return Accounts.read(answer.body)

    async def put_account(
        self,
        key: str,
        secret: str | None = None,
        *,
        admin: bool = False,
        topics: Mapping[str, str] | None = None,
        groups: Mapping[str, str] | None = None,
        other_topics: str | None = None,
        other_groups: str | None = None,
        unsigned_from: str | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create or change an account; arguments that are ``None`` keep the current value.

        The secret is sent in plain text: use loopback or TLS.

        Args:
            key: The access key.
            secret: The secret key. A new account needs one; Apache RocketMQ needs it for every
                change.
            admin: Whether the account may do everything.
            topics: ``PUB``, ``SUB``, ``PUB|SUB`` or ``DENY`` by topic.
            groups: ``SUB`` or ``DENY`` by consumer group.
            other_topics: The permission for all other topics.
            other_groups: The permission for all other groups.
            unsigned_from: Addresses from which the account's requests need no signature.
            broker: The broker to change it on; by default, all of the cluster.
            cluster: The cluster, if there are several.

        Raises:
            ConfigError: Broker or cluster is unknown, or must be named because there are several.
            TransportError: A broker did not answer; it may have changed the account.
            BrokerRefused: A broker refuses. All others were asked as well: if some changed the
                account, a note of the error names them, and its effect is MAYBE.
        """
        change = AccountChange(
            key,
            secret,
            unsigned_from,
            admin,
            other_topics,
            other_groups,
            _joined(topics),
            _joined(groups),
        )
        await self._send_each(
            await self._masters(broker=broker, cluster=cluster),
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
            change,
        )

    async def remove_account(
        self, key: str, *, broker: str | None = None, cluster: str | None = None
    ) -> None:
        """Remove an account; the brokers refuse its clients from their next request on.

        Raises:
            ConfigError: Broker or cluster is unknown, or must be named because there are several.
            TransportError, BrokerRefused: As for :meth:`put_account`.
        """
        await self._send_each(
            await self._masters(broker=broker, cluster=cluster),
            RequestCode.DELETE_ACL_CONFIG,
            AccountName(key),
        )

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
        """What operators did to a broker, newest first, and the place to continue from.

        Args:
            broker: The broker.
            since_ms: Only entries at or after this time.
            until_ms: Only entries before this time; 0 for no limit.
            person: Only entries whose account, operator or address contains this text.
            action: Only requests whose name contains this text, such as ``TOPIC``.
            refused: Only refused requests.
            limit: The maximum number of entries.
            before: The place to continue from, as returned by an earlier call.

        Raises:
            ConfigError: The broker is unknown.
            InvalidParameter: The place is invalid.
            RequestNotSupported: The broker is not a txmq broker.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses.
        """
        address = await self._master(broker)
        header = ListAudit(before, since_ms, until_ms, person, action, refused)
        entries: list[AuditedRequest] = []
        while True:
            header.count = min(limit - len(entries), _AUDIT_PAGE)
            answer = await self._session.request(address, RequestCode.LIST_AUDIT, header)
            page = AuditPage.read(answer.body)
            entries += page.entries
            header.before = page.next
            if not page.next or len(entries) >= limit:
                return replace(page, entries=entries)

    async def delayed(
        self,
        broker: str,
        *,
        level: int | None = None,
        from_ms: int = 0,
        limit: int = 100,
        after: str = "",
    ) -> DelayedPage:
        """A broker's delayed messages by due time, and the place to continue from.

        Args:
            broker: The broker.
            level: Only messages of this delay level; 0 for messages with an explicit delivery time.
            from_ms: Only messages due at or after this time.
            limit: The maximum number of messages.
            after: The place to continue from, as returned by an earlier call.

        Raises:
            ConfigError: The broker is unknown.
            InvalidParameter: The place is invalid.
            RequestNotSupported: The broker is not a txmq broker.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses.
        """
        address = await self._master(broker)
        header = ListDelayed(_ALL_LEVELS if level is None else level, from_ms, after)
        messages: list[DelayedEntry] = []
        while True:
            header.count = min(limit - len(messages), _DELAYED_PAGE)
            answer = await self._session.request(address, RequestCode.LIST_DELAYED, header)
            page = DelayedPage.read(answer.body)
            messages += page.messages
            header.after = page.next
            if not page.next or len(messages) >= limit:
                return replace(page, messages=messages)

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
        wanted = RecallDelayed(topic, handle, operator, reason)
        broker = recall.decode(handle).broker
        answer = await self._ask_broker(broker, RequestCode.RECALL_DELAYED, wanted)
        return answer.read(RecallAnswer).msg_id


def _joined(permissions: Mapping[str, str] | None) -> str | None:
    if permissions is None:
        return None
    return ",".join(f"{name}={permission}" for name, permission in permissions.items())
