"""``txmq audit``: what operators did to brokers, from a directory or over the wire.

Modules with commands evaluate their annotations at once, because typer reads them when it runs.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from txmq.cli.common import WRONGLY_CALLED, AsJson, Ask, fail, flag, moment_of, option
from txmq.cli.output import as_json as print_json
from txmq.cli.output import note, say
from txmq.client import Admin
from txmq.ops.directories import hint_of_brokers
from txmq.ops.moments import EARLIEST, LATEST
from txmq.ops.rows import act_text
from txmq.protocol.operations import AuditedRequest, ListAudit
from txmq.runtime.disk import ReadOnlyDisk

__all__ = ["audit"]

_LISTED_MAX: Final = 1_000


def audit(
    *,
    data: Path | None = option(
        "A broker's directory; it may be running. By default, brokers are asked.", metavar="DIR"
    ),
    since: str = option("Then or later: 2024-05-01T12:00, 2h (ago), earliest.", default="earliest"),
    until: str = option("Before this moment; latest for all.", default="latest"),
    by: str = option("Only entries with this text in account, operator or address.", default=""),
    action: str = option("Only requests with this text in the name.", default=""),
    refused: bool = flag("Only refused requests.", "--refused"),
    limit: int | None = option("The most entries; the newest are listed.", min=1),
    broker: str | None = option("Only this broker."),
    ask: Ask,
    as_json: AsJson = False,
) -> None:
    """List what operators did: who, from where, when, what, and whether it was refused.

    With --data, the command also checks the seals of the entries. Without it, the newest 1,000
    entries are listed, unless --limit has another number.
    """
    since_ms, until_ms = moment_of(since, "--since"), moment_of(until, "--until")
    if until_ms == EARLIEST:
        fail("--until earliest leaves out everything; name a later moment", WRONGLY_CALLED)
    wanted: dict[str, Any] = {
        "since_ms": max(EARLIEST, since_ms),
        "until_ms": EARLIEST if until_ms == LATEST else until_ms,
        "person": by,
        "action": action,
        "refused": refused,
    }
    if data is not None:
        if broker is not None:
            fail("--data is the directory of one broker; leave out --broker", WRONGLY_CALLED)
        if not data.is_dir():
            fail(f"{data} is not a directory; name a broker's directory", WRONGLY_CALLED)
        if hint := hint_of_brokers(data):
            fail(f"{data} is not a broker's directory{hint}", WRONGLY_CALLED)
        rows: Iterable[tuple[str, AuditedRequest]] = (("", one) for one in _stored(data, wanted))
        rows = rows if limit is None else deque(rows, limit)
    else:
        rows = ask(lambda admin: _listed(admin, broker, wanted, limit or _LISTED_MAX))
    for at, entry in rows:
        if as_json:
            print_json(({"broker": at} if at else {}) | msgspec.to_builtins(_fields(entry)))
        else:
            say(f"{f'{at} ' if at else ''}{act_text(entry)}")


def _stored(data: Path, wanted: dict[str, Any]) -> Iterator[AuditedRequest]:
    from txmq_broker.access.audit import is_wanted, read_audit

    query = ListAudit(**wanted)
    for entry in read_audit(ReadOnlyDisk(data), note):
        shown = AuditedRequest(**msgspec.structs.asdict(entry))
        if shown.at_ms >= query.since_ms and is_wanted(shown, query):
            yield shown


async def _listed(
    admin: Admin, broker: str | None, wanted: dict[str, Any], limit: int
) -> list[tuple[str, AuditedRequest]]:
    known = [info.name for info in await admin.cluster()] if broker is None else [broker]
    rows: list[tuple[str, AuditedRequest]] = []
    for name in known:
        page = await admin.audit(name, limit=limit, **wanted)
        rows += [(name, entry) for entry in page.entries]
    rows.sort(key=lambda row: row[1].at_ms)
    return rows[-limit:]


def _fields(entry: AuditedRequest) -> dict[str, Any]:
    found = msgspec.structs.asdict(entry)
    always = ("at_ms", "request", "peer")
    return {name: value for name, value in found.items() if value or name in always}
