"""Floods of a real server while an honest client works: what they may cost at most."""

import sys

import pytest

from tests.faults import floods
from tests.servers.serving import BrokerProcess
from tests.soak import IS_SOAK

MEMORY_MAX = 64 * floods.MIB
P99_MAX_S = 0.05
SLOWEST_MAX_S = 5.0
"""In a modest run, which shares the machine with other tests and has few samples."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """A broker and a name server; in a soak each flood has a server of its own."""
    started = {}

    def server_of(kind):
        if IS_SOAK and kind in started:
            started.pop(kind).close()
        if kind not in started:
            started[kind] = kind(tmp_path_factory.mktemp("server"))
            started[kind].start()
        return started[kind]

    yield server_of
    for server in started.values():
        server.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", floods.FLOODS)
def test_a_flood_costs_little_memory_and_holds_up_nobody(servers, name):
    flood, modest, full = floods.FLOODS[name]
    kind = floods.NamesProcess if flood is floods.key_values else BrokerProcess

    cost = floods.measure(servers(kind), flood, full if IS_SOAK else modest)

    print(name, cost)
    assert cost.memory < MEMORY_MAX, cost
    if IS_SOAK:
        assert cost.p99 < P99_MAX_S, cost
    else:
        assert cost.slowest < SLOWEST_MAX_S, cost
