"""A simulated world with a small cluster on one machine and a client on another."""

from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature, getdoc, signature

from tests.unit.client.fake_cluster import FakeCluster
from txmq.client import Admin, Session
from txmq.message import Queue
from txmq.testing import Conditions, World

QUEUE = Queue("T", "broker-a", 0)
STEADY = Conditions(jitter_s=0.0, spike_chance=0.0)


@dataclass
class Stage:
    world: World
    cluster: FakeCluster
    session: Session
    admin: Admin


def scenario_test(scenario, run):
    """A test of an async function of a stage, which `run` gives it; all else comes from pytest."""
    _, *others = signature(scenario).parameters.values()

    def test(**values):
        run(partial(scenario, **values))

    test.__name__, test.__doc__ = scenario.__name__, getdoc(scenario)
    test.__signature__ = Signature(
        [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in others]
    )
    return test


def staged(*, brokers=1, name_servers=1, seed=1, topic=None):
    """Make a test of an async function of a :class:`Stage`, whose cluster has this topic."""

    def run(scenario):
        with World(seed, conditions=STEADY) as world:
            world.run(on_stage(world, scenario))

    async def on_stage(world, scenario):
        server, client = world.machine("server"), world.machine("client")
        ports = (server.network, server.clock)
        sizes = {"brokers": brokers, "name_servers": name_servers}
        async with (
            FakeCluster(*ports, host=server.address, **sizes) as cluster,
            Session(cluster.names, client.network, client.clock, client.entropy) as session,
        ):
            if topic is not None:
                cluster.add_topic(topic)
            await scenario(Stage(world, cluster, session, Admin(session)))

    return lambda scenario: scenario_test(scenario, run)
