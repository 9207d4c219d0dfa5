"""Owns scenarios that mostly wait for timers inside other people's clients: all that are wanted are
played at the same time, and each test is told how its own went.

The C++ client shares out queues every 10 s, and gives a pull up 30 s after its connection broke.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.interop import interop_scenarios as scenarios
from tests.interop.interop_stage import Stage
from tests.serving import BrokerProcess

AT_ONCE = 8
KILL, STOP = BrokerProcess.kill, BrokerProcess.stop


@dataclass(frozen=True)
class Play:
    """A scenario, the names of its clients, and what else it is told."""

    scenario: Callable
    clients: tuple[str, ...]
    more: tuple = ()
    has_own_broker: bool = False

    def on(self, stage, clients):
        self.scenario(stage, *clients, *self.more)

    def __str__(self):
        return " ".join((self.scenario.__name__, *self.clients))


def members(sending, staying, passing, *flags):
    """Members come and go, on the broker that all tests share."""
    return Play(scenarios.members_come_and_go, (sending, staying, passing), flags)


def restart(sending, consuming, end, *verb):
    """A broker goes away and comes back; it flushes before it acknowledges."""
    more = end, *verb
    return Play(scenarios.restart_loses_nothing, (sending, consuming), more, has_own_broker=True)


def restarts(client):
    """Both ways in which it goes, for members of one kind."""
    milder = () if client == "ours" else pytest.mark.soak
    return [
        pytest.param(restart(client, client, STOP), id="stop", marks=milder),
        pytest.param(restart(client, client, KILL), id="kill"),
    ]


class Together:
    """What is played, each on a stage of its own."""

    def __init__(self, broker, new_folder):
        self._broker = broker
        self._new_folder = new_folder
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._going = {}

    def begin(self, play, clients):
        if play not in self._going:
            self._going[play] = self._pool.submit(self._run, play, clients, self._new_folder())

    def end(self, play):
        """Raises what it raised; waits for all of them, for tests that measure come after them."""
        wait(self._going.values())
        self._going[play].result()

    def _run(self, play, clients, folder):
        with ExitStack() as stack:
            broker = self._broker
            if play.has_own_broker:
                broker = BrokerProcess(folder / "broker", flush="sync")
                stack.callback(broker.close)
                broker.start()
            stage = Stage(broker, folder, str(play))
            stack.callback(stage.close)
            play.on(stage, clients)

    def close(self):
        self._pool.shutdown(cancel_futures=True)
