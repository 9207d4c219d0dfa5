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
    EntryFields,
    StatementPage,
    kind_of_entry,
    refuse,
)

__all__ = ["read_camt"]

_AMOUNT: Final = re.compile(r"[0-9]{1,18}(\.[0-9]{0,5})?")
_TRUE: Final = ("true", "1")
_REFERENCES: Final = {
    "end_to_end_id": "EndToEndId",
    "transaction_id": "TxId",
    "instruction_id": "InstrId",
    "message_id": "MsgId",
    "bank_reference": "AcctSvcrRef",
}
_LINE: Final = "line"
"""The attribute with an element's line; the names of camt's own begin with a capital."""


def read_camt(file: str, chunks: Iterable[bytes]) -> Iterator[EntryFields | StatementPage]:
    """The booked entries of each statement, and then its balances.

    Raises:
        ReconcileRefused: The file is not camt.053, or has an invalid value.
    """
    statement = _Statement(file)
    for element in _children(file, chunks):
        match element.tag:
            case "Stmt":
                yield statement.page(int(element.attrib[_LINE]))
                statement = _Statement(file)
            case "Ntry":
                yield from statement.entries(element)
            case "Bal":
                amount, currency = statement.money(element)
                code = _text(element, "Tp/CdOrPrtry/Cd")
                statement.balances[currency].append((code, amount))
            case _:
                statement.head.append(element)


class _Statement:
    """A statement while it is read."""

    def __init__(self, file: str) -> None:
        self.head = Element("Stmt")
        self.balances = defaultdict[str, list[tuple[str, Decimal]]](list)
        self._moved = defaultdict[str, Decimal](Decimal)
        self._file = file

    def page(self, line: int) -> StatementPage:
        """Its balances, after its last entry."""
        head, opening, closing = self.head, dict[str, Decimal](), dict[str, Decimal]()
        account = _text(head, "Acct/Id/IBAN", "Acct/Id/Othr/Id")
        if not account:
            refuse(self._file, line, "the statement has no account (Acct/Id)")
        for currency, balances in self.balances.items():
            of = defaultdict[str, list[Decimal]](list)
            for code, amount in balances:
                of[code].append(amount)
            # A page begins with an interim balance, or ends with one.
            begins, ends = of["OPBD"] or of["PRCD"], of["CLBD"]
            interim = of["ITBD"] if begins or ends or len(of["ITBD"]) > 1 else []
            if begins or interim:
                opening[currency] = (begins or interim)[0]
            if ends or interim:
                closing[currency] = (ends or interim)[-1]
        number, page = _text(head, "ElctrncSeqNb", "LglSeqNb"), _text(head, "StmtPgntn/PgNb")
        name = "/".join(filter(None, (_text(head, "Id") or number, page)))
        order = [int(text) if text.isdecimal() else 0 for text in (number, page)]
        return StatementPage(self._file, line, account, name, order, opening, self._moved, closing)

    def entries(self, entry: Element) -> Iterator[EntryFields]:
        """The rows of an entry: one for each of its transactions, and one for each charge."""
        if _text(entry, "Sts/Cd", "Sts") != "BOOK":
            return  # It is pending, or only information.
        amount, currency = self.money(entry)
        self._moved[currency] += amount
        parts = [
            (transaction, self._amount_of(transaction, currency, amount))
            for transaction in entry.findall("NtryDtls/TxDtls")
        ]
        if len(parts) == 1:
            parts = [(parts[0][0], amount)]
        elif not parts or any(part is None for _, part in parts):
            parts = [(entry, amount)]  # A batch without its amounts names no transfer.
        rest, included = amount, self._charges(entry, currency)
        for transaction, part in parts:
            assert part is not None
            charge = self._charges(transaction, currency)
            charge = charge or (included if len(parts) == 1 else Decimal(0))
            rest -= part
            yield self._row(entry, transaction, part - charge, currency)
            if charge:
                yield self._row(entry, None, charge, currency)
        if rest and rest != included:
            why = f"the entry is {amount} {currency}, but its transactions sum to {amount - rest}"
            refuse(self._file, int(entry.attrib[_LINE]), why)
        if rest:
            yield self._row(entry, None, rest, currency)

    def money(self, element: Element, sign: str = "") -> tuple[Decimal, str]:
        """The signed amount of an element, and its currency."""
        sign, text = sign or _text(element, "CdtDbtInd"), _text(element, "Amt")
        amount = element.find("Amt")
        currency = "" if amount is None else amount.get("Ccy", "")
        if _AMOUNT.fullmatch(text) is None or sign not in ("CRDT", "DBIT") or not currency:
            why = f"Amt {text!r}, Ccy {currency!r} and CdtDbtInd {sign!r} of {element.tag} are no"
            refuse(self._file, int(element.attrib[_LINE]), f"{why} amount")
        return (Decimal(text) if sign == "CRDT" else -Decimal(text)), currency

    def _row(
        self, entry: Element, transaction: Element | None, amount: Decimal, currency: str
    ) -> EntryFields:
        """A row; a charge has no transaction."""
        row: EntryFields = {
            "line": int(entry.attrib[_LINE]),
            "account": _text(self.head, "Acct/Id/IBAN", "Acct/Id/Othr/Id"),
            "currency": currency,
            "amount": amount,
            "kind": "charge",
            "booked": _text(entry, "BookgDt/DtTm", "BookgDt/Dt"),
            "value": _text(entry, "ValDt/DtTm", "ValDt/Dt"),
            "entry_reference": _text(entry, "NtryRef"),
        }
        if transaction is None:
            return row
        row["kind"] = kind_of_entry(
            is_credit=_text(entry, "CdtDbtInd") == "CRDT",
            is_reversal=_text(entry, "RvslInd") in _TRUE,
        )
        for name, tag in _REFERENCES.items():
            text = _text(transaction, f"Refs/{tag}", tag)
            row[name] = "" if text == "NOTPROVIDED" else text  # The payer gave none.
        source = entry if transaction.find("BkTxCd") is None else transaction
        domain = ("Domn/Cd", "Domn/Fmly/Cd", "Domn/Fmly/SubFmlyCd")
        codes = (_text(source, f"BkTxCd/{path}") for path in domain)
        row["code"] = "-".join(filter(None, codes)) or _text(source, "BkTxCd/Prtry/Cd")
        lines = transaction.findall("RmtInf/Ustrd")
        row["remittance"] = "".join(line.text or "" for line in lines)
        return row

    def _amount_of(self, transaction: Element, currency: str, whole: Decimal) -> Decimal | None:
        """The amount of a transaction; ``None`` if it is not in the entry's currency."""
        sign = _text(transaction, "CdtDbtInd") or ("DBIT" if whole < 0 else "CRDT")
        for holder in (transaction, *transaction.findall("AmtDtls/TxAmt")):
            if holder.find("Amt") is not None:
                amount, named = self.money(holder, sign)
                if named == currency:
                    return amount
        return None

    def _charges(self, element: Element, currency: str) -> Decimal:
        """The sum of the charges that an amount includes."""
        found = [
            self.money(record, _text(record, "CdtDbtInd") or "DBIT")
            for record in (*element.findall("Chrgs/Rcrd"), *element.findall("Chrgs"))
            if _text(record, "ChrgInclInd") in _TRUE
        ]
        return sum((amount for amount, named in found if named == currency), Decimal(0))


def _text(element: Element, *paths: str) -> str:
    """The text at the first path that has one."""
    found = (element.findtext(path, "").strip() for path in paths)
    return next(filter(None, found), "")


class _Builder:
    """Builds the children of statements from the parser's calls; all else is dropped."""

    def __init__(self, file: str) -> None:
        self.done: list[Element] = []
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._add_text
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype
        self._file = file
        self._open: list[Element] = []
        """The open elements, from the statement on."""

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        plain = name.rpartition(":")[2]
        if self._open or plain == "Stmt":
            line = {_LINE: str(self.parser.CurrentLineNumber)}
            self._open.append(Element(plain, attributes | line))

    def _add_text(self, text: str) -> None:
        if len(self._open) > 1:
            self._open[-1].text = (self._open[-1].text or "") + text

    def _end(self, _: str) -> None:
        if self._open:
            element = self._open.pop()
            (self._open[-1] if len(self._open) > 1 else self.done).append(element)

    def _refuse_doctype(self, *_: object) -> None:
        line = self.parser.CurrentLineNumber
        refuse(self._file, line, "it has a document type (DOCTYPE), which is not allowed")


def _children(file: str, chunks: Iterable[bytes]) -> Iterator[Element]:
    """The children of each statement, and then the statement without them."""
    builder, has_any = _Builder(file), False
    try:
        for chunk in chunks:
            builder.parser.Parse(chunk)
            has_any = has_any or bool(builder.done)
            yield from builder.done
            builder.done.clear()
        builder.parser.Parse(b"", True)
    except expat.ExpatError as error:
        refuse(file, error.lineno, f"it is not complete XML: {expat.ErrorString(error.code)}")
    if not has_any:
        refuse(file, 1, "it has no statement (Stmt), so it is not camt.053")
