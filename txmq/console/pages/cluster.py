"""Brokers and their sets: members, copies, disks, and who may write; changed after a preview."""

from __future__ import annotations

from typing import Any, Final

from txmq.client.routes import MASTER
from txmq.client.values import BrokerInfo
from txmq.console.markup import link, url_of
from txmq.console.pages.parts import ChangePreview, first_of, known_brokers
from txmq.console.visits import ChangeDone, PageContent, Routes, Visit, render
from txmq.errors import NotFound, TransportError, TxmqError, UsageError
from txmq.ops.brokers import copies_of, is_drained, readable_figures
from txmq.ops.moments import age_of
from txmq.ops.queries import for_each
from txmq.text import quantity

__all__ = ["routes"]

routes = Routes()

CHANGE_S: Final = 20.0
"""A change of a broker set waits for the store of the set."""
_NAMED_MAX: Final = 5
_MS_DIGITS_MAX: Final = 16
_OF_MEMBERS: Final = frozenset(("promote", "remove", "rejoin"))


@routes.page("/cluster")
async def show_list(visit: Visit) -> PageContent:
    """Show every broker, its members and their copies."""
    wanted = visit.text("broker")
    known = await known_brokers(visit)
    if wanted and wanted not in {broker.name for broker in known}:
        raise NotFound(f"the name server knows no broker {wanted!r}")
    copies = {row["broker"]: row for row in await copies_of(visit.admin)}
    shown = [broker for broker in known if wanted in {"", broker.name}]
    return render(
        "cluster.html",
        title="Cluster",
        wanted=wanted,
        names=visit.settings.names.split(";"),
        brokers=await for_each(
            shown, lambda broker: _broker(visit, broker, copies.get(broker.name, {}))
        ),
    )


async def _broker(visit: Visit, info: BrokerInfo, copies: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": info.name,
        "cluster": info.cluster,
        "address": info.addresses.get(MASTER, ""),
        "replicas": await _replicas(visit, info),
        "problem": "",
        "is_away": False,
        "figures": {},
        "copies": copies if "problem" not in copies and copies else None,
        "copies_problem": copies.get("problem", ""),
        "drained": None,
    }
    try:
        row["drained"] = await is_drained(visit.admin, info.name)
        row["figures"] = _figures(visit, await visit.admin.broker_stats(info.name))
    except TxmqError as error:
        row["problem"] = str(error).strip()
        row["is_away"] = isinstance(error, TransportError)
    return row


async def _replicas(visit: Visit, info: BrokerInfo) -> list[dict[str, Any]]:
    """The replicas that serve reads in addition to the master, with their figures."""

    async def row_of(number: int) -> dict[str, Any]:
        row: dict[str, Any] = {"number": number, "address": info.addresses[number], "figures": {}}
        try:
            stats = await visit.admin.broker_stats(info.name, replica=number)
        except TxmqError as error:
            return row | {"problem": str(error).strip()}
        return row | {"problem": "", "figures": _figures(visit, stats)}

    return await for_each([number for number in sorted(info.addresses) if number != MASTER], row_of)


def _figures(visit: Visit, stats: dict[str, str]) -> dict[str, str]:
    """A broker's figures in words; its uptime is rounded, so that pages rarely change."""
    figures = readable_figures(stats)
    started = stats.get("bootTimestamp", "")
    if started.isdecimal() and len(started) < _MS_DIGITS_MAX:
        figures["up for"] = age_of(visit.now_ms - int(started))
    return figures


@routes.page("/cluster/member")
async def show_member(visit: Visit) -> PageContent:
    """Show one member of a broker set, and what can be done with it."""
    broker, name = visit.required("broker"), visit.required("member")
    copies = await _copies(visit, broker)
    follower = _follower(copies, name)
    removed = next((member for member in copies["removed"] if member["name"] == name), None)
    is_leader = name in {copies["member"], copies["name"]}
    if follower is None and removed is None and not is_leader:
        raise NotFound(f"broker set {broker} has no member {name!r}; go back to the cluster")
    return render(
        "member.html",
        title="Member",
        broker=broker,
        member=name,
        copies=copies,
        follower=follower,
        removed=removed,
        is_leader=is_leader,
        has_coordinator=copies["epoch"] > 0,
    )


@routes.page("/cluster/change")
async def show_change(visit: Visit) -> PageContent:
    """Show what a change of a broker or a set will do."""
    change, broker = visit.required("do"), visit.required("broker")
    if change in _OF_MEMBERS:
        preview = await _member_preview(visit, change, broker, visit.required("member"))
    elif change == "drain":
        preview = await _drain_preview(visit, broker)
    elif change == "undrain":
        preview = _undrain_preview(broker)
    else:
        raise UsageError(f"a broker is drained or undrained, and a member promoted, not {change!r}")
    return preview.content()


async def _drain_preview(visit: Visit, broker: str) -> ChangePreview:
    try:
        found = await _topic_sentences(visit, broker)
    except TransportError as error:
        found = [f"Which topics the broker has is not known: {str(error).strip()}."]
    sentences = [
        "All name servers withdraw the write permission of its topics.",
        *found,
        "Producers follow within 30 s by default. Consumers still read from the broker.",
        (
            "The broker stays as it is. Change and create no topic of it until it is stopped: with "
            "the next change it registers, all of its topics are writable again."
        ),
    ]
    return ChangePreview(
        title=f"Drain {broker}",
        eyebrow="Broker",
        sentences=sentences,
        action=link("/cluster/change", do="drain", broker=broker),
        button="Drain",
        back=link("/cluster", broker=broker),
        repeated=broker,
        repeated_name="name of the broker",
    )


async def _topic_sentences(visit: Visit, broker: str) -> list[str]:
    """The number of topics at a broker, and the topics that no other broker has."""
    topics = set(await visit.admin.topics_of_broker(broker))
    others = [other.name for other in await known_brokers(visit) if other.name != broker]
    elsewhere = {broker}
    for known in await for_each(others, visit.admin.topics_of_broker):
        elsewhere |= set(known)
    sentences = [f"The broker has {quantity(len(topics), 'topic')}."]
    only = sorted(topics - elsewhere)
    if only:
        sentences.append(
            f"Sends to {quantity(len(only), 'topic')} fail, because no other broker has "
            f"{'it' if len(only) == 1 else 'them'}: {first_of(only, _NAMED_MAX)}."
        )
    return sentences


def _undrain_preview(broker: str) -> ChangePreview:
    return ChangePreview(
        title=f"Undrain {broker}",
        eyebrow="Broker",
        sentences=(
            f"All name servers permit reads and writes of all topics of {broker}.",
            (
                "Name servers do not remember what they withdrew. Topics that had another "
                "permission are writable too, until the broker registers a change of its topics."
            ),
        ),
        action=link("/cluster/change", do="undrain", broker=broker),
        button="Undrain",
        back=link("/cluster", broker=broker),
    )


async def _member_preview(visit: Visit, change: str, broker: str, member: str) -> ChangePreview:
    copies = await _copies(visit, broker)
    follower = _follower(copies, member)
    facts: dict[str, object] = {"leader now": copies["name"], "epoch": copies["epoch"]}
    facts["copies in sync"] = f"{copies['in_sync']}, at least {copies['min_in_sync']}"
    if follower is not None:
        facts["in sync"] = "yes" if follower["in_sync"] else "no"
        behind = follower["bytes_behind"]
        facts["bytes behind"] = "unknown" if behind is None else behind
    refusal = ""
    if copies["epoch"] == 0:
        refusal = (
            "This set has no coordinator, so its members have fixed roles. Stop the leader, then "
            "promote the directory of a follower with: txmq cluster promote --data DIR"
        )
    ticks: dict[str, str] = {}
    if change == "promote":
        button = "Hand over to"
        sentences = [
            f"The leader of {broker} answers what it has accepted, and hands over to {member}.",
            (
                "No acknowledged message is lost. Producers and consumers find the new leader "
                "within some seconds, and clients retry what was refused meanwhile."
            ),
            "The former leader follows.",
        ]
    elif change == "remove":
        button = "Remove"
        sentences = [
            f"{member} leaves the in-sync set of {broker}, and the leader sends it nothing more.",
            (
                "The member keeps its directory and cannot lead. It may rejoin later, and then "
                "copies what it lacks."
            ),
        ]
        ticks = {"allow": "Remove it even if fewer copies are in sync than sends need."}
    else:
        button = "Let back"
        sentences = [
            f"{member} may follow {broker} again, copies what it lacks, and joins the in-sync set."
        ]
    return ChangePreview(
        title=f"{button} {member}",
        eyebrow=f"Member of broker set {broker}",
        sentences=sentences,
        facts=facts,
        action=link("/cluster/change", do=change, broker=broker, member=member),
        button=button,
        back=link("/cluster/member", broker=broker, member=member),
        ticks=ticks,
        wants_reason=True,
        repeated="" if change == "rejoin" else member,
        repeated_name="name of the member",
        refusal=refusal,
        is_bad=change == "remove",
    )


@routes.change("/cluster/change", show_change, CHANGE_S)
async def make_change(visit: Visit) -> ChangeDone:
    """Drain a broker or undrain it; or change its set."""
    change, broker = visit.required("do"), visit.required("broker")
    if change in _OF_MEMBERS:
        return await _change_set(visit, change, broker)
    if change == "drain":
        visit.check_repeated("name of the broker", broker)
        changed = await visit.admin.forbid_writing(broker)
        words = "is drained: producers send to other brokers"
    elif change == "undrain":
        changed = await visit.admin.allow_writing(broker)
        words = "takes messages again"
    else:
        raise UsageError(f"a broker is drained or undrained, not {change!r}")
    topics = quantity(max(changed.values(), default=0), "topic")
    notice = f"{broker} {words}; {topics} changed at {quantity(len(changed), 'name server')}"
    return ChangeDone(url_of("/cluster", broker=broker), notice)


async def _change_set(visit: Visit, change: str, broker: str) -> ChangeDone:
    member = visit.required("member")
    reason, operator = visit.reason(), visit.person
    if change != "rejoin":
        visit.check_repeated("name of the member", member)
    admin = visit.admin
    if change == "promote":
        name = await admin.hand_over(broker, member, reason=reason, operator=operator)
        notice = f"the leader of {broker} hands over to {name}; this page shows when it leads"
    elif change == "remove":
        name = await admin.remove_member(
            broker,
            member,
            reason=reason,
            operator=operator,
            allow_refused_sends=bool(visit.typed("allow")),
        )
        notice = f"{name} is removed from {broker}, by {operator}"
    else:
        name = await admin.rejoin_member(broker, member, reason=reason, operator=operator)
        notice = f"{name} may follow {broker} again, by {operator}"
    return ChangeDone(url_of("/cluster", broker=broker), notice)


async def _copies(visit: Visit, broker: str) -> dict[str, Any]:
    known = {row["broker"]: row for row in await copies_of(visit.admin)}
    if broker not in known:
        raise NotFound(f"the name server knows no broker {broker!r}")
    copies = known[broker]
    if "problem" in copies:
        raise UsageError(f"the members of {broker} are not known: {copies['problem']}")
    return copies


def _follower(copies: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next(
        (found for found in copies["followers"] if name in {found["name"], found["member"]}),
        None,
    )
