"""The broker's identity: the name, cluster and address that records and routes carry."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from txmq.errors import ConfigError
from txmq.protocol.codes import SysFlag
from txmq.protocol.record import host_bytes, unique_id
from txmq.remoting.pool import split_address
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq_broker.config import HOW_TO_ADVERTISE, BrokerSettings

__all__ = ["Identity", "host_bits"]

_MONTH_MS = 31 * 24 * 3600 * 1000


_BORN_V6: Final = int(SysFlag.BORN_HOST_V6)
_STORE_V6: Final = int(SysFlag.STORE_HOST_V6)
_IPV4_BYTES: Final = 8


def host_bits(born_host: bytes, store_host: bytes) -> int:
    """The flags of a record that say which of its addresses are IPv6."""
    born = _BORN_V6 if len(born_host) > _IPV4_BYTES else 0
    return born | (_STORE_V6 if len(store_host) > _IPV4_BYTES else 0)


@dataclass(slots=True)
class Identity:
    """A broker's name and address."""

    name: str
    cluster: str
    address: str
    store_host: bytes
    message_size_max: int
    seed: int
    clock: Clock
    proof: str | None = None
    """Proves to name servers that this is the same broker, even at another address. It is derived
    from the identity of the log, so a copy of the directory is the same broker, and no other
    directory is."""
    broker_id: int = 0
    """The id among the replicas of this name; 0 is the leader's."""
    _ids_given: int = field(default=0)

    @classmethod
    def of(
        cls,
        settings: BrokerSettings,
        host: str,
        port: int,
        entropy: Entropy,
        clock: Clock,
        log_identity: str = "",
    ) -> Identity:
        """The identity of a broker that listens at an address.

        Raises:
            ConfigError: The advertised address is a name, or means every address of this machine.
        """
        shown_host, shown_port = (
            split_address(settings.advertise) if settings.advertise else (host, port)
        )
        try:
            packed = host_bytes(shown_host, shown_port)
        except ValueError as error:
            raise ConfigError(
                f"{shown_host!r} is not a numeric address; {HOW_TO_ADVERTISE}"
            ) from error
        if not any(packed[:-4]):
            raise ConfigError(f"{shown_host} is every address of this machine; {HOW_TO_ADVERTISE}")
        text = f"[{shown_host}]:{shown_port}" if ":" in shown_host else f"{shown_host}:{shown_port}"
        return cls(
            settings.name,
            settings.cluster,
            text,
            packed,
            settings.topics.message_size_max,
            entropy.below(2**31),
            clock,
            sha256(f"registration {log_identity}".encode()).hexdigest() if log_identity else None,
        )

    @property
    def cluster_property(self) -> str:
        """The property of stored messages that names the cluster, encoded."""
        return f"CLUSTER\x01{self.cluster}\x02"

    def unique_id(self) -> str:
        """An id for a message whose producer gave it none."""
        self._ids_given += 1
        address = self.store_host[:4]
        return unique_id(
            address,
            self._ids_given >> 16,
            self.seed,
            self.clock.wall_ms() % _MONTH_MS,
            self._ids_given,
        )
