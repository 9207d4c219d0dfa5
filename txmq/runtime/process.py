"""The process that opened an object; its copy in a forked child cannot be used.

A child of ``os.fork`` has copies of its parent's sockets, but not the threads and the event loop
that serve them. Its bytes would mix with the parent's requests, and it would wait for an answer for
ever.
"""

from __future__ import annotations

import os

from txmq.errors import UsageError

__all__ = ["OwnerProcess"]

_forks = 0
"""The number of forks between this process and the one that imported this module."""


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - one counter for each process
    _forks += 1


if hasattr(os, "register_at_fork"):
    # Comparing a counter is cheaper than calling os.getpid().
    os.register_at_fork(after_in_child=_count_fork)


class OwnerProcess:
    """The process that opened an object.

    Args:
        kind: The kind of object, for the error text.
    """

    __slots__ = ("_forks", "_kind", "_pid")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._forks = _forks
        self._pid = os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether the current process is the owner."""
        return self._forks == _forks

    def check(self) -> None:
        """Refuse use in a forked child.

        Raises:
            UsageError: The current process is a child of the owner.
        """
        if self._forks != _forks:
            raise UsageError(
                f"this {self._kind} was opened in process {self._pid} and is used in its child "
                f"{os.getpid()}: a connection does not survive a fork; open one in each process "
                "after the fork, with gunicorn in its post_fork hook"
            )
