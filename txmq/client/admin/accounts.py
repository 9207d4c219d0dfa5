"""List, create, change and remove the accounts of brokers."""

from __future__ import annotations

from collections.abc import Mapping

from txmq.client.admin.cluster import ClusterCalls
from txmq.protocol.codes import RequestCode
from txmq.protocol.operations import AccountChange, AccountName, Accounts

__all__ = ["AccountCalls"]


class AccountCalls(ClusterCalls):
    """Requests about accounts. A name server of its own has a file of its own."""

    async def accounts(self, broker: str) -> Accounts:
        """The accounts of a broker without their secrets, and the addresses that need no account.

        Raises:
            ConfigError: The broker is unknown.
            RequestNotSupported: The broker is a RocketMQ that cannot list accounts.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses, or has no accounts.
        """
        (address,) = (await self._masters(broker=broker)).values()
        answer = await self._session.request(address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
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
        """Create an account, or change one; what is ``None`` keeps its value.

        The secret travels as it is: use loopback or TLS.

        Args:
            key: The access key.
            secret: The secret key. A new account needs one, and Apache RocketMQ always.
            admin: Whether it may do everything.
            topics: ``PUB``, ``SUB``, ``PUB|SUB`` or ``DENY`` by topic.
            groups: ``SUB`` or ``DENY`` by consumer group.
            other_topics: The permission for all other topics.
            other_groups: The permission for all other groups.
            unsigned_from: From these addresses the account needs no signature.
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
        await self._change_each(
            await self._masters(broker=broker, cluster=cluster),
            lambda _, address: self._session.request(
                address, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, change
            ),
        )

    async def remove_account(
        self, key: str, *, broker: str | None = None, cluster: str | None = None
    ) -> None:
        """Remove an account; its clients are refused from the next request on.

        Raises:
            ConfigError: Broker or cluster is unknown, or must be named because there are several.
            TransportError, BrokerRefused: As for :meth:`put_account`.
        """
        await self._change_each(
            await self._masters(broker=broker, cluster=cluster),
            lambda _, address: self._session.request(
                address, RequestCode.DELETE_ACL_CONFIG, AccountName(key)
            ),
        )


def _joined(permissions: Mapping[str, str] | None) -> str | None:
    if permissions is None:
        return None
    return ",".join(f"{name}={permission}" for name, permission in permissions.items())
