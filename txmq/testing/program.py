"""The program to which the running code belongs.

The program is a context variable, so tasks, callbacks and timers inherit it. The simulated loop
wraps each of them in a :class:`ProgramStep`, which runs only while the program lives and is not
paused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVarTuple, Unpack

from txmq.testing.failures import PowerCut

__all__ = ["PROGRAM", "Program", "ProgramStep"]

Ts = TypeVarTuple("Ts")


class Program:
    """Tasks and callbacks that live and die together, like an operating system process."""

    __slots__ = ("_held", "alive", "finished", "name")

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.alive: bool = True
        self.finished: bool = False
        self._held: list[ProgramStep] | None = None

    def kill(self) -> None:
        """Never run any of its code again."""
        self.alive = False
        self._held = None

    def pause(self) -> None:
        """Hold back all steps that become due."""
        if self._held is None:
            self._held = []

    def resume(self) -> None:
        """Continue, first with the held steps, in the order in which they became due."""
        held, self._held = self._held or [], None
        for step in held:
            step.again()

    def holds(self, step: ProgramStep) -> bool:
        """True if the program is paused; it then keeps the step and runs it later."""
        if self._held is None:
            return False
        self._held.append(step)
        return True


class ProgramStep:
    """A callback of a program, and the handle that cancels it."""

    __slots__ = ("_args", "_callback", "_program", "context", "handle")

    handle: asyncio.Handle

    def __init__(
        self,
        program: Program,
        context: Context | None,
        callback: Callable[[Unpack[Ts]], object],
        args: tuple[*Ts],
    ) -> None:
        self._program = program
        self.context: Context = copy_context() if context is None else context
        self._callback: Callable[..., object] = callback
        self._args: tuple[Any, ...] = args

    def __repr__(self) -> str:
        name = getattr(self._callback, "__qualname__", type(self._callback).__name__)
        return f"<{name} of {self._program.name}>"

    def __call__(self) -> None:
        """Run the callback, unless the program is dead, paused or has cancelled it."""
        program = self._program
        if not program.alive or self.handle.cancelled() or program.holds(self):
            return
        try:
            self._callback(*self._args)
        except (Exception, PowerCut):
            # If the callback brought its own machine down, its error is irrelevant.
            if program.alive:
                raise

    def again(self) -> None:
        """Run the callback in the next turn, in its original context."""
        asyncio.get_running_loop().call_soon(self, context=self.context)


PROGRAM: ContextVar[Program | None] = ContextVar("txmq_testing_program", default=None)
"""The program to which the running code belongs."""
