"""Balances of accounts equal sums of Python's integers, whatever their size."""

import random

import pyarrow as pa
import pytest

from tests.reconcile.frames import session
from txmq.reconcile.balances import balances
from txmq.reconcile.ledgers import Role
from txmq.reconcile.rules import Bank, DayWindow, EntryColumns, LogRules, Rules
from txmq.reconcile.tables import BALANCES

ROLES = ("customer", "suspense", "clearing", "capital")
"""An account with several has the last of them."""
LIMIT = 1 << 63
NUMBERS = [0, 1, -7, 1 << 31, -(1 << 32), 1 << 62, LIMIT - 1, -(1 << 62), -LIMIT]
COUNTS = [0, 1, 2, 3]
PLACE = {
    "bank": ["icbc", "ccb"],
    "account": ["", *(f"account {number}" for number in range(60))],
    "currency": ["CNY", "USD"],
}
ROLE = {"role": ROLES}
IDS = [None, -LIMIT + 1, 1, 2, LIMIT - 2]
STATED = {
    "opening": ROLE | {"amount": NUMBERS, "rows": COUNTS},
    "later": ROLE | {"amount": NUMBERS, "rows": COUNTS},
    "told": {"balance": NUMBERS},
    "closed": ROLE | {"closing": NUMBERS, "closing_rows": COUNTS, "last_id": IDS},
}
ROLE_OF = {
    "booked": Role.ENTRIES,
    "opening": Role.OPENING,
    "later": Role.LATER,
    "told": Role.ACCOUNTS,
    "closed": Role.BALANCES,
}
KINDS = ("debit", "return", "credit", "recall", "fee", "other")
BOOKED = ROLE | {"recorded_ms": 5, "kind": KINDS, "amount": NUMBERS, "id": IDS}
RULES = Rules("r", "recon", tuple(
    Bank(name, EntryColumns(gapless=name == "icbc")) for name in ("icbc", "ccb")
), LogRules())  # fmt: skip
WINDOW = DayWindow(0, 10)


def table_of(rows):
    numbers = {
        "recorded_ms",
        "amount",
        "rows",
        "balance",
        "closing",
        "closing_rows",
        "last_id",
        "id",
    }
    fields = [(name, pa.int64() if name in numbers else pa.string()) for name in rows[0]]
    return pa.Table.from_pylist(rows, pa.schema(fields))


def fitted(number):
    return number if -LIMIT <= number < LIMIT else None


def expected_of(tables):
    """The balances of each account."""
    places = {tuple(row[name] for name in PLACE) for rows in tables.values() for row in rows}
    for bank, account, currency in sorted(places):
        place = {"bank": bank, "account": account, "currency": currency}
        of = {
            name: [row for row in rows if row.items() >= place.items()]
            for name, rows in tables.items()
        }

        def total(name, column, of=of):
            return sum(row[column] for row in of[name])

        by_kind = {"debit": 0, "return": 0, "credit": 0, "other": 0}
        for row in of["booked"]:
            by_kind[row["kind"] if row["kind"] in by_kind else "credit"] += row["amount"]
        opening, moved = total("opening", "amount"), sum(by_kind.values())
        opening_rows, booked = total("opening", "rows"), len(of["booked"])
        ids = [row["id"] for row in of["booked"] if row["id"] is not None and bank == "icbc"]
        closed_ids = [row["last_id"] for row in of["closed"] if row["last_id"] is not None]
        roles = [ROLES.index(row["role"]) for rows in of.values() for row in rows if "role" in row]
        yield place | {kind: fitted(amount) or 0 for kind, amount in by_kind.items()} | {
            "role": ROLES[max(roles, default=0)],
            "opening": fitted(opening) or 0,
            "opening_rows": opening_rows,
            "rows": booked,
            "moved": fitted(moved),
            "closing": fitted(opening + moved),
            "later": fitted(total("later", "amount")) or 0,
            "told": (fitted(total("told", "balance")) or 0) if of["told"] else None,
            "closing_rows": opening_rows + booked,
            "closed": fitted(total("closed", "closing")) or 0,
            "closed_rows": total("closed", "closing_rows"),
            "first_id": min(ids, default=None),
            "closed_id": max(closed_ids, default=None),
            "last_id": max([*ids, *closed_ids], default=None),
        }  # fmt: skip


def drawn(seed):
    """Tables of hundreds of rows; a hash of rows decides which of them have one account."""
    random_ = random.Random(seed)

    def value(of):
        return random_.choice(of) if isinstance(of, list | tuple) else of

    def row(columns):
        return {name: value(of) for name, of in (PLACE | columns).items()}

    return {
        name: [row(columns) for _ in range(random_.choice([1, 40, 300]))]
        for name, columns in ({"booked": BOOKED} | STATED).items()
    }


@pytest.mark.parametrize("seed", range(3))
def test_balances_equal_the_sums_of_python_integers(seed):
    tables = drawn(seed)
    frames = {
        ROLE_OF[name]: session().createDataFrame(table_of(rows)) for name, rows in tables.items()
    }
    found = balances(frames, RULES, WINDOW).orderBy("bank", "account", "currency").toArrow()

    assert found.to_pylist() == [
        {name: row[name] for name in BALANCES.names} for row in expected_of(tables)
    ]
