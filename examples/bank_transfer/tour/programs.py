"""One program of the tour: started, killed at once, started again at the same place."""

from __future__ import annotations

import asyncio
import ctypes
import random
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from txmq.errors import TxmqError

__all__ = ["NotStarted", "Program", "free_port"]

START_S: Final = 60.0
"""A machine that is busy with other work needs half of it."""
STOP_S: Final = 20.0
PORTS: Final = range(20_000, 32_000)
"""Below the ports that systems give to outgoing connections: a killed program finds its port free
again."""
PR_SET_PDEATHSIG: Final = 1
LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None
"""Loaded here, because a child process must not load libraries before it starts."""


class NotStarted(TxmqError):
    """A program did not become ready; its log says why."""


class Program:
    """A program that prints a line which begins with ``ready``.

    Args:
        name: What it is called.
        module: The module that Python runs.
        arguments: Its command line.
        log: Where it writes its log.
    """

    def __init__(self, name: str, module: str, arguments: list[str], log: Path) -> None:
        self.name = name
        self.starts = 0
        self._command = [sys.executable, "-m", module, *arguments]
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        """True if the program runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it, and wait until it is ready.

        Raises:
            NotStarted: It did not become ready.
        """
        with self._log.open("ab") as log:
            began = log.tell()
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=log,
                start_new_session=True, preexec_fn=die_with_us,
            )  # fmt: skip
        self.starts += 1
        line = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                while not line.startswith(b"ready"):
                    assert process.stdout is not None, "it is a pipe"
                    line = await process.stdout.readline()
                    if not line:
                        await process.wait()  # What is killed while it ends is waited for twice.
                        break
        if not line.startswith(b"ready"):
            await self.kill()
            raise NotStarted(f"{self.name} is not ready: {self._words_since(began)}")

    async def kill(self) -> None:
        """Kill it, as a power cut does."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Stop it; it has a while to finish its work."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self._end(signal.SIGTERM)
        finally:
            if self.is_running:  # Also if the caller was cancelled.
                await self.kill()

    async def _end(self, by: signal.Signals) -> None:
        if (process := self._process) is not None:
            with suppress(ProcessLookupError):
                process.send_signal(by)
            await process.wait()

    def _words_since(self, began: int) -> str:
        lines = self._log.read_bytes()[began:].decode(errors="replace").splitlines()
        return " | ".join(lines[-3:]) or "it has printed nothing"


def die_with_us() -> None:
    """Die with the tour, even if the tour is killed."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port(taken: set[int]) -> int:
    """A free port of loopback; it is added to ``taken``.

    Raises:
        NotStarted: No port is free.
    """
    for port in random.sample(PORTS, len(PORTS)):
        if port in taken:
            continue
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        taken.add(port)
        return port
    raise NotStarted("no port of loopback is free")
