"""A leader and a follower as real processes: what is acknowledged is on two disks."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.servers.serving import BrokerProcess, ask, environment
from tests.waiting import until
from txmq import Message, Producer, ProducerSettings
from txmq.client.values import SendStatus
from txmq.errors import BrokerRefused
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import QueueHeader
from txmq.remoting.pool import ConnectionPool
from txmq.runtime.clock import SystemClock
from txmq.runtime.network import SystemNetwork
from txmq.security.signatures import Credentials

FIGURES = 28
TOPIC = "Copied"


class Names(BrokerProcess):
    def __init__(self, folder, *more):
        super().__init__(folder)
        self.more = more

    def command(self):
        return [sys.executable, "-m", "txmq", "names", "--listen", self.names, *self.more]


class Member(BrokerProcess):
    """A directory that is served as a leader or as a follower."""

    def __init__(self, folder, names, role, **settings):
        super().__init__(folder, flush="sync")
        self.names = names
        self.role = role
        self.more = [f"{name}={value}" for name, value in settings.items()]

    def command(self):
        where = ["--data", str(self.folder / "data"), "--listen", self.address]
        chosen = [f"brokerRole={self.role}", f"brokerId={int(self.role == 'SLAVE')}", *self.more]
        words = [word for setting in chosen for word in ("--set", setting)]
        return [sys.executable, "-m", "txmq", "serve", *where, "--names", self.names, *words]

    def figures(self):
        return json.loads(ask(self.address, FIGURES)[2])["table"]

    def wait_for(self, name, value):
        """Wait until a figure of a leader has a value."""
        asyncio.run(until(lambda: self.figures()[name] == str(value)))

    def wait_for_line(self, text):
        asyncio.run(until(lambda: text in self.tail()))

    def promote(self, *more, reason="the leader burned"):
        """Run ``txmq cluster promote`` on the directory; its exit code and what it printed."""
        words = ["cluster", "promote", "--data", str(self.folder / "data"), "--reason", reason]
        done = subprocess.run(
            [sys.executable, "-m", "txmq", *words, *more],
            capture_output=True, text=True, check=False, env=environment(), timeout=60,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def log_files(self):
        return {path.name: path.read_bytes() for path in (self.folder / "data/log").iterdir()}

    def pause(self):
        os.kill(self.process.pid, signal.SIGSTOP)


@pytest.fixture
def members(tmp_path):
    """Starts members, all at one name server, and ends them."""
    names = Names(tmp_path / "names")
    running = [names]

    def member(name, role, **settings):
        created = Member(tmp_path / name, names.names, role, **settings)
        running.append(created)
        created.start()
        return created

    try:
        names.start()
        yield member
    finally:
        for process in running:
            process.close()


def send(names, texts):
    """Send messages one by one; returns the status of each."""

    async def run():
        async with Producer(
            group="copies", names=names, settings=ProducerSettings(timeout=10)
        ) as producer:
            return [
                (await producer.send(Message(topic=TOPIC, body=text.encode()))).status
                for text in texts
            ]

    return asyncio.run(run())


def stored(member):
    """The bodies in all queues of the topic."""
    bodies = set()
    for queue in range(4):
        offset = 0
        while offset < member.max_offset(TOPIC, queue):
            records = member.records(TOPIC, queue, offset)
            bodies |= {record.body.decode() for record in records}
            offset += len(records)
    return bodies


def test_everything_a_killed_leader_acknowledged_is_on_its_follower(members):
    """When the old leader comes back, it takes the log of the new one."""
    first = members("m1", "SYNC_MASTER", **{"replication.lag_max": "2s"})
    second = members("m2", "SLAVE")
    first.wait_for("followersInSync", 1)
    texts = [f"before {number}" for number in range(100)]
    assert set(send(first.names, texts)) == {SendStatus.OK}
    # Only the first leader has this message.
    second.pause()
    assert send(first.names, ["alone"]) == [SendStatus.FLUSH_SLAVE_TIMEOUT]
    first.kill()
    second.kill()
    assert second.promote()[0] == 0
    second.role = "SYNC_MASTER"
    second.start()
    assert set(texts) <= stored(second)
    after = [f"after {number}" for number in range(10)]
    assert set(send(second.names, after)) == {SendStatus.SLAVE_NOT_AVAILABLE}

    first.role = "SLAVE"
    first.start()
    second.wait_for("followersInSync", 1)
    assert set(send(second.names, ["on both"])) == {SendStatus.OK}
    assert first.log_files() == second.log_files()
    assert stored(second) >= {*texts, *after, "on both"}


def test_a_follower_leads_only_after_a_promotion(members):
    first = members("m1", "SYNC_MASTER")
    second = members("m2", "SLAVE")
    first.wait_for("followersInSync", 1)
    assert set(send(first.names, ["one", "two"])) == {SendStatus.OK}
    data = second.folder / "data"

    # Refused: while it runs, without a reason, and for a leader.
    code, output = second.promote()
    assert (code, "has this data directory open" in output) == (1, True), output
    code, output = second.promote(reason=" ")
    assert (code, "--reason is empty" in output) == (2, True), output
    code, output = first.promote()
    assert (code, output) == (
        2, f"txmq: {first.folder / 'data'} is not the directory of a follower\n"
    )  # fmt: skip
    first.kill()
    second.stop()

    # A leader is not started on it by mistake.
    second.role = "ASYNC_MASTER"
    with pytest.raises(AssertionError):
        second.start()
    command = f"txmq cluster promote --data {data} --reason TEXT"
    assert "cannot start: this is the directory of a follower; to lead with it" in second.tail()
    assert command in second.tail()

    code, output = second.promote()
    assert code == 0, output
    assert output.startswith(f"{data} leads from epoch 1 on: its log ends at position ")
    code, output = second.promote()
    assert (code, "it leads already, in epoch 1" in output) == (2, True), output
    assert '"the leader burned"' in (data / "config/copy.json").read_text()
    audit = subprocess.run(
        [sys.executable, "-m", "txmq", "audit", "--data", str(data)],
        capture_output=True, text=True, check=True, env=environment(), timeout=60,
    ).stdout  # fmt: skip
    assert "PROMOTE reason=the leader burned epoch=1 end=" in audit

    second.start()
    assert send(second.names, ["three"]) == [SendStatus.OK]
    assert stored(second) == {"one", "two", "three"}
    # The old leader no longer leads, once it has followed.
    first.role = "SLAVE"
    first.start()
    first.wait_for_line("following")
    assert set(send(second.names, ["four"])) == {SendStatus.OK}
    first.kill()
    first.role = "SYNC_MASTER"
    with pytest.raises(AssertionError):
        first.start()
    assert "this is the directory of a follower" in first.tail()
    second.stop()
    assert epochs(second) == [0, 0, 1, 1]


def epochs(member):
    """The epochs of the records in a directory, as ``txmq log dump`` shows them."""
    data = str(member.folder / "data")
    done = subprocess.run(
        [sys.executable, "-m", "txmq", "log", "dump", "--data", data, "--json"],
        capture_output=True, text=True, check=True, env=environment(), timeout=60,
    )  # fmt: skip
    return [json.loads(line)["epoch"] for line in done.stdout.splitlines()]


def test_a_repeatedly_killed_follower_ends_with_its_leaders_log(members):
    first = members("m1", "ASYNC_MASTER", **{"store.checkpoint_every": "64KiB"})
    second = members("m2", "SLAVE", **{"store.checkpoint_every": "64KiB"})
    sent = []
    for number in range(6):
        texts = [f"{number} {size} " + "." * 50 * size for size in range(40)]
        assert set(send(first.names, texts)) == {SendStatus.OK}
        sent += texts
        second.kill()
        second.start()
    first.wait_for("followersInSync", 1)
    assert set(send(first.names, ["last"])) == {SendStatus.OK}
    until_equal(first, second)
    first.kill()
    second.stop()
    assert second.promote()[0] == 0
    second.role = "ASYNC_MASTER"
    second.start()
    assert stored(second) == {*sent, "last"}


def until_equal(first, second):
    asyncio.run(until(lambda: first.log_files() == second.log_files()))


def test_a_follower_needs_an_account_when_its_leader_has_accounts(tmp_path, monkeypatch):
    accounts = tmp_path / "plain_acl.yml"
    accounts.touch(0o600)
    accounts.write_text(
        "accounts:\n- {accessKey: operator, secretKey: the first secret, admin: true}\n"
        "- {accessKey: application, secretKey: the second secret, topicPerms: [Copied=SUB]}\n"
    )
    account = {"TXMQ_ACCESS_KEY": "operator", "TXMQ_SECRET_KEY": "the first secret"}
    names = Names(tmp_path / "names", "--acl", str(accounts))
    leader = Member(tmp_path / "m1", names.names, "SYNC_MASTER", acl=accounts)
    follower = Member(tmp_path / "m2", names.names, "SLAVE", acl=accounts, slaveReadEnable="true")
    leader.account = account
    try:
        for process in (names, leader, follower):
            process.start()
        follower.wait_for_line("not following")
        assert in_sync(names, account) == []
        follower.kill()

        follower.account = account
        follower.start()
        asyncio.run(until(lambda: in_sync(names, account) == ["1"]))
        # Readers need the same at both.
        reader = Credentials(access_key="application", secret_key="the second secret")
        asyncio.run(until(lambda: refusal_of(follower, TOPIC, reader) == "TopicNotFound"))
        assert refusal_of(leader, TOPIC, reader) == "TopicNotFound"
        for member in (leader, follower):
            assert refusal_of(member, "Other", reader) == "NoPermission"
            assert refusal_of(member, TOPIC) == "NoPermission"
    finally:
        for process in (follower, leader, names):
            process.close()


def refusal_of(member, topic, credentials=None):
    """How a member refuses to show the end of a queue; empty if it shows it."""

    async def ask_signed():
        pool = ConnectionPool(SystemNetwork(), SystemClock(), credentials=credentials)
        try:
            connection = await pool.connection(member.address)
            await connection.request(
                RequestCode.GET_MAX_OFFSET, QueueHeader(topic, 0), timeout_s=10
            )
        except BrokerRefused as error:
            return type(error).__name__
        finally:
            await pool.close()
        return ""

    with ThreadPoolExecutor(1) as threads:  # The caller may be in an event loop.
        return threads.submit(asyncio.run, ask_signed()).result()


def in_sync(names, account):
    """The members in sync, as the command tells them to an operator."""
    done = subprocess.run(
        [sys.executable, "-m", "txmq", "cluster", "status", "--names", names.names, "--json"],
        env=environment() | account,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    (broker,) = json.loads(done.stdout)
    return [follower["member"] for follower in broker["followers"] if follower["in_sync"]]


def test_a_follower_backup_starts_as_a_leader_after_promotion(members, tmp_path):
    first = members("m1", "SYNC_MASTER")
    second = members("m2", "SLAVE")
    first.wait_for("followersInSync", 1)
    texts = [f"message {number}" for number in range(20)]
    assert set(send(first.names, texts)) == {SendStatus.OK}
    first.wait_for("bytesNotCopied", 0)
    folder, data = tmp_path / "backup", tmp_path / "m3/data"
    assert txmq("backup", "create", "--data", second.folder / "data", "--to", folder) == 0
    first.kill()
    assert txmq("backup", "restore", folder, "--data", data) == 0
    words = ("cluster", "promote", "--data", data, "--reason", "both disks burned")
    assert txmq(*words) == 0

    third = members("m3", "ASYNC_MASTER")
    assert set(texts) == stored(third)


def txmq(*words):
    """The exit code of a command."""
    command = [sys.executable, "-m", "txmq", *map(str, words)]
    return subprocess.run(command, env=environment(), check=False, timeout=30).returncode
