"""ISO 20022 bank-to-customer statements, camt.053 in any version; pure.

The parser is expat of the standard library. A document type is refused, so no entity can grow or
lead to another file. At most one entry is in memory, with all of its transactions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import chain
from typing import Final
from xml.etree.ElementTree import Element
from xml.parsers import expat

from txmq.reconcile.extract.bank_statements import RowFields, StatementPage, Stream, kind_of, refuse

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


def read_camt(file: str, chunks: Iterable[bytes]) -> Stream:
    """The booked entries of each statement, and then its balances.

    Raises:
        ReconcileRefused: The file is not camt.053, or has an invalid balance.
    """
    page, head = StatementPage(file), Element("Stmt")
    element: Element | None = None
    for element in _children(file, chunks):
        match element.tag:
            case "Stmt":
                _close(page, head, _line(element))
                yield page
                page, head = StatementPage(file), Element("Stmt")
            case "Ntry" if _text(element, "Sts/Cd", "Sts") == "BOOK":
                try:
                    yield from list(_rows(page, element))
                except ValueError as error:
                    yield page.damaged(_line(element), error)
            case "Acct":
                page.account = _text(element, "Id/IBAN", "Id/Othr/Id")
            case _:
                head.append(element)
    if element is None:
        refuse(file, 1, "it has no statement (Stmt), so it is not camt.053")


def _close(page: StatementPage, head: Element, line: int) -> None:
    """Take the balances and numbers of a statement from its elements."""
    page.line = line
    if not page.account:
        refuse(page.file, line, "the statement has no account (Acct/Id)")
    balances = []
    for element in head.findall("Bal"):
        try:
            balances.append((_text(element, "Tp/CdOrPrtry/Cd"), *_money(element)))
        except ValueError as error:
            refuse(page.file, _line(element), str(error))
    # A page may begin with an interim balance, or end with one.
    page.opening = _ends(balances[::-1], "ITBD", "PRCD", "OPBD")
    page.closing = _ends(balances, "ITBD", "CLBD")
    number, part = _text(head, "ElctrncSeqNb"), _text(head, "StmtPgntn/PgNb")
    page.number = f"{number}/{part}"
    page.name = "/".join(filter(None, (_text(head, "Id") or number, part)))
    page.is_last = _text(head, "StmtPgntn/LastPgInd") in ("", *_TRUE)


def _rows(page: StatementPage, entry: Element) -> Iterator[RowFields]:
    """The rows of an entry: one for each of its transactions, and one for each charge.

    ``ValueError`` if an amount cannot be read, or the amounts do not add up.
    """
    amount, currency = _money(entry)
    page.moved[currency] += amount
    sign, transactions = "DBIT" if amount < 0 else "CRDT", entry.findall("NtryDtls/TxDtls")
    amounts = ((one, _amount_of(one, currency, sign)) for one in transactions)
    parts = [(one, part) for one, part in amounts if part is not None]
    if len(transactions) == 1:
        parts = [(transactions[0], amount)]
    elif not parts or len(parts) < len(transactions):
        # A batch without its amounts stays one row, which names no transfer.
        parts = [(entry, amount)]
    row: RowFields = {name: _text(entry, *paths) for name, paths in _OF_ENTRY.items()}
    row |= {"line": _line(entry), "account": page.account, "kind": "charge", "currency": currency}
    rest, included = amount, _charges(entry, currency)
    for transaction, part in parts:
        charge = _charges(transaction, currency) or (included if len(parts) == 1 else Decimal(0))
        rest -= part
        yield row | _transfer(entry, transaction) | {"amount": part - charge}
        if charge:
            yield row | {"amount": charge}
    if rest and rest != included:
        why = f"but its transactions sum to {amount - rest}"
        raise ValueError(f"it is {amount} {currency}, {why}")
    if rest:
        yield row | {"amount": rest}


def _transfer(entry: Element, transaction: Element) -> RowFields:
    found = {name: _text(transaction, *paths) for name, paths in _OF_TRANSACTION.items()}
    # The payer gave no id.
    row: RowFields = {name: "" if text == "NOTPROVIDED" else text for name, text in found.items()}
    is_credit, is_reversal = _text(entry, "CdtDbtInd") == "CRDT", _text(entry, "RvslInd") in _TRUE
    source = entry if transaction.find("BkTxCd") is None else transaction
    code = "-".join(filter(None, (_text(source, f"BkTxCd/{path}") for path in _CODES)))
    return row | {"kind": kind_of(is_credit, is_reversal), "code": code}


def _amount_of(transaction: Element, currency: str, sign: str) -> Decimal | None:
    """The amount of a transaction; ``None`` if it is not in the entry's currency."""
    for holder in (transaction, *transaction.findall("AmtDtls/TxAmt")):
        if holder.find("Amt") is not None:
            amount, named = _money(holder, _text(transaction, "CdtDbtInd") or sign)
            if named == currency:
                return amount
    return None


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


def _ends(balances: Sequence[tuple[str, Decimal, str]], *codes: str) -> dict[str, Decimal]:
    """The last balance of each currency that has the last of these codes."""
    order = ((code, *balance) for code in codes for balance in balances)
    return {currency: amount for code, named, amount, currency in order if named == code}


def _line(element: Element) -> int:
    return int(element.attrib[_LINE])


def _text(element: Element, *paths: str) -> str:
    """The text at the first path that has one; the texts of repeated elements are joined."""
    found = ("".join(one.text or "" for one in element.findall(path)).strip() for path in paths)
    return next(filter(None, found), "")


def _children(file: str, chunks: Iterable[bytes]) -> Iterator[Element]:
    """The children of each statement, and then the statement without them."""
    done: list[Element] = []
    parser = _parser(file, done)
    try:
        for chunk in chain(chunks, [b""]):
            parser.Parse(chunk, not chunk)
            yield from done
            done.clear()
    except expat.ExpatError as error:
        refuse(file, error.lineno, f"it is not complete XML: {expat.ErrorString(error.code)}")
    except (LookupError, ValueError) as error:
        refuse(file, 1, f"{error}: get the file in UTF-8")


def _parser(file: str, done: list[Element]) -> expat.XMLParserType:
    """A parser that adds the children of each statement to a list, and then the statement."""
    parser = expat.ParserCreate()
    opened: list[Element] = []  # From the statement on.

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
    return parser
