"""A broker set as real processes on loopback: members, a name server, and an etcd."""

import json
import secrets
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

from tests.faults.cut_proxy import CutProxy
from tests.servers.serving import BrokerProcess, ask, environment

GET_CLUSTER = 106
PATIENCE_S = 30
POLL_S = 0.05

LEASE_S = 2
SETTINGS = (
    f"replication.lease={LEASE_S}",
    "replication.lag_max=2s",
    "transaction.timeout=1s",
    "transaction.check_interval=1s",
)
"""Of members whose leader is missed soon, and whose lost decisions are asked for soon."""

FAIL_OVER_S = LEASE_S + 2
BUSY_S = 3
"""What a machine may take longer that runs other tests at the same time."""


class NameServer(BrokerProcess):
    options = ()

    def command(self):
        return [sys.executable, "-m", "txmq", "names", "--listen", self.names, *self.options]


class Member(BrokerProcess):
    """One member; it is ready when it knows its set, and not only when it leads."""

    def __init__(self, folder, name, names, settings):
        super().__init__(folder, flush="sync", settings=settings)
        self.name, self.names, self.etcd = name, names, ""

    def command(self):
        where = ["--data", str(self.folder / "data"), "--listen", self.address]
        elsewhere = ["--names", self.names, "--coordinator", self.etcd, "--member", self.name]
        chosen = [part for setting in self.settings for part in ("--set", setting)]
        return [sys.executable, "-m", "txmq", "serve", *where, *elsewhere, *chosen]

    def signal(self, number):
        self.process.send_signal(number)

    @property
    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def log_bytes(self):
        """The whole log, as the position of its first byte and what follows."""
        files = sorted((self.folder / "data/log").glob("*.log"))
        return (int(files[0].stem) if files else 0), b"".join(path.read_bytes() for path in files)


class BrokerSet:
    """Members of one name at one name server.

    Args:
        folder: Where each has its directory.
        etcd: The port of the etcd.
        settings: Settings of every member.
        count: How many members.
        has_links: Whether each member reaches etcd, and is reached by others, over a link of its
            own that can be cut: ``to_etcd`` and ``to_members``, by member.
    """

    def __init__(self, folder, etcd, settings=(), count=3, *, has_links=False):
        self.name = f"set-{secrets.token_hex(4)}"
        self.names = NameServer(folder / "names")
        self.etcd = f"etcd://127.0.0.1:{etcd}"
        self.members = {}
        self.to_etcd, self.to_members = {}, {}
        for name in (f"m{number}" for number in range(1, count + 1)):
            chosen = (f"name={self.name}", *settings)
            member = self.members[name] = Member(folder / name, name, self.names.names, chosen)
            port = etcd
            if has_links:
                self.to_etcd[member] = CutProxy(etcd)
                self.to_members[member] = CutProxy(int(member.address.rsplit(":", 1)[1]))
                port = self.to_etcd[member].port
                at = f"127.0.0.1:{self.to_members[member].port}"
                member.settings += (f"replication.address={at}",)
            member.etcd = f"etcd://127.0.0.1:{port}"

    def __enter__(self):
        for link in (*self.to_etcd.values(), *self.to_members.values()):
            link.__enter__()
        self.names.start()
        threads = [threading.Thread(target=member.start) for member in self.members.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self

    def __exit__(self, *_):
        for process in (*self.members.values(), self.names):
            if process.process is not None and process.process.poll() is None:
                process.process.send_signal(signal.SIGCONT)
            process.close()
        for link in (*self.to_etcd.values(), *self.to_members.values()):
            link.__exit__()

    def promote(self, member, *more):
        """Promote a member as an operator does; return what the command prints."""
        where = ["--coordinator", member.etcd, "--broker", self.name, "--reason", "a test"]
        done = subprocess.run(
            [sys.executable, "-m", "txmq", "cluster", "promote", member.name, *where, *more]
            + ["--json"],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{done.stderr}\n{self.told()}"
        return json.loads(done.stdout)

    # Who leads

    def leader(self):
        """The member that the name server calls the master; None if there is none."""
        _, _, body = ask(self.names.names, GET_CLUSTER)
        brokers = json.loads(body).get("brokerAddrTable", {})
        addresses = brokers.get(self.name, {}).get("brokerAddrs", {})
        master = addresses.get("0")
        return next((member for member in self.members.values() if member.address == master), None)

    def wait_for_leader(self, other_than=None):
        """The next leader, as soon as the name server shows it."""
        return self.until(
            lambda: (leader := self.leader()) is not None and leader is not other_than and leader,
            "no leader",
        )

    def figures(self, member):
        return json.loads(ask(member.address, 28)[2])["table"]

    def wait_in_sync(self, followers):
        """Return the leader once this number of followers is in sync with it."""

        def found():
            with suppress(OSError, ValueError, KeyError, IndexError, TypeError):
                leader = self.leader()
                if leader and self.figures(leader)["followersInSync"] == str(followers):
                    return leader
            return None

        return self.until(found, f"never {followers} followers in sync")

    def wait_settled(self):
        """Return once every follower has the whole log."""
        leader = self.wait_in_sync(len(self.members) - 1)
        self.until(lambda: self.figures(leader)["bytesNotCopied"] == "0", "a follower is behind")

    def until(self, found, failure, within_s=PATIENCE_S):
        end = time.monotonic() + within_s
        while not (result := found()):
            assert time.monotonic() < end, f"{failure}\n{self.told()}"
            threading.Event().wait(POLL_S)
        return result

    def never(self, found, seconds, failure):
        """Check for some seconds that something does not happen."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert not found(), f"{failure}\n{self.told()}"
            threading.Event().wait(POLL_S)

    def told(self):
        return "\n".join(
            f"== {name}{'' if one.is_running else ', which is down'}\n{one.tail()}"
            for name, one in self.members.items()
        )


def assert_alike(members):
    """All logs are equal, from where the shortest of them begins."""
    members.wait_settled()
    logs = {name: member.log_bytes() for name, member in members.members.items()}
    (start, first), *others = logs.values()
    for begin, log in others:
        at = max(start, begin)
        assert first[at - start :] == log[at - begin :], f"logs differ\n{members.told()}"
