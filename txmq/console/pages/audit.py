"""What operators did: the audit of brokers, filtered by person, action and time."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from txmq.console.markup import link
from txmq.console.pages.parts import choose_broker
from txmq.console.visits import PageContent, Routes, Visit, render
from txmq.errors import RequestNotSupported, TxmqError
from txmq.limits import CONSOLE_ROWS
from txmq.ops.rows import person_of
from txmq.protocol.operations import AuditedRequest

__all__ = ["routes"]

routes = Routes()

_ACTS: Final = {
    "UPDATE_AND_CREATE_TOPIC": "create or change a topic",
    "DELETE_TOPIC_IN_BROKER": "delete a topic",
    "DELETE_TOPIC_IN_NAMESRV": "delete a topic at the name server",
    "REGISTER_TOPIC_IN_NAMESRV": "register a topic at the name server",
    "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP": "create or change a group",
    "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST": "create or change groups",
    "DELETE_SUBSCRIPTIONGROUP": "delete a group",
    "INVOKE_BROKER_TO_RESET_OFFSET": "move a group",
    "CLONE_GROUP_OFFSET": "copy the offsets of a group",
    "SKIP_DAMAGED": "skip damaged messages",
    "CONSUME_MESSAGE_DIRECTLY": "let a consumer handle a message",
    "UPDATE_BROKER_CONFIG": "change settings",
    "UPDATE_NAMESRV_CONFIG": "change settings of a name server",
    "UPDATE_AND_CREATE_ACL_CONFIG": "create or change an account",
    "DELETE_ACL_CONFIG": "remove an account",
    "UPDATE_GLOBAL_WHITE_ADDRS_CONFIG": "change the trusted addresses",
    "DECIDE_TRANSACTION": "decide a transaction",
    "RECHECK_TRANSACTION": "check a transaction again",
    "RESUME_CHECK_HALF_MESSAGE": "check a transaction again",
    "CHANGE_SET": "change a broker set",
    "RECALL_DELAYED": "recall a delayed message",
    "WIPE_WRITE_PERM_OF_BROKER": "drain a broker",
    "ADD_WRITE_PERM_OF_BROKER": "undrain a broker",
    "PROMOTE": "promote a member",
    "HAND_OVER": "hand over to a member",
    "REPAIR_LOG": "repair the log from a copy",
}


@routes.page("/audit")
async def show_list(visit: Visit) -> PageContent:
    """Show what operators did, newest first."""
    choice = await choose_broker(visit)
    only = visit.text("broker")
    brokers = [only] if only else choice.names
    filters: dict[str, Any] = {
        "person": visit.text("person"),
        "action": visit.text("action"),
        "refused": bool(visit.text("refused")),
        "since_ms": visit.moment_in("since"),
        "until_ms": visit.moment_in("until"),
    }
    before = visit.text("before") if len(brokers) == 1 else ""
    rows: list[dict[str, Any]] = []
    older, silent, is_supported = "", {}, True
    for broker in brokers:
        try:
            page = await visit.admin.audit(broker, limit=CONSOLE_ROWS, before=before, **filters)
        except RequestNotSupported:
            is_supported = False
            continue
        except TxmqError as error:
            if len(brokers) == 1:
                raise
            silent[broker] = str(error).strip()
            continue
        rows += [_row(broker, entry) for entry in page.entries]
        older = page.next
    rows.sort(key=lambda row: row["at_ms"], reverse=True)
    address = {
        name: visit.text(name)
        for name in ("broker", "person", "action", "since", "until", "refused")
    }
    return render(
        "audit.html",
        title="Audit",
        choice=choice if only else choice._replace(name=""),
        typed=address,
        actions=sorted(_ACTS, key=lambda action: _ACTS[action]),
        words=_ACTS,
        rows=rows[:CONSOLE_ROWS],
        has_more=len(brokers) > 1 and len(rows) > CONSOLE_ROWS,
        older=link("/audit", **address, before=older) if older and len(brokers) == 1 else "",
        newest=link("/audit", **address) if before else "",
        is_filtered=any(address.values()),
        is_supported=is_supported,
        silent=silent,
    )


def _row(broker: str, entry: AuditedRequest) -> dict[str, Any]:
    details = dict(entry.fields)
    if entry.body:
        details["body"] = entry.body
    return {
        "at_ms": entry.at_ms,
        "broker": broker,
        "person": person_of(entry),
        "peer": entry.peer,
        "request": entry.request,
        "act": _ACTS.get(entry.request, entry.request),
        "subject": _subject(entry),
        "reason": entry.fields.get("reason", ""),
        "details": details,
        "refused": entry.refused,
    }


def _subject(entry: AuditedRequest) -> str:
    """What a request is about: the first of the names in it, or the settings in its body."""
    names = ("topic", "group", "groupName", "name", "accessKey", "transactionId", "member")
    fields: Mapping[str, object] = entry.fields
    with suppress(msgspec.DecodeError):
        fields = {**fields, **msgspec.json.decode(entry.body, type=dict[str, Any])}
    found = next((fields[name] for name in (*names, "brokerName") if fields.get(name)), "")
    return str(found) or entry.body.strip()
