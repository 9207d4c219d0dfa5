"""Mutated frames against a real broker and its name server: answered or cut off, never a crash or
a leak, and with accounts nothing that the sender may not do.
"""

import asyncio
import json
import os
import random
import selectors
import socket
import struct
from pathlib import Path

import pytest

from tests.serving import BrokerProcess
from txmq import Client, ClientSettings, Credentials, Queue
from txmq.protocol import batch
from txmq.protocol.codes import RequestCode
from txmq.runtime.disk import LocalDisk
from txmq_broker.access.audit import read_audit

FRAMES = int(os.environ.get("TXMQ_FRAMES", "5000000" if "TXMQ_SOAK" in os.environ else "50000"))
"""At a broker without accounts, and as many at one with accounts."""
WINDOW = 64
GROWTH_MAX = 256 * 1024 * 1024

FIELDS = {
    "topic": "Fuzz", "group": "g", "consumerGroup": "g", "producerGroup": "p", "queueId": "0",
    "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "subVersion": "0",
    "suspendTimeoutMillis": "10", "subscription": "*", "expressionType": "TAG", "timestamp": "5",
    "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": "9999999999999",
    "offset": "36", "clientID": "c", "clientId": "c", "defaultTopic": "TBW102", "flag": "0",
    "defaultTopicQueueNums": "4", "bornTimestamp": "1", "properties": "KEYS\x01k\x02TAGS\x01A\x02",
    "reconsumeTimes": "0", "delayLevel": "0", "readQueueNums": "4", "writeQueueNums": "4",
    "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false", "brokerName": "b",
    "brokerAddr": "127.0.0.1:1", "clusterName": "C", "haServerAddr": "127.0.0.1:2", "brokerId": "0",
    "namespace": "N", "value": "v", "statsName": "TOPIC_PUT_NUMS", "statsKey": "Fuzz",
    "groupName": "g", "commitOrRollback": "8", "tranStateTableOffset": "0", "commitLogOffset": "0",
    "msgId": "7F0000010000A3470000000000000024", "isForce": "true", "srcGroup": "g", "index": "0",
    "destGroup": "h", "compareGroup": "g", "count": "10", "isOrder": "false", "cluster": "C",
}  # fmt: skip
LETTERS = dict(
    zip("abcdefghij", ["p", "Fuzz", "TBW102", "4", "0", "0", "1", "0", "", "0"], strict=True)
)
HEARTBEAT = {
    "clientID": "c",
    "producerDataSet": [{"groupName": "p"}],
    "consumerDataSet": [
        {
            "groupName": "g",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [{"topic": "Fuzz", "subString": "*", "subVersion": 1}],
        }
    ],
}
LOCK = {
    "clientId": "c",
    "consumerGroup": "g",
    "mqSet": [{"topic": "Fuzz", "brokerName": "broker-a", "queueId": 0}],
}
BODIES = [
    b"x" * 40,
    b"",
    json.dumps(HEARTBEAT).encode(),
    json.dumps(LOCK).encode(),
    batch.pack([(0, b"body", "KEYS\x01k\x02")] * 3),
    b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:12}}',
    (
        b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":3,"timestamp":17},'
        b'"topicConfigTable":{"T":{"topicName":"T","perm":6,"readQueueNums":8}}}}'
    ),
]
VALUES = [
    "",
    "-1",
    "99999999999999999999",
    "0x7f",
    "null",
    "true",
    "\x01",
    "\x02",
    "é" * 70,
    "%s",
    "{}",
]
ACCOUNTS = """accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
- {accessKey: the-fuzz, secretKey: the-fuzz-secret, topicPerms: [Fuzz=PUB|SUB], groupPerms: [g=SUB]}
"""
OPERATOR = Credentials(access_key="operator", secret_key="operator-secret")
SIGNERS = [
    Credentials(access_key="the-fuzz", secret_key="the-fuzz-secret"),
    Credentials(access_key="the-fuzz", secret_key="a-wrong-secret"),
    Credentials(access_key="a-stranger", secret_key="a-wrong-secret"),
]
WORDS = [0, 1, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x01000000, 0x00FFFFFF]


def binary_header(code: int, fields: dict[str, str], opaque: int) -> bytes:
    """RocketMQ's own form, written here so that a fault of our writer does not hide in it."""
    ext = b"".join(
        struct.pack(">h", len(k.encode()))
        + k.encode()
        + struct.pack(">i", len(v.encode()))
        + v.encode()
        for k, v in fields.items()
    )
    return struct.pack(">hBhiii", code, 3, 409, opaque, 0, 0) + struct.pack(">i", len(ext)) + ext


class Mutator:
    """Draws requests and damages them."""

    def __init__(self, seed: int, *, signs: bool = False) -> None:
        self.chance = random.Random(seed)
        self.signs = signs
        self.codes = [int(code) for code in RequestCode]

    def frame(self) -> bytes:
        chance = self.chance
        code = chance.choice(self.codes) if chance.random() < 0.97 else chance.randrange(-9, 40000)
        fields = dict(LETTERS if code in (310, 320, 325) else FIELDS)
        for _ in range(chance.randrange(3)):
            name = chance.choice(list(fields))
            if chance.random() < 0.3:
                del fields[name]
            elif name not in ("topic", "b", "defaultTopic"):
                fields[name] = chance.choice(VALUES)
            if not fields:
                break
        body = chance.choice(BODIES)
        if self.signs and chance.random() < 0.6:
            fields = chance.choices(SIGNERS, [8, 1, 1])[0].sign(fields, body)
        opaque = chance.randrange(2**31)
        if chance.random() < 0.3:
            kind, header = 1, binary_header(code % 32768, fields, opaque)
        else:
            kind, header = 0, self.json_header(code, fields, opaque)
        draw = chance.random()
        # A header that cannot be read costs the connection, and with it the frames behind: rarely.
        if draw < 0.003:
            header = self.damage(header)
        elif draw < (0.2 if self.signs else 0.4):
            body = self.damage(body)  # Where it was signed, that is found out.
        return self.wrap(kind, header, body)

    def json_header(self, code: int, fields: dict[str, str], opaque: int) -> bytes:
        ext: dict[str, object] = dict(fields)
        if self.chance.random() < 0.2:
            ext = {k: int(v) if v.isascii() and v.isdecimal() else v for k, v in fields.items()}
        flag = self.chance.choice([0, 0, 0, 0, 1, 2, 3, -1])
        header = {"code": code, "flag": flag, "language": "JAVA", "opaque": opaque, "version": 409}
        return json.dumps({**header, "extFields": ext}).encode()

    def damage(self, data: bytes) -> bytes:
        chance, spoiled = self.chance, bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(spoiled) + 1)
            draw = chance.random()
            if draw < 0.4 and at < len(spoiled):
                spoiled[at] ^= 1 << chance.randrange(8)
            elif draw < 0.6:
                del spoiled[at:]
            elif draw < 0.8:
                spoiled[at:at] = chance.randbytes(chance.randrange(6))
            elif at + 4 <= len(spoiled):
                spoiled[at : at + 4] = struct.pack(">I", chance.choice(WORDS))
        return bytes(spoiled)

    def wrap(self, kind: int, header: bytes, body: bytes) -> bytes:
        length, word = 4 + len(header) + len(body), kind << 24 | len(header)
        if self.chance.random() < 0.001:
            length = self.chance.choice(WORDS)
        if self.chance.random() < 0.001:
            word = self.chance.choice(WORDS)
        return struct.pack(">II", length, word) + header + body


class Stream:
    """A connection that throws frames and reads whatever comes back, and comes back when cut
    off.
    """

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.where = (host, int(port))
        self.cuts = 0
        self.answered = 0
        self.open()

    def open(self) -> None:
        self.socket = socket.create_connection(self.where, timeout=10)
        self.socket.setblocking(False)

    def throw(self, data: bytes) -> None:
        rest = memoryview(data)
        with selectors.DefaultSelector() as ready:
            ready.register(self.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while rest:
                for key, events in ready.select(10):
                    try:
                        if events & selectors.EVENT_READ:
                            got = key.fileobj.recv(1 << 20)
                            self.answered += len(got)
                            if not got:
                                raise ConnectionResetError
                        if events & selectors.EVENT_WRITE:
                            rest = rest[key.fileobj.send(rest) :]
                    except OSError:
                        self.again()
                        return

    def again(self) -> None:
        self.socket.close()
        self.cuts += 1
        self.open()


async def operate(names: str, act) -> None:
    async with Client(names, ClientSettings(credentials=OPERATOR)) as client:
        await act(client.admin)


async def create(admin) -> None:
    for topic in ("Fuzz", "Alive"):
        await admin.create_topic(topic, queues=4)


async def look(admin) -> None:
    assert await admin.max_offset(Queue("Alive", "broker-a", 0)) >= 0
    assert (await admin.route("Alive")).readable


def memory_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if "VmRSS" in line)


@pytest.mark.fault("M14")
@pytest.mark.slow
@pytest.mark.timeout(300 + FRAMES // 500)
@pytest.mark.parametrize("has_accounts", [False, True], ids=["unsigned", "signed"])
def test_mutated_frames_leave_the_broker_serving(tmp_path, has_accounts):
    seed = int(os.environ.get("TXMQ_SEED", random.SystemRandom().randrange(2**32)))
    print(f"TXMQ_SEED={seed}")
    acl = tmp_path / "plain_acl.yml"
    acl.touch(0o600)
    acl.write_text(ACCOUNTS)
    broker = BrokerProcess(tmp_path, settings=[f"acl={acl}"] if has_accounts else ())
    broker.start()
    streams: list[Stream] = []
    try:
        asyncio.run(operate(broker.names, create))  # Frames may delete the other.
        mutator = Mutator(seed, signs=has_accounts)
        streams += [Stream(each) for each in (broker.address, broker.address, broker.names)]
        before = 0
        for thrown in range(0, FRAMES, WINDOW):
            data = b"".join(mutator.frame() for _ in range(WINDOW))
            streams[mutator.chance.randrange(len(streams))].throw(data)
            if thrown // WINDOW == 150:
                before = memory_of(broker.process.pid)
        grown = memory_of(broker.process.pid) - before

        # It still serves, and nothing surprised it.
        asyncio.run(operate(broker.names, look))
        if has_accounts:
            done = [entry for entry in read_audit(LocalDisk(broker.folder / "data"), print)
                    if not entry.refused]  # fmt: skip
            assert {entry.account for entry in done} == {"operator"}
            assert acl.read_text() == ACCOUNTS
        said = broker.log.read_text(errors="replace")
        assert "Traceback" not in said, said[said.index("Traceback") - 300 :][:3000]
        assert grown < GROWTH_MAX
        assert all(stream.answered for stream in streams)
        cuts = sum(stream.cuts for stream in streams)
        print(f"{FRAMES} frames, {cuts} cuts, memory grew by {grown >> 20} MiB")
    finally:
        for stream in streams:
            stream.socket.close()
        broker.close()
