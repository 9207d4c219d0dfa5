"""A protocol that writes down what happens to it, on a simulated network or a real one."""

import asyncio


class Recorder(asyncio.Protocol):
    """Writes down everything that a transport tells it."""

    def __init__(self):
        self.events = []
        self.received = bytearray()
        self.chunks = []
        self.changed = asyncio.Event()
        self.keep_open = False

    def note(self, *event):
        self.events.append(event)
        self.changed.set()

    def connection_made(self, transport):
        self.transport = transport
        self.note("made")

    def data_received(self, data):
        self.received += data
        self.chunks.append(len(data))
        self.changed.set()

    def eof_received(self):
        self.note("eof")
        return self.keep_open

    def pause_writing(self):
        self.note("pause")

    def resume_writing(self):
        self.note("resume")

    def connection_lost(self, error):
        self.note("lost", type(error))
        self.error = error

    async def until(self, condition):
        while not condition(self):
            self.changed.clear()
            await self.changed.wait()

    async def lost(self):
        await self.until(lambda me: me.events[-1][0] == "lost")
        return self.error
