"""Lets requests in while this member certainly leads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, cast

from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command
from txmq.remoting.connection import Connection, RunService, Service
from txmq_broker.replication.held_leadership import HeldLeadership

__all__ = ["GatedService", "LeaderGate"]

_OF_FOLLOWERS: Final = frozenset(
    (RequestCode.FOLLOW_LOG, RequestCode.NOTE_COPIED, RequestCode.FETCH_SPANS)
)


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

    def lets_in(self, code: int) -> bool:
        """Whether a request of this code may be served now."""
        return self._is_certain() and (self.is_open or code in _OF_FOLLOWERS)

    def before(self, service: Service) -> Service:
        """The service behind this gate."""
        return GatedService(self, service)


class GatedService:
    """A service behind a gate; it takes the runs that the service takes."""

    def __init__(self, gate: LeaderGate, service: Service) -> None:
        self._gate = gate
        self._service = service
        self.run_codes: Collection[int] = getattr(service, "run_codes", ())

    def __call__(self, connection: Connection, request: Command, /) -> bytes | None:
        """The service's answer; none while the gate is closed."""
        if self._gate.lets_in(request.code):
            return self._service(connection, request)
        connection.abort()
        return None

    def serve_run(
        self, connection: Connection, requests: list[Command], answers: list[bytes], /
    ) -> None:
        """Have the service serve these; none is answered while the gate is closed."""
        if self._gate.lets_in(requests[0].code):
            cast("RunService", self._service).serve_run(connection, requests, answers)
        else:
            connection.abort()
