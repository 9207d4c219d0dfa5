"""Lets requests in while this member certainly leads."""

from __future__ import annotations

from typing import Final

from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command
from txmq.remoting.connection import Connection, Service
from txmq_broker.services.held_leadership import HeldLeadership

__all__ = ["LeaderGate"]

_OF_FOLLOWERS: Final = frozenset((RequestCode.FOLLOW_LOG, RequestCode.NOTE_COPIED))


class LeaderGate:
    """The gate before a leader's requests.

    A request that comes too early or too late is not answered: its connection breaks, and the
    client looks for the leader again.

    Attributes:
        is_open: Whether clients are let in; followers always are.
    """

    def __init__(self, leadership: HeldLeadership) -> None:
        self._is_certain = leadership.is_certain
        self.is_open = False

    def before(self, service: Service) -> Service:
        """The service behind this gate."""

        def serve(connection: Connection, request: Command, /) -> bytes | None:
            if self._is_certain() and (self.is_open or request.code in _OF_FOLLOWERS):
                return service(connection, request)
            connection.abort()
            return None

        return serve
