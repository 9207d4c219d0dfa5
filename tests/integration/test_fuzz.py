"""Mutated frames against a real broker and its name server: answered or cut off, never a crash, a
leak, or a change that its sender has no permission for.
"""

import base64
import hashlib
import hmac
import json
import os
import random
import selectors
import socket
import struct
from pathlib import Path

import pytest

from tests.servers.serving import LIST_TRANSACTIONS, BrokerProcess, ask
from tests.soak import count
from txmq.protocol import batch
from txmq.protocol.codes import RequestCode
from txmq.runtime.disk import LocalDisk
from txmq_broker.access.audit import read_audit

FRAMES = count(50_000, 5_000_000)
"""Of each of the two tests."""
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
    json.dumps(HEARTBEAT).replace('"g"', '"closed"').encode(),
    json.dumps(LOCK).encode(),
    batch.pack([(0, b"body", "KEYS\x01k\x02")] * 3),
    b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:12}}',
    (
        b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":3,"timestamp":17},'
        b'"topicConfigTable":{"T":{"topicName":"T","perm":6,"readQueueNums":8}}}}'
    ),
]
CLOSED = {
    "topic": "Closed", "b": "Closed", "group": "closed", "consumerGroup": "closed",
    "groupName": "closed", "srcGroup": "closed", "destGroup": "closed", "a": "closed",
}  # fmt: skip
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


NOTHING = 22  # QUERY_NOT_FOUND
RETRIES = "%RETRY%g"
SHOP = ("the-shop", "the-shop-secret")
SECRETS = {"operator": "operator-secret", **dict([SHOP])}
ACCOUNTS = """
accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
- accessKey: the-shop
  secretKey: the-shop-secret
  topicPerms: [Fuzz=PUB|SUB]
  groupPerms: [g=SUB]
"""


def signed(fields: dict[str, str], body: bytes, account: str, secret: str) -> dict[str, str]:
    """RocketMQ's signature, written here so that a fault of our signer does not hide in it."""
    fields = {**fields, "AccessKey": account}
    content = "".join(fields[name] for name in sorted(fields)).encode() + body
    digest = hmac.new(secret.encode(), content, hashlib.sha1).digest()
    return {**fields, "Signature": base64.b64encode(digest).decode()}


class Mutator:
    """Draws requests and damages them; those with a signature before or after they are signed.

    Its valid signatures are those of an account that may use one topic and one group. Its
    signatures of the operator are made with a wrong secret.
    """

    def __init__(self, seed: int, *, signs: bool) -> None:
        self.chance = random.Random(seed)
        self.codes = [int(code) for code in RequestCode]
        self.signs = signs
        self.fields = dict(FIELDS)

    def frame(self) -> bytes:
        chance = self.chance
        code = chance.choice(self.codes) if chance.random() < 0.97 else chance.randrange(-9, 40000)
        fields = dict(LETTERS if code in (310, 320, 325) else self.fields)
        for _ in range(chance.randrange(3)):
            name = chance.choice(list(fields))
            if chance.random() < 0.3:
                del fields[name]
            elif name not in ("topic", "b", "defaultTopic"):
                fields[name] = chance.choice(VALUES)
            if not fields:
                break
        body = chance.choice(BODIES)
        if is_damaged := chance.random() < 0.4:
            body = self.damage(body)
        opaque = chance.randrange(2**31)
        if self.signs:
            self.forbid(fields)
            fields = self.sign(fields, body)
            if is_damaged and chance.random() < 0.1:
                body = self.damage(body)
        if chance.random() < 0.3:
            kind, header = 1, binary_header(code % 32768, fields, opaque)
        else:
            kind, header = 0, self.json_header(code, fields, opaque)
        # A header that cannot be read costs the connection, and with it the frames behind: rarely.
        if chance.random() < 0.003:
            header = self.damage(header)
        return self.wrap(kind, header, body)

    def forbid(self, fields: dict[str, str]) -> None:
        """Name topics and groups that the account has no permission for."""
        for name in fields.keys() & CLOSED.keys():
            if self.chance.random() < 0.5:
                fields[name] = CLOSED[name]

    def sign(self, fields: dict[str, str], body: bytes) -> dict[str, str]:
        draw = self.chance.random()
        if draw < 0.1:
            return fields
        if draw < 0.2:
            return signed(fields, body, "operator", "a-wrong-secret")
        if draw < 0.3:
            return signed(fields, body, "the-shop", "operator-secret")
        fields = signed(fields, body, *SHOP)
        if draw < 0.4:
            name = self.chance.choice(list(fields))
            fields[name] = self.chance.choice([*VALUES, "operator"])
        return fields

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


def memory_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if "VmRSS" in line)


class Flood:
    """Mutated frames over three connections, and what they did to a broker."""

    def __init__(self, broker: BrokerProcess, *, signs: bool) -> None:
        seed = int(os.environ.get("TXMQ_SEED", random.SystemRandom().randrange(2**32)))
        print(f"TXMQ_SEED={seed}")
        self.broker = broker
        self.mutator = Mutator(seed, signs=signs)
        self.streams = [
            Stream(address) for address in (broker.address, broker.address, broker.names)
        ]

    def pour(self) -> None:
        mutator, before = self.mutator, 0
        for thrown in range(0, FRAMES, WINDOW):
            data = b"".join(mutator.frame() for _ in range(WINDOW))
            self.streams[mutator.chance.randrange(len(self.streams))].throw(data)
            if thrown // WINDOW == 150:
                before = memory_of(self.broker.process.pid)
        grown = memory_of(self.broker.process.pid) - before
        cuts = sum(stream.cuts for stream in self.streams)
        print(f"{FRAMES} frames, {cuts} cuts, memory grew by {grown >> 20} MiB")
        log = self.broker.log.read_text(errors="replace")
        assert "Traceback" not in log, log[log.index("Traceback") - 300 :][:3000]
        assert grown < GROWTH_MAX
        assert all(stream.answered for stream in self.streams)

    def close(self) -> None:
        for stream in self.streams:
            stream.socket.close()


@pytest.fixture
def flood(tmp_path, request):
    """A flood, signed or not, and a broker that has accounts or none."""
    file, signs = tmp_path / "plain_acl.yml", request.param
    file.write_text(ACCOUNTS)
    file.chmod(0o600)
    settings = [f"acl={file}"] if signs else []
    broker = BrokerProcess(tmp_path / "broker", flush="async", settings=settings)
    broker.start()
    flood = Flood(broker, signs=signs)
    flood.accounts = file
    yield flood
    flood.close()
    broker.close()


of_each = pytest.mark.timeout(300 + FRAMES // 1000)


@pytest.mark.fault("M14")
@of_each
@pytest.mark.slow
@pytest.mark.parametrize("flood", [False], indirect=True, ids=["unsigned"])
def test_mutated_frames_leave_the_broker_serving(flood):
    broker = flood.broker
    broker.create_topic("Fuzz", 4)
    broker.create_topic("Alive", 4)  # frames may delete the other
    flood.pour()
    assert ask(broker.address, 30, topic="Alive", queueId=0)[0] == 0
    assert ask(broker.names, 105, topic="Alive")[0] == 0


def as_operator(address: str, code: int, content: bytes = b"", **fields: object):
    named = {name: str(value) for name, value in fields.items()}
    account = signed(named, content, "operator", SECRETS["operator"])
    code, answer, body = ask(address, code, content=content, **account)
    assert code in {0, NOTHING}, answer
    return answer, body


def kept_by(broker: BrokerProcess) -> dict[str, object]:
    """What the account has no permission to change."""
    at, names = broker.address, broker.names
    configs = {code: json.loads(as_operator(at, code)[1]) for code in (21, 201, 43)}
    topics = configs[21]["topicConfigTable"]
    groups = configs[201]["subscriptionGroupTable"]
    offsets = configs[43]["offsetTable"]
    return {
        "topics": {name: topic for name, topic in topics.items() if name != RETRIES},
        "groups": {name: group for name, group in groups.items() if name != "g"},
        "offsets": {place: offset for place, offset in offsets.items() if "Fuzz@g" not in place},
        "settings": as_operator(at, 26)[1],
        "messages": [
            as_operator(at, 30, topic="Closed", queueId=queue)[0]["offset"] for queue in range(4)
        ],
        "transactions": [
            transaction
            for transaction in json.loads(as_operator(at, LIST_TRANSACTIONS)[1])["transactions"]
            if transaction["topic"] != "Fuzz"
        ],
        "names": set(json.loads(as_operator(names, 206)[1])["topicList"]) - {RETRIES},
        "values": as_operator(names, 219, namespace="N")[1],
        "route": as_operator(names, 105, topic="Closed")[1],
    }


@of_each
@pytest.mark.slow
@pytest.mark.parametrize("flood", [True], indirect=True, ids=["signed"])
def test_mutated_signed_frames_change_nothing_their_account_may_not(flood):
    broker = flood.broker
    for topic in ("Fuzz", "Closed"):
        named = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4}
        more = {"perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
        as_operator(broker.address, 17, **named, **more)
    half = {**FIELDS, "topic": "Closed", "properties": "TRAN_MSG\x01true\x02PGROUP\x01p\x02"}
    sent, _ = as_operator(broker.address, 10, b"tea", **half)
    before = kept_by(broker)
    assert before["transactions"]
    position = int(sent["msgId"][-16:], 16)
    flood.mutator.fields |= {
        "commitLogOffset": str(position),
        "offset": str(position),
        "tranStateTableOffset": sent["queueOffset"],
        "msgId": sent["msgId"],
        "transactionId": sent["transactionId"],
    }
    flood.pour()
    assert kept_by(broker) == before
    done = [
        entry for entry in read_audit(LocalDisk(broker.folder / "data"), print) if not entry.refused
    ]
    assert {entry.account for entry in done} == {"operator"}
    assert flood.accounts.read_text() == ACCOUNTS
