"""Owns the fixtures: our client and two third-party ones, brokers, and one stage per test."""

import contextlib

import pytest

from tests.interop.interop_clients import (
    SharedSenders,
    prepare_cpp,
    prepare_ons,
    prepare_txmq,
)
from tests.interop.interop_stage import Stage
from tests.interop.interop_together import Play, PlaySet, Together
from tests.servers.serving import BrokerProcess
from tools.packages import Unprepared


@pytest.fixture(scope="session")
def cpp():
    return prepare_cpp()


@pytest.fixture(scope="session")
def ons():
    return prepare_ons()


@pytest.fixture(scope="session")
def ours():
    return prepare_txmq()


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory):
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker
    broker.close()


@pytest.fixture(scope="session")
def shared_senders(shared_broker, tmp_path_factory):
    with contextlib.closing(
        SharedSenders(shared_broker.names, tmp_path_factory.mktemp("senders"))
    ) as senders:
        yield senders


@pytest.fixture
def stage(shared_broker, shared_senders, together, tmp_path, request):
    """A stage on the broker that all tests share; names keep them apart. Plays run in parallel."""
    stage = Stage(shared_broker, tmp_path, request.node.name, shared_senders)
    yield stage
    stage.close()


@pytest.fixture(scope="session")
def together(request, shared_broker, tmp_path_factory):
    """All plays of the tests that will run, begun with the first test that has a stage."""
    running = Together(shared_broker, lambda: tmp_path_factory.mktemp("play"))
    chosen = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    plays = [candidate.params.get("play") for candidate in chosen]
    plays = [candidate for candidate in plays if isinstance(candidate, Play)]
    # Broker sets are the longest, and then those with a broker of their own.
    for play in sorted(
        plays, key=lambda play: (not isinstance(play.broker, PlaySet), not play.has_own_broker)
    ):
        # Where its client is missing its own test is skipped.
        with contextlib.suppress(Unprepared):
            running.begin(play, [request.getfixturevalue(name) for name in play.clients])
    yield running
    running.close()


@pytest.fixture
def play(request, together):
    """How a play went."""
    for name in request.param.clients:
        request.getfixturevalue(name)
    return lambda: together.end(request.param)
