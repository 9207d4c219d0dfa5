"""Make Ctrl-C end a program."""

from __future__ import annotations

import signal

__all__ = ["restore_interrupt"]


def restore_interrupt() -> None:
    """Let SIGINT raise :class:`KeyboardInterrupt` again where the parent process ignores it.

    A shell script that starts a command with ``&`` makes it ignore SIGINT, and so do some
    supervisors. Python installs no handler then, and no later SIGINT ends the program.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
