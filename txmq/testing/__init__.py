"""Simulated time, network, disks and machines: tests that are fast, ruthless and repeatable.

Give your program the ports of a simulated machine instead of the real ones, and inject faults. One
seed decides all random choices, and the same seed gives the same run::

    from txmq.testing import World, simulate

    async def scenario(world: World) -> None:
        server = world.machine("server")
        client = world.machine("client")
        server.run(serve(server.network, server.disk, server.clock))
        asking = client.run(ask(client.network, "server", 9876))

        world.network.partition("client", "server")
        await asyncio.sleep(60)            # virtual: no time passes outside
        world.network.heal()

        server.crash()                     # power cut: unsynced bytes may be lost
        server.restart()
        server.run(serve(server.network, server.disk, server.clock))
        assert await asking == "answer"

    def test_the_client_survives_it_all():
        for seed in range(100):
            simulate(scenario, seed)

After a restart, get ``network`` and ``disk`` from the machine again: the old ports are dead.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from txmq.settings.extras import named_extra
from txmq.testing.device import DiskEvent
from txmq.testing.disk import MemoryDisk, power_cuts
from txmq.testing.entropy import SeededEntropy
from txmq.testing.failures import (
    DeadlockError,
    LeakedTaskError,
    LivelockError,
    MachineCrashedError,
    NotRepeatableError,
    PowerCut,
    RealWorldError,
    SimulationError,
    StaleHandleError,
    UnhandledError,
    VirtualTimeoutError,
)
from txmq.testing.loop import SimulatedLoop
from txmq.testing.machine import Machine, SimulatedClock
from txmq.testing.network import HostNetwork, SimulatedNetwork
from txmq.testing.pages import Loss
from txmq.testing.trace import Trace
from txmq.testing.transport import SimulatedTransport
from txmq.testing.wire import Conditions
from txmq.testing.world import World, simulate

if TYPE_CHECKING:
    from txmq.testing.deliveries import Deliveries, received
    from txmq_broker.app import Broker
    from txmq_broker.config import BrokerSettings
    from txmq_broker.testing import BrokerThread, embedded, settings_for_test

__all__ = [
    "Broker",
    "BrokerSettings",
    "BrokerThread",
    "Conditions",
    "DeadlockError",
    "Deliveries",
    "DiskEvent",
    "HostNetwork",
    "LeakedTaskError",
    "LivelockError",
    "Loss",
    "Machine",
    "MachineCrashedError",
    "MemoryDisk",
    "NotRepeatableError",
    "PowerCut",
    "RealWorldError",
    "SeededEntropy",
    "SimulatedClock",
    "SimulatedLoop",
    "SimulatedNetwork",
    "SimulatedTransport",
    "SimulationError",
    "StaleHandleError",
    "Trace",
    "UnhandledError",
    "VirtualTimeoutError",
    "World",
    "embedded",
    "power_cuts",
    "received",
    "settings_for_test",
    "simulate",
]

_LATER: Final = {
    "Broker": "txmq_broker.app",
    "BrokerSettings": "txmq_broker.config",
    "BrokerThread": "txmq_broker.testing",
    "Deliveries": "txmq.testing.deliveries",
    "embedded": "txmq_broker.testing",
    "received": "txmq.testing.deliveries",
    "settings_for_test": "txmq_broker.testing",
}
"""Imported when first used: a simulation of other programs needs no broker."""


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with named_extra("broker"):
        found = globals()[name] = getattr(import_module(_LATER[name]), name)
    return found


def __dir__() -> list[str]:
    return __all__
