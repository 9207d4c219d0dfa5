"""What a simulation can fail with, and the signals with which it stops the programs inside it."""

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
    """A run that did not go as a run must; the note on it says how to repeat it."""


class DeadlockError(SimulationError):
    """Nothing is scheduled, yet the main task waits. The text says what each task awaits."""


class LivelockError(SimulationError):
    """Tasks keep running and no virtual time passes."""


class VirtualTimeoutError(SimulationError):
    """The run used up its virtual time. The text says what each task awaits."""


class LeakedTaskError(SimulationError):
    """Tasks outlived the program that started them."""


class UnhandledError(SimulationError):
    """A task or callback failed and nobody looked at the error, which is the cause of this one."""


class NotRepeatableError(SimulationError):
    """Two runs of one seed went different ways."""


class RealWorldError(RuntimeError):
    """Simulated code reached for a thread, a socket, a process or a blocking sleep."""


class MachineCrashedError(Exception):
    """The machine went down under the program that is being awaited."""


class StaleHandleError(OSError):
    """The disk crashed after this file or lock was taken."""


# Not an error of the program but the end of it: code that catches Exception must not survive it.
class PowerCut(BaseException):
    """The machine is gone, right here. A disk hook may raise it to stop the writer."""
