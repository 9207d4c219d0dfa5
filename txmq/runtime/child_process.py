"""One child process, as seen by its supervisor."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from txmq.runtime.clock import Clock
from txmq.runtime.parent_link import (
    LINE_BYTES_MAX,
    AskOrder,
    ChildNotice,
    FailedNotice,
    LoadedNotice,
    Order,
    ReadyNotice,
    ReportNotice,
    StartOrder,
    StopOrder,
)
from txmq.runtime.tasks import Threads

__all__ = ["ChildCommand", "ChildEnd", "ChildProcess"]

log = logging.getLogger(__name__)

KILL_GRACE_S: Final = 5.0
"""How long a child may take to end beyond its drain time before it is killed."""

_DECODE_NOTICE: Final = msgspec.json.Decoder(ChildNotice)


@dataclass(frozen=True, slots=True)
class ChildCommand:
    """How to start a child.

    The words are followed by the number of a file descriptor, with which the child opens a
    :class:`~txmq.runtime.parent_link.ParentLink`.
    """

    words: Sequence[str]
    plan: bytes
    """JSON for the child."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further variables of its environment."""


class ChildEnd(NamedTuple):
    """How a child ended."""

    code: int
    """Its exit code; negative for a signal."""
    failure: FailedNotice | None
    """Why it could not start, if it sent a reason."""
    ready_s: float | None
    """How many seconds it was ready."""
    was_killed: bool
    """Whether the supervisor killed it because its drain took too long."""
    report: bytes
    """The content of its last report; empty if it sent none."""

    def __str__(self) -> str:
        """The end in words."""
        if self.failure is not None:
            return self.failure.reason
        if self.code < 0:
            with suppress(ValueError):
                return f"killed by {signal.Signals(-self.code).name}"
        return f"exit code {self.code}"


class ChildProcess:
    """A running child process.

    Args:
        number: Its number among the processes of the supervisor.
        command: How it was started.
        threads: The threads that wait for its end.
        clock: The source of time.
        on_notice: Called after each notice of the child except reports.

    Attributes:
        is_ready: Whether it works.
        is_stopping: Whether the supervisor has asked it to end.
        is_loaded: Whether it has read its program.
        description: What it has loaded; empty until then.
        report: The content of its last report; empty before the first one.
        reported_at: When that report came, in monotonic time.
    """

    def __init__(
        self,
        number: int,
        command: ChildCommand,
        threads: Threads,
        clock: Clock,
        on_notice: Callable[[ChildProcess, ChildNotice], None],
    ) -> None:
        self.number = number
        self._command = command
        self._threads = threads
        self._clock = clock
        self._on_notice = on_notice
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.Task[None] | None = None
        self._killer: asyncio.TimerHandle | None = None
        self._failure: FailedNotice | None = None
        self._ready_at: float | None = None
        self._was_killed = False
        self._reported = asyncio.Event()
        self._serial = self._answered = 0
        self.is_stopping = False
        self.is_loaded = False
        self.description = ""
        self.report = b""
        self.reported_at = clock.monotonic()

    async def start(self) -> None:
        """Start the process.

        Raises:
            OSError: The system cannot start another process.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = self._spawn(theirs.fileno())
            except BaseException:
                ours.close()
                raise
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=LINE_BYTES_MAX)
        self._send(StartOrder(self.number, msgspec.Raw(self._command.plan)))
        self._reader = asyncio.create_task(self._read(reader), name=f"process {self.number}")

    def _spawn(self, descriptor: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - words of this program
            [*self._command.words, str(descriptor)],
            stdin=subprocess.DEVNULL,
            pass_fds=[descriptor],
            env={**os.environ, **self._command.variables},
            # Ctrl-C reaches the supervisor alone, which then ends its children in order.
            process_group=0,
        )

    @property
    def pid(self) -> int:
        """The process id; 0 before the start."""
        return 0 if self._process is None else self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether it works: it has started, and was not asked to end."""
        return self._ready_at is not None and not self.is_stopping

    async def wait(self) -> ChildEnd:
        """Wait until it has ended."""
        process = self._process
        assert process is not None, "the child was started"
        await self._threads.run(process.wait)
        # The last lines may still be in the socket.
        if self._reader is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._reader, 1.0)
        if self._killer is not None:
            self._killer.cancel()
        if self._writer is not None:
            self._writer.close()
        self._reported.set()
        ready_s = None if self._ready_at is None else self._clock.monotonic() - self._ready_at
        code, was_killed = process.returncode, self._was_killed
        return ChildEnd(code, self._failure, ready_s, was_killed, self.report)

    def stop(self, within_s: float) -> None:
        """Ask it to finish its work and end; kill it if that takes too long."""
        if self.is_stopping:
            return
        self.is_stopping = True
        self._send(StopOrder())
        if not self.is_loaded and self._process is not None:
            self._process.terminate()  # It may still be importing, and has no work to lose.
        loop = asyncio.get_running_loop()
        self._killer = loop.call_later(within_s + KILL_GRACE_S, self._cut)

    def _cut(self) -> None:
        log.error("process %d did not end in time, and is killed", self.number)
        self._was_killed = True
        self.kill()

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()

    async def ask(self, within_s: float) -> bytes:
        """Request a report and return it; the last one if the child is too busy to answer."""
        self._serial += 1
        serial = self._serial
        self._send(AskOrder(serial))
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._answered < serial and not self._is_over:
                    self._reported.clear()
                    await self._reported.wait()
        return self.report

    @property
    def _is_over(self) -> bool:
        return self._reader is None or self._reader.done()

    def _send(self, order: Order) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(msgspec.json.encode(order) + b"\n")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                self._take(_DECODE_NOTICE.decode(line))
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            log.debug("process %d: its line broke: %s", self.number, error)
        finally:
            self._reported.set()

    def _take(self, notice: ChildNotice) -> None:
        if isinstance(notice, ReportNotice):
            self.report = bytes(notice.content)
            self.reported_at = self._clock.monotonic()
            self._answered = max(self._answered, notice.serial)
            self._reported.set()
            return
        if isinstance(notice, LoadedNotice):
            self.is_loaded, self.description = True, notice.description
        elif isinstance(notice, ReadyNotice):
            self._ready_at = self._clock.monotonic()
        elif isinstance(notice, FailedNotice):
            self._failure = notice
        self._on_notice(self, notice)
