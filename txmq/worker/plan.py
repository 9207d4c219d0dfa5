"""What the supervisor passes to each of its processes."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["WorkerPlan"]


class WorkerPlan(msgspec.Struct, frozen=True):
    """The options of a worker that its processes need."""

    targets: list[str]
    app_dir: str
    """The folder of the application, which comes first when modules are looked up."""
    names: str | None
    """The name servers for functions that ask for them."""
    processes: int
    drain_s: float
    log_form: Literal["text", "json"]
    log_level: Literal["debug", "info", "warning", "error"]
    watches_lag: bool
    """Whether the first process asks brokers how far its groups are behind."""
