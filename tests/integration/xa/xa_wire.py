"""A line to a database that can be cut, and that acts when certain words pass by.

It knows PostgreSQL's words by a few bytes written here, apart from txmq.
"""

from tests.integration.transaction.crash_wire import REPLY, REQUEST, Wire

__all__ = ["REPLY", "REQUEST", "Line", "spelled"]


def spelled(url):
    return url.render_as_string(hide_password=False)


class Line(Wire):
    """The request or the reply with certain words does not arrive; or nothing at all does.

    Of one transaction: the one whose connection has said ``mark`` before.
    """

    def __init__(self, url):
        super().__init__(url.host, url.port)
        self.said = self.answered = self.mark = b""
        self.until = None

    def wait_for(self, words, side, mark=b"", act=None):
        """Do something where these words pass: what is asked, and how it is answered."""
        self.said, self.answered = words
        self.mark, self.side, self.act = mark, side, act

    def silence(self, until):
        """Nothing sent from now on arrives, and no connection is cut before ``until``."""
        self.until = until

    async def down(self):
        """Refuse new connections, and cut those that exist."""
        self._server.close()
        for line in list(self._lines):
            line.cancel()

    async def up(self):
        """Accept connections again, at the same port."""
        import asyncio

        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def line(self):
        return _Talk(self)

    async def _forward(self, reader, writer, look, side):
        if self.until is not None:
            await self.until.wait()
        await super()._forward(Silenced(self, reader), writer, look, side)


class Silenced:
    """A stream of which nothing is read any more once its line is silent."""

    def __init__(self, wire, reader):
        self._wire = wire
        self._reader = reader

    async def read(self, count):
        data = await self._reader.read(count)
        if self._wire.until is not None:
            await self._wire.until.wait()
        return data


class _Talk:
    def __init__(self, wire):
        self._wire = wire
        self._is_marked = False
        self._is_asked = False

    def asked(self, data):
        wire = self._wire
        if not wire.said:
            return False
        self._is_marked = self._is_marked or wire.mark in data
        self._is_asked = self._is_marked and wire.said in data
        return self._is_asked

    def answered(self, data):
        return self._is_asked and self._wire.answered in data
