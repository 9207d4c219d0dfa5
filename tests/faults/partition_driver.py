"""Runs a broker set of three members in a network of its own while its leader is cut off.

``unshare ... python -m tests.faults.partition_driver CASE SECONDS FOLDER`` writes what clients saw
to ``history.json`` in the folder. See :mod:`tests.faults.own_network`.
"""

import asyncio
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from tests.faults.own_network import APART, SUBNET, OwnNetwork
from tests.servers import etcd_server
from tests.servers.broker_set import BrokerSet
from tests.servers.database_server import launched
from tests.traffic.linearizability import Read
from tests.traffic.witnessed_clients import QUEUES, WitnessedClients

CASES = {
    "etcd": (("leader", "etcd"), ("etcd", "leader")),
    "followers": (("leader", "followers"), ("followers", "leader")),
    "all but clients": (
        ("leader", "etcd"), ("etcd", "leader"), ("leader", "followers"), ("followers", "leader"),
    ),
    "one way to etcd": (("leader", "etcd"),),
    "one way from etcd": (("etcd", "leader"),),
    "one way to followers": (("leader", "followers"),),
    "one way from followers": (("followers", "leader"),),
}  # fmt: skip
"""What is cut, as who sends to whom."""

SETTINGS = (
    "replication.lease=2",
    "replication.lag_max=2s",
    "transaction.timeout=1s",
    "transaction.check_interval=1s",
)
MEMBER = {"TXMQ_ACCESS_KEY": "of-the-set", "TXMQ_SECRET_KEY": "of this network alone"}
ACCOUNTS = f"""\
globalWhiteRemoteAddresses: [{SUBNET}.*]
accounts:
- {{accessKey: of-the-set, secretKey: of this network alone, admin: true}}
"""
"""Clients in this network need no account; members copy from each other with one."""

CUT_SECONDS = 5
TOPIC = "Watched"
ETCD, NAMES = "etcd", "names"
MEMBERS = ("m1", "m2", "m3")


def command(case, seconds, folder):
    """The command that runs a case."""
    return [
        *APART,
        sys.executable,
        "-m",
        "tests.faults.partition_driver",
        case,
        str(seconds),
        str(folder),
    ]


class PlacedEtcd(etcd_server.Programs):
    """An etcd at a place of the network."""

    def __init__(self, place):
        super().__init__(etcd_server.program())
        self.place = place
        self.url = f"http://{place.host}:{{}}".format

    def serve(self, home, port):
        return [*self.place.prefix, *super().serve(home, port)]


def placed_set(network, folder, etcd_port):
    """A broker set whose members and name server each have a place of their own."""
    members = BrokerSet(folder, etcd_port, SETTINGS)
    places = network.places
    members.names.names = at(places[NAMES], members.names.names)
    members.names.prefix = places[NAMES].prefix
    for name, member in members.members.items():
        member.address, member.prefix = at(places[name], member.address), places[name].prefix
        member.names = members.names.names
        member.etcd = f"etcd://{places[ETCD].host}:{etcd_port}"
        member.settings += (f"acl={accounts(member.folder)}",)
        member.account = MEMBER
    members.names.options = ("--acl", accounts(members.names.folder))
    return members


def accounts(folder):
    """A file of accounts; members write their own."""
    path = folder / "plain_acl.yml"
    path.touch(0o600)
    path.write_text(ACCOUNTS)
    return str(path)


def at(place, address):
    return f"{place.host}:{address.rsplit(':', 1)[1]}"


class Partitions:
    """Cuts off the leader of the moment, again and again."""

    def __init__(self, network, members, clients, case):
        self.network = network
        self.members = members
        self.clients = clients
        self.case = case

    async def torment(self, seconds):
        """Cut and heal for a number of seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await self.clients.until_more()
            leader = await asyncio.to_thread(self.members.wait_in_sync, len(MEMBERS) - 1)
            ways = list(self.ways(leader))
            for sender, receiver in ways:
                self.network.cut(sender, receiver)
            await asyncio.gather(
                asyncio.sleep(CUT_SECONDS), asyncio.to_thread(self._until_felt, leader)
            )
            for sender, receiver in ways:
                self.network.heal(sender, receiver)
        await asyncio.to_thread(self.members.wait_in_sync, len(MEMBERS) - 1)
        await self.clients.until_more()

    def _until_felt(self, leader):
        """Wait until another member leads, or the leader has no follower any more."""

        def is_felt():
            if self.members.leader() is not leader:
                return True
            with suppress(OSError, ValueError):  # It starts again as a follower.
                return self.members.figures(leader)["followersInSync"] == "0"
            return False

        self.members.until(is_felt, f"{leader.name} was cut off, and nobody felt it")

    def ways(self, leader):
        """The ways to cut."""
        places = self.network.places
        who = {
            "leader": [places[leader.name]],
            "etcd": [places[ETCD]],
            "followers": [places[name] for name in MEMBERS if name != leader.name],
        }
        for senders, receivers in CASES[self.case]:
            for sender in who[senders]:
                for receiver in who[receivers]:
                    yield sender, receiver


def main():
    case, seconds, folder = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
    network = OwnNetwork([ETCD, NAMES, *MEMBERS])
    with ExitStack() as stack:
        etcd = launched(PlacedEtcd(network.places[ETCD]))
        stack.callback(etcd.stop)
        members = placed_set(network, folder, etcd.port)
        stack.push(members.__exit__)
        members.__enter__()
        members.wait_in_sync(len(MEMBERS) - 1).create_topic(TOPIC, QUEUES)
        addresses = [member.address for member in members.members.values()]
        clients = WitnessedClients(members.names.names, TOPIC, addresses)
        partitions = Partitions(network, members, clients, case)
        asyncio.run(clients.run(lambda: partitions.torment(seconds)))
        read_all(members, clients.records)
    counts = dict(clients.records.counts)
    history = {"counts": counts, "operations": clients.records.all()}
    (folder / "history.json").write_bytes(msgspec.json.encode(history))


def read_all(members, records):
    """Read every queue from start to end, after the last send."""
    leader = members.wait_in_sync(len(MEMBERS) - 1)
    for number in range(QUEUES):
        begun, texts, end = time.monotonic(), [], leader.max_offset(TOPIC, number)
        while len(texts) < end:
            found = leader.records(TOPIC, number, len(texts))
            texts += [record.body.decode() for record in found]
        read = Read(0, tuple(texts))
        records.add(f"queue {number}", begun, "the last look", read, ended=time.monotonic())


if __name__ == "__main__":
    main()
