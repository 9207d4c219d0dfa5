"""Requests about single brokers: their settings, and whether clients may write to them."""

from __future__ import annotations

from collections.abc import Mapping

from txmq.client.admin.cluster import ClusterCalls
from txmq.errors import UsageError
from txmq.protocol import java as java_properties
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import NamedBroker, WritePermissionAnswer

__all__ = ["BrokerCalls"]


class BrokerCalls(ClusterCalls):
    """Requests about single brokers."""

    async def broker_config(self, broker: str) -> dict[str, str]:
        """The settings of a broker, under RocketMQ's names.

        Raises:
            ConfigError: The broker is unknown.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses.
            RemoteProtocolError: The answer is not a list of settings.
        """
        (address,) = (await self._masters(broker=broker)).values()
        answer = await self._session.request(address, RequestCode.GET_BROKER_CONFIG)
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
        await self._change_each(
            masters,
            lambda _, address: self._session.request(
                address, RequestCode.UPDATE_BROKER_CONFIG, body=body
            ),
        )
        return sorted(masters)

    async def forbid_writing(self, broker: str) -> dict[str, int]:
        """Make every name server withdraw the write permission of a broker's topics.

        Producers stop sending to the broker when they next read their routes, within 30 s by
        default. Consumers still read from it. The broker itself does not change, and takes what
        still reaches it. When it registers a change of any of its topics, all of them are writable
        again: name servers then take its topics as they are.

        Returns:
            The number of topics, by name server.

        Raises:
            ConfigError: The broker is unknown.
            TransportError: A name server does not answer; a note names those that made the change.
            BrokerRefused: A name server refuses; likewise.
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
