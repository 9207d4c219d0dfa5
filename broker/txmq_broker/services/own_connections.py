"""The connections of this process to other servers; account and TLS come from the environment."""

from __future__ import annotations

from txmq.remoting.pool import ConnectionPool
from txmq.runtime.clock import Clock
from txmq.runtime.network import Network
from txmq.security.credentials import load_credentials
from txmq.security.tls import client_context, load_tls

__all__ = ["own_connections"]


def own_connections(network: Network, clock: Clock) -> ConnectionPool:
    """A pool that signs and encrypts as the environment variables say.

    Raises:
        ConfigError: A variable of the environment is invalid.
    """
    return ConnectionPool(
        network, clock, credentials=load_credentials(), tls=client_context(load_tls())
    )
