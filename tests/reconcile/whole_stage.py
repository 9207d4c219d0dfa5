"""Two banks with journals of their own and a broker's log between them, over some days.

The banks are SQLite files, and the log is written by the broker's own store; only the clock is
ours. Everything lies in one directory with relative names, so that a copy works too.
"""

import json
import shutil
import sqlite3
from contextlib import closing
from datetime import date, datetime, time, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from tests.unit.store.shelf import Shelf, Sizes
from txmq.protocol.checked_body import pack
from txmq.protocol.span import DecisionKind
from txmq.reconcile import reconcile
from txmq.reconcile.progress import Progress
from txmq.reconcile.results import Results
from txmq.reconcile.rules import Money
from txmq.reconcile.rules_file import read_rules
from txmq.runtime.disk import LocalDisk

WEDNESDAY, THURSDAY, FRIDAY, SATURDAY = (date(2024, 3, index) for index in range(6, 10))
"""They were over before anybody ran this."""
COMMITTED, ROLLED_BACK = DecisionKind.COMMITTED, DecisionKind.ROLLED_BACK
PAYER, PAYEE = "6222000011110001", "6217000022220002"
ACCOUNTS = {"icbc": PAYER, "ccb": PAYEE}
TOPIC, GROUP = "Transfers", "ccb-credit"

_BANK = """
[[bank]]
name = "{name}"
database = "sqlite:///{name}.db"
[bank.entries]
table = "journal"
id = "id"
key = "transfer"
account = "account"
amount = "amount"
currency = "currency"
kind = "kind"
booked = "booked_ms"
recorded = "recorded_ms"
namespace = "icbc"
kinds = {{ debit = ["debit"], credit = ["credit"], return = ["return"] }}
clearing = ["clearing"]
capital = ["capital"]
double_entry = true
gapless = true
[bank.accounts]
table = "accounts"
account = "number"
currency = "currency"
balance = "balance"
"""
RULES = f"""
name = "icbc-ccb"
directory = "recon"
[recon]
database = "sqlite:///recon.db"
[day]
zone = "Asia/Shanghai"
cut_off = "17:00"
grace = "1h"
[money.CNY]
materiality = 50000
[log]
directory = "broker"
[[log.flow]]
topic = "{TOPIC}"
namespace = "icbc"
group = "{GROUP}"
key = "id"
""" + "".join(_BANK.format(name=account) for account in ACCOUNTS)


class Posting(NamedTuple):
    """One side of a booking."""

    account: str
    amount: int


class Halted(Exception):
    """A run was stopped in the middle."""


class HaltedAt(Progress):
    """Stops a run where a stage begins, as a power failure would."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def stage(self, name):
        if name == self.name:
            raise Halted(name)
        return super().stage(name)


class _Log(Shelf):
    """The broker's store, at moments that are given."""

    at_ms = 0

    def next_ms(self):
        return max(self.at_ms, self.store.log.last_ms)


def at(day, clock):
    """A moment of a calendar day in Shanghai."""
    moment = datetime.combine(day, time.fromisoformat(clock), ZoneInfo("Asia/Shanghai"))
    return round(moment.timestamp() * 1000)


class Stage:
    """The banks, the broker's log, and the results of their days."""

    def __init__(self, home):
        self.home = home

    @classmethod
    def set_up(cls, home):
        """Banks whose customers have money, and a log without messages."""
        stage = cls(home)
        (home / "broker" / "config").mkdir(parents=True)
        (home / "recon.toml").write_text(RULES)
        for bank, account in ACCOUNTS.items():
            stage.sql(
                bank,
                "CREATE TABLE journal (id INTEGER PRIMARY KEY, transfer TEXT, account TEXT, "
                "amount INTEGER, currency TEXT, kind TEXT, booked_ms INTEGER, recorded_ms INTEGER)",
            )
            stage.sql(
                bank,
                "CREATE TABLE accounts (number TEXT PRIMARY KEY, currency TEXT, balance INTEGER)",
            )
            given = Posting("capital", -10_000_00), Posting(account, 10_000_00)
            stage.book(bank, None, "deposit", given, at(WEDNESDAY - timedelta(days=2), "08:00"))
        stage.poll()
        return stage

    def copy(self, home):
        """A copy in another directory."""
        shutil.copytree(self.home, home)
        return Stage(home)

    def copy_without_results(self, home):
        """A copy in which no date was ever reconciled."""
        stage = self.copy(home)
        shutil.rmtree(stage.directory)
        (home / "recon.db").unlink()
        return stage

    @property
    def rules(self):
        return read_rules(self.home / "recon.toml")

    def rules_with(self, *, materiality):
        money = {"CNY": Money(materiality=materiality)}
        return msgspec.structs.replace(self.rules, money=money)

    @property
    def directory(self):
        return self.home / "recon"

    def sql(self, bank, statement, *values):
        with closing(sqlite3.connect(self.home / f"{bank}.db")) as connection, connection:
            return connection.execute(statement, values).fetchall()

    def book(self, bank, transfer, kind, postings, at_ms, *, booked_ms=None):
        """Book both sides, and update the accounts."""
        assert sum(posting.amount for posting in postings) == 0
        for account, amount in postings:
            row = transfer, account, amount, "CNY", kind, booked_ms or at_ms, at_ms
            names = "transfer, account, amount, currency, kind, booked_ms, recorded_ms"
            self.sql(bank, f"INSERT INTO journal ({names}) VALUES (?, ?, ?, ?, ?, ?, ?)", *row)
            self.sql(
                bank,
                "INSERT INTO accounts VALUES (?, 'CNY', ?) "
                "ON CONFLICT DO UPDATE SET balance = balance + excluded.balance",
                *(account, amount),
            )

    def debit(self, transfer, amount, at_ms, *, booked_ms=None):
        taken = Posting(PAYER, -amount), Posting("clearing", amount)
        self.book("icbc", transfer, "debit", taken, at_ms, booked_ms=booked_ms)

    def credit(self, transfer, amount, at_ms, *, booked_ms=None):
        given = Posting("clearing", -amount), Posting(PAYEE, amount)
        self.book("ccb", transfer, "credit", given, at_ms, booked_ms=booked_ms)

    def order(self, transfer, amount, at_ms, kind=COMMITTED):
        """A half message, and what was decided about it a moment later."""
        body = {"id": transfer, "payer": PAYER, "payee": PAYEE}
        body |= {"amount": amount, "currency": "CNY"}
        log = _Log(LocalDisk(str(self.home / "broker")), Sizes(segment_size=1 << 20))
        try:
            log.at_ms = at_ms
            log.prepare(json.dumps(body).encode(), TOPIC, unique=f"U-{transfer}", keys=transfer)
            log.flush()
            log.at_ms = at_ms + 20
            log.decide(f"U-{transfer}", kind)
            log.flush()
        finally:
            log.close()

    def transfer(self, transfer, amount, at_ms, *, credited_ms=None):
        """An honest transfer."""
        self.order(transfer, amount, at_ms)
        self.debit(transfer, amount, at_ms + 10)
        self.credit(transfer, amount, credited_ms or at_ms + 500)

    def poll(self):
        """Record that the payee's bank has taken all messages."""
        log = _Log(LocalDisk(str(self.home / "broker")), Sizes(segment_size=1 << 20))
        try:
            queue = log.store.find_queue(TOPIC, 0)
            after = 0 if queue is None else queue.max_offset
        finally:
            log.close()
        text = json.dumps({"offsetTable": {f"{TOPIC}@{GROUP}": {"0": after}}})
        path = self.home / "broker" / "config" / "offsets.json"
        path.write_bytes(pack(path.name, "", text.encode()))

    def first_day(self):
        """An honest day; one transfer is on its way when it ends."""
        for number in range(8):
            self.transfer(f"T{number}", 100_00 + number, at(WEDNESDAY, f"{9 + number % 7:02}:00"))
        self.order("gone", 77_00, at(WEDNESDAY, "16:00"), ROLLED_BACK)
        self.order("night", 88_00, at(WEDNESDAY, "16:58"))
        self.debit("night", 88_00, at(WEDNESDAY, "16:58") + 10)
        self.poll()

    def second_day(self):
        """The transfer of the night arrives; another is lost at the payee's bank."""
        self.credit("night", 88_00, at(WEDNESDAY, "17:03"))
        for number in range(3):
            self.transfer(f"F{number}", 50_00, at(THURSDAY, f"{9 + number:02}:30"))
        self.order("lost", 300_00, at(THURSDAY, "11:00"))
        self.debit("lost", 300_00, at(THURSDAY, "11:00") + 10)
        self.poll()

    def run(self, spark, day, *, rules=None, progress=None, extract_id=None):
        """A whole run, as the command line makes one."""
        rules = rules or self.rules
        found = reconcile(spark, rules=rules, date=day, extract_id=extract_id, progress=progress)
        try:
            return found.write()
        finally:
            found.release()

    def results(self):
        return Results(self.directory)

    def rows(self, done, table="items"):
        """The rows of a run's table by the transfers' own ids."""
        rows = self.results().table(table, done.day, done.run_id).rows()
        return {row["key"].removeprefix("icbc/"): row for row in rows}

    def recon(self, statement):
        """Query the database that results are also written to."""
        return self.sql("recon", statement)

    def extract_of(self, done):
        return self.directory / "extracts" / done.result.business_date / done.extract_id

    def bytes_of(self, run_id):
        """All that a run's tables hold, byte by byte."""
        places = sorted(self.directory.glob(f"results/*/*/run={run_id}/*"))
        return {str(place.relative_to(self.directory)): place.read_bytes() for place in places}
