"""Prevents simulated code from using threads, sockets, processes and blocking sleeps.

Sockets and processes announce themselves to an audit hook. The first simulation installs the hook.
Python cannot remove it again, so it has no effect unless the thread that raised the event is
simulating. Threads and sleeps raise audit events only in newer Pythons, so two functions are
replaced while a simulation runs.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from txmq.testing.failures import RealWorldError

__all__ = ["real_world_closed"]

_FORBIDDEN = {
    "os.fork": "forked",
    "socket.bind": "bound a real socket; listen on the machine's network port",
    "socket.connect": "connected a real socket; connect through the machine's network port",
    "socket.getaddrinfo": "resolved a name; connect through the machine's network port",
    "subprocess.Popen": "started a process",
}
_simulating: dict[int, None] = {}
"""The threads in which a simulation runs."""


@contextmanager
def real_world_closed() -> Iterator[None]:
    """Inside this context, this thread raises RealWorldError when it leaves the simulation."""
    _install_hook()
    me = threading.get_ident()
    assert me not in _simulating, "a simulation inside a simulation"
    _simulating[me] = None
    start, sleep = threading.Thread.start, time.sleep

    def guarded_start(thread: threading.Thread) -> None:
        _refuse("started a thread")
        start(thread)

    def guarded_sleep(seconds: float) -> None:
        _refuse("blocked in time.sleep; await asyncio.sleep")
        sleep(seconds)

    threading.Thread.start = guarded_start  # type: ignore[method-assign, assignment]
    time.sleep = guarded_sleep  # type: ignore[assignment]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
        time.sleep = sleep
        del _simulating[me]


def _refuse(what: str) -> None:
    if threading.get_ident() in _simulating:
        raise RealWorldError(f"simulated code {what}")


@cache
def _install_hook() -> None:
    sys.addaudithook(_on_event)


def _on_event(event: str, _: tuple[object, ...]) -> None:
    if _simulating and event in _FORBIDDEN:
        _refuse(_FORBIDDEN[event])
