"""Brokers: their figures in words, the copies of their logs, and whether they are drained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from txmq.client import Admin, BrokerCopies, BrokerInfo
from txmq.client.routes import MASTER
from txmq.errors import TopicNotFound, TxmqError
from txmq.ops.moments import time_text
from txmq.ops.queries import for_each
from txmq.runtime.coordinator import short_name

__all__ = ["copies_of", "is_drained", "readable_figures", "version_of"]

_RATES: Final = {
    "messages in/s": ("putTps",),
    "messages out/s": ("getTransferedTps", "getTransferredTps"),
    "pulls/s": ("getTotalTps",),
}
"""Each has averages over 10 seconds, 1 minute and 10 minutes."""
_COUNTS: Final = {
    "delayed messages": "messagesWaiting",
    "open transactions": "transactionsOpen",
    "parked transactions": "transactionsParkedNow",
    "connections": "connectionsOpen",
}


def readable_figures(figures: Mapping[str, str]) -> dict[str, str]:
    """The figures that show how a broker is doing, by label; missing figures are left out.

    Args:
        figures: The broker's answer.
    """
    shown = {"version": version_of(figures)}
    shown["up for"] = figures.get("runtime", "").strip("[ ]")
    for label, names in _RATES.items():
        shown[label] = next((_averages(figures[name]) for name in names if name in figures), "")
    shown["messages in today"] = _today(figures, "msgPutTotal")
    shown["messages out today"] = _today(figures, "msgGetTotal")
    shown["log"] = _log(figures)
    shown["oldest message"] = _moment(figures.get("earliestMessageTimeStamp", ""))
    shown["not yet on disk"] = figures.get("remainHowManyDataToFlush", "")
    shown["disk used"] = _share(figures.get("commitLogDiskRatio", ""))
    shown["disk"] = figures.get("commitLogDirCapacity", "").strip(" .")
    for label, name in _COUNTS.items():
        shown[label] = figures.get(name, "")
    return {label: text for label, text in shown.items() if text}


def version_of(figures: Mapping[str, str]) -> str:
    """The version of a broker, and of the protocol that it speaks."""
    spoken = figures.get("brokerVersionDesc", "")
    own = figures.get("txmqVersion", "")
    return f"txmq {own}, speaks {spoken}" if own else spoken


def _averages(text: str) -> str:
    try:
        averages = [f"{float(word):.1f}" for word in text.split()]
    except ValueError:
        return text
    spans = ("10 s", "1 min", "10 min")
    return ", ".join(f"{rate} in {span}" for rate, span in zip(averages, spans, strict=False))


def _today(figures: Mapping[str, str], name: str) -> str:
    try:
        count = int(figures[f"{name}TodayNow"]) - int(figures[f"{name}TodayMorning"])
    except (KeyError, ValueError):
        return ""
    return str(count)


def _log(figures: Mapping[str, str]) -> str:
    start, end = figures.get("commitLogMinOffset"), figures.get("commitLogMaxOffset")
    return f"{start} to {end}" if start and end else ""


def _moment(text: str) -> str:
    return time_text(int(text)) if text.isdecimal() else ""


def _share(text: str) -> str:
    try:
        share = float(text)
    except ValueError:
        return ""
    return f"{share:.1%}" if share >= 0 else ""


async def copies_of(admin: Admin) -> list[dict[str, Any]]:
    """The copies of every broker, for JSON; a broker that does not answer has a ``problem``."""

    async def row_of(info: BrokerInfo) -> dict[str, Any]:
        row: dict[str, Any] = {"cluster": info.cluster, "broker": info.name}
        row["address"] = info.addresses.get(MASTER, "")
        try:
            row |= _fields(await admin.copies(info.name))
        except TxmqError as error:
            row["problem"] = str(error).strip()
        return row

    return await for_each(await admin.cluster(), row_of)


def _fields(copies: BrokerCopies) -> dict[str, Any]:
    followers = [
        {"name": short_name(follower.member), **asdict(follower)} for follower in copies.followers
    ]
    return {
        "name": short_name(copies.leader),
        "member": copies.leader,
        "epoch": copies.epoch,
        "mode": copies.mode,
        "in_sync": 1 + sum(follower.in_sync for follower in copies.followers),
        "min_in_sync": copies.min_in_sync,
        "log_end": copies.log_end,
        "damaged_parts": copies.damaged_parts,
        "verified_ms": copies.verified_ms,
        "followers": followers,
        "removed": [asdict(member) for member in copies.removed],
    }


async def is_drained(admin: Admin, broker: str) -> bool | None:
    """Whether name servers have withdrawn the write permission of a broker's topics.

    The check uses the topic that is named after the broker, because nobody changes that. ``None``
    if the name servers do not know that topic.

    Raises:
        TransportError: No name server answers.
    """
    try:
        route = await admin.route(broker)
    except TopicNotFound:
        return None
    writable = {queue.broker for queue in route.writable} | set(route.waiting)
    return broker not in writable
