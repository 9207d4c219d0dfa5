"""A link between two processes that a test can cut: bytes stop, and connections stay open."""

import asyncio
import threading
from contextlib import suppress

from tests.servers.serving import free_port


class CutProxy:
    """Forwards a port of its own to another; what arrives while it is cut is lost.

    Args:
        target: The port to forward to.
    """

    def __init__(self, target):
        self.port = free_port()
        self._target = target
        self._is_cut = False
        self._open = set()
        self._loop = self._leaving = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._leaving.set)
        self._thread.join(10)

    def cut(self):
        self._is_cut = True

    def heal(self):
        """Forward again; connections that lost bytes are closed."""
        self._is_cut = False
        self._loop.call_soon_threadsafe(self._close_all)

    def _close_all(self):
        for writer in list(self._open):
            writer.close()

    async def _run(self):
        self._loop, self._leaving = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._take, "127.0.0.1", self.port)
        self._ready.set()
        await self._leaving.wait()
        server.close()
        self._close_all()

    async def _take(self, reader, writer):
        self._open.add(writer)
        back = None
        with suppress(OSError, asyncio.CancelledError):
            if self._is_cut:
                await reader.read()
            else:
                there, back = await asyncio.open_connection("127.0.0.1", self._target)
                self._open.add(back)
                await asyncio.gather(self._forward(reader, back), self._forward(there, writer))
        for stream in (writer, back):
            if stream is not None:
                stream.close()
                self._open.discard(stream)

    async def _forward(self, reader, writer):
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if not self._is_cut:
                    writer.write(data)
                    await writer.drain()
        writer.close()
