"""One flipped bit in each closed file of a log: it is found, and repaired from another copy.

Disks flip bits silently. A test does the same to members of a set, under load or while all members
are down, and then compares what readers get with what was sent.
"""

import asyncio
import hashlib
import json
import random
import re
import shutil
import threading
import time
import urllib.request
from contextlib import suppress
from enum import StrEnum

import pytest

from tests.faults.set_damage import data_of, flip_bits, log_files
from tests.servers.broker_set import SETTINGS, BrokerSet, assert_alike
from tests.servers.serving import PULL_MESSAGE, ask, free_port, split_records
from tests.soak import IS_SOAK
from tests.traffic.set_traffic import traffic
from tests.unit.monitoring.scraping import Scrape
from txmq import Message, Producer, ProducerSettings
from txmq.client.client import Client
from txmq.client.settings import ClientSettings
from txmq.errors import TxmqError
from txmq.runtime.coordinator import short_name
from txmq_broker.replication.etcd import etcd_coordinator

SEGMENTS = 20 if IS_SOAK else 2
SEGMENT_BYTES = 16 * 1024 * 1024
BODY_BYTES = 1024 * 1024 - 1024
QUEUES = 2
MENDED_S = 300 if IS_SOAK else 60
"""Each damaged leader hands over, maybe to one whose damage is not found yet."""
VERIFIED_SOON = "store.verify_bytes_per_second=200MB"
TOPIC = "Large"

SHOW_COPIES = 7707
IN_SYNC, DAMAGED, VERIFIED = "isInSync", "damagedParts", "verifiedMs"
"""What ``cluster status`` says about each copy."""

FOUND = re.compile(r"the log is damaged from position (\d+) to (\d+)")
REPAIRED = re.compile(r"the log from position (\d+) to (\d+) was repaired")
"""What the log of a member says about each damaged part."""


# The pause between two rounds is ten seconds, and each step waits for one.
pytestmark = pytest.mark.timeout(180)


class Where(StrEnum):
    """Whose files are damaged."""

    FOLLOWER = "a follower's"
    LEADER = "the leader's"
    BOTH = "the leader's and a follower's at other places"
    ALL = "every member's at other places"


class When(StrEnum):
    """When they are damaged."""

    LOAD = "under load"
    STOPPED = "while all members are down"


STEPS = [(where, when) for when in When for where in Where]
CHOSEN = [
    (Where.FOLLOWER, When.LOAD),
    (Where.LEADER, When.LOAD),
    (Where.BOTH, When.STOPPED),
]


@pytest.fixture
def members(tmp_path, etcd):
    settings = (
        *SETTINGS,
        f"store.segment_size={SEGMENT_BYTES}",
        VERIFIED_SOON,
        "slaveReadEnable=true",
    )
    broker_set = BrokerSet(tmp_path, etcd.port, settings)
    for member in broker_set.members.values():
        member.pages = f"127.0.0.1:{free_port()}"
        member.settings += (f"http_listen={member.pages}",)
    with broker_set:
        yield broker_set


class Large:
    """Large messages in two queues; each has a place and a digest."""

    def __init__(self, members):
        self.members = members
        self.digests = {}
        members.wait_in_sync(2).create_topic(TOPIC, QUEUES)

    def fill(self):
        """Send until there are enough closed files in the leader's log."""
        asyncio.run(self._send())

    async def _send(self):
        chance = random.Random(1)
        async with (
            Client(self.members.names.names, ClientSettings()) as client,
            Producer("large", client, ProducerSettings(compress_from=2**30)) as producer,
        ):
            leader = self.members.leader()
            while len(log_files(leader)) <= SEGMENTS:
                bodies = [chance.randbytes(BODY_BYTES) for _ in range(8)]
                sends = [producer.send(Message(topic=TOPIC, body=body)) for body in bodies]
                for body, sent in zip(bodies, await asyncio.gather(*sends), strict=True):
                    self.digests[sent.queue.number, sent.offset] = hashlib.sha256(body).digest()

    def pulled(self, member, queue, offset):
        """The digests of messages that a member serves from an offset on; none if it refuses."""
        fields = {"consumerGroup": "looks", "topic": TOPIC, "queueId": queue}
        fields |= {"queueOffset": offset, "maxMsgNums": 8, "commitOffset": 0, "subVersion": 0}
        fields |= {"sysFlag": 4, "subscription": "*", "suspendTimeoutMillis": 0}
        code, _, body = ask(member.address, PULL_MESSAGE, **fields)
        records = split_records(body) if code == 0 else []
        return {(queue, record.offset): hashlib.sha256(record.body).digest() for record in records}

    def check(self, member):
        """Check that everything is there and equals what was sent."""
        digests = {}
        for queue in range(QUEUES):
            offset, end = 0, member.max_offset(TOPIC, queue)
            while offset < end:
                more = self.pulled(member, queue, offset)
                assert more, f"{member.name} does not serve {queue}/{offset}\n{member.tail()}"
                digests |= more
                offset = max(place[1] for place in more) + 1
        assert digests == self.digests


class Readers(threading.Thread):
    """Pulls at random from every member; a member may refuse, but must not be wrong."""

    def __init__(self, large):
        super().__init__(daemon=True)
        self.large = large
        self.wrong = []
        self.served = 0
        self._leaving = threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._leaving.set()
        self.join()

    def run(self):
        places, chance = list(self.large.digests), random.Random(2)
        while not self._leaving.wait(0.02):
            for member in self.large.members.members.values():
                with suppress(OSError, ValueError):
                    served = self.large.pulled(member, *chance.choice(places))
                    self.served += len(served)
                    self.wrong += [
                        (member.name, place)
                        for place, digest in served.items()
                        if digest != self.large.digests[place]
                    ]


class Watch(threading.Thread):
    """Looks at ``cluster status``, metrics and etcd: a damaged copy must not count as in sync."""

    LATE_S = 2
    """How long the leader may take to have a follower leave the set, on a busy machine."""

    def __init__(self, members):
        super().__init__(daemon=True)
        self.members = members
        self.wrong = []
        self.looks = 0
        self._since = {}
        self._leaving = threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._leaving.set()
        self.join()

    def run(self):
        etcd = etcd_coordinator(self.members.etcd, "DefaultCluster", self.members.name)
        while not self._leaving.wait(0.1):
            with suppress(OSError, ValueError, AttributeError, TxmqError):
                in_sync = asyncio.run(etcd.view()).in_sync
                self._note(copies_of(self.members.leader()), in_sync)
                self.looks += 1

    def _note(self, copies, in_sync):
        members, now = self.members.members, time.monotonic()
        for follower in copies["followers"]:
            name = follower["member"]
            damaged = follower[DAMAGED] or scraped(members[short_name(name)])("damaged_parts")
            counts = follower[IN_SYNC] or name in in_sync
            if not (damaged and counts):
                self._since.pop(name, None)
            elif now > self._since.setdefault(name, now) + self.LATE_S:
                self.wrong.append(follower)


def scraped(member):
    """The metrics of a member."""
    with urllib.request.urlopen(f"http://{member.pages}/metrics", timeout=10) as page:
        return Scrape(page.read().decode())


def copies_of(leader):
    """What the leader says about all copies."""
    return json.loads(ask(leader.address, SHOW_COPIES)[2])


def test_a_flipped_bit_in_each_closed_file_is_found_and_repaired(members):
    large, chance = Large(members), random.Random(3)
    large.fill()
    watch = Watch(members)
    with traffic(members, pause_s=0.03) as clients, Readers(large) as readers, watch:
        for where, when in STEPS if IS_SOAK else CHOSEN:
            clients.wait_for_more()
            damage_and_wait(members, where, when, chance)
    wait_verified(members)
    assert readers.served
    assert not readers.wrong
    assert watch.looks
    assert not watch.wrong
    leader = members.wait_in_sync(2)
    clients.check(leader)
    large.check(leader)
    assert_alike(members)


def damage_and_wait(members, where, when, chance):
    step = f"{where} files, {when}"
    leader = members.wait_in_sync(2)
    follower, other = (one for one in members.members.values() if one is not leader)
    damaged = {
        Where.FOLLOWER: [follower],
        Where.LEADER: [leader],
        Where.BOTH: [leader, follower],
        Where.ALL: [leader, follower, other],
    }[where]
    if when is When.STOPPED:
        for member in (leader, follower, other):
            member.kill()
    flips = [
        flip
        for part, member in enumerate(damaged)
        for flip in flip_bits(member, chance, part, len(damaged))
    ]
    assert len(flips) >= SEGMENTS * len(damaged)
    if when is When.STOPPED:
        for member in members.members.values():
            member.launch()
    wait_mended(members, flips, step)
    members.wait_in_sync(2)
    for member in damaged:
        for line in (FOUND, REPAIRED):
            parts = [tuple(map(int, part)) for part in line.findall(member.tail(10**8))]
            for flip in flips:
                if flip.path.is_relative_to(data_of(member)):
                    is_named = any(start <= flip.position < end for start, end in parts)
                    assert is_named, f"{step}: {member.name} hides {flip}: {parts}"


def wait_mended(members, flips, step):
    members.until(
        lambda: all(flip.is_mended() for flip in flips),
        f"{step}: some of {len(flips)} flipped bits stay",
        MENDED_S,
    )


def wait_verified(members):
    """Return once every member has read its whole log again and found it whole."""
    now_ms = time.time() * 1000

    def are_whole():
        copies = copies_of(members.wait_in_sync(2))
        return all(
            copy[VERIFIED] > now_ms and not copy[DAMAGED] for copy in (copies, *copies["followers"])
        )

    members.until(are_whole, "a copy is not verified")
    for member in members.members.values():
        metrics = scraped(member)
        assert metrics("damaged_parts") == 0
        assert metrics("last_verification_timestamp_seconds") > now_ms / 1000


def test_a_wiped_follower_of_a_damaged_leader_gets_a_whole_copy(members):
    large = Large(members)
    large.fill()
    members.wait_settled()
    leader = members.wait_in_sync(2)
    wiped = next(member for member in members.members.values() if member is not leader)
    wiped.kill()
    shutil.rmtree(data_of(wiped))
    flips = flip_bits(leader, random.Random(4))
    wiped.start()
    wait_mended(members, flips, "a follower copies everything")
    wait_verified(members)
    large.check(members.wait_in_sync(2))
    assert_alike(members)


def delete(path):
    path.unlink()


def halve(path):
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def empty(path):
    path.write_bytes(b"")


@pytest.mark.soak
def test_a_lost_or_truncated_log_file_costs_no_message(members):
    """The directories of a follower and of the leader are damaged while all members are down."""
    large = Large(members)
    large.fill()
    with traffic(members, pause_s=0.03) as clients:
        for lose in (delete, halve, empty):
            for is_leader in (False, True):
                clients.wait_for_more()
                leader = members.wait_in_sync(2)
                damaged = next(
                    one for one in members.members.values() if (one is leader) == is_leader
                )
                for member in sorted(members.members.values(), key=lambda one: one is not leader):
                    member.kill()
                lose(log_files(damaged)[len(log_files(damaged)) // 2 - 1])
                for member in members.members.values():
                    member.launch()
                assert members.wait_for_leader() is not damaged, members.told()
                wait_verified(members)
                large.check(members.wait_in_sync(2))
    clients.check(members.wait_in_sync(2))
    assert_alike(members)
