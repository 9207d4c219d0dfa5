"""Find the brokers of a cluster, and ask one or all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from txmq.client.routes import MASTER
from txmq.client.session import Session
from txmq.client.values import BrokerInfo
from txmq.errors import (
    BrokerRefused,
    ConfigError,
    ConnectFailed,
    Effect,
    TransportError,
    TxmqError,
)
from txmq.message import Queue
from txmq.protocol.bodies import ClusterView, MessageQueue
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command
from txmq.protocol.headers import Header

__all__ = ["ClusterCalls", "queue_of"]


class ClusterCalls:
    """The base of all request classes: holds the session and finds the brokers to ask.

    Args:
        session: An open session.
    """

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

    async def _masters(
        self, *, broker: str | None = None, cluster: str | None = None
    ) -> dict[str, str]:
        """The addresses of masters by name: of one broker, one cluster, or the only cluster."""
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

    async def _master(self, broker: str) -> str:
        (address,) = (await self._masters(broker=broker)).values()
        return address

    async def _ask_broker(
        self,
        broker: str,
        code: RequestCode,
        header: Header | None = None,
        timeout_s: float | None = None,
    ) -> Command:
        address = await self._master(broker)
        return await self._session.request(address, code, header, timeout_s=timeout_s)

    async def _ask_masters(
        self,
        cluster: str | None,
        code: RequestCode,
        header: Header | None = None,
        *,
        unless: type[BrokerRefused] | tuple[()] = (),
    ) -> list[tuple[str, Command]]:
        """The addresses of a cluster's masters with their answers.

        Masters that refuse with ``unless`` are left out.
        """
        answers: list[tuple[str, Command]] = []
        for address in (await self._masters(cluster=cluster)).values():
            try:
                answers.append((address, await self._session.request(address, code, header)))
            except unless:
                continue
        return answers

    async def _change_each(
        self, masters: Mapping[str, str], change: Callable[[str, str], Awaitable[object]]
    ) -> None:
        """Make a change at each broker even if one fails, then raise the first error."""
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

    async def _send_each(
        self,
        masters: Mapping[str, str],
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
    ) -> None:
        """Send each broker the same change."""
        await self._change_each(
            masters, lambda _, address: self._session.request(address, code, header, body=body)
        )


def queue_of(wire_queue: MessageQueue) -> Queue:
    """A queue from a request or response body."""
    return Queue(wire_queue.topic, wire_queue.broker_name, wire_queue.queue_id)
