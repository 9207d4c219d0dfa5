"""Which process something was opened in: a copy of it after a fork cannot be used.

A child of ``os.fork`` has copies of its parent's sockets, without the threads and the event loop
that serve them. What it wrote there would get between the parent's requests, and it would wait for
an answer for ever.
"""

from __future__ import annotations

import os

from txmq.errors import UsageError

__all__ = ["OwnerProcess"]

_forks = 0
"""How many forks lie between this process and the one that imported this module."""


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - there is one number for each process
    _forks += 1


if hasattr(os, "register_at_fork"):
    # Counted, because a look at the number is cheaper than to ask for the process id.
    os.register_at_fork(after_in_child=_count_fork)


class OwnerProcess:
    """The process that opened something.

    Args:
        kind: What was opened, as the error names it.
    """

    __slots__ = ("_forks", "_kind", "_pid")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._forks = _forks
        self._pid = os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether this is that process."""
        return self._forks == _forks

    def check(self) -> None:
        """Refuse to be used in a child of that process.

        Raises:
            UsageError: There was a fork in between.
        """
        if self._forks != _forks:
            raise UsageError(
                f"this {self._kind} was opened in process {self._pid} and is used in its child "
                f"{os.getpid()}: a connection does not survive a fork; open one in each process "
                "after the fork, with gunicorn in its post_fork hook"
            )
