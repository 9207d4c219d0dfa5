"""A broker's figures in words, from their names in RocketMQ. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from txmq.ops.moments import time_text

__all__ = ["readable_figures", "version_of"]

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
    """The figures that tell how a broker does, by label; those that it does not send are left out.

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
