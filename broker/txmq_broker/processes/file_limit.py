"""The limit on the files that a process may open."""

from __future__ import annotations

import logging
import resource
from typing import Final

from txmq.limits import HTTP_WAITING_MAX

__all__ = ["allow_files"]

log = logging.getLogger(__name__)

FILES_OF_OUR_OWN: Final = 1024 + HTTP_WAITING_MAX
"""Open files that are not client connections: two for each segment of the log, half-sent requests
for monitoring pages, and a few others."""


def allow_files(connections: int, servers: int = 1) -> None:
    """Raise this process's limit on open files to what its connections and its log need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = servers * connections + FILES_OF_OUR_OWN
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        most = soft  # macOS reports no limit, and refuses one above the kernel's.
    if most < connections + FILES_OF_OUR_OWN:
        log.warning("only %d files may be open; connections_max is %d", most, connections)
