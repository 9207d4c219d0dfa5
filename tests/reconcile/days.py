"""Whole days of two banks and a broker, written like extracts, with planted defects.

The same plan gives the same rows. A day is made in slices of time, each of which becomes a part of
every table, so that ten million transfers need no more memory than one slice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

from tests.reconcile.shapes import HONEST, PLANTED, SHAPES
from txmq.reconcile.rules import (
    AccountColumns,
    Bank,
    Constant,
    Day,
    EntryColumns,
    Flow,
    LogRules,
    Money,
    Rules,
)
from txmq.reconcile.tables import ACCOUNTS, ENTRIES, FAILURES, LATER, MESSAGES, OFFSETS, OPENING

BANKS = ("icbc", "ccb")
CURRENCIES = ("CNY", "USD", "EUR", "JPY")
SHARES = (0.80, 0.12, 0.06, 0.02)
AGREED = ("matched", "returned", "rolled-back")
VISIBLE = ("sent", "committed")
QUEUES, STALLED, UNKNOWN = 6, 6, 7
STALLED_AT = 1000
HOT_PAYEES, HOT_PAYERS = 8, 4
GIVEN_BACK_MS = 5
TYPES = {"string": pa.string(), "long": pa.int64(), "int": pa.int32(), "boolean": pa.bool_()}
SPECIAL = ("clearing", "suspense", "capital")
TRUTH = (
    "key",
    "class",
    "shape",
    "currency",
    "debited",
    "returned",
    "credited",
    "ordered",
    "at_risk",
)

RULES = Rules(
    name="icbc-ccb",
    directory="recon",
    bank=tuple(
        Bank(
            name=bank,
            database=f"sqlite:///{bank}.db",
            zone=zone,
            entries=EntryColumns(
                table="journal",
                key="transfer",
                account="account",
                amount="amount",
                booked="booked",
                recorded="recorded",
                currency="currency",
                kind="kind",
                namespace=bank,
                suspense=(f"{bank}-suspense",),
                capital=(f"{bank}-capital",),
            ),
            accounts=AccountColumns("accounts", "account", Constant("CNY"), "balance"),
        )
        for bank, zone in zip(BANKS, ("Asia/Shanghai", "America/New_York"), strict=True)
    ),
    log=LogRules(
        "data",
        tuple(
            Flow(f"{bank}-transfers", bank, f"{other}-credits")
            for bank, other in (BANKS, BANKS[::-1])
        ),
    ),
    day=Day(zone="Asia/Shanghai", cut_off="17:00"),
    money={
        "CNY": Money(materiality=100_000_00),
        "USD": Money(materiality=10_000_00),
        "EUR": Money(tolerance=1),
        "JPY": Money(digits=0),
    },
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a day is to contain."""

    transfers: int
    planted: int = 25
    """At least so many of each class; none with 0."""
    seed: int = 1
    day: date = date(2026, 11, 20)
    accounts: int = 100_000
    """Of each bank."""
    part: int = 500_000
    """Transfers of one slice."""
    altered: int = 0
    """Accounts of each bank whose balance somebody has changed."""
    double_entry: bool = False
    first: int = 0
    """The number of the first transfer, for days that follow each other."""

    @property
    def rules(self) -> Rules:
        """The rules to reconcile the day by."""
        if not self.double_entry:
            return RULES
        banks = (
            replace(
                bank,
                entries=replace(
                    bank.entries, double_entry=True, clearing=(f"{bank.name}-clearing",)
                ),
            )
            for bank in RULES.bank
        )
        return replace(RULES, bank=tuple(banks))


@dataclass(frozen=True)
class Written:
    """Where a day was written, and the truth about it."""

    folder: Path
    rows: dict[str, int]
    altered: tuple[tuple[str, str], ...]
    """Banks and accounts."""
    closing: tuple[np.ndarray, np.ndarray, np.ndarray]
    """The closing balance of each account, its entries, and whether it was ever used."""

    def truth(self) -> pa.Table:
        """Each transfer's class and sums."""
        return pq.read_table(self.folder / "truth")


def write_day(folder: Path, plan: Plan, before: Written | None = None) -> Written:
    """Write a day: ``<folder>/<bank or log>/<table>/part-….parquet``, and ``truth`` next to them.

    Its accounts open with the closing balances of the day before. Transfers that were under way
    then are not continued.
    """
    writer = _Writer(folder)
    books = _Books(plan)
    for number, slice_ in enumerate(_slices(plan)):
        for rows in slice_.rows(books):
            writer.write(number, *rows)
    altered, closing = books.close(writer, before)
    return Written(folder, writer.rows, altered, closing)


def schema_of(table) -> pa.Schema:
    """A table's columns for Arrow."""
    return pa.schema(pa.field(c.name, TYPES[c.type], c.is_optional) for c in table.columns)


class _Writer:
    """Writes parts of tables and counts their rows."""

    def __init__(self, folder):
        self.folder = folder
        self.rows = {}

    def write(self, number, source, table, columns):
        """Write one part."""
        if source == "truth":
            place, rows = self.folder / "truth", pa.table(columns)
        else:
            place = self.folder / source / table.name
            rows = pa.table([columns[n] for n in table.names], schema=schema_of(table))
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, place / f"part-{number:05}.parquet", compression="zstd")
        name = "truth" if source == "truth" else f"{source}/{table.name}"
        self.rows[name] = self.rows.get(name, 0) + rows.num_rows


class _Books:
    """What slices share: names, counters, and the sums of every account."""

    def __init__(self, plan):
        self.plan = plan
        self.start_ms, self.end_ms = plan.rules.day.window(plan.day)
        self.rng = np.random.default_rng([plan.seed, 0])
        names = [
            [f"{b}-{n:06}" for n in range(plan.accounts)] + [f"{b}-{s}" for s in SPECIAL]
            for b in BANKS
        ]
        self.names = pa.array(names[0] + names[1])
        self.roles = pa.array((["customer"] * plan.accounts + list(SPECIAL)) * 2)
        self.of_a_bank = plan.accounts + len(SPECIAL)
        self.ids = [1, 1]
        self.position = 0
        self.offsets = np.zeros((2, 8), np.int64)
        self.offsets[:, STALLED] = STALLED_AT
        self.moved = np.zeros(2 * self.of_a_bank * len(CURRENCIES), np.int64)
        self.moved_rows = np.zeros_like(self.moved)
        self.later = np.zeros_like(self.moved)
        self.later_rows = np.zeros_like(self.moved)

    def close(self, writer, before):
        """Write the opening sums, the later sums and the balances of all accounts."""
        rng, size = self.rng, self.moved.size
        opening = rng.integers(10_000, 100_000_000, size) * (rng.random(size) < 0.9)
        counts = rng.integers(1, 50, size)
        account, currency = np.divmod(np.arange(size), len(CURRENCIES))
        used = (currency == 0) | (self.moved != 0) | (self.later_rows != 0)
        if before is not None:
            opening, counts, was_used = before.closing
            used |= was_used
        balance = opening + self.moved + self.later
        altered = []
        for bank, name in enumerate(BANKS):
            mine = used & (account // self.of_a_bank == bank)
            chosen = np.flatnonzero(mine & (account % self.of_a_bank < self.plan.accounts))
            for item in rng.choice(chosen, self.plan.altered, replace=False):
                balance[item] += 1_00
                altered.append((name, self.names[account[item]].as_py()))
            for table, sums, rows in (
                (OPENING, opening, counts),
                (LATER, self.later, self.later_rows),
            ):
                at = np.flatnonzero(mine & ((rows != 0) if table is LATER else True))
                held = {"amount": pa.array(sums[at]), "rows": pa.array(rows[at])}
                held |= {"role": self.roles.take(account[at])}
                writer.write(0, name, table, held | self._whose(account[at], currency[at]))
            at = np.flatnonzero(mine)
            held = {"balance": pa.array(balance[at])} | self._whose(account[at], currency[at])
            writer.write(0, name, ACCOUNTS, held)
        self._write_offsets(writer)
        return tuple(altered), (opening + self.moved, counts + self.moved_rows, used)

    def _whose(self, account, currency):
        return {"account": self.names.take(account), "currency": _named(CURRENCIES, currency)}

    def _write_offsets(self, writer):
        rows = [
            (flow.group, flow.topic, queue, STALLED_AT if queue == STALLED else int(after))
            for flow, queues in zip(RULES.log.flow, self.offsets, strict=True)
            for queue, after in enumerate(queues)
            if queue != UNKNOWN
        ]
        columns = zip(OFFSETS.names, zip(*rows, strict=True), strict=True)
        types = {c.name: TYPES[c.type] for c in OFFSETS.columns}
        writer.write(0, "log", OFFSETS, {n: pa.array(v, types[n]) for n, v in columns})


def _slices(plan) -> Iterator["_Slice"]:
    """The day, slice by slice."""
    rng = np.random.default_rng([plan.seed, 1])
    kinds = np.repeat(np.arange(len(HONEST), len(SHAPES)), _how_many(plan.planted))
    places = rng.choice(plan.transfers, kinds.size, replace=False, shuffle=True)
    for number, first in enumerate(range(0, plan.transfers, plan.part)):
        size = min(plan.part, plan.transfers - first)
        inside = (places >= first) & (places < first + size)
        yield _Slice(plan, number, first, size, places[inside] - first, kinds[inside])


def _how_many(planted):
    """How many of each shape to plant, so that each class has enough."""
    of_a_class = [sum(accident.class_ == shape.class_ for shape in PLANTED) for accident in PLANTED]
    return [-(-planted // count) for count in of_a_class]


def _of_shapes(name, type_=None):
    return np.array([getattr(shape, name) for shape in SHAPES], type_)


class _Slice:
    """The transfers of a part of the day, column by column."""

    def __init__(self, plan, number, first, size, planted, kinds):
        self.plan, self.first, self.size = plan, first, size
        self.number = plan.first + first
        self.rng = rng = np.random.default_rng([plan.seed, 2, number])
        shares = np.array([shape.share for shape in HONEST])
        self.shape = rng.choice(len(HONEST), size, p=shares / shares.sum())
        self.shape[planted] = kinds
        self.is_planted = np.zeros(size, bool)
        self.is_planted[planted] = True
        self.bank = (rng.random(size) < 0.04).astype(np.int64)
        """Of the payer."""
        self.amount = (10 ** (2 + 5 * rng.random(size))).astype(np.int64)
        self.currency = rng.choice(len(CURRENCIES), size, p=SHARES)
        self.currency[self._has("wrong", "a minor unit")] = CURRENCIES.index("EUR")
        self.payer = self._accounts(HOT_PAYERS, 0.10)
        self.payee = self._accounts(HOT_PAYEES, 0.30)

    def _accounts(self, hot, share):
        """Numbers of accounts in a bank; a few accounts are busy."""
        rng = self.rng
        few = rng.integers(0, hot, self.size)
        many = rng.integers(0, self.plan.accounts, self.size)
        return np.where(rng.random(self.size) < share, few, many)

    def _has(self, name, value):
        return (_of_shapes(name) == value)[self.shape]

    def _at_least(self, name, count):
        return (_of_shapes(name, np.int64) >= count)[self.shape]

    def _began(self, start, end, grace):
        """When transfers begin: in the slice's own time, many in the last seconds of the day, and
        planted ones well inside."""
        rng, day = self.rng, end - start
        share = (self.first + np.arange(self.size)) / self.plan.transfers
        began = start + (share * day).astype(np.int64) + rng.integers(0, 500, self.size)
        late = rng.random(self.size) < 0.005
        began[late] = end - rng.integers(1, 3_000, late.sum())
        began = np.minimum(began, end - 1)
        lowest = np.where(self._has("age", "young"), end - grace + 60_000, start + 60_000)
        highest = np.where(self._has("age", "old"), end - grace - 600_000, end - 180_000)
        inside = lowest + (rng.random(self.size) * (highest - lowest)).astype(np.int64)
        return np.where(self.is_planted, inside, began)

    def rows(self, books):
        """Everything the slice writes: source, table and columns."""
        rng, size = self.rng, self.size
        start, end = books.start_ms, books.end_ms
        began = self._began(start, end, self.plan.rules.day.grace_ms)
        keys = pc.if_else(
            pa.array(self.bank == 0),
            _texts("icbc/T", self.number + np.arange(size)),
            _texts("ccb/T", self.number + np.arange(size)),
        )
        sent = self._has("state", "sent")
        self.stored = began + np.where(sent, rng.integers(5, 900, size), 0)
        self.debited = began + np.where(sent, 0, rng.integers(5, 40, size))
        waited = np.where(self._has("by", "check"), 30_000, 0) * ~self._has("age", "young")
        decided = np.maximum(self.debited, self.stored) + rng.integers(5, 80, size) + waited
        self.decided = decided
        self.credited = decided + rng.integers(10, 3_000, size)
        self.returned = decided + rng.integers(500, 6_000, size)
        entries = self._entries(books)
        yield from self._of_banks(books, keys, entries)
        yield "log", MESSAGES, self._messages(books, keys)
        yield "log", FAILURES, self._failures(books, keys)
        yield "truth", None, self._truth(books, keys, entries)

    def _entries(self, books):
        """All legs: a transfer's place, its kind, and the row's own columns."""
        legs = []
        for kind, at, account, sign in (
            ("debit", self.debited, self.payer, -1),
            ("credit", self.credited, self.payee, 1),
            ("return", self.returned, self.payer, 1),
        ):
            # On suspense, because accounts of customers are known by the name of their bank.
            is_stray = self._has("wrong", f"{kind} bank")
            home = (1 - self.bank if kind == "credit" else self.bank) ^ is_stray
            for nth in (1, 2):
                chosen = np.flatnonzero(self._at_least(f"{kind}s", nth))
                moved = (self._has("wrong", f"{kind} amount") & (nth == 1)) * 7
                moved = moved + (self._has("wrong", "a minor unit") & (kind == "credit"))
                elsewhere = self._has("wrong", f"{kind} account")
                foreign = self._has("wrong", f"{kind} currency")
                whose = (account + elsewhere) % self.plan.accounts
                suspense = self.plan.accounts + SPECIAL.index("suspense")
                whose = np.where(is_stray, suspense, whose)
                currency = (self.currency + foreign) % len(CURRENCIES)
                late = at + (nth - 1) * 60_000
                backdated = self._has("is_backdated", True) & (kind != "debit")
                booked = np.where(backdated, books.start_ms - 3_600_000, late)
                copied = self._has("has_one_id", True) & (nth == 2)
                columns = {
                    "place": np.arange(self.size),
                    "kind": np.full(self.size, ("debit", "credit", "return").index(kind)),
                    "bank": home,
                    "account": home * books.of_a_bank + whose,
                    "amount": sign * (self.amount + moved),
                    "currency": currency,
                    "booked": booked,
                    "recorded": late,
                    "copied": copied,
                }
                legs.append({name: column[chosen] for name, column in columns.items()})
        return {name: np.concatenate([leg[name] for leg in legs]) for name in legs[0]}

    def _others(self, books):
        """Money from outside, two rows for each booking."""
        count = self.size // 200
        rng = self.rng
        bank = rng.integers(0, 2, count)
        when = books.start_ms + rng.integers(0, books.end_ms - books.start_ms, count)
        amount = rng.integers(1_00, 1_000_00, count)
        whose = bank * books.of_a_bank + rng.integers(0, self.plan.accounts, count)
        capital = bank * books.of_a_bank + self.plan.accounts + SPECIAL.index("capital")
        twice = {
            "place": np.full(count, -1),
            "kind": np.full(count, 3),
            "bank": bank,
            "currency": np.zeros(count, np.int64),
            "booked": when,
            "recorded": when,
            "copied": np.zeros(count, bool),
        }
        return [
            twice | {"account": whose, "amount": amount},
            twice | {"account": capital, "amount": -amount},
        ]

    def _of_banks(self, books, keys, legs):
        """Each bank's rows of the day; what was recorded later is only added up."""
        parts = [legs, *self._others(books)]
        if self.plan.double_entry:
            clearing = legs["bank"] * books.of_a_bank + self.plan.accounts
            parts.append(legs | {"account": clearing, "amount": -legs["amount"]})
        rows = {name: np.concatenate([part[name] for part in parts]) for name in legs}
        cell = rows["account"] * len(CURRENCIES) + rows["currency"]
        early = rows["recorded"] < books.end_ms
        books.moved += _summed(cell[early], rows["amount"][early], books.moved.size)
        books.moved_rows += np.bincount(cell[early], minlength=books.moved.size)
        books.later += _summed(cell[~early], rows["amount"][~early], books.later.size)
        books.later_rows += np.bincount(cell[~early], minlength=books.later.size)
        for bank, name in enumerate(BANKS):
            at = np.flatnonzero(early & (rows["bank"] == bank))
            at = at[np.argsort(rows["recorded"][at], kind="stable")]
            mine = {column: values[at] for column, values in rows.items()}
            yield name, ENTRIES, self._booked(books, bank, keys, mine)

    def _booked(self, books, bank, keys, rows):
        size = rows["place"].size
        ids = books.ids[bank] + np.arange(size)
        books.ids[bank] += size
        copies = np.flatnonzero(
            rows["copied"] & (rows["account"] % books.of_a_bank < self.plan.accounts)
        )
        for copy in copies:  # few of them
            same = (rows["place"] == rows["place"][copy]) & (rows["kind"] == rows["kind"][copy])
            first = np.flatnonzero(
                same & ~rows["copied"] & (rows["account"] == rows["account"][copy])
            )
            ids[copy] = ids[first[0]]
        return {
            "id": pa.array(ids),
            "key": keys.take(pa.array(rows["place"], mask=rows["place"] < 0)),
            "kind": _named(("debit", "credit", "return", "other"), rows["kind"]),
            "role": books.roles.take(rows["account"]),
            "account": books.names.take(rows["account"]),
            "amount": pa.array(rows["amount"]),
            "currency": _named(CURRENCIES, rows["currency"]),
            "booked_ms": pa.array(rows["booked"]),
            "recorded_ms": pa.array(rows["recorded"]),
        }

    def _messages(self, books, keys):
        """Messages as the log has them, in its order, whenever they came."""
        rng = self.rng
        first = np.flatnonzero(self._at_least("messages", 1))
        second = np.flatnonzero(self._at_least("messages", 2))
        again = [np.flatnonzero(self._at_least("copies", nth)) for nth in (1, 2)]
        at = np.concatenate([first, second, *again])
        nth = np.concatenate(
            [np.zeros_like(first), np.ones_like(second)] + [np.zeros_like(item) for item in again]
        )
        after = np.concatenate(
            [np.zeros_like(first), np.full_like(second, 45_000)]
            + [rng.integers(1, 400, item.size) for item in again]
        )
        order = np.argsort(self.stored[at] + after, kind="stable")
        at, nth, after = at[order], nth[order], after[order]
        shape = self.shape[at]
        state, by = _of_shapes("state")[shape], _of_shapes("by")[shape]
        is_decided = (state == "committed") | (state == "rolled_back")
        is_parked = state == "parked"
        unread = self._has("wrong", "message body")[at]
        amount = self.amount[at] + self._has("wrong", "message amount")[at] * 7
        currency = (self.currency + self._has("wrong", "message currency"))[at] % len(CURRENCIES)
        queue, offset, unseen = self._seen(books, at, (state == "committed") | (state == "sent"))
        position = books.position + np.arange(at.size) * 512
        books.position += at.size * 512
        payer = self.bank[at] * books.of_a_bank + self.payer[at]
        payee = (1 - self.bank[at]) * books.of_a_bank + self.payee[at]
        by_hand = pa.array(is_decided & (by == "operator"))
        return {
            "key": keys.take(at),
            "id": _ids(at + self.number, nth),
            "payer": books.names.take(pa.array(payer, mask=unread)),
            "payee": books.names.take(pa.array(payee, mask=unread)),
            "amount": pa.array(amount, mask=unread),
            "currency": _named(CURRENCIES, currency, unread),
            "state": _named(state),
            "topic": _named([flow.topic for flow in RULES.log.flow], self.bank[at]),
            "queue": pa.array(queue.astype(np.int32)),
            "queue_offset": pa.array(offset, mask=unseen),
            "stored_ms": pa.array(self.stored[at] + after),
            "decided_ms": pa.array(self.decided[at] + after, mask=~is_decided),
            "decided_by": _named(by, None, ~(is_decided | is_parked)),
            "reason": pc.if_else(by_hand, "the customer's call, ticket 4711", None),
            "position": pa.array(position),
            "problem": pc.if_else(pa.array(unread), "the body is no JSON", None),
        }

    def _seen(self, books, at, visible):
        """Queues and offsets: each queue numbers what is visible, one after the other."""
        place = _of_shapes("place")[self.shape[at]]
        queue = self.rng.integers(0, QUEUES, at.size)
        queue[place == "stalled"], queue[place == "unknown"] = STALLED, UNKNOWN
        seen = visible & (place != "unseen")
        offset = np.zeros(at.size, np.int64)
        for bank in (0, 1):
            for index in range(8):
                mine = np.flatnonzero(seen & (self.bank[at] == bank) & (queue == index))
                offset[mine] = books.offsets[bank, index] + np.arange(mine.size)
                books.offsets[bank, index] += mine.size
        return queue, offset, ~seen

    def _failures(self, books, keys):
        at = np.flatnonzero(~self._has("failure", ""))
        state = _of_shapes("failure")[self.shape[at]]
        dead = state == "dead"
        position = books.position + np.arange(at.size) * 512
        books.position += at.size * 512
        return {
            "key": keys.take(at),
            "id": _ids(at + self.number, np.zeros_like(at)),
            "group": _named([flow.group for flow in RULES.log.flow], self.bank[at]),
            "state": _named(state),
            "attempts": pa.array(np.where(dead, 16, 2).astype(np.int32)),
            "stored_ms": pa.array(self.decided[at] + GIVEN_BACK_MS),
            "reason": pc.if_else(pa.array(dead), "the account is closed", None),
            "position": pa.array(position),
        }

    def _truth(self, books, keys, legs):
        """The truth of the day: classes as shapes say, unless the cut-off divides a transfer."""
        end = books.end_ms
        early = legs["recorded"] < end
        sums = {}
        for number, name in enumerate(("debited", "credited", "returned")):
            mine = early & (legs["kind"] == number)
            sums[name] = _summed(legs["place"][mine], np.abs(legs["amount"][mine]), self.size)
        state = _of_shapes("state")[self.shape]
        told = self._at_least("messages", 1) & (self.stored < end)
        void = (state == "rolled_back") & (self.decided < end)
        readable = told & ~void & ~self._has("wrong", "message body")
        ordered = readable * (self.amount + self._has("wrong", "message amount") * 7)
        cut = (
            (self._at_least("credits", 1) & (self.credited >= end))
            | (self._at_least("returns", 1) & (self.returned >= end))
            | ((state == "rolled_back") & (self.decided >= end))
        )
        classes = _of_shapes("class_")[self.shape]
        # A message that its consumers gave up no longer waits.
        dead = self._has("failure", "dead") & (self.decided + GIVEN_BACK_MS < end)
        classes = np.where(cut, np.where(dead, "dead-letter", "in-flight"), classes)
        at_risk = self._at_risk(sums, ordered, np.isin(state, VISIBLE) & told)
        columns = {
            "key": keys,
            "class": _named(classes),
            "shape": _named(_of_shapes("name")[self.shape]),
            "currency": _named(CURRENCIES, self.currency),
            **{name: pa.array(values) for name, values in sums.items()},
            "ordered": pa.array(ordered),
            "at_risk": pa.array(np.where(np.isin(classes, AGREED), 0, at_risk)),
        }
        return {name: columns[name] for name in TRUTH}

    def _at_risk(self, sums, ordered, visible):
        """What was taken and not given, or the reverse; otherwise the whole amount."""
        taken = np.abs(sums["debited"] - sums["returned"] - sums["credited"])
        whole = np.maximum(ordered, self.amount * (visible | (sums["debited"] > 0)))
        whole = np.maximum(whole, sums["credited"])
        in_messages = self._has("wrong", "message amount")
        at_risk = np.where(taken > 0, taken, np.where(in_messages, 7, whole))
        mixed = self._has("wrong", "credit currency") | self._has("wrong", "message currency")
        return np.where(mixed, self.amount, at_risk)


def _summed(cells, amounts, size):
    """Amounts added up by cell, exactly."""
    sums = np.zeros(size, np.int64)
    np.add.at(sums, cells, amounts)
    return sums


def _named(names, at=None, missing=None):
    """Texts: of places in ``names``, or ``names`` themselves; none where they are missing."""
    if at is None:
        distinct, at = np.unique(names, return_inverse=True)
        names = [str(item) for item in distinct]
    return pa.array(list(names), pa.string()).take(pa.array(at, mask=missing))


def _texts(prefix, numbers, digits=10):
    """Texts of a prefix and a number with leading zeros."""
    text = np.empty((numbers.size, len(prefix) + digits), np.uint8)
    text[:, : len(prefix)] = np.frombuffer(prefix.encode(), np.uint8)
    rest = numbers.astype(np.int64)
    for place in range(digits):
        rest, digit = np.divmod(rest, 10)
        text[:, len(prefix) + digits - 1 - place] = digit + ord("0")
    return _strings(text)


def _ids(numbers, nth):
    """Messages' ids: 32 hexadecimal digits that tell nothing."""
    spread = (numbers.astype(np.uint64) * 2 + nth.astype(np.uint64) + 1) * np.uint64(
        0x9E3779B97F4A7C15
    )
    digits = np.frombuffer(b"0123456789ABCDEF", np.uint8)
    text = np.empty((numbers.size, 32), np.uint8)
    text[:, :16] = np.frombuffer(b"7F0000010A2B18B4", np.uint8)
    for place in range(16):
        text[:, 16 + place] = digits[(spread >> np.uint64(4 * (15 - place))) & np.uint64(15)]
    return _strings(text)


def _strings(text):
    """Rows of bytes as texts, without a copy."""
    count, width = text.shape
    ends = pa.array(np.arange(count + 1, dtype=np.int32) * width)
    return pa.StringArray.from_buffers(count, ends.buffers()[1], pa.py_buffer(text))
