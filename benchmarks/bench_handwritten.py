"""A client of a broker that knows one kind of call: a half message, a local transaction, an END.

It measures how much of a decorated call's time is the framework's. It keeps no state of a
transaction, answers no checks, and repeats, limits and reports nothing. It uses txmq's codec.
"""

import asyncio
import itertools
import socket
import threading
import time

from txmq import Message
from txmq.client.send_request import result_of, sealed
from txmq.protocol.codes import RequestCode, SysFlag
from txmq.protocol.command import FrameReader, decode, encode
from txmq.protocol.headers import EndTransaction
from txmq.protocol.properties import PRODUCER_GROUP, TRANSACTION, render
from txmq.protocol.record import position_in
from txmq.protocol.templates import SendHeaderTemplate

TEMPLATE = "TBW102"
READ_BYTES = 65_536


class Frames:
    """The frames of one group's transactions in the first queue of a topic.

    Args:
        group: The producer group.
        route: The topic's route.
    """

    def __init__(self, group, route):
        self.group = group
        self.queue, *_ = queues = route.queues_to_write()
        host, port = route.master(self.queue.broker).rsplit(":", 1)
        self.address = host, int(port)
        self.numbers = itertools.count()
        self.marks = render({TRANSACTION: "true", PRODUCER_GROUP: group})
        self.form = SendHeaderTemplate(
            group, self.queue.topic, TEMPLATE, len(queues), self.queue.broker, None
        )

    def half(self, number, xid, account, amount):
        """A half message."""
        body = b'{"account":%d,"amount":%d}' % (account, amount)
        message = Message(topic=self.queue.topic, body=body, keys=(str(account),))
        envelope = sealed(message, xid, sys_flag=int(SysFlag.PREPARED), marks=self.marks)
        head = self.form.head(
            number, self.queue.number, envelope.sys_flag, time.time_ns() // 1_000_000,
            envelope.flag, envelope.properties, envelope.body, is_batch=False,
        )  # fmt: skip
        return head + envelope.body

    def commit(self, number, answer, xid):
        """The END that commits; the half message has this answer."""
        sent = result_of(answer, self.queue, xid)
        end = EndTransaction(
            producer_group=self.group,
            tran_state_table_offset=sent.offset,
            commit_log_offset=position_in(sent.offset_id),
            commit_or_rollback=int(SysFlag.COMMITTED),
            msg_id=sent.id,
            transaction_id=sent.transaction_id or sent.id,
            topic=sent.queue.topic,
        )
        return encode(RequestCode.END_TRANSACTION, number, end)


class AwaitedLink(asyncio.Protocol):
    """One connection for all calls of a loop."""

    def __init__(self):
        self.reader = FrameReader()
        self.waiting = {}
        self.out = []
        self.transport = None

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        for part in self.reader.feed(data):
            answer = decode(part)
            self.waiting.pop(answer.opaque).set_result(answer)

    def connection_lost(self, error):
        for future in self.waiting.values():
            future.set_exception(error or ConnectionError("the broker closed the connection"))

    def exchange(self, number, frame):
        """Write a request together with others of this turn; the future gets its answer."""
        loop = asyncio.get_running_loop()
        future = self.waiting[number] = loop.create_future()
        if not self.out:
            loop.call_soon(self._write)
        self.out.append(frame)
        return future

    def _write(self):
        self.transport.write(b"".join(self.out))
        self.out.clear()


class AwaitedHand:
    """Calls of a coroutine function.

    Args:
        behind: The bank behind its fence.
        frames: The frames.
    """

    def __init__(self, behind, frames):
        self.behind = behind
        self.frames = frames
        self.link = None

    async def open(self):
        """Connect."""
        loop = asyncio.get_running_loop()
        _, self.link = await loop.create_connection(AwaitedLink, *self.frames.address)

    def close(self):
        """Disconnect."""
        self.link.transport.close()

    async def call(self, account, amount):
        """One transaction."""
        frames, link, xid = self.frames, self.link, self.behind.next_id()
        number = next(frames.numbers)
        stored = await link.exchange(number, frames.half(number, xid, account, amount))
        async with self.behind.local(xid) as session:
            await self.behind.bank.transfer(session, account, amount)
        number = next(frames.numbers)
        answer = await link.exchange(number, frames.commit(number, stored, xid))
        assert answer.code == 0, answer


class BlockingLink(threading.local):
    """The connection of each thread; it is closed when its thread ends.

    Args:
        address: The broker's host and port.
    """

    def __init__(self, address):
        self.reader = FrameReader()
        self.stream = socket.create_connection(address)
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, frame):
        """Write a request and return its answer."""
        self.stream.sendall(frame)
        while not (parts := self.reader.feed(self.stream.recv(READ_BYTES))):
            pass
        return decode(parts[0])


class BlockingHand:
    """Calls of a plain function.

    Args:
        behind: The bank behind its fence.
        frames: The frames.
    """

    def __init__(self, behind, frames):
        self.behind = behind
        self.frames = frames
        self.link = BlockingLink(frames.address)

    def call(self, account, amount):
        """One transaction."""
        frames, link, xid = self.frames, self.link, self.behind.next_id()
        stored = link.exchange(frames.half(next(frames.numbers), xid, account, amount))
        with self.behind.local(xid) as session:
            self.behind.bank.transfer(session, account, amount)
        answer = link.exchange(frames.commit(next(frames.numbers), stored, xid))
        assert answer.code == 0, answer
