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

from txmq.reconcile.extract.bank_statements import RowFields, StatementPage, Stream, kind_of, refuse

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
        match tag:
            case "61":
                try:
                    rows = _entry(page, line, text)
                except ValueError as error:
                    yield page.damaged(line, f":61:{text!r} {error}")
            case "86" if rows:
                _describe_entry(rows[0], text.replace("\n", ""))
            case "62F" | "62M":
                _close(page, line, text, is_last=tag == "62F")
                yield page
            case _:
                _begin(page, line, tag, text)
    if page is None:
        refuse(file, line, "it has no statement (:20:), so it is not MT940")
    _check_end(page, line)


def _begin(page: StatementPage, line: int, tag: str, text: str) -> None:
    match tag:
        case "25" | "25P":
            page.account = text.partition("\n")[0].strip()
        case "28C":
            page.name = text.strip()
        case "60F" | "60M":
            page.opening = _balance(page.file, line, text)


def _close(page: StatementPage, line: int, text: str, *, is_last: bool) -> None:
    page.line, page.is_last, page.closing = line, is_last, _balance(page.file, line, text)
    (currency,) = page.closing
    begun = next(iter(page.opening), currency)
    if not page.account or currency != begun:
        why = f"account {page.account!r} begins in {begun!r} and ends in {currency!r}"
        refuse(page.file, line, f"{why}; a statement has one account and one currency")
    page.account = page.account.removesuffix(currency).strip()
    parts = page.name.split("/")
    page.order = tuple(int(part) if part.isdecimal() else 0 for part in parts)


def _check_end(page: StatementPage | None, line: int) -> None:
    if page is not None and not page.closing:
        why = "has no closing balance (:62F:), so the file may be truncated"
        refuse(page.file, line, f"statement {page.name} {why}")


def _entry(page: StatementPage, line: int, text: str) -> list[RowFields]:
    """The rows of an entry: itself, and a charge that it includes."""
    found, currency = _ENTRY.fullmatch(text), next(iter(page.opening), "")
    if page.closing or not currency:
        refuse(page.file, line, f":61:{text!r} is not between :60F: and :62F:")
    if found is None:
        raise ValueError("is no entry")
    value, booked, mark, number, code, customer, bank, more = found.groups()
    if mark.startswith("E"):
        return []  # It is expected, and not booked.
    try:
        value_date = date.fromisoformat(f"20{value}")
        booked_date = _nearest(booked, value_date) if booked else value_date
    except ValueError:
        raise ValueError("has an invalid date") from None
    is_credit = mark in ("C", "RD")
    amount = _decimal(number) if is_credit else -_decimal(number)
    page.moved[currency] += amount
    reference = "" if customer.strip() in _NONE else customer.strip()
    account = page.account.removesuffix(currency).strip()  # Some banks write it after the account.
    row: RowFields = {"line": line, "currency": currency, "account": account}
    row |= {"booked": booked_date.isoformat(), "value": value_date.isoformat()}
    charges = _CHARGE.findall(more or "")
    included = sum((_decimal(sum_) for money, sum_ in charges if money == currency), 0)
    charge = [row | {"amount": -included, "kind": "charge"}] if included else []
    row |= {"amount": amount + included, "kind": kind_of(is_credit, mark.startswith("R"))}
    row |= {"end_to_end_id": reference, "customer_reference": reference}
    row |= {"bank_reference": (bank or "").strip(), "code": code}
    return [row, *charge]


def _describe_entry(row: RowFields, text: str) -> None:
    is_coded = text[:3].isdecimal() and text[3:4] == "?"
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


def _balance(file: str, line: int, text: str) -> dict[str, Decimal]:
    found = _BALANCE.fullmatch(text)
    if found is None:
        refuse(file, line, f"{text!r} is not a balance such as C240331EUR10,00")
    amount = _decimal(found[3])
    return {found[2]: amount if found[1] == "C" else -amount}


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", "."))


def _nearest(month_and_day: str, near: date) -> date:
    """The date with a month and a day that is nearest to another date: it has no year."""
    found = []
    for year in (near.year - 1, near.year, near.year + 1):
        with suppress(ValueError):  # 29 February exists in one of them.
            found.append(date.fromisoformat(f"{year}{month_and_day}"))
    return min(found, key=lambda day: abs(day - near))
