"""What all consumers of a group are: members that hold queues while they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from txmq.client.cluster_client import ClusterClient, client_of
from txmq.client.consume.subscription import TopicSubscription
from txmq.client.consume.subscription_checks import SubscriptionChecks
from txmq.client.lifecycle import Lifecycle
from txmq.client.names import check_name
from txmq.client.settings import ConsumerSettings
from txmq.limits import GROUP_CHARS_MAX
from txmq.message import Queue
from txmq.protocol.bodies import ConsumerRegistration, HeldQueue
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network
from txmq.settings.values import settings_or

__all__ = ["GroupConsumer", "HeldQueues"]


class HeldQueues(Protocol):
    """The queues that a running consumer holds."""

    def rebalance_soon(self) -> None:
        """Rebalance soon."""
        ...

    def shown(self) -> dict[Queue, HeldQueue]:
        """The queues, for operators."""
        ...

    async def move(self, offsets: Mapping[Queue, int]) -> None:
        """Move held queues to other offsets."""
        ...


A = TypeVar("A", bound=HeldQueues)


class GroupConsumer(Lifecycle, Generic[A]):
    """A member of a consumer group, with a client of its own or a shared one."""

    def __init__(
        self,
        group: str,
        names: str | ClusterClient,
        settings: ConsumerSettings | None,
        network: Network | None,
        clock: Clock | None,
        entropy: Entropy | None,
    ) -> None:
        check_name("group", group, GROUP_CHARS_MAX)
        self.group = group
        self.settings: ConsumerSettings = settings_or(ConsumerSettings, settings)
        self.client: ClusterClient
        self.client, self._is_own = client_of(names, network, clock, entropy)
        self._subscription_checks = SubscriptionChecks(self.client, group)
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._version = 0
        self._assignment: A | None = None

    @property
    def is_open(self) -> bool:
        """Whether it runs."""
        return self._assignment is not None

    @property
    def needs(self) -> Sequence[Lifecycle]:
        """The client that it shares with others, if it does."""
        return () if self._is_own else (self.client,)

    def rebalance_soon(self) -> None:
        """Rebalance soon."""
        if self._assignment is not None:
            self._assignment.rebalance_soon()
            work = self._subscription_checks.look(self._subscriptions)
            self.client.tasks.start(work, f"a look at group {self.group}")

    def held(self) -> dict[Queue, HeldQueue]:
        """The queues that it holds, for operators."""
        return {} if self._assignment is None else self._assignment.shown()

    def _registration_of(
        self, consume_type: str, subscriptions: Mapping[str, TopicSubscription]
    ) -> ConsumerRegistration:
        return ConsumerRegistration(
            self.group,
            consume_type,
            "BROADCASTING" if self.settings.is_broadcast else "CLUSTERING",
            self.settings.start.value,
            [wanted.registration(self._version) for wanted in subscriptions.values()],
        )
