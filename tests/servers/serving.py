"""Owns one `txmq serve` as a real process on loopback ports, and what tests ask it directly.

The questions (offsets, routes, stored records) are asked by a few bytes of remoting written here,
apart from txmq: a mistake in txmq's own codec cannot hide itself.
"""

import json
import os
import queue
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[2]
START_SECONDS = 30
STOP_SECONDS = 20
GIVEN_PORTS = set()
CHANCE = random.SystemRandom()

# Request codes, and one answer.
PULL_MESSAGE = 11
QUERY_MESSAGE = 12
QUERY_CONSUMER_OFFSET = 14
CREATE_TOPIC = 17
GET_MAX_OFFSET = 30
GET_CONSUMERS = 38
GET_ROUTE = 105
LIST_TRANSACTIONS = 7701
DECIDE_TRANSACTION = 7703
QUERY_NOT_FOUND = 22


def free_port():
    """A port at which nobody listens, and which was not given out here before.

    The system gives none of these to outgoing connections: a client that tries to reach a broker
    that was killed could otherwise take its port.
    """
    while True:
        port = CHANCE.randrange(15_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in GIVEN_PORTS:
                GIVEN_PORTS.add(port)
                return port


def environment():
    """The environment without the product's variables from the developer's shell."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TXMQ_")}
    paths = [path for path in (clean.get("PYTHONPATH"), str(CHECKOUT)) if path]
    return {**clean, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def ask(address, code, *, content=b"", **fields):
    """Send one request with a JSON header; return (code, fields, body) of the answer."""
    header = {"code": code, "flag": 0, "language": "OTHER", "opaque": 1, "version": 409}
    text = json.dumps({**header, "extFields": {k: str(v) for k, v in fields.items()}}).encode()
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        size = struct.pack(">ii", 4 + len(text) + len(content), len(text))
        connection.sendall(size + text + content)
        with connection.makefile("rb") as stream:
            if len(start := stream.read(8)) < 8:
                raise ConnectionResetError(f"{address} closed the connection")
            length, word = struct.unpack(">ii", start)
            size = word & 0xFFFFFF
            answer = json.loads(stream.read(size))
            body = stream.read(length - 4 - size)
    return answer["code"], answer.get("extFields") or {}, body


class Record(NamedTuple):
    """What the tests look at in a stored message (hosts as IPv4)."""

    offset: int
    position: int
    flag: int
    prepared_position: int
    body_size: int
    body: bytes
    topic: str
    properties: dict[str, str]

    @property
    def tags(self):
        return self.properties.get("TAGS") or None


def split_records(body):
    while body:
        total = struct.unpack_from(">i", body)[0]
        yield read_record(body[:total])
        body = body[total:]


def read_record(record):
    offset, position, flag = struct.unpack_from(">qqi", record, 20)
    prepared, size = struct.unpack_from(">qi", record, 76)
    body, topic_at = record[88 : 88 + size], 88 + size
    topic_end = topic_at + 1 + record[topic_at]
    topic = record[topic_at + 1 : topic_end].decode()
    pairs = record[topic_end + 2 :].decode().split("\x02")
    properties = dict(pair.split("\x01", 1) for pair in pairs if pair)
    return Record(offset, position, flag, prepared, size, body, topic, properties)


class BrokerProcess:
    """A broker that can be stopped, killed and started again on the same ports and data."""

    def __init__(self, folder, flush="async", settings=()):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.flush = flush
        self.settings = settings
        self.address = f"127.0.0.1:{free_port()}"
        self.names = f"127.0.0.1:{free_port()}"
        self.account = {}
        """The variables of the account with which it asks other servers."""
        self.prefix = ()
        """Before its command, to run it in another network."""
        self.log = self.folder / "broker.log"
        self.process = None

    def command(self):
        where = ["--data", str(self.folder / "data"), "--flush", self.flush]
        listen = ["--listen", self.address, "--names-listen", self.names]
        chosen = [part for setting in self.settings for part in ("--set", setting)]
        return [sys.executable, "-m", "txmq", "serve", *where, *listen, *chosen]

    def start(self):
        states = self.launch()
        try:
            ready = states.get(timeout=START_SECONDS)
        except queue.Empty:
            ready = False
        if not ready:
            self.kill()
            raise AssertionError(f"the broker did not become ready:\n{self.tail()}")

    def launch(self):
        """Start it; the queue gets True when it is ready, and False when it has ended."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, *self.command()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment() | self.account,
                cwd=self.folder,
            )
        states = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(self.process, states), daemon=True).start()
        return states

    def _read(self, process, states):
        """Read until the end, so that a talkative broker never blocks on a full pipe."""
        with process.stdout, self.log.open("ab") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                if line.startswith(b"ready"):
                    states.put(True)
        states.put(False)  # it ended; after `ready` nobody listens any more

    def stop(self):
        """SIGTERM: drains and exits 0."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(STOP_SECONDS)
        assert code == 0, f"SIGTERM ended the broker with {code}:\n{self.tail()}"

    def kill(self):
        """kill -9: nothing is drained."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def tail(self, size=4000):
        return self.log.read_bytes()[-size:].decode(errors="replace") if self.log.exists() else ""

    def txmq(self, *words):
        """What a command says, run as a user does."""
        done = subprocess.run(
            [sys.executable, "-m", "txmq", *words, "--names", self.names, "--json"],
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            env=environment(),
            cwd=self.folder,
            check=False,
        )
        assert done.returncode == 0, f"txmq {words} failed:\n{done.stdout}{done.stderr}"
        return json.loads(done.stdout)

    def create_topic(self, name, queues):
        """Returns when the name server shows it."""
        fields = {"topic": name, "defaultTopic": "TBW102", "perm": 6, "order": "false"}
        fields |= {"readQueueNums": queues, "writeQueueNums": queues, "topicSysFlag": 0}
        code = ask(self.address, CREATE_TOPIC, **fields, topicFilterType="SINGLE_TAG")[0]
        assert code == 0, f"making the topic {name} was answered with {code}"
        deadline = time.monotonic() + START_SECONDS
        while not self.knows(name):
            assert time.monotonic() < deadline, f"no name server shows {name}:\n{self.tail()}"
            threading.Event().wait(0.005)

    def knows(self, topic):
        return ask(self.names, GET_ROUTE, topic=topic)[0] == 0

    def members(self, group):
        """The ids of the clients that consume for a group."""
        code, _, body = ask(self.address, GET_CONSUMERS, consumerGroup=group)
        return json.loads(body)["consumerIdList"] if code == 0 else []

    def max_offset(self, topic, queue_id):
        code, fields, _ = ask(self.address, GET_MAX_OFFSET, topic=topic, queueId=queue_id)
        assert code == 0, f"max offset of {topic}/{queue_id} was answered with {code}"
        return int(fields["offset"])

    def committed(self, group, topic, queue_id):
        wanted = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
        code, fields, _ = ask(self.address, QUERY_CONSUMER_OFFSET, **wanted)
        assert code in (0, QUERY_NOT_FOUND), f"offset of {wanted} was answered with {code}"
        return int(fields["offset"]) if code == 0 else 0

    def all_committed(self, group, topic, queues):
        return all(
            self.committed(group, topic, queue_id) == self.max_offset(topic, queue_id)
            for queue_id in range(queues)
        )

    def records(self, topic, queue_id, offset=0, expression="*"):
        """What a pull that does not wait delivers, as the broker selects and stores it."""
        fields = {"consumerGroup": "interop-look", "topic": topic, "queueId": queue_id}
        fields |= {"queueOffset": offset, "maxMsgNums": 32, "commitOffset": 0, "subVersion": 0}
        fields |= {"sysFlag": 4, "subscription": expression, "suspendTimeoutMillis": 0}
        code, _, body = ask(self.address, PULL_MESSAGE, **fields)
        assert code == 0, f"pull of {topic}/{queue_id}@{offset} was answered with {code}"
        return list(split_records(body))

    def found_by_key(self, topic, key, **how):
        """What a search finds; with `_UNIQUE_KEY_QUERY` by the id that its sender gave."""
        fields = {"topic": topic, "key": key, "maxNum": 32, "beginTimestamp": 0}
        code, _, body = ask(self.address, QUERY_MESSAGE, **fields, endTimestamp=2**62, **how)
        assert code in (0, QUERY_NOT_FOUND), f"search for {key} was answered with {code}"
        return list(split_records(body)) if code == 0 else []

    def open_transactions(self, group, state=""):
        fields = {"producerGroup": group, "state": state}
        code, _, body = ask(self.address, LIST_TRANSACTIONS, **fields)
        assert code == 0, f"listing transactions was answered with {code}"
        return json.loads(body)["transactions"]

    def decide(self, transaction_id, decision, operator, reason):
        fields = {"decision": decision, "operator": operator, "reason": reason}
        return ask(self.address, DECIDE_TRANSACTION, transactionId=transaction_id, **fields)[0]
