"""``txmq dlq``: lists, shows, exports and resends dead letters."""

import base64
from datetime import UTC, datetime
from functools import partial
from operator import neg
from pathlib import Path
from typing import Annotated, BinaryIO, Final, NamedTuple

import msgspec
import typer

from txmq.cli.commands import Answer, Commands, Listing, listed
from txmq.cli.common import (
    FAILED,
    WRONGLY_CALLED,
    Ask,
    GroupArgument,
    Yes,
    argument,
    confirm,
    fail,
    flag,
    moment_of,
    operator_name,
    option,
)
from txmq.cli.output import listing, message_fields, progress_bar, say, table
from txmq.client import Admin
from txmq.client.admin.dead_letters import (
    RESENT_AT,
    RESENT_BY,
    RESENT_REASON,
    DeadLetters,
    provenance,
)
from txmq.client.admin.messages import TIME_MAX
from txmq.message import ReceivedMessage
from txmq.ops.known_names import check_group
from txmq.ops.moments import LATEST, age_of
from txmq.ops.resend import (
    BEFORE,
    DOUBTFUL,
    REFUSED,
    RESENT,
    LetterFilter,
    ResendResult,
    ResendRun,
)
from txmq.ops.rows import ListColumn
from txmq.protocol import properties
from txmq.runtime.clock import SystemClock
from txmq.text import quantity

__all__ = ["app"]

app = Commands("Show messages that groups could not consume, and resend them.")

Since = Annotated[
    str, typer.Option(help="Dead since then or later: 2024-05-01T12:00, 2h (ago), earliest.")
]
Until = Annotated[str, typer.Option(help="Dead since then or earlier, likewise; latest is now.")]
Topic = Annotated[str | None, typer.Option(help="Only those that were sent to this topic.")]


class Dead(NamedTuple):
    """Which dead letters to select."""

    since: Since = "earliest"
    until: Until = "latest"
    topic: Topic = None

    def of(self, group: str) -> LetterFilter:
        """Select those of a group."""
        begin_ms, end_ms = moment_of(self.since, "--since"), moment_of(self.until, "--until")
        begin_ms = SystemClock().wall_ms() if begin_ms == LATEST else begin_ms
        # A broker's clock may be ahead, so the end stays open.
        end_ms = TIME_MAX if end_ms == LATEST else end_ms
        return LetterFilter(group, begin_ms, end_ms, self.topic)


_ALL_DEAD: Final = Dead()


def _time(time_ms: int | None) -> str:
    if time_ms is None:
        return ""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")


def _age(at_ms: int | None) -> str:
    return "" if at_ms is None else age_of(SystemClock().wall_ms() - at_ms)


@app.command("list")
@listed(
    [
        *("group", "messages"),
        ListColumn("oldest", "oldest_ms", _time),
        ListColumn("newest", "newest_ms", _time),
        ListColumn("age of oldest", "oldest_ms", _age, neg),
    ],
    empty="no dead letters",
)
def list_(
    *,
    group: str | None = option("Only this group."),
    ask: Ask,
) -> Listing:
    """List the groups that have dead letters."""

    async def read(admin: Admin) -> list[DeadLetters]:
        found = await admin.dead_letter_groups(group)
        if group is not None and not found:
            await check_group(admin, group)
        return found

    found = ask(read)
    remarks = [
        f"those of {letters.group} at {', '.join(letters.closed_at)} cannot be read yet; "
        f"'txmq dlq show {letters.group}' says how to change that"
        for letters in found
        if letters.closed_at
    ]
    return Listing(found, remarks)


@app.command()
@listed(
    [
        ListColumn("place", "offset_id"),
        ListColumn("age", "stored_ms", _age, neg),
        "attempts",
        ListColumn("topic", "origin_topic"),
        ListColumn("tag", "tags"),
        ListColumn("keys", "keys", " ".join),
        *("id", "reason"),
    ],
    empty="no dead letters of this kind",
)
def show(
    group: GroupArgument,
    message_id: str | None = argument(
        "One dead letter, by id or place.", default=None, metavar="ID"
    ),
    *,
    limit: int = option("The most to show, the oldest first.", default=50, min=1),
    dead: Dead,
    ask: Ask,
) -> Listing:
    """Show the dead letters of a group, or one of them in full."""
    if message_id is not None:
        return _one_in_full(group, message_id, ask)
    wanted = dead.of(group)

    async def read(admin: Admin) -> list[ReceivedMessage]:
        found = [message async for message in wanted.letters(admin, limit + 1)]
        if not found:
            await check_group(admin, group)
        return found

    found = ask(read)
    more = f"{quantity(limit, 'is', 'are')} shown; there are more, which --limit shows"
    return Listing(
        [_fields(message) for message in found[:limit]],
        [more] if len(found) > limit else [],
        empty=f"group {group} has no dead letters of this kind",
    )


@app.command()
def export(
    group: GroupArgument,
    *,
    to: Path = option("The file, which must not exist yet.", default=...),
    dead: Dead,
    ask: Ask,
) -> Answer:
    """Write dead letters to a file, one line of JSON each, with their bodies in base64."""
    wanted = dead.of(group)
    try:
        file = to.open("xb")
    except FileExistsError:
        fail(f"{to} exists already; name another file, or remove it", WRONGLY_CALLED)
    except OSError as error:
        fail(f"{to} cannot be written: {error.strerror}", WRONGLY_CALLED)
    is_whole = False
    try:
        with file:
            count = ask(partial(_write, wanted, file))
        is_whole = True
    except OSError as error:
        fail(f"{to} cannot be written: {error.strerror}")
    finally:
        # An incomplete file would look complete.
        if not is_whole:
            to.unlink(missing_ok=True)
    letters = quantity(count, f"dead letter of {group} is", f"dead letters of {group} are")
    return Answer({"group": group, "file": str(to), "messages": count}, f"{letters} in {to}")


@app.command()
def resend(
    group: GroupArgument,
    message_ids: list[str] | None = argument(
        "The dead letters, by id or place.", default=None, metavar="ID"
    ),
    *,
    everything: bool = flag("All that exist now and were not resent before.", "--all"),
    reason: str = option("Why; kept with each message.", default=...),
    operator: str = option("Who; kept with the reason.", default="", show_default="who runs this"),
    force: bool = flag("Also those that were resent before.", "--force"),
    dead: Dead,
    yes: Yes = False,
    ask: Ask,
) -> Answer:
    """Resend dead letters to their own group only; the dead letters stay."""
    if bool(message_ids) == everything:
        fail("name the dead letters to resend, or add --all", WRONGLY_CALLED)
    if message_ids and dead != _ALL_DEAD:
        fail("--since, --until and --topic work only with --all; leave out the ids", WRONGLY_CALLED)
    if not reason.strip():
        fail("--reason is empty; give a reason", WRONGLY_CALLED)
    wanted = dead.of(group)
    ask(lambda admin: check_group(admin, group))
    there = len(message_ids) if message_ids else None
    if everything and not yes:
        there = sum(letters.messages for letters in ask(lambda a: a.dead_letter_groups(group)))
        choice = "" if dead == _ALL_DEAD else ", if selected,"
        confirm(f"resend the {quantity(there, 'dead letter')}{choice} to {group}?", yes=yes)
    with progress_bar("dead letters", there) as advance:
        run = ResendRun(group, reason, operator_name(operator), force=force, on_progress=advance)
        resend_them = partial(run.these, message_ids) if message_ids else partial(run.all, wanted)
        found = ask(resend_them, changes=True)
    done = {RESENT, BEFORE} if everything else {RESENT}
    return Answer(
        [result._asdict() for result in found],
        lambda: _print_results(group, found),
        FAILED if any(result.outcome not in done for result in found) else 0,
    )


def _print_results(group: str, found: list[ResendResult]) -> None:
    empty = f"group {group} has no dead letters of this kind"
    table(["id", "place", "outcome", "note"], found, empty=empty)
    counts = [
        f"{sum(result.outcome == kind for result in found)} {kind}"
        for kind in (RESENT, BEFORE, REFUSED, DOUBTFUL)
        if any(result.outcome == kind for result in found)
    ]
    if counts:
        say(", ".join(counts))
    if any(result.outcome == DOUBTFUL for result in found):
        say("run it again for those in doubt: messages that arrived are found, and not sent twice")


async def _write(wanted: LetterFilter, file: BinaryIO, admin: Admin) -> int:
    there = sum(letters.messages for letters in await admin.dead_letter_groups(wanted.group))
    if not there:
        await check_group(admin, wanted.group)
    count = 0
    with progress_bar("dead letters", there) as advance:
        async for message in wanted.letters(admin):
            file.write(msgspec.json.encode(_line(message)) + b"\n")
            count += 1
            advance()
    return count


def _one_in_full(group: str, message_id: str, ask: Ask) -> Listing:
    async def read(admin: Admin) -> tuple[ReceivedMessage, ReceivedMessage | None]:
        await check_group(admin, group)
        found = await admin.dead_letter(group, message_id)
        return found, await admin.resent_copy(group, found)

    found, copy = ask(read)
    named = {} if copy is None else copy.properties
    at_ms = named.get(RESENT_AT, "")
    resent = {
        "by": named.get(RESENT_BY, ""),
        "reason": named.get(RESENT_REASON, ""),
        "at_ms": int(at_ms) if at_ms.isdecimal() else None,
    }
    return Listing(
        [_fields(found) | {"resent": None if copy is None else resent}],
        as_json=lambda chosen: chosen[0] if chosen else None,
        for_people=partial(_list_fields, found, copy),
    )


def _list_fields(found: ReceivedMessage, copy: ReceivedMessage | None) -> None:
    fields = _fields(found)
    fields["queue"] = f"{found.queue.broker}:{found.queue.number}"
    fields["keys"] = " ".join(found.keys)
    fields["dead since"] = _time(found.stored_ms)
    fields["resent"] = "no" if copy is None else provenance(copy)
    body = {name: fields.pop(name) for name in ("body", "body_base64") if name in fields}
    listing(fields | body)


def _fields(message: ReceivedMessage) -> dict[str, object]:
    named = message.properties
    return {
        **message_fields(message),
        "origin_topic": named.get(properties.RETRY_TOPIC, ""),
        "origin_id": named.get(properties.ORIGIN_ID, ""),
        "reason": named.get(properties.DEAD_REASON, ""),
    }


def _line(message: ReceivedMessage) -> dict[str, object]:
    fields = _fields(message)
    fields.pop("body", None)
    body = base64.b64encode(message.body).decode()
    return fields | {"flag": message.flag, "body_base64": body}
