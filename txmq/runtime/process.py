"""The process that opened an object; its copy in a forked child cannot be used.

A child of ``os.fork`` has copies of its parent's sockets, but not the threads and the event loop
that serve them. Its bytes would mix with the parent's requests, and it would wait for an answer for
ever.
"""

from __future__ import annotations

import os
from weakref import WeakSet

from txmq.errors import UsageError

__all__ = ["OwnerProcess"]

_owners: WeakSet[OwnerProcess] = WeakSet()


def _disown() -> None:
    for owner in _owners:
        owner.is_current = False


if hasattr(os, "register_at_fork"):
    # Reading an attribute is cheaper than calling os.getpid().
    os.register_at_fork(after_in_child=_disown)


class OwnerProcess:
    """The process that opened an object.

    Args:
        kind: The kind of object, for the error text.
    """

    __slots__ = ("__weakref__", "_kind", "_pid", "is_current")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._pid = os.getpid()
        self.is_current: bool = True
        """Whether the current process is the owner."""
        _owners.add(self)

    def check(self) -> None:
        """Refuse use in a forked child.

        Raises:
            UsageError: The current process is a child of the owner.
        """
        if not self.is_current:
            raise UsageError(
                f"this {self._kind} was opened in process {self._pid} and is used in its child "
                f"{os.getpid()}: a connection does not survive a fork; open one in each process "
                "after the fork, with gunicorn in its post_fork hook"
            )
