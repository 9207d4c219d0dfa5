"""Bank statements, and the arithmetic that every statement must pass; pure.

A statement has its own control totals: the opening balance and the entries give the closing
balance, and the next page begins with it. If they do not, the file is incomplete or was misread.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any, Final, NoReturn, TypeAlias

from msgspec import Struct, field

from txmq.errors import ReconcileRefused
from txmq.protocol.properties import one_line
from txmq.reconcile.extract.manifest import QuarantinedRow

__all__ = ["StatementPage", "Stream", "damaged_row", "kind_of", "refuse", "stated_balances"]

_SHOWN: Final = 300
"""The maximum of characters of a reason, which may contain the whole line."""
_NUMBER: Final = re.compile("[0-9]+")

RowFields: TypeAlias = dict[str, Any]
"""An entry's values by the names in ``STATEMENT_FIELDS``, and its ``line`` in the file."""


class StatementPage(Struct):
    """A statement, or a page of one, which its reader fills. Amounts are in major units."""

    file: str
    line: int = 0
    """Where it ends in the file."""
    account: str = ""
    name: str = ""
    number: str = ""
    """The numbers of the statement and of the page, such as ``7/2``, if the bank numbers them."""
    is_last: bool = True
    """False if more pages of the statement follow."""
    opening: dict[str, Decimal] = {}
    """Amounts by currency, as the next two."""
    moved: defaultdict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    closing: dict[str, Decimal] = {}
    is_whole: bool = True
    """False if an entry cannot be read, so that the sum of all entries is unknown."""

    def damaged(self, line: int, why: object) -> QuarantinedRow:
        """An entry that cannot be read."""
        self.is_whole = False
        return damaged_row(self.file, line, why)

    def refuse(self, why: str) -> NoReturn:
        """Refuse its file.

        Raises:
            ReconcileRefused: Always; the message begins with the page.
        """
        refuse(self.file, self.line, f"statement {self.name} of account {self.account} {why}")


Stream: TypeAlias = Iterator[RowFields | QuarantinedRow | StatementPage]
"""What a reader gets from a file: entries, and each page after its own."""


def damaged_row(file: str, line: int, why: object) -> QuarantinedRow:
    """A row of a file without readable values."""
    return QuarantinedRow(f"file {file}, line {line}", one_line(str(why), _SHOWN))


def refuse(file: str, line: int, why: str) -> NoReturn:
    """Refuse a file.

    Raises:
        ReconcileRefused: Always; the message begins with the place.
    """
    raise ReconcileRefused(f"{file} line {line}: {why}")


def kind_of(is_credit: bool, is_reversal: bool) -> str:
    """The kind of an entry. The reversal of a debit is a credit, and the reverse."""
    if is_reversal:
        return "debit-reversal" if is_credit else "credit-reversal"
    return "credit" if is_credit else "debit"


def stated_balances(pages: Iterable[StatementPage]) -> Iterable[tuple[StatementPage, RowFields]]:
    """The balances of each account at the beginning and the end of the date, with the last page.

    Without a closing balance, it follows from the entries.

    Raises:
        ReconcileRefused: A page does not add up, was sent twice, or does not begin where the page
            before it ends.
    """
    chains = defaultdict[tuple[str, str], list[StatementPage]](list)
    for page in pages:
        for currency in page.opening.keys() | page.moved.keys() | page.closing.keys():
            chains[page.account, currency].append(page)
    for (account, currency), chain in sorted(chains.items()):
        chain.sort(key=lambda page: [int(number) for number in _NUMBER.findall(page.number)])
        places, opening = dict[str, str](), chain[0].opening.get(currency)
        balance = opening
        for page in chain:
            if page.name in places:
                page.refuse(f"is in {places[page.name]} too: remove one")
            places[page.name] = f"{page.file} line {page.line}"
            balance = _end(page, currency, balance)
        if not page.is_last:
            page.refuse("is not the last page, and no other follows")
        if balance is not None:
            ends = {"opening": opening, "closing": balance}
            yield page, {"line": page.line, "account": account, "currency": currency} | ends


def _end(page: StatementPage, currency: str, before: Decimal | None) -> Decimal | None:
    """The balance at the end of a page; ``before`` is the one at the end of the page before it."""
    opening, closing = page.opening.get(currency), page.closing.get(currency)
    if None not in (before, opening) and before != opening:
        why = f"begins with {opening} {currency}, but the page before ends with {before}"
        page.refuse(f"{why}: a page is missing")
    moved, begun = page.moved.get(currency, Decimal(0)), before if opening is None else opening
    end = None if begun is None else begun + moved
    if page.is_whole and opening is not None and closing not in (None, end):
        why = f"begins with {opening} {currency}, and its entries sum to {moved}"
        page.refuse(f"{why}, but it ends with {closing}: get a complete file from the bank")
    return end if closing is None else closing
