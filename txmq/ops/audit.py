"""Entries of an audit in words. Pure."""

from __future__ import annotations

from txmq.ops.moments import time_text
from txmq.protocol.operations import AuditedRequest

__all__ = ["act_text", "person_of"]


def person_of(entry: AuditedRequest) -> str:
    """Who sent a request, as far as the broker knows: the account, or the name in the request."""
    return entry.account or entry.fields.get("operator", "")


def act_text(entry: AuditedRequest) -> str:
    """One line about an entry."""
    fields = " ".join(f"{name}={text}" for name, text in entry.fields.items())
    who = f"{entry.account or 'no account'} at {entry.peer}"
    result = f"  refused: {entry.refused}" if entry.refused else ""
    return f"{time_text(entry.at_ms)} {who}: {entry.request} {fields}{result}"
