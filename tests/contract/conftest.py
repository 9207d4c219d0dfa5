"""What any cluster must do for txmq's client. Nothing here is about txmq's own broker.

Against a broker of ours, started for the run::

    python -m pytest tests/contract

Against any other cluster, by its name servers::

    TXMQ_TEST_NAMES=10.0.0.5:9876 python -m pytest tests/contract

For Apache RocketMQ a name server and one broker with their stock settings will do, for example::

    bin/mqnamesrv &
    echo 'brokerIP1=127.0.0.1' > broker.conf
    bin/mqbroker -n 127.0.0.1:9876 -c broker.conf &

``brokerIP1`` must be an address that this machine can reach: clients are sent there, and it is a
part of every message's id. Where there are several clusters behind the name servers,
``TXMQ_TEST_CLUSTER`` says which. Every topic and group is made for its test, named
``txmq-contract-...``, and removed at its end; nothing else of the cluster is touched.

Only what the protocol promises is asserted. Where clusters may differ, a test says at the end of
the run what it has seen; where one cannot do a thing at all, its test is skipped and says why. A
broker of ours can do all of it: there the same is a failure.
Times are those of a cluster in which nothing is hurried: routes and heartbeats may need 30 s.
"""

import asyncio
import inspect
import os
from pathlib import Path

import pytest

from tests.contract.contract_cluster import Cluster, Remarks
from tests.servers.serving import BrokerProcess

REMARKS = pytest.StashKey[Remarks]()
TEST_SECONDS = 180


def pytest_configure(config):
    config.stash[REMARKS] = Remarks()


@pytest.fixture(scope="session")
def names(tmp_path_factory):
    """The name servers of the cluster that is held to the contract."""
    given = os.environ.get("TXMQ_TEST_NAMES")
    if given:
        yield given
        return
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker.names
    broker.close()


@pytest.fixture
def cluster(names, request):
    """The cluster; it is open while the test runs."""
    remarks = request.config.stash[REMARKS]
    chosen = os.environ.get("TXMQ_TEST_CLUSTER")
    is_ours = not os.environ.get("TXMQ_TEST_NAMES")
    return Cluster(names, chosen, request.node.name, remarks, is_ours=is_ours)


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run tests that are coroutines, with their cluster open."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    wanted = inspect.signature(test).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in wanted}

    async def play():
        async with arguments["cluster"]:
            await test(**arguments)

    asyncio.run(play())
    return True


def pytest_terminal_summary(terminalreporter, config):
    remarks = config.stash[REMARKS]
    if remarks:
        terminalreporter.section("contract")
        for line in remarks.lines():
            terminalreporter.line(line)
