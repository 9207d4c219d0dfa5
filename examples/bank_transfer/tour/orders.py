"""Random orders of the customers: most of them valid, some of them not.

The same seed gives the same accounts and the same orders.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, NamedTuple

from examples.bank_transfer.databases import Opening
from examples.bank_transfer.orders import AMOUNT_MAX, Drill
from examples.bank_transfer.ways import Way

__all__ = ["Wish", "accounts", "id_of", "story", "wishes"]

OPENING: Final = 1_000_000_00
"""The first balance of an account, in fen."""
AMOUNT: Final = 10_000_00
"""The amount that customer A sends to customer B."""


class Wish(NamedTuple):
    """A transfer that a customer wants."""

    id: str
    payer: str
    payee: str
    amount: int
    way: Way
    drill: Drill = Drill.NONE
    times: int = 1
    """How many times it is ordered at the same moment."""


def story(mark: str) -> tuple[Wish, ...]:
    """Customer A sends 10,000 to customer B: it commits, it rolls back, it is checked.

    Args:
        mark: The mark of this tour: a Redis may still have the transfers of an earlier tour.
    """
    return tuple(
        Wish(f"{mark}-{drill}", "ICBC-0", "CCB-0", AMOUNT, Way.HALF, drill)
        for drill in (Drill.TAGA, Drill.TAGB, Drill.TAGC)
    )


def id_of(mark: str, number: int) -> str:
    """The id of a wish."""
    return f"{mark}-{number:06d}"


def accounts(bank: str, count: int) -> Iterator[Opening]:
    """A bank's accounts: number 0 is in the story, and the last two of CCB cannot be used."""
    for number in range(count):
        holder = {"ICBC-0": "customer A", "CCB-0": "customer B"}.get(
            f"{bank}-{number}", f"customer {number} of {bank}"
        )
        yield Opening(f"{bank}-{number}", holder, OPENING)
    if bank == "CCB":
        yield Opening("CCB-CLOSED", "who has left", 0, is_open=False)
        yield Opening("CCB-EURO", "who saves in euros", 500_00, "EUR")


def wishes(
    mark: str, count: int, accounts: int, ways: tuple[Way, ...], seed: int
) -> Iterator[Wish]:
    """The orders, one after the other."""
    lot = random.Random(f"wishes of {seed}")  # noqa: S311 - a lot, and no secret
    for number in range(count):
        payer = f"ICBC-{lot.randrange(accounts)}"
        payee = f"CCB-{lot.randrange(accounts)}"
        amount = lot.randrange(1, AMOUNT)
        way, drill, times = lot.choice(ways), Drill.NONE, 1
        match lot.randrange(100):
            case 0:
                payee = "CCB-NOBODY"
            case 1:
                payee = "CCB-CLOSED"
            case 2:
                payee = "CCB-EURO"
            case 3:
                payer = "ICBC-NOBODY"
            case 4:
                amount = min(OPENING * accounts, AMOUNT_MAX)
            case 5:
                times = 3
            case 6 if way is Way.HALF:
                drill = Drill.TAGB
            case 7 if way is Way.HALF:
                drill = Drill.TAGC
        yield Wish(id_of(mark, number), payer, payee, amount, way, drill, times)
