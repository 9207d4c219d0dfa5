"""Scenarios that mostly wait, for timers inside third-party clients or for delayed messages: they
run at the same time, and each test reports the result of its own.
The C++ client shares out queues every 10 s, and gives a pull up 30 s after its connection broke.
Plays that measure times begin when all others are over.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Lock

import pytest

from tests.interop import interop_scenarios as scenarios
from tests.interop.interop_stage import Stage
from tests.servers import database_server, etcd_server
from tests.servers.broker_set import BrokerSet
from tests.servers.serving import BrokerProcess

AT_ONCE = 12
MEASURED_AT_ONCE = 5
KILL, STOP = BrokerProcess.kill, BrokerProcess.stop


@dataclass(frozen=True)
class PlayBroker:
    """A broker for a play, or one for all plays that name it."""

    flush: str = "sync"
    settings: tuple[str, ...] = ()
    is_shared: bool = False
    program: type[BrokerProcess] = BrokerProcess

    def start(self, folder):
        broker = self.program(folder, flush=self.flush, settings=self.settings)
        broker.start()
        return broker


@dataclass(frozen=True)
class PlaySet(PlayBroker):
    """A broker set of a play, with an etcd of its own."""

    def start(self, folder):
        return StartedSet(folder, self.settings)


class StartedSet:
    """The ``members`` of a running broker set, and its ``etcd``."""

    def __init__(self, folder, settings):
        with ExitStack() as stack:
            self.etcd = stack.enter_context(database_server.wanted(etcd_server.etcd_server))
            self.members = stack.enter_context(BrokerSet(folder, self.etcd.port, settings))
            self._undo = stack.pop_all()

    def close(self):
        self._undo.close()


@dataclass(frozen=True)
class Play:
    """A scenario, the names of its clients, its other arguments, and its broker; without one it
    runs on the broker that all tests share.
    """

    scenario: Callable
    clients: tuple[str, ...]
    more: tuple = ()
    broker: PlayBroker | None = None
    is_measured: bool = False

    @property
    def has_own_broker(self):
        return self.broker is not None and not self.broker.is_shared

    def on(self, stage, clients):
        self.scenario(stage, *clients, *self.more)

    def __str__(self):
        return " ".join((self.scenario.__name__, *self.clients))


def played(*casts, more=((),), broker=None, is_measured=False):
    """Make a test's function a play: one for each cast, which are names of clients, with each of
    the further arguments. The function receives a stage, the clients and those arguments.
    """

    def decorate(scenario):
        cases = [
            pytest.param(
                Play(scenario, tuple(cast), rest, broker, is_measured),
                id=" ".join(map(str, (*cast, *rest))),
            )
            for cast in casts
            for rest in more
        ]

        @pytest.mark.slow
        @pytest.mark.timeout(180)
        @pytest.mark.parametrize("play", cases, indirect=True)
        def test(play):
            play()

        test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
        return test

    return decorate


def members(sending, staying, passing, *flags):
    """Members come and go, on the broker that all tests share."""
    return Play(scenarios.members_come_and_go, (sending, staying, passing), flags)


def restart(sending, consuming, end, *verb):
    """A broker goes away and comes back; it flushes before it acknowledges."""
    more = end, *verb
    return Play(scenarios.restart_loses_nothing, (sending, consuming), more, PlayBroker())


def restarts(client):
    """A broker stop and a broker kill, for members of one kind."""
    return [
        pytest.param(restart(client, client, STOP), id="stop"),
        pytest.param(restart(client, client, KILL), id="kill"),
    ]


class Together:
    """What is played, each on a stage of its own."""

    def __init__(self, broker, new_folder):
        self._new_folder = new_folder
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._measured = ThreadPoolExecutor(MEASURED_AT_ONCE)
        self._going = {}
        self._later = {}
        self._brokers = {None: broker}
        self._starting = Lock()
        self._undo = ExitStack()

    def begin(self, play, clients):
        if play.is_measured:
            self._later[play] = clients
        elif play not in self._going:
            self._going[play] = self._pool.submit(self._run, play, clients, self._new_folder())

    def end(self, play):
        """Raises what it raised; waits for all that run now, which disturb what is measured."""
        wait(self._going.values())
        if play.is_measured:
            for measured_play, clients in self._later.items():
                folder = self._new_folder()
                self._going[measured_play] = self._measured.submit(
                    self._run, measured_play, clients, folder
                )
            self._later.clear()
        self._going[play].result()

    def _run(self, play, clients, folder):
        with ExitStack() as stack:
            if play.has_own_broker:
                broker = play.broker.start(folder / "broker")
                stack.callback(broker.close)
            else:
                broker = self._shared(play.broker)
            stage = Stage(broker, folder, str(play))
            stack.callback(stage.close)
            play.on(stage, clients)

    def _shared(self, wanted):
        with self._starting:
            if wanted not in self._brokers:
                broker = self._brokers[wanted] = wanted.start(self._new_folder())
                self._undo.callback(broker.close)
            return self._brokers[wanted]

    def close(self):
        for pool in (self._pool, self._measured):
            pool.shutdown(cancel_futures=True)
        self._undo.close()
