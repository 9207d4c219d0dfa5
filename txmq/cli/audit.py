"""``txmq audit``: what operators did to a broker, from the record in its directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from txmq.broker_directories import hint_of_brokers
from txmq.cli.common import WRONGLY_CALLED, AsJson, fail, moment_of
from txmq.cli.moments import time_text
from txmq.cli.output import as_json as print_json
from txmq.cli.output import note, say
from txmq.printable import printable
from txmq.runtime.disk import ReadOnlyDisk

__all__ = ["audit"]


def audit(
    *,
    data: Annotated[
        Path,
        typer.Option("--data", metavar="DIR", help="The broker's directory; it may be running."),
    ],
    since: Annotated[
        str, typer.Option(help="Then or later: 2024-05-01T12:00, 2h (ago), earliest.")
    ] = "earliest",
    refused: Annotated[bool, typer.Option("--refused", help="Only refused requests.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what operators did: who, from where, when, what, and whether it was refused."""
    from txmq_broker.access.audit import read_audit

    if not data.is_dir():
        fail(f"{data} is no directory of a broker", WRONGLY_CALLED)
    if hint := hint_of_brokers(data):
        fail(f"{data} is not a broker's directory{hint}", WRONGLY_CALLED)
    from_ms = moment_of(since, "--since")
    for entry in read_audit(ReadOnlyDisk(data), note):
        if entry.at_ms < from_ms or (refused and not entry.refused):
            continue
        if as_json:
            print_json(msgspec.to_builtins(entry))
            continue
        fields = " ".join(f"{name}={text}" for name, text in entry.fields.items())
        who = f"{entry.account or 'no account'} at {entry.peer}"
        result = f"  refused: {entry.refused}" if entry.refused else ""
        say(printable(f"{time_text(entry.at_ms)} {who}: {entry.request} {fields}{result}"))
