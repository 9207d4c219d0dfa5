"""The bytes the benchmarks send, written before the clock starts.

They are written here and not by txmq's own codec, so that a faster or slower codec changes the
broker's figures and not the driver's.
"""

import base64
import hmac
import json
import struct
import time

WORDS = struct.Struct(">II")
BATCH_HEAD = struct.Struct(">IIIiI")
SHORT = struct.Struct(">H")
TOPIC = "BenchTopic"
GROUP = "bench"
QUEUES = 4

SEND_MESSAGE_V2 = 310
SEND_BATCH = 320
END_TRANSACTION = 37
PREPARED = 4
GET_FIGURES = 28
PULL_MESSAGE = 11
HEART_BEAT = 34
GET_MAX_OFFSET = 30
SUSPEND = 2
SUBSCRIPTION_GIVEN = 4
PULLED_AT_ONCE = 32
BATCH_MESSAGES = 32


def frame(code, opaque, fields, body=b""):
    """One request as a Java client writes it."""
    header = {
        "code": code,
        "extFields": fields,
        "flag": 0,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 409,
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return WORDS.pack(4 + len(text) + len(body), len(text)) + text + body


def sends(count, body_bytes, account=None):
    """Messages for all queues in turn, with the properties every stock client adds and a key; with
    an account, its access key and secret, each is signed.
    """
    body = b"x" * body_bytes
    frames = []
    for number in range(count):
        fields = _send_fields(number % QUEUES, _properties(number))
        if account is not None:
            fields = signed(fields, body, *account)
        frames.append(frame(SEND_MESSAGE_V2, number, fields, body))
    return frames


def _properties(number):
    return (
        f"KEYS\x01order-{number}\x02UNIQ_KEY\x017F00000100002A9F{number:016X}\x02"
        "WAIT\x01true\x02TAGS\x01TagA\x02"
    )


def _send_fields(queue, properties):
    return {
        "a": GROUP,
        "b": TOPIC,
        "c": "TBW102",
        "d": str(QUEUES),
        "e": str(queue),
        "f": "0",
        "g": str(int(time.time() * 1000)),
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
    }


def batches(count, body_bytes):
    """Batches of the same messages as :func:`sends`, for all queues in turn; bodies differ."""
    frames = []
    for batch in range(count):
        items = []
        for place in range(BATCH_MESSAGES):
            number = 100_000 + batch * BATCH_MESSAGES + place
            body = b"%08d" % number
            body = body * (body_bytes // len(body)) + body[: body_bytes % len(body)]
            properties = _properties(number).encode()
            size = BATCH_HEAD.size + len(body) + SHORT.size + len(properties)
            items += [BATCH_HEAD.pack(size, 0, 0, 0, len(body)), body]
            items += [SHORT.pack(len(properties)), properties]
        fields = _send_fields(batch % QUEUES, "") | {"m": "true"}
        frames.append(frame(SEND_BATCH, batch, fields, b"".join(items)))
    return frames


def signed(fields, body, access_key, secret_key):
    """The fields with what Java's AclClientRPCHook adds to them."""
    fields = {**fields, "AccessKey": access_key}
    content = "".join(fields[name] for name in sorted(fields)).encode() + body
    signature = hmac.digest(secret_key.encode(), content, "sha1")
    return {**fields, "Signature": base64.b64encode(signature).decode()}


def figures():
    """The question for what a broker tells about itself."""
    return frame(GET_FIGURES, 0, {})


def pull(queue, offset):
    """A pull that brings its own subscription and does not wait."""
    return frame(PULL_MESSAGE, queue, _pull_fields(queue, offset))


def held_pull(queue, offset):
    """The same, and it waits at the queue's end."""
    more = {"sysFlag": str(SUBSCRIPTION_GIVEN | SUSPEND), "suspendTimeoutMillis": "15000"}
    return frame(PULL_MESSAGE, queue, _pull_fields(queue, offset) | more)


def _pull_fields(queue, offset):
    return {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": str(queue),
        "queueOffset": str(offset),
        "maxMsgNums": str(PULLED_AT_ONCE),
        "sysFlag": str(SUBSCRIPTION_GIVEN),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }


def max_offset(queue):
    """The question how many messages a queue has had."""
    return frame(GET_MAX_OFFSET, queue, {"topic": TOPIC, "queueId": str(queue)})


def heartbeat(number):
    """What an idle producer says every 30 seconds."""
    beat = {
        "clientID": f"127.0.0.1@{number}",
        "consumerDataSet": [],
        "producerDataSet": [{"groupName": GROUP}],
    }
    return frame(HEART_BEAT, number, {}, json.dumps(beat).encode())


class Template:
    """A frame with gaps; each mark stands for one, and what fills it may be of any length."""

    def __init__(self, header, body, *marks):
        text = json.dumps(header, separators=(",", ":")).encode()
        for mark in marks:
            text = text.replace(mark, b"%b")
        self.text = text
        self.body = body

    def fill(self, *values):
        text = self.text % values
        return WORDS.pack(4 + len(text) + len(self.body), len(text)) + text + self.body


def _header(code, fields):
    return {
        "code": code,
        "extFields": fields,
        "flag": 0,
        "language": "JAVA",
        "opaque": 1,
        "serializeTypeCurrentRPC": "JSON",
        "version": 409,
    }


def half_template(body_bytes):
    """A half message as a Java producer sends it; its gap is the unique key."""
    properties = (
        "KEYS\x01order-17\x02UNIQ_KEY\x01@ID\x02WAIT\x01true\x02TAGS\x01TagA\x02"
        f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"
    )
    fields = {
        "a": GROUP,
        "b": TOPIC,
        "c": "TBW102",
        "d": str(QUEUES),
        "e": "1",
        "f": str(PREPARED),
        "g": str(int(time.time() * 1000)),
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
        "n": "broker-a",
    }
    return Template(_header(SEND_MESSAGE_V2, fields), b"x" * body_bytes, b"@ID")


def timer_template(body_bytes):
    """A message for later; its gaps are the queue, the unique key and its time."""
    properties = "UNIQ_KEY\x01@ID\x02WAIT\x01true\x02TAGS\x01TagA\x02TIMER_DELIVER_MS\x01@DUE\x02"
    fields = _send_fields("@QUEUE", properties) | {"n": "broker-a"}
    marks = (b"@QUEUE", b"@ID", b"@DUE")
    return Template(_header(SEND_MESSAGE_V2, fields), b"x" * body_bytes, *marks)


def end_template(decision):
    """An END; its gaps are the unique key, the position and the offset."""
    fields = {
        "msgId": "@ID",
        "commitLogOffset": "@POSITION",
        "tranStateTableOffset": "@OFFSET",
        "commitOrRollback": str(decision),
        "fromTransactionCheck": "false",
        "producerGroup": GROUP,
        "transactionId": "17",
        "bname": "broker-a",
    }
    return Template(_header(END_TRANSACTION, fields), b"", b"@ID", b"@POSITION", b"@OFFSET")
