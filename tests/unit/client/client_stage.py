"""A simulated world with a small cluster on one machine and a client on another."""

import inspect
from dataclasses import dataclass

from tests.unit.client.fake_cluster import FakeCluster
from txmq.client import Admin, Session
from txmq.testing import Conditions, World

STEADY = Conditions(jitter_s=0.0, spike_chance=0.0)


@dataclass
class Stage:
    world: World
    cluster: FakeCluster
    session: Session
    admin: Admin


def staged(*, brokers=1, name_servers=1, seed=1):
    """Make a test of an async function of a :class:`Stage`."""

    def decorate(scenario):
        def test():
            with World(seed, conditions=STEADY) as world:
                world.run(on_stage(world))

        async def on_stage(world):
            server, client = world.machine("server"), world.machine("client")
            async with (
                FakeCluster(
                    server.network,
                    server.clock,
                    host=server.address,
                    brokers=brokers,
                    name_servers=name_servers,
                ) as cluster,
                Session(cluster.names, client.network, client.clock, client.entropy) as session,
            ):
                await scenario(Stage(world, cluster, session, Admin(session)))

        # Not functools.wraps: pytest would take the scenario's parameter for a fixture.
        test.__name__, test.__doc__ = scenario.__name__, inspect.getdoc(scenario)
        return test

    return decorate
