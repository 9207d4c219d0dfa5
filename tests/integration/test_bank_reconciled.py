"""The bank example reconciled: a tour with killed programs is clean, and every later fraud is found
and classified.

Real programs run here: those of the tour, and a forger with a command line. The command that
reconciles runs in this process, with its Spark; `make demo` and the full tour in a soak start one.
"""

import asyncio
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections import Counter
from contextlib import AsyncExitStack, ExitStack, closing
from types import SimpleNamespace
from typing import NamedTuple

import msgspec
import pytest
from typer.testing import CliRunner

from examples.bank_transfer.orders import Order
from examples.bank_transfer.tour.programs import Program, free_port
from examples.bank_transfer.tour.reconciliation import RULES, written
from tests.servers import spark_session
from tests.servers.serving import environment
from txmq.cli.root import app
from txmq.reconcile.report.words import mask
from txmq.reconcile.rules import Day
from txmq.reconcile.summary import Run

PATIENCE_S = 240
ROUND_S = 120
"""Between the first transfer and the last fraud lies less."""
CREDITED_S = 30
TOUR = ["--transfers", "60", "--chaos", "1", "--copies", "8", "--seed", "3", "--no-reconcile"]
CLEAN, OVER_LIMITS = 0, 2
FORGED = Order("forged-1", "ICBC-0", "CCB-0", 123_45, "CNY")
DATABASES = "icbc_database", "ccb_database"
AGREED = {"settled": "matched", "returned": "returned"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def python(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", *map(str, arguments)], cwd=cwd,
        env={**environment(), "COLUMNS": "200"}, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def toured(tmp_path_factory, spark):
    """The directory of an honest, reconciled tour, and the output of both commands."""
    asyncio.run(until_the_date_has_room())
    kept = tmp_path_factory.mktemp("toured") / "kept"
    done = python("examples.bank_transfer", *TOUR, "--directory", kept)
    assert done.returncode == CLEAN, done.stdout[-4000:] + done.stderr[-4000:]
    books = (f"sqlite:///{kept / name}.db" for name in ("icbc", "ccb"))
    rules, _ = written(SimpleNamespace(directory=kept, **dict(zip(DATABASES, books, strict=True))))
    today = day_of_the_rules().of(time.time_ns() // 1_000_000).isoformat()
    with pytest.MonkeyPatch.context() as patched:
        spark_session.lend(patched, spark)
        asked = ["reconcile", "--date", today, "--config", str(rules)]
        reconciled = CliRunner().invoke(app, asked, env={"COLUMNS": "200"})
    assert reconciled.exit_code == CLEAN, reconciled.output
    return kept, done.stdout + reconciled.output


def day_of_the_rules():
    return msgspec.convert(tomllib.loads(RULES.read_text())["day"], Day)


async def until_the_date_has_room():
    """Wait until the date has room: a transfer in flight at midnight is open, though no fraud."""
    day = day_of_the_rules()

    def ends_soon():
        now_ms = time.time_ns() // 1_000_000
        return day.window(day.of(now_ms)).end_ms - now_ms < ROUND_S * 1000

    while ends_soon():
        await asyncio.sleep(1)


def run_in(kept):
    """The result of the tour's reconciliation."""
    (summary,) = kept.glob("reconciliation/runs/*/*/summary.json")
    return msgspec.json.decode(summary.read_bytes(), type=Run)


def test_a_tour_with_killed_programs_reconciles_clean(toured):
    kept, output = toured
    result = run_in(kept).result

    assert re.search(r"delivered once more than they were sent +│ +[1-9]", output)
    assert "✔ Clean" in output
    assert "All balance proofs hold." in output
    assert output.index("money was conserved") < output.index("✔ Clean")
    counts = {}
    for total in result.totals:
        counts[total.class_] = counts.get(total.class_, 0) + total.transfers
    rolled_back = counts.pop("rolled-back")
    with closing(sqlite3.connect(kept / "icbc.db")) as books:
        states = dict(books.execute("SELECT state, count(*) FROM transfers GROUP BY state"))
    assert counts == {name: states[state] for state, name in AGREED.items()}
    assert 0 < rolled_back <= states["refused"], "an outbox says nothing of what it does not send"


def test_the_written_rules_locate_the_ledgers_and_hold_no_password(toured):
    kept, _ = toured
    rules = (kept / RULES.name).read_text()

    assert [line for line in rules.splitlines() if "${" in line] == [
        line for line in RULES.read_text().splitlines() if "${NAME}" in line
    ]
    again = python("txmq", "reconcile", "breaks", "--json", *date_of(kept), cwd=kept)
    assert (again.returncode, json.loads(again.stdout)) == (0, [])


def date_of(kept):
    return "--date", run_in(kept).result.business_date, "--config", RULES.name


# Frauds


class Transfer(NamedTuple):
    """A transfer that was made and credited."""

    id: str
    payer: str
    payee: str
    amount: int
    way: str


class Fraud(NamedTuple):
    """What the reconciliation must report about one fraud."""

    key: str
    name: str
    """The class."""
    amount: int
    holder: str


class Broken(NamedTuple):
    """A balance proof that does not hold."""

    proof: str
    bank: str | None
    account: str
    expected: int
    found: int


class Off(NamedTuple):
    """A proof of all banks together that does not hold, and by how much."""

    proof: str
    by: int


class Ledgers:
    """Both banks' databases, for whoever has the password."""

    def __init__(self, kept, stack):
        self.icbc, self.ccb = (
            stack.enter_context(closing(sqlite3.connect(kept / f"{name}.db")))
            for name in ("icbc", "ccb")
        )

    def transfers(self):
        """Some transfers, no two of which share an account."""
        seen = {FORGED.payer, FORGED.payee}
        for row in self.icbc.execute(
            "SELECT id, payer, payee, amount, way FROM transfers WHERE state = 'settled' ORDER BY 1"
        ):
            made = Transfer(*row)
            if not seen & {made.payer, made.payee}:
                seen |= {made.payer, made.payee}
                yield made

    def untouched(self):
        """Accounts of CCB that received no transfer."""
        cursor = self.ccb.execute(
            "SELECT number FROM accounts WHERE currency = 'CNY' AND is_open "
            "AND number NOT IN (SELECT payee FROM transfers) ORDER BY 1"
        )
        return (number for (number,) in cursor.fetchall() if number != FORGED.payee)

    def balance(self, bank, number):
        cursor = bank.execute("SELECT balance FROM accounts WHERE number = ?", [number])
        return cursor.fetchone()[0]

    def move(self, number, amount):
        """Change what CCB's table of accounts says."""
        changed = self.ccb.execute(
            "UPDATE accounts SET balance = balance + ? WHERE number = ?", [amount, number]
        )
        assert changed.rowcount == 1

    def double(self, transfer):
        """Copy both rows of a credit; they get ids of their own."""
        copied = self.ccb.execute(
            "INSERT INTO journal (transfer, kind, account, amount, currency, booked_ms) SELECT "
            "transfer, kind, account, amount, currency, booked_ms FROM journal WHERE transfer = ?",
            [transfer.id],
        )
        assert copied.rowcount == 2

    def edit(self, transfer, by, account):
        edited = self.ccb.execute(
            "UPDATE journal SET amount = amount + ? WHERE transfer = ? AND account = ?",
            [by, transfer.id, account],
        )
        assert edited.rowcount == 1

    def adjust(self, payee, amount):
        """Book from ICBC's clearing to a customer, as tellers book adjustments."""
        for account, more in ((payee, amount), ("clearing", -amount)):
            self.icbc.execute(
                "INSERT INTO journal (kind, account, amount, currency, booked_ms) SELECT 'adjust', "
                "?, ?, 'CNY', max(booked_ms) FROM journal",
                [account, more],
            )
            changed = self.icbc.execute(
                "UPDATE accounts SET balance = balance + ? WHERE number = ?", [more, account]
            )
            assert changed.rowcount == (account == payee)

    def delete(self, bank, transfer):
        gone = bank.execute("DELETE FROM journal WHERE transfer = ?", [transfer.id])
        assert gone.rowcount == 2

    def post_elsewhere(self, transfer, account):
        posted = self.ccb.execute(
            "UPDATE journal SET account = ? WHERE transfer = ? AND account = ?",
            [account, transfer.id, transfer.payee],
        )
        assert posted.rowcount == 1

    def post_at_icbc(self, transfer):
        """Take a credit out of CCB's books, and book it as unclaimed money of ICBC."""
        rows = self.ccb.execute(
            "SELECT transfer, kind, replace(account, ?, 'unclaimed'), amount, currency, booked_ms "
            "FROM journal WHERE transfer = ?",
            [transfer.payee, transfer.id],
        ).fetchall()
        self.icbc.executemany(
            "INSERT INTO journal (transfer, kind, account, amount, currency, booked_ms) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            rows,
        )
        self.delete(self.ccb, transfer)
        self.move(transfer.payee, -transfer.amount)

    def commit(self):
        self.icbc.commit()
        self.ccb.commit()


def told(ledgers, bank, number, by):
    """An account whose journal says more than the table of accounts, or less."""
    balance = ledgers.balance(getattr(ledgers, bank), number)
    return Broken("account-table", bank, mask(number), balance, balance + by)


def cheat(ledgers):
    """Commit every kind of fraud, each on a transfer of its own; yield the expected findings."""
    some, accounts = ledgers.transfers(), ledgers.untouched()

    # A row edited, and nothing else: the two sides of the booking do not add up any more.
    transfer = next(some)
    ledgers.edit(transfer, 7, transfer.payee)
    yield Fraud(transfer.id, "amount-mismatch", 7, "payee")
    yield Broken("double-entry", "ccb", transfer.id, 0, 7)
    yield Broken("clearing", None, transfer.id, -7, 0)
    yield told(ledgers, "ccb", transfer.payee, 7)

    # The same by somebody who knows the books: both sides and the balance tell the same story.
    transfer = next(some)
    ledgers.edit(transfer, 9, transfer.payee)
    ledgers.edit(transfer, -9, "clearing")
    ledgers.move(transfer.payee, 9)
    yield Fraud(transfer.id, "amount-mismatch", 9, "payee")

    # A balance edited: no transfer is wrong, and the account is.
    rich = next(accounts)
    ledgers.move(rich, 5)
    yield told(ledgers, "ccb", rich, -5)

    # Money taken out of clearing, by a booking that adds up: both banks together have too much.
    ledgers.adjust(FORGED.payer, 1_000_00)
    yield Off("conservation", 1_000_00)
    yield Off("clearing-total", -1_000_00)

    # A credit deleted; then the money taken from the account as well.
    transfer = next(some)
    ledgers.delete(ledgers.ccb, transfer)
    yield Fraud(transfer.id, "delivered-uncredited", transfer.amount, "transit")
    yield told(ledgers, "ccb", transfer.payee, -transfer.amount)
    transfer = next(some)
    ledgers.delete(ledgers.ccb, transfer)
    ledgers.move(transfer.payee, -transfer.amount)
    yield Fraud(transfer.id, "delivered-uncredited", transfer.amount, "transit")

    # A credit doubled; then the money given to the account as well.
    transfer = next(some)
    ledgers.double(transfer)
    yield Fraud(transfer.id, "double-credit", transfer.amount, "payee")
    yield told(ledgers, "ccb", transfer.payee, transfer.amount)
    transfer = next(some)
    ledgers.double(transfer)
    ledgers.move(transfer.payee, transfer.amount)
    yield Fraud(transfer.id, "double-credit", transfer.amount, "payee")

    # A debit deleted: its transaction was committed, or it was told by an outbox.
    for way, name in (
        ("half", "committed-but-not-debited"),
        ("outbox", "message-without-debit"),
    ):
        transfer = next(candidate for candidate in some if candidate.way == way)
        ledgers.delete(ledgers.icbc, transfer)
        yield Fraud(transfer.id, name, transfer.amount, "payee")
        yield told(ledgers, "icbc", transfer.payer, transfer.amount)

    # A credit posted to another account; then with the money.
    transfer, account = next(some), next(accounts)
    ledgers.post_elsewhere(transfer, account)
    yield Fraud(transfer.id, "account-mismatch", transfer.amount, "payee")
    yield told(ledgers, "ccb", transfer.payee, -transfer.amount)
    yield told(ledgers, "ccb", account, transfer.amount)
    transfer, account = next(some), next(accounts)
    ledgers.post_elsewhere(transfer, account)
    ledgers.move(transfer.payee, -transfer.amount)
    ledgers.move(account, transfer.amount)
    yield Fraud(transfer.id, "account-mismatch", transfer.amount, "payee")

    # A credit that the payer's bank keeps: each bank's books add up.
    transfer = next(some)
    ledgers.post_at_icbc(transfer)
    yield Fraud(transfer.id, "wrong-bank", transfer.amount, "payee")


async def forge(kept, order):
    """Send an order that ICBC never had while the broker and CCB run; CCB credits it."""
    taken = set()
    listen, names = (f"127.0.0.1:{free_port(taken)}" for _ in range(2))
    broker = ["serve", "--data", kept / "broker", "--listen", listen, "--names-listen", names]
    ccb = ["ccb", "--database", f"sqlite:///{kept / 'ccb.db'}", "--names", names]
    body = msgspec.json.encode(order).decode()
    forger = ["message", "send", "transfers", body, "--tag", "CCB", "--key", order.id]
    async with AsyncExitStack() as stack:
        for module, arguments in (("txmq", broker), ("examples.bank_transfer", ccb)):
            log = kept / f"{arguments[0]}-forging.log"
            program = Program(arguments[0], module, list(map(str, arguments)), log)
            await program.start()
            stack.push_async_callback(program.stop)
        sent = await asyncio.to_thread(python, "txmq", *forger, "--names", names)
        assert sent.returncode == 0, sent.stderr
        with closing(sqlite3.connect(kept / "ccb.db")) as books:
            async with asyncio.timeout(CREDITED_S):
                asked = "SELECT 1 FROM journal WHERE transfer = ?"
                while not books.execute(asked, [order.id]).fetchone():
                    await asyncio.sleep(0.02)


def test_reconciliation_finds_and_classifies_every_planted_fraud(
    toured, tmp_path, spark, monkeypatch
):
    spark_session.lend(monkeypatch, spark)
    copy = tmp_path / "copy"
    shutil.copytree(toured[0], copy, ignore=shutil.ignore_patterns("reconciliation"))
    asyncio.run(forge(copy, FORGED))
    with ExitStack() as stack:
        ledgers = Ledgers(copy, stack)
        planted = list(cheat(ledgers))
        ledgers.commit()
    planted.append(Fraud(FORGED.id, "message-without-debit", FORGED.amount, "payee"))

    asked = date_of(toured[0])
    monkeypatch.chdir(copy)
    done = CliRunner().invoke(app, ["reconcile", *asked, "--json", "--quiet"])
    listed = CliRunner().invoke(app, ["reconcile", "breaks", "--json", *asked])

    assert done.exit_code == OVER_LIMITS, done.stderr
    assert sorted(
        Fraud(
            finding["key"].removeprefix("icbc/"),
            finding["class"],
            finding["amount"],
            finding["holder"],
        )
        for finding in json.loads(listed.stdout)
    ) == sorted(finding for finding in planted if isinstance(finding, Fraud))
    result = msgspec.json.decode(done.stdout.encode(), type=Run).result
    proofs = [
        Broken(
            finding.proof,
            finding.bank,
            finding.account.removeprefix("icbc/"),
            finding.expected,
            finding.found,
        )
        for finding in result.proofs
        if not finding.holds and finding.account is not None
    ]
    wanted = [finding for finding in planted if isinstance(finding, Broken)]
    assert sorted(proofs, key=repr) == sorted(wanted, key=repr)
    named = {finding.proof for finding in wanted}
    whole = [
        finding for finding in result.proofs if not finding.holds and finding.proof not in named
    ]
    off, missed = Counter(), Counter()
    for finding in whole:
        off[finding.proof] += finding.found - finding.expected
    for finding in planted:
        if isinstance(finding, Off):
            missed[finding.proof] += finding.by
    assert off == missed
    assert result.broken_proofs == len(wanted) + len(whole)
