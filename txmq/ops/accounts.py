"""The rows of ``txmq acl list``, and of the console's page about access."""

from __future__ import annotations

from typing import Any, Final

from txmq.ops.columns import ListColumn
from txmq.protocol.account_requests import PlainAccount

__all__ = ["ACCOUNT_COLUMNS", "PERMISSIONS", "account_row"]

PERMISSIONS: Final = ("PUB", "SUB", "PUB|SUB", "DENY")


def _joined(texts: list[str]) -> str:
    return ", ".join(texts)


ACCOUNT_COLUMNS: Final = (
    ListColumn("broker", "broker"),
    ListColumn("account", "account"),
    ListColumn("admin", "admin", lambda admin: "yes" if admin else "no"),
    ListColumn("topics", "topics", _joined),
    ListColumn("other topics", "other_topics"),
    ListColumn("groups", "groups", _joined),
    ListColumn("other groups", "other_groups"),
    ListColumn("unsigned from", "unsigned_from"),
)
"""The columns of :func:`account_row`."""


def account_row(broker: str, account: PlainAccount) -> dict[str, Any]:
    """The row of an account of a broker; no request reads its secret."""
    return {
        "broker": broker,
        "account": account.access_key,
        "admin": account.admin,
        "topics": account.topic_perms or [],
        "other_topics": account.default_topic_perm or "DENY",
        "groups": account.group_perms or [],
        "other_groups": account.default_group_perm or "DENY",
        "unsigned_from": account.white_remote_address or "",
    }
