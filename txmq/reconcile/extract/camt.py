"""ISO 20022 bank-to-customer statements, camt.053 in any version; pure.

The parser is expat of the standard library. A document type is refused, so no entity can grow or
lead to another file. At most one entry is in memory, with all of its transactions.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Final
from xml.etree.ElementTree import Element
from xml.parsers import expat

from txmq.reconcile.extract.bank_statements import (
    DamagedRow,
    EntryFields,
    StatementPage,
    kind_of,
    refuse,
)

__all__ = ["read_camt"]

_AMOUNT: Final = re.compile(r"[0-9]{1,18}(\.[0-9]{0,5})?")
_TRUE: Final = ("true", "1")
_OF_ENTRY: Final = {
    "booked": ("BookgDt/DtTm", "BookgDt/Dt"),
    "value": ("ValDt/DtTm", "ValDt/Dt"),
    "entry_reference": ("NtryRef",),
}
_OF_TRANSACTION: Final = {
    "end_to_end_id": ("Refs/EndToEndId",),
    "transaction_id": ("Refs/TxId",),
    "instruction_id": ("Refs/InstrId",),
    "message_id": ("Refs/MsgId",),
    "bank_reference": ("Refs/AcctSvcrRef", "AcctSvcrRef"),
    "remittance": ("RmtInf/Ustrd",),
}
_CODES: Final = ("Domn/Cd", "Domn/Fmly/Cd", "Domn/Fmly/SubFmlyCd", "Prtry/Cd")
_LINE: Final = "line"
"""An attribute with the line of an element; those of the standard begin with a capital."""


def read_camt(
    file: str, chunks: Iterable[bytes]
) -> Iterator[EntryFields | DamagedRow | StatementPage]:
    """The booked entries of each statement, and then its balances.

    Raises:
        ReconcileRefused: The file is not camt.053, or has an invalid balance.
    """
    statement: _Statement | None = None
    has_any = False
    for element in _children(file, chunks):
        has_any = True
        statement = statement or _Statement(file)
        match element.tag:
            case "Stmt":
                yield statement.page(int(element.attrib[_LINE]))
                statement = None
            case "Ntry" if _text(element, "Sts/Cd", "Sts") == "BOOK":
                yield from statement.rows(element)
            case "Bal":
                statement.add_balance(element)
            case _:
                statement.head.append(element)
    if not has_any:
        refuse(file, 1, "it has no statement (Stmt), so it is not camt.053")


class _Statement:
    """A statement while it is read."""

    def __init__(self, file: str) -> None:
        self.head = Element("Stmt")
        self._file = file
        self._balances: list[tuple[str, str, Decimal]] = []
        self._moved = defaultdict[str, Decimal](Decimal)
        self._is_whole = True

    @property
    def _account(self) -> str:
        return _text(self.head, "Acct/Id/IBAN", "Acct/Id/Othr/Id")

    def add_balance(self, element: Element) -> None:
        try:
            amount, currency = _money(element)
        except ValueError as error:
            refuse(self._file, int(element.attrib[_LINE]), str(error))
        self._balances.append((_text(element, "Tp/CdOrPrtry/Cd"), currency, amount))

    def page(self, line: int) -> StatementPage:
        if not self._account:
            refuse(self._file, line, "the statement has no account (Acct/Id)")
        # A page may begin with an interim balance, or end with one.
        opening = _ends(self._balances[::-1], "ITBD", "PRCD", "OPBD")
        closing = _ends(self._balances, "ITBD", "CLBD")
        number, page = _text(self.head, "ElctrncSeqNb"), _text(self.head, "StmtPgntn/PgNb")
        name = "/".join(filter(None, (_text(self.head, "Id") or number, page)))
        order = [int(text) if text.isdecimal() else 0 for text in (number, page)]
        is_last = _text(self.head, "StmtPgntn/LastPgInd") in ("", *_TRUE)
        sums = opening, self._moved, closing
        where = self._file, line, self._account, name, order, is_last
        return StatementPage(*where, *sums, self._is_whole)

    def rows(self, entry: Element) -> list[EntryFields] | list[DamagedRow]:
        """The rows of an entry: one for each of its transactions, and one for each charge."""
        try:
            return list(self._entry(entry))
        except ValueError as error:
            self._is_whole = False
            return [DamagedRow(int(entry.attrib[_LINE]), str(error))]

    def _entry(self, entry: Element) -> Iterator[EntryFields]:
        amount, currency = _money(entry)
        self._moved[currency] += amount
        transactions = entry.findall("NtryDtls/TxDtls")
        sign = "DBIT" if amount < 0 else "CRDT"
        amounts = [self._amount_of(one, currency, sign) for one in transactions]
        if len(transactions) == 1:
            amounts = [amount]
        elif None in amounts or not amounts:
            # A batch without its amounts stays one row, which names no transfer.
            transactions, amounts = [entry], [amount]
        rest, included = amount, self._charges(entry, currency)
        for transaction, part in zip(transactions, amounts, strict=True):
            assert part is not None
            charge = self._charges(transaction, currency)
            charge = charge or (included if len(transactions) == 1 else Decimal(0))
            rest -= part
            yield self._row(entry, transaction, part - charge, currency)
            if charge:
                yield self._row(entry, None, charge, currency)
        if rest and rest != included:
            sum_ = amount - rest
            raise ValueError(f"it is {amount} {currency}, but its transactions sum to {sum_}")
        if rest:
            yield self._row(entry, None, rest, currency)

    def _row(
        self, entry: Element, transaction: Element | None, amount: Decimal, currency: str
    ) -> EntryFields:
        """A row; a charge has no transaction."""
        row: EntryFields = {name: _text(entry, *paths) for name, paths in _OF_ENTRY.items()}
        row |= {"line": int(entry.attrib[_LINE]), "account": self._account, "kind": "charge"}
        row |= {"amount": amount, "currency": currency}
        if transaction is not None:
            is_reversal = _text(entry, "RvslInd") in _TRUE
            row["kind"] = kind_of(_text(entry, "CdtDbtInd") == "CRDT", is_reversal)
            found = {name: _text(transaction, *paths) for name, paths in _OF_TRANSACTION.items()}
            # The payer gave no id.
            row |= {name: "" if text == "NOTPROVIDED" else text for name, text in found.items()}
            source = entry if transaction.find("BkTxCd") is None else transaction
            codes = (_text(source, f"BkTxCd/{path}") for path in _CODES)
            row["code"] = "-".join(filter(None, codes))
        return row

    @staticmethod
    def _amount_of(transaction: Element, currency: str, sign: str) -> Decimal | None:
        """The amount of a transaction; ``None`` if it is not in the entry's currency."""
        for holder in (transaction, *transaction.findall("AmtDtls/TxAmt")):
            if holder.find("Amt") is not None:
                amount, named = _money(holder, _text(transaction, "CdtDbtInd") or sign)
                if named == currency:
                    return amount
        return None

    @staticmethod
    def _charges(element: Element, currency: str) -> Decimal:
        """The sum of the charges that an amount includes."""
        found = [
            _money(record, _text(record, "CdtDbtInd") or "DBIT")
            for record in (*element.findall("Chrgs/Rcrd"), *element.findall("Chrgs"))
            if _text(record, "ChrgInclInd") in _TRUE
        ]
        return sum((amount for amount, named in found if named == currency), Decimal(0))


def _money(element: Element, sign: str = "") -> tuple[Decimal, str]:
    """The signed amount of an element, and its currency."""
    sign, text = sign or _text(element, "CdtDbtInd"), _text(element, "Amt")
    amount = element.find("Amt")
    currency = "" if amount is None else amount.get("Ccy", "")
    if _AMOUNT.fullmatch(text) is None or sign not in ("CRDT", "DBIT") or not currency:
        why = f"Amt {text!r}, Ccy {currency!r} and CdtDbtInd {sign!r} are not an amount"
        raise ValueError(f"{element.tag}: {why}")
    return (Decimal(text) if sign == "CRDT" else -Decimal(text)), currency


def _ends(balances: list[tuple[str, str, Decimal]], *codes: str) -> dict[str, Decimal]:
    """The last balance of each currency that has the last of these codes."""
    order = ((code, *balance) for code in codes for balance in balances)
    return {currency: amount for code, named, currency, amount in order if named == code}


def _text(element: Element, *paths: str) -> str:
    """The text at the first path that has one; the texts of repeated elements are joined."""
    found = ("".join(one.text or "" for one in element.findall(path)).strip() for path in paths)
    return next(filter(None, found), "")


def _children(file: str, chunks: Iterable[bytes]) -> Iterator[Element]:
    """The children of each statement, and then the statement without them."""
    parser = expat.ParserCreate()
    opened: list[Element] = []  # From the statement on.
    done: list[Element] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        plain = name.rpartition(":")[2]
        if opened or plain == "Stmt":
            opened.append(Element(plain, attributes | {_LINE: str(parser.CurrentLineNumber)}))

    def text(given: str) -> None:
        if len(opened) > 1:
            opened[-1].text = (opened[-1].text or "") + given

    def end(_: str) -> None:
        if opened:
            element = opened.pop()
            (opened[-1] if len(opened) > 1 else done).append(element)

    def doctype(*_: object) -> None:
        refuse(file, parser.CurrentLineNumber, "it has a document type, which is not allowed")

    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = text, doctype
    try:
        for chunk in chunks:
            parser.Parse(chunk)
            yield from done
            done.clear()
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        refuse(file, error.lineno, f"it is not complete XML: {expat.ErrorString(error.code)}")
