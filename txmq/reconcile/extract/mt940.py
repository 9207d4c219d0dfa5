"""SWIFT customer statements, MT940; pure.

A statement has one message or several, its pages: each begins with ``:20:`` and ends with its
closing balance. The form of ``:86:`` differs between countries; the two common ones are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import date
from decimal import Decimal
from typing import Final

from txmq.reconcile.extract.bank_statements import (
    DamagedRow,
    EntryFields,
    StatementPage,
    kind_of,
    refuse,
)

__all__ = ["read_mt940"]

_TAG: Final = re.compile(r":([0-9]{2}[A-Z]?):(.*)")
_BALANCE: Final = re.compile(r"([CD])[0-9]{6}([A-Z]{3})([0-9]{1,15},[0-9]{0,5})\s*")
_ENTRY: Final = re.compile(
    r"([0-9]{6})([0-9]{4})?(R?[CD]|E[CD])[A-Z]?([0-9]{1,15},[0-9]{0,5})([A-Z][A-Z0-9]{3})"
    r"([^\n]*?)(?://([^\n]*))?(?:\n(.*))?\s*",
    re.DOTALL,
)
_CHARGE: Final = re.compile(r"/CHGS/([A-Z]{3})([0-9]+,[0-9]*)")
_SUBFIELD: Final = re.compile(r"\?(?:2[0-9]|6[0-3])([^?]*)")
_END_TO_END: Final = re.compile(
    r"(?:^|/)EREF/(.+?)(?://|/[A-Z]{4}/|/?$)|EREF\+(.+?)(?:[A-Z]{4}\+|$)"
)
_NONE: Final = ("NONREF", "NOTPROVIDED")
"""What banks write where a payer gave no reference."""


def read_mt940(
    file: str, lines: Iterable[tuple[int, str]]
) -> Iterator[EntryFields | DamagedRow | StatementPage]:
    """The booked entries of each message, and then its balances.

    Raises:
        ReconcileRefused: The file is not MT940, or has an invalid balance.
    """
    message: _Message | None = None
    line = 1
    for line, tag, text in _fields(file, lines):
        if tag == "20":
            if message is not None:
                message.check_end(line)
            message = _Message(file)
        elif message is None:
            refuse(file, line, f":{tag}: is before the first :20:")
        yield from message.take(line, tag, text)
    if message is None:
        refuse(file, line, "it has no statement (:20:), so it is not MT940")
    message.check_end(line)


class _Message:
    """A page of a statement while it is read."""

    def __init__(self, file: str) -> None:
        self._account = self._number = self._currency = ""
        self._opening: Decimal | None = None
        self._file = file
        self._moved = Decimal(0)
        self._rows: list[EntryFields] = []
        """The rows of the last entry: its ``:86:`` may follow."""
        self._is_closed = False
        self._is_whole = True

    def take(
        self, line: int, tag: str, text: str
    ) -> Iterator[EntryFields | DamagedRow | StatementPage]:
        """Take the next field."""
        if tag != "86":
            yield from self._rows
            self._rows = []
        match tag:
            case "25" | "25P":
                self._account = text.partition("\n")[0].strip()
            case "28C":
                self._number = text.strip()
            case "60F" | "60M":
                self._opening, self._currency = _balance(self._file, line, text)
            case "61":
                try:
                    self._add_entry(line, text)
                except ValueError as error:
                    self._is_whole = False
                    yield DamagedRow(line, f":61:{text!r} {error}")
            case "86" if self._rows:
                self._describe_entry(text.replace("\n", ""))
            case "62F" | "62M":
                yield self._page(line, text, is_last=tag == "62F")

    def _page(self, line: int, text: str, *, is_last: bool) -> StatementPage:
        amount, currency = _balance(self._file, line, text)
        if not self._account or currency != (self._currency or currency):
            why = f"account {self._account!r} begins in {self._currency!r} and ends in {currency!r}"
            refuse(self._file, line, f"{why}; a statement has one account and one currency")
        self._is_closed = True
        # Some banks write the currency after the account.
        account = self._account.removesuffix(currency).strip()
        order = [int(part) if part.isdecimal() else 0 for part in self._number.split("/")]
        opening = {} if self._opening is None else {currency: self._opening}
        sums = opening, {currency: self._moved}, {currency: amount}
        where = self._file, line, account, self._number, order, is_last
        return StatementPage(*where, *sums, self._is_whole)

    def check_end(self, line: int) -> None:
        """Refuse a message without an end."""
        if not self._is_closed:
            why = "has no closing balance (:62F:), so the file may be truncated"
            refuse(self._file, line, f"statement {self._number} {why}")

    def _add_entry(self, line: int, text: str) -> None:
        found = _ENTRY.fullmatch(text)
        if self._is_closed or not self._currency:
            refuse(self._file, line, f":61:{text!r} is not between :60F: and :62F:")
        if found is None:
            raise ValueError("is no entry")
        value, booked, mark, number, code, customer, bank, more = found.groups()
        if mark.startswith("E"):
            return  # It is expected, and not booked.
        try:
            value_date = date.fromisoformat(f"20{value}")
            booked_date = _nearest(booked, value_date) if booked else value_date
        except ValueError:
            raise ValueError("has an invalid date") from None
        is_credit = mark in ("C", "RD")
        amount = _decimal(number) if is_credit else -_decimal(number)
        self._moved += amount
        reference = "" if customer.strip() in _NONE else customer.strip()
        row: EntryFields = {"line": line, "currency": self._currency}
        row["account"] = self._account.removesuffix(self._currency).strip()
        row |= {"booked": booked_date.isoformat(), "value": value_date.isoformat()}
        charges = _CHARGE.findall(more or "")
        included = sum((_decimal(sum_) for money, sum_ in charges if money == self._currency), 0)
        if included:
            self._rows.append(row | {"amount": -included, "kind": "charge"})
        row |= {"amount": amount + included, "kind": kind_of(is_credit, mark.startswith("R"))}
        row |= {"end_to_end_id": reference, "customer_reference": reference}
        row |= {"bank_reference": (bank or "").strip(), "code": code}
        self._rows.insert(0, row)

    def _describe_entry(self, text: str) -> None:
        row, is_coded = self._rows[0], text[:3].isdecimal() and text[3:4] == "?"
        row["remittance"] = text = "".join(_SUBFIELD.findall(text)) if is_coded else text
        found = _END_TO_END.search(text)
        named = (found[1] or found[2]).strip() if found else ""
        if named and named not in _NONE:
            row["end_to_end_id"] = named


def _fields(file: str, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    """The fields of a file: line, tag and text. A field may have several lines."""
    at, tag, texts = 0, "", list[str]()
    for number, raw in lines:
        line = raw.rstrip("\r\n").rpartition("{4:")[2]  # SWIFT's own headers come before it.
        found, is_end = _TAG.fullmatch(line), line == "-" or line.startswith(("-}", "{"))
        if found is None and not is_end and tag:
            texts.append(line)
            continue
        if tag:
            yield at, tag, "\n".join(texts)
        at, tag, texts = (number, found[1], [found[2]]) if found else (0, "", [])
        if found is None and line.strip() and not is_end:
            refuse(file, number, f"{line[:40]!r} belongs to no field, so it is not MT940")
    if tag:
        yield at, tag, "\n".join(texts)


def _balance(file: str, line: int, text: str) -> tuple[Decimal, str]:
    found = _BALANCE.fullmatch(text)
    if found is None:
        refuse(file, line, f"{text!r} is not a balance such as C240331EUR10,00")
    amount = _decimal(found[3])
    return (amount if found[1] == "C" else -amount), found[2]


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", "."))


def _nearest(month_and_day: str, near: date) -> date:
    """The date with a month and a day that is nearest to another date: it has no year."""
    found = []
    for year in (near.year - 1, near.year, near.year + 1):
        with suppress(ValueError):  # 29 February exists in one of them.
            found.append(date.fromisoformat(f"{year}{month_and_day}"))
    return min(found, key=lambda day: abs(day - near))
