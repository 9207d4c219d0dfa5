"""Fills a broker's directory as a big cluster would, through the broker's own parts."""

import asyncio
import json
import struct
from typing import NamedTuple

from txmq.client import Admin, Session
from txmq.message import Message
from txmq.protocol.bodies import GroupConfig, TopicConfig
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings, StoreSettings

SEND_MESSAGE_V2 = 310
PREPARED = 4
SENT_TOGETHER = 2_000
QUEUES = 4
LAG = 3


class Crowd(NamedTuple):
    """How much a broker has."""

    topics: int
    groups: int
    transactions: int


def fill(folder, crowd):
    """Make the directory of a stopped broker that has all of it; each group has a lag of three in
    each of its queues.
    """
    asyncio.run(_fill(str(folder), crowd))


async def _fill(data, crowd):
    settings = BrokerSettings(
        data=data,
        listen="127.0.0.1:0",
        names_listen="127.0.0.1:0",
        store=StoreSettings(flush="async"),
    )
    async with Broker(settings) as broker:
        for number in range(crowd.topics):
            broker.topics.put(TopicConfig(topic_of(number), QUEUES, QUEUES), 1)
        for number in range(crowd.groups):
            broker.groups.put(GroupConfig(group_of(number)), 1)
        broker.parts.topics_changed()
        consumed = [topic_of(number) for number in range(min(crowd.topics, 100))]
        async with Session(broker.names) as session:
            admin = Admin(session)
            for topic in consumed:
                for _ in range(QUEUES * LAG):
                    await admin.send(Message(topic=topic, body=b"x"))
        for number in range(crowd.groups):
            topic = consumed[number % len(consumed)]
            for queue in range(QUEUES):
                broker.offsets.put(group_of(number), topic, queue, 0)
        await _prepare(broker.address, crowd.transactions)


def topic_of(number):
    return f"Topic-{number:06}"


def group_of(number):
    return f"group-{number:05}"


async def _prepare(address, count):
    """Send half messages, many on their way at once."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    for start in range(0, count, SENT_TOGETHER):
        numbers = range(start, min(start + SENT_TOGETHER, count))
        writer.write(b"".join(_half(number) for number in numbers))
        for _ in numbers:
            size = struct.unpack(">I", await reader.readexactly(4))[0]
            answer = await reader.readexactly(size)
            assert b'"code":0' in answer, answer
    writer.close()


def _half(number):
    properties = (
        f"KEYS\x01transfer-{number}\x02UNIQ_KEY\x017F00000100002A9F{number:016X}\x02"
        "TRAN_MSG\x01true\x02PGROUP\x01bank\x02"
    )
    values = ["bank", topic_of(0), "TBW102", QUEUES, number % QUEUES, PREPARED, 1, 0, properties, 0]
    fields = dict(zip("abcdefghij", map(str, values), strict=True))
    header = {"code": SEND_MESSAGE_V2, "extFields": fields, "flag": 0, "language": "JAVA"}
    header |= {"opaque": number, "serializeTypeCurrentRPC": "JSON", "version": 409}
    text, body = json.dumps(header).encode(), b'{"amount": 1}'
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body
