"""``txmq stats``: the rates of topics and groups."""

from dataclasses import asdict
from typing import Any

from txmq.cli.commands import Listing, listed
from txmq.cli.common import Ask, ask_each, flag, option
from txmq.client import Admin
from txmq.errors import TxmqError
from txmq.ops.groups import WAITING_COLUMN
from txmq.ops.rows import ListColumn
from txmq.ops.topics import application_topics

__all__ = ["stats"]


def _rate(value: float) -> str:
    return f"{value:.1f}"


@listed(
    [
        *("topic", "group"),
        ListColumn("behind", "lag"),
        WAITING_COLUMN,
        ListColumn("in/s", "in_per_second", _rate),
        ListColumn("out/s", "out_per_second", _rate),
        ListColumn("in, 24 h", "in_of_day"),
        ListColumn("out, 24 h", "out_of_day"),
    ],
    empty="no topics",
)
def stats(
    *,
    topic: list[str] | None = option("Only this topic; may be repeated."),
    active: bool = flag("Only topics with messages in the last 24 hours.", "--active"),
    ask: Ask,
) -> Listing:
    """Show the rates of topics and groups over the last minute; with --watch, like top.

    The busiest come first unless --sort names a column.
    """

    async def read(admin: Admin) -> list[tuple[str, list[Any] | TxmqError]]:
        async def traffic(name: str) -> tuple[str, list[Any] | TxmqError]:
            try:
                return name, await admin.traffic(name)
            except TxmqError as error:
                if topic:
                    raise
                return name, error  # The other topics are still shown.

        topics = topic or await application_topics(admin)
        return await ask_each(topics, traffic, "topics")

    only = topic[0] if topic and len(topic) == 1 else None
    found = ask(read, topic=only)
    rows = [
        asdict(row) | {"retries": row.retries}
        for _, traffic in found
        if isinstance(traffic, list)
        for row in traffic
        if not active or row.in_of_day or row.out_of_day
    ]
    rows.sort(key=lambda row: row["in_per_second"] + row["out_per_second"], reverse=True)
    return Listing(
        rows,
        warnings=[
            f"without topic {name}: {str(traffic).strip()}"
            for name, traffic in found
            if isinstance(traffic, TxmqError)
        ],
    )
