"""Writes planted cases into two banks' books and a broker's log; it knows nothing of the matcher.

A case is a text. Its steps are separated by ``|``, and each begins with its business date:

    1 order 100 | 1 debit 100 | 2 credit 100

The payer's bank is ICBC; of a key that begins with ``back-``, it is CCB.

``1`` is noon of the first date, and ``1e`` is one minute before the first date ends, which is
within the grace. The steps of one date follow each other by a second. The verbs are

    order            a half message that is committed
    half             a half message; ``commit``, ``rollback``, ``park`` decide the last one
    send             a message outside any transaction
    dead             the payee's bank gives the last message up
    debit, return    a booking of the payer's bank: the customer's side, and clearing
    credit, recall   a booking of the payee's bank: the customer's side, and clearing
    fee              the payee's bank takes a fee out of the booking of the step before
    clear            a clearing row alone, of the payee's bank
    edit             a new balance in the table of accounts of the payee's bank, without a booking
    forget           the payee's bank deletes the rows of its last booking, and corrects its table

and an amount is positive unless the case is about a wrong sign. Options follow the amount:
``payer=``, ``payee=``, ``account=``, ``bank=``, ``currency=``, ``key=`` and ``id=`` (a message's)
have other values than those of the case; ``at=`` is the date a row is booked into; ``queue=1`` is a
queue that the payee's bank does not consume; ``alone`` leaves the clearing row out, ``again``
writes the rows before once more with their ids, ``unnumbered`` writes rows without an id,
``nameless`` rows without a transfer, and ``together`` books at the moment of the step before.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from tests.unit.store.shelf import HOST, START_MS, Shelf, Sizes
from txmq.protocol import properties
from txmq.protocol.checked_body import pack
from txmq.protocol.record import tail_of, topic_field
from txmq.protocol.span import DecisionKind
from txmq.runtime.disk import LocalDisk
from txmq_broker.store.queue_store import key_hash, topic_seed

TUESDAY = date(2024, 3, 5)
DATES = [TUESDAY + timedelta(days=number) for number in (1, 2, 3)]
"""Business dates that end at 17:00 in Shanghai."""
BANKS = ("icbc", "ccb")
BACK = "back-"
TOPICS = {"icbc": "Transfers", "ccb": "TransfersBack"}
"""The topic of each bank's orders."""
GROUPS = {"icbc": "ccb-credit", "ccb": "icbc-credit"}
"""The consumer group of the other bank."""
RULES = (
    """
name = "planted"
directory = "recon"
[day]
zone = "Asia/Shanghai"
cut_off = "17:00"
grace = "1h"
[money.CNY]
[money.EUR]
tolerance = 1
[money.JPY]
digits = 0
[money.KWD]
digits = 3
{outcomes}
[log]
directory = "broker"
"""
    + "".join(
        f"""
[[log.flow]]
topic = "{TOPICS[bank]}"
namespace = "{bank}"
group = "{GROUPS[bank]}"
key = "id"
"""
        for bank in BANKS
    )
    + "".join(
        f"""
[[bank]]
name = "{bank}"
database = "sqlite:///{bank}.db"
[bank.entries]
table = "journal"
id = "id"
key = "transfer"
account = "account"
amount = "amount"
currency = "currency"
kind = "kind"
booked = "booked"
recorded = "recorded"
namespace = {{{{ names = {{{{ "" = "icbc", {BACK} = "ccb" }}}} }}}}
kinds = {{{{ debit = ["debit"], credit = ["credit"], return = ["return"], recall = ["recall"], \
fee = ["fee"] }}}}
clearing = ["clearing"]
suspense = ["unclaimed"]
capital = ["capital"]
double_entry = true
gapless = true
[bank.accounts]
table = "accounts"
account = "number"
currency = "currency"
balance = "balance"
"""
        for bank in BANKS
    )
)
_BOOKINGS = {"debit": -1, "return": 1, "credit": 1, "recall": -1}


def payer_bank(key):
    """The bank that pays a transfer, and has issued its id."""
    return "ccb" if key.startswith(BACK) else "icbc"


def full_key(key):
    """The key of a transfer in the results."""
    return f"{payer_bank(key)}/{key}"


class Step(NamedTuple):
    """A step of a case, and when it happens."""

    at_ms: int
    key: str
    currency: str
    verb: str
    amount: int
    options: dict[str, str]
    flags: frozenset[str]


class Row(NamedTuple):
    """A row of a bank's journal."""

    number: int | None
    transfer: str | None
    account: str
    amount: int
    currency: str
    kind: str
    booked: int
    recorded: int


def moment(number, clock="12:00"):
    """A moment of the first, second or third date, or of the day before all of them."""
    text = f"{TUESDAY + timedelta(days=number)} {clock}"
    at = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo("Asia/Shanghai"))
    return round(at.timestamp()) * 1000


def steps_of(key, currency, text):
    """The steps of a case, in their order."""
    for number, step in enumerate(text.split("|")):
        when, verb, *more = step.split()
        amount = int(more.pop(0)) if more and more[0].lstrip("-").isdecimal() else 0
        at_ms = moment(int(when[0]), "16:59" if when.endswith("e") else "12:00") + number * 1000
        options = dict(word.split("=") for word in more if "=" in word)
        flags = frozenset(word for word in more if "=" not in word)
        yield Step(at_ms, key, currency, verb, amount, options, flags)


class _Log(Shelf):
    """The broker's store, at moments that are given."""

    at_ms = 0

    def next_ms(self):
        return max(self.at_ms, self.store.log.last_ms)

    def give_up(self, body, unique, key):
        """Put a message to the dead letters of the payee's bank."""
        bank = payer_bank(key)
        topic = f"%DLQ%{GROUPS[bank]}"
        values = {"UNIQ_KEY": unique, "KEYS": key, "RETRY_TOPIC": TOPICS[bank],
                  "DLQ_REASON": "no account"}  # fmt: skip
        record = (
            self.store.queue(topic, 0),
            (0, START_MS, HOST, self.next_ms(), HOST, 16, 0),
            0,
            body,
            tail_of(topic_field(topic), properties.render(values).encode()),
            0,
            (key_hash(topic_seed(topic), key),),
            None,
        )
        self.store.stage([record])


class Ledgers:
    """The banks and the log, in one directory."""

    def __init__(self, home, outcomes=""):
        self.home = home
        (home / "broker" / "config").mkdir(parents=True)
        (home / "recon.toml").write_text(RULES.format(outcomes=outcomes))
        self._last = dict.fromkeys(BANKS, 0)
        self._sent: dict[str, tuple[bytes, str]] = {}
        self._count = 0
        self._rows: dict[str, tuple[str, list[Row]]] = {}
        """The last booking of each case, with its bank."""
        self.names: dict[str, str] = {}
        """The names that rows without a transfer get."""
        for bank in BANKS:
            self._sql(
                bank,
                "CREATE TABLE journal (id INTEGER, transfer TEXT, account TEXT, amount INTEGER, "
                "currency TEXT, kind TEXT, booked INTEGER, recorded INTEGER)",
            )
            self._sql(
                bank, "CREATE TABLE accounts (number TEXT, currency TEXT, balance INTEGER, "
                "PRIMARY KEY (number, currency))",
            )  # fmt: skip

    def write(self, steps):
        """Write the steps of a date, of all cases."""
        log = _Log(LocalDisk(str(self.home / "broker")), Sizes(segment_size=1 << 22))
        try:
            for step in sorted(steps, key=lambda step: step.at_ms):
                log.at_ms = step.at_ms
                if step.verb in _BOOKINGS:
                    self._book(step)
                elif step.verb in {"fee", "clear", "edit", "forget"}:
                    getattr(self, f"_{step.verb}")(step)
                else:
                    self._say(log, step)
            log.flush()
            # A payee's bank has taken all of the first queue, and nothing of the second one.
            offsets = {}
            for bank, topic in TOPICS.items():
                queue = log.store.find_queue(topic, 0)
                after = 0 if queue is None else queue.max_offset
                offsets[f"{topic}@{GROUPS[bank]}"] = {"0": after, "1": 0}
        finally:
            log.close()
        text = json.dumps({"offsetTable": offsets})
        path = self.home / "broker" / "config" / "offsets.json"
        path.write_bytes(pack(path.name, "", text.encode()))

    # The log

    def _say(self, log, step):
        if step.verb in {"order", "half", "send"}:
            self._count += 1
            unique = step.options.get("id", f"U{self._count}-{step.key}")
            body = {
                "id": step.options.get("key", step.key),
                "payer": step.options.get("payer", f"payer-{step.key}"),
                "payee": step.options.get("payee", f"payee-{step.key}"),
                "amount": step.amount,
                "currency": step.options.get("currency", step.currency),
            }
            body = json.dumps({name: value for name, value in body.items() if value != "none"})
            self._sent[step.key] = body.encode(), unique
            queue = int(step.options.get("queue", 0))
            put = log.put if step.verb == "send" else log.prepare
            put(body.encode(), TOPICS[payer_bank(step.key)], queue, unique=unique, keys=step.key)
            log.flush()
        body, unique = self._sent[step.key]
        if step.verb == "dead":
            log.give_up(body, unique, step.key)
        elif kind := {"order": "COMMITTED", "commit": "COMMITTED", "rollback": "ROLLED_BACK",
                      "park": "PARKED"}.get(step.verb):  # fmt: skip
            log.at_ms += 20
            log.decide(unique, DecisionKind[kind])
        log.flush()

    # The books

    def _book(self, step):
        is_payers = step.verb in {"debit", "return"}
        payers = payer_bank(step.key)
        bank = payers if is_payers else next(name for name in BANKS if name != payers)
        bank = step.options.get("bank", bank)
        account = step.options.get("account", f"{'payer' if is_payers else 'payee'}-{step.key}")
        amount = _BOOKINGS[step.verb] * step.amount
        if "again" in step.flags:
            rows = self._rows[step.key][1]
        else:
            sides = [(account, amount), ("clearing", -amount)][: 1 if "alone" in step.flags else 2]
            rows = [self._row(bank, step, step.verb, *side) for side in sides]
        self._insert(bank, step, rows)

    def _fee(self, step):
        """A fee is a part of the booking before, whose clearing row pays for it."""
        bank, (*_, clearing) = self._rows[step.key]
        moved = step._replace(at_ms=clearing.recorded)
        self._insert(bank, moved, [self._row(bank, moved, "fee", "capital", step.amount)])
        self._sql(
            bank,
            "UPDATE journal SET amount = amount - ? WHERE id = ?",
            *(step.amount, clearing.number),
        )
        self._tell(bank, "clearing", step.currency, -step.amount)

    def _clear(self, step):
        self._insert("ccb", step, [self._row("ccb", step, "credit", "clearing", step.amount)])

    def _edit(self, step):
        self._tell("ccb", f"payee-{step.key}", step.currency, step.amount)

    def _forget(self, step):
        bank, rows = self._rows[step.key]
        for row in rows:
            self._sql(bank, "DELETE FROM journal WHERE id = ?", row.number)
            self._tell(bank, row.account, row.currency, -row.amount)

    def _row(self, bank, step, kind, account, amount):
        number = None
        if "unnumbered" not in step.flags:
            number = self._last[bank] = self._last[bank] + 1
        booked = step.options.get("at")
        return Row(
            number,
            None if "nameless" in step.flags else step.options.get("key", step.key),
            account,
            amount,
            step.options.get("currency", step.currency),
            kind,
            step.at_ms if booked is None else moment(int(booked)),
            step.at_ms,
        )

    def _insert(self, bank, step, rows):
        self._rows[step.key] = bank, rows
        if "nameless" in step.flags:
            self.names[step.key] = f"{bank}/#{rows[0].number}"
        for row in rows:
            self._sql(bank, f"INSERT INTO journal VALUES ({', '.join('?' * len(row))})", *row)
            self._tell(bank, row.account, row.currency, row.amount)

    def _tell(self, bank, account, currency, amount):
        self._sql(
            bank,
            "INSERT INTO accounts VALUES (?, ?, ?) "
            "ON CONFLICT DO UPDATE SET balance = balance + excluded.balance",
            *(account, currency, amount),
        )

    def _sql(self, bank, statement, *values):
        with closing(sqlite3.connect(self.home / f"{bank}.db")) as connection, connection:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute(statement, values)
