"""Runs a broker whose monotonic clock can be set ahead: what lasts a minute is over at once.

Called with settings, as KEY=VALUE. Each SIGUSR1 is one minute more; SIGTERM ends it.
"""

import asyncio
import signal
import sys

from txmq.runtime.clock import SystemClock
from txmq.settings.loading import load
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings

STEP_S = 61.0


class ClockAhead(SystemClock):
    """The machine's clocks, with a monotonic one that can be set ahead."""

    def __init__(self):
        self._ahead = 0.0

    def monotonic(self):
        """See :meth:`Clock.monotonic`."""
        return super().monotonic() + self._ahead

    def step(self):
        """Set it ahead."""
        self._ahead += STEP_S


async def serve(arguments):
    """Be a broker until SIGTERM."""
    clock, ended = ClockAhead(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, clock.step)
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    async with Broker(load(BrokerSettings, arguments=arguments), clock=clock):
        print("ready", flush=True)
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1:]))
