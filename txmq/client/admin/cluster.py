"""Requests for the brokers of a cluster and their statistics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from txmq.client.routes import MASTER
from txmq.client.session import Session
from txmq.client.values import BrokerCopies, BrokerInfo, FollowerCopy, FormerMember
from txmq.errors import (
    BrokerRefused,
    ConfigError,
    ConnectFailed,
    Effect,
    TransportError,
    TxmqError,
)
from txmq.protocol.bodies import ClusterView, TextTable
from txmq.protocol.codes import RequestCode
from txmq.protocol.copies import CopiesView, SetChange, SetChanged

__all__ = ["ClusterCalls"]

_STORE_S: Final = 10.0
"""How long the store of a set may take; it may be several servers."""


class ClusterCalls:
    """Requests about brokers."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def cluster(self) -> list[BrokerInfo]:
        """Every broker the name server knows, by cluster and name.

        Raises:
            TransportError: No name server answers.
        """
        answer = await self._session.ask_names(RequestCode.GET_BROKER_CLUSTER_INFO)
        view = ClusterView.read(answer.body)
        clusters = {
            name: cluster for cluster, names in view.cluster_addr_table.items() for name in names
        }
        found = [
            BrokerInfo(name, entry.cluster or clusters.get(name, ""), dict(entry.broker_addrs))
            for name, entry in view.broker_addr_table.items()
        ]
        return sorted(found, key=lambda info: (info.cluster, info.name))

    async def broker_stats(self, broker: str, *, replica: int = MASTER) -> dict[str, str]:
        """A broker's own statistics, under RocketMQ's names.

        Args:
            broker: The broker.
            replica: The number of a replica that serves reads; by default the master.

        Raises:
            ConfigError: No such broker or replica is known.
            TransportError: Name server or broker does not answer.
            BrokerRefused: The broker refuses.
        """
        if replica == MASTER:
            (address,) = (await self._masters(broker=broker)).values()
        else:
            replicas = {info.name: info.addresses for info in await self.cluster()}.get(broker, {})
            if replica not in replicas:
                raise ConfigError(f"the name server knows no replica {replica} of {broker!r}")
            address = replicas[replica]
        answer = await self._session.request(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return TextTable.read(answer.body).table

    async def copies(self, broker: str) -> BrokerCopies:
        """The copies of a broker's log, from its leader.

        Raises:
            ConfigError: The broker is unknown.
            RequestNotSupported: The broker is not a txmq broker.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses.
        """
        (address,) = (await self._masters(broker=broker)).values()
        answer = await self._session.request(address, RequestCode.SHOW_COPIES)
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
            member: The member, by its whole name or the one in its settings.
            reason: Why; the set keeps it.
            operator: Who decides; the set keeps it.
            allow_refused_sends: Whether it may leave fewer than ``min_in_sync`` copies in sync.

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
        """Let a member back that was removed.

        Args:
            broker: The name of the set.
            member: The member, by its whole name or the one in its settings.
            reason: Why; the set keeps it.
            operator: Who decides; the set keeps it.

        Returns:
            The name in the member's settings.

        Raises:
            ConfigError: The broker is unknown.
            IllegalOperation: The member was not removed.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses for another reason.
        """
        return await self._change_set(broker, SetChange("rejoin", member, operator, reason))

    async def hand_over(self, broker: str, member: str, *, reason: str, operator: str) -> str:
        """Have the leader of a broker set hand over to a follower that is in sync.

        The leader answers what it has accepted before it hands over, so nothing is lost. The call
        returns when the store of the set has recorded the act, before the follower leads.

        Args:
            broker: The name of the set.
            member: The member, by its whole name or the one in its settings.
            reason: Why; the set keeps it.
            operator: Who decides; the set keeps it.

        Returns:
            The whole name of the member.

        Raises:
            ConfigError: The broker is unknown.
            InvalidParameter: The member is unknown.
            IllegalOperation: It leads already, is not in sync, or the set has no coordinator.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses for another reason.
        """
        return await self._change_set(broker, SetChange("hand-over", member, operator, reason))

    async def _change_set(self, broker: str, change: SetChange) -> str:
        (address,) = (await self._masters(broker=broker)).values()
        answer = await self._session.request(
            address, RequestCode.CHANGE_SET, change, timeout_s=_STORE_S
        )
        return answer.read(SetChanged).member

    async def _masters(
        self, *, broker: str | None = None, cluster: str | None = None
    ) -> dict[str, str]:
        # The addresses of masters by name: of one broker, of one cluster, or of the only cluster.
        known = await self.cluster()
        chosen = [
            info
            for info in known
            if (broker is None or info.name == broker)
            and (cluster is None or info.cluster == cluster)
        ]
        if not chosen:
            wanted = f"broker {broker!r}" if broker is not None else f"cluster {cluster!r}"
            names = ", ".join(f"{info.name} of {info.cluster}" for info in known) or "none"
            if broker is None and cluster is None:
                raise ConnectFailed("the name server knows no broker yet")
            raise ConfigError(f"{wanted} is unknown to the name server; it knows {names}")
        clusters = sorted({info.cluster for info in chosen})
        if len(clusters) > 1:
            raise ConfigError(f"there are several clusters, name one: {', '.join(clusters)}")
        masters = {info.name: info.addresses[MASTER] for info in chosen if MASTER in info.addresses}
        if not masters:
            raise ConnectFailed(f"no master is up among {', '.join(e.name for e in chosen)}")
        return masters

    async def _change_each(
        self, masters: Mapping[str, str], change: Callable[[str, str], Awaitable[object]]
    ) -> None:
        """Make a change at each broker, by name and address; a failure keeps no other from it."""
        failures: dict[str, TxmqError] = {}
        for name, address in masters.items():
            try:
                await change(name, address)
            except (BrokerRefused, TransportError) as error:
                failures[name] = error
        if not failures:
            return
        first = next(iter(failures.values()))
        if changed := [name for name in masters if name not in failures]:
            first.effect = Effect.MAYBE
            first.add_note(
                f"the change is in force at {', '.join(changed)}, but not at "
                f"{', '.join(failures)}; repeat it when they accept it"
            )
        raise first
