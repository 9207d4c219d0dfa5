"""Descriptions of waiting tasks."""

from __future__ import annotations

import asyncio
import linecache
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from types import FrameType
from typing import Any

__all__ = ["waits"]

_ASYNCIO = str(PurePath(asyncio.__file__).parent)


def waits(tasks: Iterable[asyncio.Task[Any]]) -> Iterator[str]:
    """One line per task: its name, its coroutines from the outside in, and the line it stops at."""
    for task in tasks:
        frames = list(_frames(task.get_coro()))
        own = [frame for frame in frames if not frame.f_code.co_filename.startswith(_ASYNCIO)]
        if not frames:
            yield f"{task.get_name()}: not started or waiting outside Python code"
            continue
        path = " > ".join(frame.f_code.co_qualname for frame in frames)
        last = (own or frames)[-1]
        file, line = last.f_code.co_filename, last.f_lineno
        text = linecache.getline(file, line).strip()
        yield f"{task.get_name()}: {path}: {text!r} ({PurePath(file).name}:{line})"


def _frames(awaited: object) -> Iterator[FrameType]:
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            return
        yield frame
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
