"""A broker's log as files, and what is taken of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pyarrow.parquet as pq

from txmq.reconcile.log import log_extract
from txmq.reconcile.log.files import STRETCH_BYTES, LogStretch, open_log
from txmq.reconcile.log.log_extract import extract_log
from txmq.reconcile.log.source import COLUMNS, raw_records
from txmq.reconcile.rules import Bank, DayWindow, EntryColumns, Flow, LogRules, Rules
from txmq.reconcile.tables import FAILURES, MESSAGES, OFFSETS
from txmq.runtime.clock import SystemClock

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
        for file in [opened.file for opened in log.opened]:
            for row in raw_records(LogStretch(file, file.start, file.end)):
                yield SimpleNamespace(**dict.fromkeys(COLUMNS.names) | row)


class DeletingClock(SystemClock):
    """Somebody deletes a file at the moment at which the log is looked up."""

    def __init__(self, file):
        self.file = file

    def wall_ms(self):
        self.file.unlink()
        return super().wall_ms()


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
    """What was taken of a log, read again from its files."""

    def __init__(self, data, out, window=ALWAYS, flows=(), stretch_bytes=STRETCH_BYTES, **how):
        rules = data if isinstance(data, Rules) else rules_of(data, *flows)
        with patch.object(log_extract, "STRETCH_BYTES", stretch_bytes):
            self.log = extract_log(rules, window, Path(out), **how)
        self.messages, self.failures, self.offsets = (
            pq.read_table(out / "log" / item.name).to_pylist()
            for item in (MESSAGES, FAILURES, OFFSETS)
        )
        controls = [table.written for table in self.log.tables]
        rows = [control.rows for control in controls]
        assert rows == [len(self.messages), len(self.failures), len(self.offsets)]
        assert [control.table for control in controls] == ["messages", "failures", "offsets"]
        assert {control.source for control in controls} == {"log"}

    def message(self, key):
        """The only row of a transfer."""
        (found,) = [message for message in self.messages if message["key"] == f"icbc/{key}"]
        return found

    def states(self):
        return {message["key"].removeprefix("icbc/"): message["state"] for message in self.messages}
