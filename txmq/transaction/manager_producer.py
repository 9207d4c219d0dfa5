"""The producer of a manager: what is decided is carried out by its resource, too."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Self

from txmq.client.client import Client
from txmq.errors import LocalProtocolError, ResourceError
from txmq.message import Message
from txmq.protocol import properties
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network
from txmq.runtime.tasks import Tasks
from txmq.transaction.manager_branch import Branch, Resource, Work
from txmq.transaction.producer import TransactionProducer
from txmq.transaction.settings import ManagerSettings
from txmq.transaction.state import LocalTransactionState

__all__ = ["ResourceProducer"]

log = logging.getLogger(__name__)


class ResourceProducer(TransactionProducer):
    """Has its resource end what it has prepared, and see to what others have left behind.

    Args:
        group: The producer group.
        names: The name servers, or a client to share.
        resource: The database, or several.
        branch: Their listener.
        settings: How it sends, runs, ends and answers.
        network: As for :class:`txmq.TransactionProducer`.
        clock: Likewise.
        entropy: Likewise.
    """

    _called: ClassVar[str] = "manager"

    def __init__(
        self,
        group: str,
        names: str | Client,
        resource: Resource[Any],
        branch: Branch[Any],
        settings: ManagerSettings,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        super().__init__(
            group, names, branch, settings, network=network, clock=clock, entropy=entropy
        )
        self._resource = resource
        self._beside = Tasks()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._beside.start(self._resource.attend(), f"recovery of group {self.group}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.client.session.owner.is_current:
            return
        try:
            # What is seen through meanwhile still keeps its connections.
            await super().__aexit__(kind, problem, trace)
        finally:
            await self._beside.stop()

    def _marks(self, message: Message) -> Mapping[str, str]:
        if properties.UNIQUE_KEY in message.properties:
            raise LocalProtocolError("a message of a manager is given its id, and brings none")
        return {properties.FENCE: self._resource.identity}

    def _left(self, arg: Work[Any]) -> LocalTransactionState:
        return arg.left

    async def _confirm(self, xid: str, state: LocalTransactionState) -> Exception | None:
        try:
            await self._resource.confirm(xid, state)
        except ResourceError as problem:
            log.warning("%s", problem)
            return problem
        return None
