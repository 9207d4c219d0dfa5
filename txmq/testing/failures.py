"""The errors of a simulation, and the signals that stop the programs inside it."""

from __future__ import annotations

__all__ = [
    "DeadlockError",
    "LeakedTaskError",
    "LivelockError",
    "MachineCrashedError",
    "NotRepeatableError",
    "PowerCut",
    "RealWorldError",
    "SimulationError",
    "StaleHandleError",
    "UnhandledError",
    "VirtualTimeoutError",
]


class SimulationError(AssertionError):
    """A run failed; the error's note says how to repeat it."""


class DeadlockError(SimulationError):
    """All tasks wait, and no event is scheduled. The text says what each task awaits."""


class LivelockError(SimulationError):
    """Tasks keep running, but no virtual time passes."""


class VirtualTimeoutError(SimulationError):
    """The run used up its virtual time. The text says what each task awaits."""


class LeakedTaskError(SimulationError):
    """Tasks outlived the program that started them."""


class UnhandledError(SimulationError):
    """A task or callback failed and its error was never retrieved; it is the cause of this one."""


class NotRepeatableError(SimulationError):
    """Two runs with one seed differ."""


class RealWorldError(RuntimeError):
    """Simulated code used a thread, a socket, a process or a blocking sleep."""


class MachineCrashedError(Exception):
    """The machine of the awaited program crashed."""


class StaleHandleError(OSError):
    """The disk crashed after this file or lock was opened."""


# Derives from BaseException, because code that catches Exception must not survive it.
class PowerCut(BaseException):
    """The machine lost power at this point. A disk hook may raise it to stop the writer."""
