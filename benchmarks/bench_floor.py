"""The floor: what the same sends cost a server that is no broker.

It does what no broker of this protocol can leave out, and nothing else: it cuts the stream into
frames, decodes the JSON header into a typed struct, gives the message an offset in its queue, packs
the record as it would be stored, appends what one read brought in one write, and answers that in
one write. There is no topic, no index, no reader, no limit and no error here. A broker's cost per
message is a multiple of this one's, taken in the same run, so that the machine falls out.

    python bench_floor.py LOG [sync]    listens on a free port of the loopback, which it prints

With "sync" it syncs each write in place, before the answers.
"""

import asyncio
import os
import sys
import zlib
from struct import Struct

import msgspec
import uvloop

WORDS = Struct(">II")
RECORD = Struct(">IIIIiqqiq8sq8siqI")
NAME_END = Struct(">H")
RECORD_MAGIC = 0xDAA320A7
KEPT_BYTES = 500_000_000
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"

ANSWER = (
    b'{"code":0,"extFields":{"msgId":"%032X","queueId":"%d","queueOffset":"%d"},"flag":1,'
    b'"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":409}'
)


class Send(msgspec.Struct, gc=False):
    """The fields of request 310, by the letters they travel under."""

    a: str  # producer group
    b: str  # topic
    c: str  # default topic
    d: int  # its queues
    e: int  # queue id
    f: int  # system flag
    g: int  # born at, ms
    h: int  # flag
    i: str  # properties
    j: int = 0  # attempts
    k: bool = False  # unit mode
    m: bool = False  # batch


class Header(msgspec.Struct, gc=False):
    """What a request's header says."""

    code: int
    opaque: int
    extFields: Send
    flag: int = 0
    language: str = ""
    version: int = 0


class Floor(asyncio.Protocol):
    """One connection. The log and its offsets are shared by all of them."""

    def __init__(self, log, offsets):
        self.log = log
        self.offsets = offsets
        self.decode = msgspec.json.Decoder(Header, strict=False).decode
        self.rest = b""

    def connection_made(self, transport):
        self.transport = transport
        self.log.make_room()

    def data_received(self, data):
        if self.rest:
            data = self.rest + data
        at, end = 0, len(data)
        records, answers = [], []
        position, offsets = self.log.end, self.offsets
        while end - at >= 8:
            length, header_size = WORDS.unpack_from(data, at)
            stop = at + 4 + length
            if stop > end:
                break
            middle = at + 8 + header_size
            header = self.decode(data[at + 8 : middle])
            body = data[middle:stop]
            at = stop
            send = header.extFields
            queue = send.e
            offset = offsets.get((send.b, queue), 0)
            offsets[send.b, queue] = offset + 1
            topic, properties = send.b.encode(), send.i.encode()
            size = RECORD.size + len(body) + 3 + len(topic) + len(properties)
            head = RECORD.pack(
                size, RECORD_MAGIC, zlib.crc32(body) & 0x7FFFFFFF, queue, send.h, offset, position,
                send.f, send.g, HOST, send.g, HOST, send.j, 0, len(body),
            )  # fmt: skip
            tail = b"%c%b%b%b" % (len(topic), topic, NAME_END.pack(len(properties)), properties)
            records += (head, body, tail)
            answer = ANSWER % (position, queue, offset, header.opaque)
            answers += (WORDS.pack(4 + len(answer), len(answer)), answer)
            position += size
        self.rest = data[at:]
        if records:
            self.log.append(b"".join(records))
            self.transport.write(b"".join(answers))


class Log:
    """A file that grows, and begins anew only between connections."""

    def __init__(self, path, *, is_sync):
        self.is_sync = is_sync
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.end = 0

    def make_room(self):
        if self.end > KEPT_BYTES:
            os.ftruncate(self.file, 0)
            os.lseek(self.file, 0, os.SEEK_SET)
            self.end = 0

    def append(self, data):
        self.end += os.write(self.file, data)
        if self.is_sync:
            os.fdatasync(self.file)


async def serve(path, *flush):
    log, offsets = Log(path, is_sync="sync" in flush), {}
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Floor(log, offsets), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]))
