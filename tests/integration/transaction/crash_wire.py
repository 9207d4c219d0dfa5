"""Stands on the line between a teller and a broker, or a database, and acts at a certain message.

It knows frames and PostgreSQL's words by a few bytes written here, apart from txmq.
"""

import asyncio
import contextlib
import json
import struct

__all__ = ["REPLY", "REQUEST", "BrokerWire", "DatabaseWire", "Wire"]

REQUEST, REPLY = "the request does not arrive", "the reply does not arrive"
HALF, END = (10, 310), (37,)


class Wire:
    """A line with a hole in it: what is awaited is not passed on, and ``act`` is called instead.

    Both ends find the line closed then.
    """

    def __init__(self, host, port):
        self._target = host, port
        self._lines = set()
        self.side = None
        self.act = None

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *problem):
        self._server.close()
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    async def _serve(self, reader, writer):
        # A task of its own: streams complain when their own tasks are cancelled.
        self._lines.add(asyncio.ensure_future(self._carry(reader, writer)))

    async def _carry(self, reader, writer):
        with contextlib.closing(writer):
            there, back = await asyncio.open_connection(*self._target)
            with contextlib.closing(back):
                line = self.line()
                ways = [
                    asyncio.ensure_future(self._forward(reader, back, line.asked, REQUEST)),
                    asyncio.ensure_future(self._forward(there, writer, line.answered, REPLY)),
                ]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)

    async def _forward(self, reader, writer, look, side):
        while data := await reader.read(65536):
            if look(data) and self.side == side:
                self.side = None
                if self.act is not None:
                    await self.act()
                return
            writer.write(data)
            await writer.drain()


class Frames:
    """Cuts a stream of remoting into headers and bodies, without keeping it from anybody."""

    def __init__(self):
        self._held = b""

    def feed(self, data):
        self._held += data
        while len(self._held) >= 8:
            length, word = struct.unpack_from(">II", self._held)
            if len(self._held) < 4 + length:
                return
            end, size = 4 + length, word & 0xFFFFFF
            assert word >> 24 == 0, "this reads JSON only"
            yield json.loads(self._held[8 : 8 + size]), self._held[8 + size : end]
            self._held = self._held[end:]


class BrokerWire(Wire):
    """Waits for the half message of an order, or for its END."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        super().__init__(host, int(port))
        self.real_port = port
        self.what = None
        self.order = None
        self.xids = {}

    def wait_for(self, what, side, order, act):
        self.what, self.side, self.order, self.act = what, side, order, act

    def line(self):
        return _BrokerLine(self)

    def is_awaited(self, header, body):
        fields = header.get("extFields") or {}
        if header["code"] in HALF:
            pairs = fields.get("i", fields.get("properties", "")).split("\x02")
            properties = dict(pair.split("\x01", 1) for pair in pairs if pair)
            self.xids[properties.get("UNIQ_KEY")] = properties.get("KEYS")
            return self.what == "half" and properties.get("KEYS") == self.order
        if header["code"] in END and self.what == "end":
            return self.xids.get(fields["msgId"]) == self.order
        return False


class _BrokerLine:
    def __init__(self, wire):
        self._wire = wire
        self._there, self._back = Frames(), Frames()
        self._opaque = None

    def asked(self, data):
        is_here = False
        for header, body in self._there.feed(data):
            if self._wire.is_awaited(header, body):
                self._opaque, is_here = header["opaque"], True
        return is_here

    def answered(self, data):
        # A broker asks on the same line, by numbers of its own.
        return any(
            header["flag"] & 1 and header["opaque"] == self._opaque
            for header, _ in list(self._back.feed(data))
        )


class DatabaseWire(Wire):
    """Waits for the COMMIT of an order."""

    def __init__(self, url):
        super().__init__(url.host, url.port)
        self.order = None

    def wait_for(self, side, order, act=None):
        self.side, self.order, self.act = side, order, act

    def line(self):
        return _DatabaseLine(self)


class _DatabaseLine:
    def __init__(self, wire):
        self._wire = wire
        self._is_its = False

    def asked(self, data):
        if self._wire.order is not None and f"'{self._wire.order}'".encode() in data:
            self._is_its = True
        return self._is_its and b"COMMIT\0" in data

    def answered(self, data):
        if b"COMMIT\0" not in data:
            return False
        is_its, self._is_its = self._is_its, False
        return is_its
