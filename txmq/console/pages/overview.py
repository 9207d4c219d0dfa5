"""The first page: brokers, and what needs attention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from txmq.client.routes import MASTER
from txmq.client.values import BrokerInfo, OpenTransaction
from txmq.console.markup import link
from txmq.console.pages.parts import known_brokers
from txmq.console.visits import PageContent, Routes, Visit, render
from txmq.errors import ConsumerOffline, RequestNotSupported, TxmqError
from txmq.limits import CONSOLE_ROWS
from txmq.ops.brokers import copies_of, version_of
from txmq.ops.groups import is_of_system, lag_words
from txmq.ops.moments import age_of
from txmq.ops.queries import for_each
from txmq.ops.topics import own_topics
from txmq.protocol.topics import DLQ
from txmq.text import quantity

__all__ = ["routes"]

routes = Routes()

DISK_FULL: Final = 0.9
DISK_FILLING: Final = 0.75
OLD_TRANSACTION_MS: Final = 3600 * 1000


class Attention(NamedTuple):
    """Something that an operator should look at."""

    mood: str
    """``bad`` if work has stopped, else ``wait``."""
    text: str
    to: Markup | str


@routes.page("/")
async def show(visit: Visit) -> PageContent:
    """Show every broker that the name server knows."""
    known = await known_brokers(visit)
    copies = {row["broker"]: row for row in await copies_of(visit.admin)}
    brokers = await for_each(known, lambda broker: _broker(visit, broker))
    for row in brokers:
        row["copies"] = _copies_text(copies.get(row["name"], {}))
    attention = [found for row in brokers for found in _attention_of(row)]
    counts: dict[str, object] = {}
    problem = ""
    try:
        counts["topics"] = await _topic_count(visit, known)
        letters = counts["dead letters"] = await _dead_letter_count(visit, known)
        if letters:
            text = f"{quantity(letters, 'dead letter')} of consumer groups wait for a decision"
            attention.append(Attention("wait", text, "/dead-letters"))
        attention += await _groups_without_consumers(visit)
    except TxmqError as error:
        problem = str(error).strip()
    return render(
        "overview.html",
        title="Overview",
        brokers=brokers,
        attention=sorted(attention, key=lambda item: item.mood),
        counts={
            "open transactions": _sum(row["open"] for row in brokers),
            "parked transactions": _sum(row["parked"] for row in brokers),
            **counts,
        },
        counts_problem=problem,
        links={
            "open transactions": "/transactions",
            "parked transactions": link("/transactions", state="parked"),
            "topics": "/topics",
            "dead letters": "/dead-letters",
        },
    )


async def _broker(visit: Visit, info: BrokerInfo) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": info.name,
        "cluster": info.cluster,
        "address": info.addresses.get(MASTER, ""),
        "followers": len([number for number in info.addresses if number != MASTER]),
        "problem": "",
        "open": None,
        "parked": None,
        "disk": None,
        "oldest_ms": None,
    }
    oldest: list[OpenTransaction] = []
    try:
        stats = await visit.admin.broker_stats(info.name)
        if _whole(stats.get("transactionsOpen")):
            oldest = await visit.admin.transactions(limit=1, broker=info.name)
    except TxmqError as error:
        return row | {"problem": str(error).strip(), "version": "", "in_s": "", "out_s": ""}
    row["version"] = version_of(stats)
    row["in_s"] = _rate(stats.get("putTps", ""))
    row["out_s"] = _rate(stats.get("getTransferredTps") or stats.get("getTransferedTps", ""))
    row["open"] = _whole(stats.get("transactionsOpen"))
    row["parked"] = _whole(stats.get("transactionsParkedNow"))
    row["disk"] = _share(stats.get("commitLogDiskRatio", ""))
    if oldest:
        row["oldest_ms"] = visit.now_ms - oldest[0].stored_ms
    return row


def _attention_of(row: dict[str, Any]) -> list[Attention]:
    name, found = row["name"], []
    if row["problem"]:
        found.append(Attention("bad", f"{name} does not answer: {row['problem']}", ""))
    if row["parked"]:
        parked = quantity(row["parked"], "transaction is", "transactions are")
        text = f"{parked} parked at {name}: no producer knew the outcome, so a person must decide"
        found.append(Attention("bad", text, link("/transactions", state="parked")))
    if (row["oldest_ms"] or 0) >= OLD_TRANSACTION_MS:
        text = f"the oldest open transaction of {name} waits for {age_of(row['oldest_ms'])}"
        found.append(Attention("wait", text, "/transactions"))
    if row["disk"] is not None and row["disk"] >= DISK_FILLING:
        mood = "bad" if row["disk"] >= DISK_FULL else "wait"
        found.append(Attention(mood, f"the disk of {name} is {row['disk']:.0%} full", ""))
    if row["copies"].startswith("only"):
        found.append(Attention("wait", f"{name}: {row['copies']}", ""))
    return found


def _copies_text(copies: dict[str, Any]) -> str:
    if "problem" in copies or not copies:
        return ""
    wanted = 1 + len(copies["followers"])
    if wanted == 1:
        return "one copy"
    if copies["in_sync"] < wanted:
        return f"only {copies['in_sync']} of {wanted} copies are in sync"
    return f"{wanted} copies in sync"


async def _groups_without_consumers(visit: Visit) -> list[Attention]:
    """The groups that fall behind without a consumer; only the first groups by name are checked."""
    admin, cluster = visit.admin, visit.cluster
    known = await admin.groups(cluster=cluster)
    names = [name for name in known if not is_of_system(name)][:CONSOLE_ROWS]

    async def look(name: str) -> Attention | None:
        try:
            behind = await admin.group_lag(name, cluster=cluster)
            if not behind.unconsumed:
                return None
            await admin.group_connections(name, cluster=cluster)
        except ConsumerOffline:
            text = f"group {name} has no consumer and falls behind: {lag_words(behind)}"
            return Attention("wait", text, link("/group", name=name))
        return None

    return [found for found in await for_each(names, look) if found is not None]


async def _topic_count(visit: Visit, known: list[BrokerInfo]) -> int:
    try:
        return await visit.admin.topic_count()
    except RequestNotSupported:
        return len(own_topics(await visit.admin.topics(), known))


async def _dead_letter_count(visit: Visit, known: list[BrokerInfo]) -> int:
    masters = [broker.name for broker in known if MASTER in broker.addresses]
    try:
        return sum(await for_each(masters, visit.admin.dead_letter_count))
    except RequestNotSupported:
        # A page must not count the dead letters of thousands of groups one by one.
        dead = [name for name in await visit.admin.topics() if name.startswith(DLQ)]
        groups = [name.removeprefix(DLQ) for name in dead[:CONSOLE_ROWS]]
        found = await for_each(groups, visit.admin.dead_letter_groups)
        return sum(letters.messages for counted in found for letters in counted)


def _sum(counts: Iterable[int | None]) -> int | str:
    # Apache RocketMQ's brokers count no transactions, and an unreachable broker reports nothing.
    known = [count for count in counts if count is not None]
    return sum(known) if known else "unknown"


def _rate(text: str) -> str:
    # The text has three averages: over 10 seconds, 1 minute, 10 minutes.
    try:
        return f"{float(text.split(maxsplit=1)[0]):.1f}"
    except (ValueError, IndexError):
        return ""


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _share(text: str) -> float | None:
    try:
        share = float(text)
    except ValueError:
        return None
    return share if 0 <= share <= 1 else None
