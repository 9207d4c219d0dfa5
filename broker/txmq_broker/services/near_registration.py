"""A registration with a name server that the broker reaches without a connection."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

__all__ = ["NearRegistration"]


class NearRegistration(ABC):
    """Keeps a broker registered from :meth:`start` to :meth:`stop`; see ``Registrar`` for a
    registration with name servers elsewhere.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Repeat the registration periodically."""
        self._task = asyncio.create_task(self._keep_registering(), name="registration")

    @abstractmethod
    def changed(self) -> None:
        """Register changed topics."""

    def is_registered(self) -> bool:
        """True: the name server lives as long as the broker."""
        return True

    async def stop(self) -> None:
        """End the repetition."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @abstractmethod
    async def _keep_registering(self) -> None: ...
