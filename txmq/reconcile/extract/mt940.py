"""SWIFT customer statements, MT940; pure.

A statement has one message or several, its pages: each begins with ``:20:`` and ends with its
closing balance. The form of ``:86:`` differs between countries; the two common ones are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import date
from decimal import Decimal
from itertools import chain
from typing import Final

from txmq.reconcile.extract.bank_statements import RowFields, StatementPage, Stream, kind_of, refuse

__all__ = ["read_mt940"]

_TAG: Final = re.compile(r":([0-9]{2}[A-Z]?):(.*)")
_BALANCE: Final = re.compile(r"([CD])[0-9]{6}([A-Z]{3})([0-9]{1,15},[0-9]{0,5})\s*")
_ENTRY: Final = re.compile(
    r"([0-9]{6})([0-9]{4})?([RE]?[CD])[A-Z]?([0-9]{1,15},[0-9]{0,5})([A-Z][A-Z0-9]{3})"
    r"([^\n]*?)(?://([^\n]*))?(?:\n(.*))?\s*",
    re.DOTALL,
)
_SUBFIELD: Final = re.compile(r"\?(?:2[0-9]|6[0-3])([^?]*)")
_END_TO_END: Final = re.compile(
    r"(?:^|/)EREF/(.+?)(?://|/[A-Z]{4}/|/?$)|EREF\+(.+?)(?:[A-Z]{4}\+|$)"
)


def read_mt940(file: str, lines: Iterable[tuple[int, str]]) -> Stream:
    """The booked entries of each message, and then its balances.

    Raises:
        ReconcileRefused: The file is not MT940, or has an invalid balance.
    """
    page: StatementPage | None = None
    rows: list[RowFields] = []
    """The rows of the last entry: its ``:86:`` may follow."""
    line = 1
    for line, tag, text in _fields(file, lines):
        if tag != "86":
            yield from rows
            rows = []
        if tag == "20":
            _check_end(page, line)
            page = StatementPage(file)
        elif page is None:
            refuse(file, line, f":{tag}: is before the first :20:")
        elif tag == "61":
            try:
                rows = _entry(page, line, text)
            except ValueError as error:
                yield page.damaged(line, f":61:{text!r} {error}")
        elif tag == "86" and rows:
            _describe(rows[0], text.replace("\n", ""))
        else:
            _fill(page, line, tag, text)
            if tag in ("62F", "62M"):
                yield page
    if page is None:
        refuse(file, line, "it has no statement (:20:), so it is not MT940")
    _check_end(page, line)


def _fields(file: str, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    """The fields of a file: line, tag and text. A field may have several lines."""
    at, tag, texts = 0, "", list[str]()
    for number, raw in chain(lines, [(0, "-")]):
        line = raw.rstrip("\r\n").rpartition("{4:")[2]  # SWIFT's own headers come before it.
        if (found := _TAG.fullmatch(line)) or line == "-" or line.startswith(("-}", "{")):
            if tag:
                yield at, tag, "\n".join(texts)
            at, tag, texts = (number, found[1], [found[2]]) if found else (0, "", [])
        elif tag:
            texts.append(line)
        elif line.strip():
            refuse(file, number, f"{line[:40]!r} belongs to no field, so it is not MT940")


def _check_end(page: StatementPage | None, line: int) -> None:
    if page is not None and not page.closing:
        why = "has no closing balance (:62F:), so the file may be truncated"
        refuse(page.file, line, f"statement {page.name} {why}")


def _fill(page: StatementPage, line: int, tag: str, text: str) -> None:
    """Take a value of the page itself from a field."""
    match tag:
        case "25" | "25P":
            page.account = text.partition("\n")[0].strip()
        case "28C":
            page.name = page.number = text.strip()
        case "60F" | "60M":
            page.opening = _balance(page.file, line, text)
        case "62F" | "62M":
            if not page.opening:
                refuse(page.file, line, f"statement {page.name} has no opening balance (:60F:)")
            page.closing = _balance(page.file, line, text)
            page.line, page.is_last = line, tag == "62F"
            (begun,), (currency,) = page.opening, page.closing
            if not page.account or currency != begun:
                why = f"account {page.account!r} begins in {begun!r} and ends in {currency!r}"
                refuse(page.file, line, f"{why}; a statement has one account and one currency")
            page.account = page.account.removesuffix(currency).strip()


def _balance(file: str, line: int, text: str) -> dict[str, Decimal]:
    if (found := _BALANCE.fullmatch(text)) is None:
        refuse(file, line, f"{text!r} is not a balance such as C240331EUR10,00")
    sign, currency, number = found.groups()
    return {currency: _amount(sign, number)}


def _entry(page: StatementPage, line: int, text: str) -> list[RowFields]:
    """The rows of an entry: itself, and a charge that it includes; none if it is not booked yet."""
    if page.closing or not page.opening:
        refuse(page.file, line, f":61:{text!r} is not between :60F: and :62F:")
    if (found := _ENTRY.fullmatch(text)) is None:
        raise ValueError("is no entry")
    value, booked, mark, number, code, customer, bank, more = found.groups()
    if "E" in mark:
        return []
    try:
        value_date, month_and_day = date.fromisoformat(f"20{value}"), booked or value[2:]
        # The entry date has no year, so take the nearest one.
        year = value_date.year + round((value_date.month - int(month_and_day[:2])) / 12)
        entry_date = date.fromisoformat(f"{year}{month_and_day}")
    except ValueError:
        raise ValueError("has an invalid date") from None
    (currency,), amount = page.opening, _amount(mark, number)
    page.moved[currency] += amount
    account = page.account.removesuffix(currency).strip()  # Some banks write it after the account.
    row: RowFields = {"line": line, "account": account, "currency": currency}
    row |= {"booked": entry_date.isoformat(), "value": value_date.isoformat()}
    charges = re.findall(rf"/CHGS/{currency}([0-9]+,[0-9]*)", more or "")
    included = sum((_amount("C", charge) for charge in charges), Decimal(0))
    charge = row | {"amount": -included, "kind": "charge"}
    row |= {"amount": amount + included, "kind": kind_of(mark in ("C", "RD"), "R" in mark)}
    row |= {"customer_reference": _id(customer), "bank_reference": (bank or "").strip()}
    row |= {"end_to_end_id": _id(customer), "code": code}
    return [row, charge] if included else [row]


def _describe(row: RowFields, text: str) -> None:
    """Take the remittance information of an entry, and its id, from ``:86:``."""
    is_coded = text[:3].isdecimal() and text[3:4] == "?"
    row["remittance"] = text = "".join(_SUBFIELD.findall(text)) if is_coded else text
    if found := _END_TO_END.search(text):
        row["end_to_end_id"] = _id(found[1] or found[2]) or row["end_to_end_id"]


def _id(text: str) -> str:
    """An id; empty if the bank writes that the payer gave none."""
    return "" if (id_ := text.strip()) in ("NONREF", "NOTPROVIDED") else id_


def _amount(mark: str, number: str) -> Decimal:
    amount = Decimal(number.replace(",", "."))
    return -amount if mark in ("D", "RC") else amount
