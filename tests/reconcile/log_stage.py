"""A broker's log as files, and the rows taken from it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from txmq.reconcile.extract.extraction import log_of
from txmq.reconcile.log import directory_log
from txmq.reconcile.log.collapse import LogRequest
from txmq.reconcile.log.day_source import LOG_SHEETS, DayLogSource, in_sheets, options_of
from txmq.reconcile.log.directory_log import join_rests
from txmq.reconcile.log.files import STRETCH_BYTES, open_log
from txmq.reconcile.log.source import COLUMNS, raw_records
from txmq.reconcile.rules import Bank, DayWindow, EntryColumns, Flow, LogRules, Rules
from txmq.reconcile.tables import LOG_TABLES

FLOW = Flow(topic="Transfers", namespace="icbc", group="ccb", key="id")
ALWAYS = DayWindow(0, 1 << 60)


def rules_of(data, *flows):
    columns = EntryColumns("entries", "id", "account", "amount", "booked", "c", "k", "icbc")
    bank = Bank(name="icbc", database="sqlite:///none.db", entries=columns)
    return Rules("test", "here", (bank,), LogRules(str(data), flows or (FLOW,)))


def order(key, amount=100, **more):
    """The body of a message that orders a transfer."""
    body = {"id": key, "payer": f"a{key}", "payee": f"b{key}", "amount": amount, "currency": "CNY"}
    return json.dumps(body | more).encode()


def read_log(directory):
    """All records of the log in a broker's directory."""
    with open_log(directory) as log:
        for stretch in log.stretches(1 << 60):
            for row in raw_records(stretch):
                yield SimpleNamespace(**dict.fromkeys(COLUMNS.names) | row)


def delete_when_opened(monkeypatch, file):
    """Somebody deletes a file of the log as soon as a reader has opened it."""
    taken = directory_log._CLOCK.wall_ms

    class Deleting:
        def wall_ms(self):
            file.unlink()
            return taken()

    monkeypatch.setattr(directory_log, "_CLOCK", Deleting())


def dump(disk, directory):
    """A copy of a broker's directory that was kept in memory."""
    for folder in ("log", "config"):
        (directory / folder).mkdir(parents=True, exist_ok=True)
        for name in disk.names(folder):
            file = disk.open(f"{folder}/{name}")
            try:
                (directory / folder / name).write_bytes(file.read(0, file.size()))
            finally:
                file.close()
    return directory


class Taken:
    """What the source of logs gives, read in this process as workers of Spark read it."""

    def __init__(self, data, window=ALWAYS, flows=(), stretch_bytes=None):
        """With a size, each stretch of the log is a task of its own."""
        rules = data if isinstance(data, Rules) else rules_of(data, *flows)
        request = LogRequest(rules.log, rules.money, window, stretch_bytes or STRETCH_BYTES)
        source = DayLogSource(options_of(request))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(directory_log, "_STRETCHES_OF_A_TASK", 0 if stretch_bytes else 8)
            parts = source.partitions()
        batches = [batch for part in parts for batch in source.read(part)]
        sheets = pa.Table.from_batches(batches, LOG_SHEETS.schema)
        rests = sheets.filter(pc.field("table") == "rests")
        joined = [
            join_rests(request, rests.filter(pc.field("broker") == number))
            for number in rests["broker"].unique()
        ]
        sheets = pa.concat_tables([sheets, *map(in_sheets, joined)]).to_pylist()
        self.messages, self.failures, self.offsets = (
            [{name: row[name] for name in table.names} for row in sheets if row["table"] == title]
            for title, table in LOG_TABLES.items()
        )
        notes = [
            (row["about"], row["place"], row["note"]) for row in sheets if row["table"] == "notes"
        ]
        self.log = log_of(notes, 1 << 60)

    def message(self, key):
        """The only row of a transfer."""
        (found,) = [message for message in self.messages if message["key"] == f"icbc/{key}"]
        return found

    def states(self):
        return {message["key"].removeprefix("icbc/"): message["state"] for message in self.messages}
