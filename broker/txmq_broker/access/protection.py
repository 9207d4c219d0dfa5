"""Protects a server without accounts: the address of a peer decides what the peer may do.

Peers on loopback may do everything. Other peers may send the requests of clients, or register
brokers, if the settings name their address; they never get an operator's requests. The decision is
made once for each connection, so it adds no cost to requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from txmq.errors import NoPermission
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Dispatcher
from txmq.runtime.network import Network
from txmq.text import RepeatedLines
from txmq_broker.access.addresses import AddressPattern
from txmq_broker.access.audit import AUDITED, AuditLog
from txmq_broker.access.requirements import CLIENT_REQUESTS, REGISTRATIONS

__all__ = ["Protection", "Refusals", "access_text"]

log = logging.getLogger(__name__)

_ACCOUNTS: Final = "give the server accounts (--acl FILE)"


def access_text(*, has_accounts: bool, trust: str) -> str:
    """Describe to an operator who may use a server."""
    if has_accounts:
        return "accounts"
    return f"no accounts: loopback, clients of {trust}" if trust else "no accounts: loopback alone"


class Refusals:
    """Logs refused requests, and records those of operators; strangers cannot flood either record.

    Of identical refusals, only the 1st, 10th, 100th and so on are noted.

    Args:
        audit: Records refused requests of operators.

    Attributes:
        count: The refusals since the start.
    """

    def __init__(self, audit: AuditLog | None = None) -> None:
        self._audit = audit
        self._lines = RepeatedLines()
        self.count = 0

    def note(
        self, connection: Connection, request: Command, reason: str, *, kind: str = ""
    ) -> None:
        """Note a refusal.

        Args:
            connection: The connection of the request.
            request: The request.
            reason: Why it was refused.
            kind: Refusals of one kind count as identical; by default, those with the same reason.
                It must be given if the reason contains text that a stranger chose.
        """
        self.count += 1
        refusal = f"refused request {request.code} of {connection.host}: {reason}"
        times = self._lines.note(f"{request.code} {connection.host} {kind or reason}")
        if times is None:
            return
        log.warning("%s%s", refusal, times)
        if self._audit is not None and request.code in AUDITED:
            # Each entry costs a sync and takes up room, so a stranger must not cause many.
            self._audit.note(connection, request, refused=f"{reason}{times}")


class Protection:
    """Chooses the requests that the peers of a server without accounts may use.

    Args:
        network: Knows which addresses are loopback.
        trust: The addresses whose clients need no account.
        trust_brokers: The addresses whose brokers may register without an account.
        refusals: Notes refused requests.
    """

    def __init__(
        self,
        network: Network,
        trust: AddressPattern,
        trust_brokers: AddressPattern,
        refusals: Refusals,
    ) -> None:
        self._network = network
        self._trust = trust
        self._trust_brokers = trust_brokers
        self._refusals = refusals

    def announce(self, address: tuple[str, int]) -> None:
        """Log a warning if other machines can reach the address that this server listens on."""
        if not self._network.is_loopback(address[0]):
            who = access_text(has_accounts=False, trust=self._trust.text)
            log.warning("other machines may reach %s:%d; %s", *address, who)

    def requests_of(self, host: str) -> frozenset[int] | None:
        """The requests that a host may use; ``None`` if it may use all."""
        if self._network.is_loopback(host):
            return None
        clients = CLIENT_REQUESTS if self._trust.matches(host) else frozenset()
        return clients | (REGISTRATIONS if self._trust_brokers.matches(host) else frozenset())

    def over(self, whole: Dispatcher) -> Callable[[str], Dispatcher]:
        """A function that returns, for a host, the dispatcher of its requests."""
        limited: dict[frozenset[int], Dispatcher] = {}

        def dispatcher(host: str) -> Dispatcher:
            allowed = self.requests_of(host)
            if allowed is None:
                return whole
            found = limited.get(allowed)
            if found is None:
                found = limited[allowed] = self._limit(whole, allowed)
            return found

        return dispatcher

    def _limit(self, whole: Dispatcher, allowed: frozenset[int]) -> Dispatcher:
        def refuse(connection: Connection, request: Command) -> bytes | None:
            reason = _reason(request.code, has_clients=bool(allowed & CLIENT_REQUESTS))
            self._refusals.note(connection, request, reason)
            raise NoPermission(reason)

        handlers = whole.handlers
        return Dispatcher(
            {code: handlers[code] if code in allowed else refuse for code in handlers},
            on_error=whole.on_error,
        )


def _reason(code: int, *, has_clients: bool) -> str:
    request = RequestCode(code).name
    if code in REGISTRATIONS:
        return (
            f"protected mode refuses {request}, and nothing was changed: without accounts only "
            f"known hosts register brokers; {_ACCOUNTS}, or name the broker's host "
            "(--trust-brokers 10.0.0.7, or security.trust_brokers)"
        )
    if code in CLIENT_REQUESTS:
        return (
            f"protected mode refuses {request}, and nothing was changed: without accounts only "
            f"loopback and known networks are served; {_ACCOUNTS}, or name the network of your "
            "clients (--trust 10.0.0.0/24, or security.trust)"
        )
    who = "clients of your network do not administer" if has_clients else "only loopback is served"
    return (
        f"protected mode refuses {request}, and nothing was changed: without accounts {who}; "
        f"{_ACCOUNTS} to administer it from here"
    )
