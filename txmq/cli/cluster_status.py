"""``txmq cluster status``: the copies of each broker's log."""

from __future__ import annotations

from typing import Any, Final

from txmq.cli.output import as_json, say, table
from txmq.ops.moments import time_text

__all__ = ["print_copies"]

_BROKERS: Final = (
    "cluster", "broker", "leader", "address", "epoch", "mode", "copies in sync", "log end",
)  # fmt: skip
_FOLLOWERS: Final = (
    "broker", "follower", "connection", "in sync", "position", "bytes behind", "seconds behind",
)  # fmt: skip
_VERIFIED: Final = ("broker", "member", "damaged parts of its log", "whole log verified at")
_REMOVED: Final = ("broker", "removed member", "at", "by", "reason")


def print_copies(brokers: list[dict[str, Any]], *, json: bool) -> None:
    """Print the brokers and their followers as two tables, or as JSON."""
    if json:
        as_json(brokers)
        return
    table(_BROKERS, map(_broker_row, brokers))
    followers = [
        _follower_row(broker["broker"], follower)
        for broker in brokers
        for follower in broker.get("followers", [])
    ]
    if followers:
        table(_FOLLOWERS, followers)
    verified = [row for broker in brokers for row in _verified_rows(broker)]
    if verified:
        table(_VERIFIED, verified)
    removed = [
        [broker["broker"], one["name"], time_text(one["at_ms"]), one["operator"], one["reason"]]
        for broker in brokers
        for one in broker.get("removed", [])
    ]
    if removed:
        table(_REMOVED, removed)
    for broker in brokers:
        if "problem" in broker:
            say(f"{broker['broker']} does not tell: {broker['problem']}")
        elif not broker["followers"]:
            say(f"{broker['broker']} has no followers: its log has one copy")


def _broker_row(broker: dict[str, Any]) -> list[object]:
    start = [broker["cluster"], broker["broker"]]
    if "problem" in broker:
        return [*start, "", broker["address"], "", "", "", ""]
    in_sync = f"{broker['in_sync']}, at least {broker['min_in_sync']}"
    end = [broker["epoch"], broker["mode"], in_sync, broker["log_end"]]
    return [*start, broker["name"], broker["address"], *end]


def _follower_row(broker: str, follower: dict[str, Any]) -> list[object]:
    return [
        broker,
        follower["name"],
        follower["address"] or "not connected",
        "yes" if follower["in_sync"] else "no",
        _known(follower["position"]),
        _known(follower["bytes_behind"]),
        _seconds(follower),
    ]


def _verified_rows(broker: dict[str, Any]) -> list[list[object]]:
    """Which logs are damaged, and when each was verified; of those that say so."""
    if "problem" in broker:
        return []
    leader = {**broker, "name": broker["name"] or "leader"}
    return [
        [
            broker["broker"],
            member["name"],
            member["damaged_parts"],
            time_text(member["verified_ms"]) if member["verified_ms"] else "not yet",
        ]
        for member in (leader, *broker["followers"])
        if member["damaged_parts"] or member["verified_ms"]
    ]


def _known(number: int | None) -> object:
    return "unknown" if number is None else number


def _seconds(follower: dict[str, Any]) -> str:
    seconds = follower["seconds_behind"]
    if seconds is None:
        return "unknown"
    return f"more than {seconds:.1f}" if follower["is_longer"] else f"{seconds:.1f}"
