"""Bank statements: ISO 20022 camt.053 in any version, and SWIFT MT940; pure.

A statement has its own control totals: the opening balance plus the entries is the closing balance,
and the next page begins with it. If not, the file is incomplete or was misread.

XML is parsed by expat from the standard library. A document type is refused, so no entity can
expand or refer to another file. Only one entry at a time is in memory, with all of its
transactions.

An MT940 statement has one or more messages, its pages: each begins with ``:20:`` and ends with its
closing balance. The form of ``:86:`` differs between countries; the two common ones are read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from functools import partial
from itertools import chain
from typing import Any, Final, NoReturn, TypeAlias
from xml.etree.ElementTree import Element
from xml.parsers import expat

from msgspec import Struct, field

from txmq.reconcile.extract.file_rows import BankFile, FileRows, damaged

__all__ = ["StatementPage", "read_camt", "read_mt940", "stated_balances"]

_CAMT_AMOUNT: Final = re.compile(r"[0-9]{1,18}(\.[0-9]{0,5})?")
_TRUE: Final = ("true", "1")
_CAMT_ENTRY: Final = {
    "booked": ("BookgDt/DtTm", "BookgDt/Dt"),
    "value": ("ValDt/DtTm", "ValDt/Dt"),
    "entry_reference": ("NtryRef",),
}
_CAMT_TRANSACTION: Final = {
    "end_to_end_id": ("Refs/EndToEndId",),
    "transaction_id": ("Refs/TxId",),
    "instruction_id": ("Refs/InstrId",),
    "message_id": ("Refs/MsgId",),
    "bank_reference": ("Refs/AcctSvcrRef", "AcctSvcrRef"),
    "remittance": ("RmtInf/Ustrd",),
}
_CAMT_CODES: Final = ("Domn/Cd", "Domn/Fmly/Cd", "Domn/Fmly/SubFmlyCd", "Prtry/Cd")
_CHUNK: Final = 1 << 16
_LINE: Final = "line"
"""An attribute with the line of an element; those of the standard begin with a capital."""
_MT_FIELD: Final = re.compile(r":([0-9]{2}[A-Z]?):(.*)")
_MT_BALANCE: Final = re.compile(r"([CD])[0-9]{6}([A-Z]{3})([0-9]{1,15},[0-9]{0,5})\s*")
_MT_ENTRY: Final = re.compile(
    r"([0-9]{6})([0-9]{4})?([RE]?[CD])[A-Z]?([0-9]{1,15},[0-9]{0,5})([A-Z][A-Z0-9]{3})"
    r"([^\n]*?)(?://([^\n]*))?(?:\n(.*))?\s*",
    re.DOTALL,
)
_MT_SUBFIELD: Final = re.compile(r"\?(?:2[0-9]|6[0-3])([^?]*)")
_MT_END_TO_END: Final = re.compile(
    r"(?:^|/)EREF/(.+?)(?://|/[A-Z]{4}/|/?$)|EREF\+(.+?)(?:[A-Z]{4}\+|$)"
)
_NUMBER: Final = re.compile("[0-9]+")

Fields: TypeAlias = dict[str, Any]
"""The values of an entry by the names in ``STATEMENT_FIELDS``."""


class StatementPage(Struct):
    """A statement, or a page of one, filled while it is read. Amounts are in major units."""

    file: BankFile
    line: int = 0
    """The line that was read last; after reading, a line at which the page can be found."""
    account: str = ""
    name: str = ""
    number: str = ""
    """The numbers of the statement and of the page, such as ``7/2``, if the bank numbers them."""
    is_last: bool = True
    """False if more pages of the statement follow."""
    opening: dict[str, Decimal] = {}
    """Amounts by currency, like the next two."""
    moved: defaultdict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    closing: dict[str, Decimal] = {}
    is_whole: bool = True
    """False if an entry cannot be read, so that the sum of all entries is unknown."""

    def damaged(self, why: object) -> tuple[int, Mapping[str, str]]:
        """A row for an entry that cannot be read."""
        self.is_whole = False
        return self.line, damaged(why)

    def refuse(self, why: str) -> NoReturn:
        """Refuse its file.

        Raises:
            ReconcileRefused: Always; the message begins with the page.
        """
        self.file.refuse(self.line, f"statement {self.name} of account {self.account} {why}")


def _kind_of(is_credit: bool, is_reversal: bool) -> str:
    """The kind of an entry. The reversal of a debit is a credit, and the reverse."""
    if is_reversal:
        return "debit-reversal" if is_credit else "credit-reversal"
    return "credit" if is_credit else "debit"


def read_camt(file: BankFile, pages: list[StatementPage]) -> FileRows:
    """The booked entries of each statement; the statement is added to ``pages``.

    Raises:
        ReconcileRefused: The file is not camt.053, or has an invalid balance.
    """
    page, head = StatementPage(file), Element("Stmt")
    element: Element | None = None
    for element in _children(file):
        page.line = _line(element)
        match element.tag:
            case "Stmt":
                _close_page(page, head)
                pages.append(page)
                page, head = StatementPage(file), Element("Stmt")
            case "Ntry" if _text(element, "Sts/Cd", "Sts") == "BOOK":
                try:
                    rows = list(_entry_rows(page, element))
                except ValueError as error:
                    yield page.damaged(error)
                else:
                    yield from ((page.line, row) for row in rows)
            case "Acct":
                page.account = _text(element, "Id/IBAN", "Id/Othr/Id")
            case _:
                head.append(element)
    if element is None:
        file.refuse(1, "it has no statement (Stmt), so it is not camt.053")


def _close_page(page: StatementPage, head: Element) -> None:
    """Take the balances and numbers of a statement from its elements."""
    if not page.account:
        page.file.refuse(page.line, "the statement has no account (Acct/Id)")
    balances = []
    for element in head.findall("Bal"):
        try:
            balances.append((_text(element, "Tp/CdOrPrtry/Cd"), *_money(element)))
        except ValueError as error:
            page.file.refuse(_line(element), str(error))
    # A page may begin with an interim balance, or end with one.
    page.opening = _ends(balances[::-1], "ITBD", "PRCD", "OPBD")
    page.closing = _ends(balances, "ITBD", "CLBD")
    number, part = _text(head, "ElctrncSeqNb"), _text(head, "StmtPgntn/PgNb")
    page.number = f"{number}/{part}"
    page.name = "/".join(filter(None, (_text(head, "Id") or number, part)))
    page.is_last = _text(head, "StmtPgntn/LastPgInd") in ("", *_TRUE)


def _entry_rows(page: StatementPage, entry: Element) -> Iterator[Fields]:
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
        # A batch without amounts stays one row, which names no transfer.
        parts = [(entry, amount)]
    row: Fields = {name: _text(entry, *paths) for name, paths in _CAMT_ENTRY.items()}
    row |= {"account": page.account, "kind": "charge", "currency": currency}
    rest, included = amount, _charges(entry, currency)
    for transaction, part in parts:
        charge = _charges(transaction, currency) or (included if len(parts) == 1 else Decimal(0))
        rest -= part
        yield row | _transfer(entry, transaction) | {"amount": part - charge}
        if charge:
            yield row | {"amount": charge}
    if rest not in (0, included):
        why = f"but its transactions sum to {amount - rest}"
        raise ValueError(f"it is {amount} {currency}, {why}")
    if rest:
        yield row | {"amount": rest}


def _transfer(entry: Element, transaction: Element) -> Fields:
    found = {name: _text(transaction, *paths) for name, paths in _CAMT_TRANSACTION.items()}
    # NOTPROVIDED means that the payer gave no id.
    row: Fields = {name: "" if text == "NOTPROVIDED" else text for name, text in found.items()}
    is_credit, is_reversal = _text(entry, "CdtDbtInd") == "CRDT", _text(entry, "RvslInd") in _TRUE
    source = entry if transaction.find("BkTxCd") is None else transaction
    code = "-".join(filter(None, (_text(source, f"BkTxCd/{path}") for path in _CAMT_CODES)))
    return row | {"kind": _kind_of(is_credit, is_reversal), "code": code}


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
    if _CAMT_AMOUNT.fullmatch(text) is None or sign not in ("CRDT", "DBIT") or not currency:
        why = f"Amt {text!r}, Ccy {currency!r} and CdtDbtInd {sign!r} are not an amount"
        raise ValueError(f"{element.tag}: {why}")
    return (Decimal(text) if sign == "CRDT" else -Decimal(text)), currency


def _ends(balances: Sequence[tuple[str, Decimal, str]], *codes: str) -> dict[str, Decimal]:
    """For each currency, the last balance with the last of these codes that occurs."""
    order = ((code, *balance) for code in codes for balance in balances)
    return {currency: amount for code, named, amount, currency in order if named == code}


def _line(element: Element) -> int:
    return int(element.attrib[_LINE])


def _text(element: Element, *paths: str) -> str:
    """The text at the first path that has one; the texts of repeated elements are joined."""
    found = ("".join(one.text or "" for one in element.findall(path)).strip() for path in paths)
    return next(filter(None, found), "")


def _children(file: BankFile) -> Iterator[Element]:
    """The children of each statement, and then the statement without them."""
    done: list[Element] = []
    parser = _parser(file, done)
    try:
        # The parser may hold back a long token until it knows that nothing follows.
        for chunk in chain(iter(partial(file.stream.read, _CHUNK), b""), [b""]):
            parser.Parse(chunk, not chunk)
            yield from done
            done.clear()
    except expat.ExpatError as error:
        file.refuse(error.lineno, f"it is not complete XML: {expat.ErrorString(error.code)}")
    except (LookupError, ValueError) as error:
        file.refuse(1, f"{error}: get the file in UTF-8")


def _parser(file: BankFile, done: list[Element]) -> expat.XMLParserType:
    """A parser that adds the children of each statement to a list, and then the statement."""
    parser = expat.ParserCreate()
    opened: list[Element] = []  # The open elements, from the statement down.

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
        file.refuse(parser.CurrentLineNumber, "it has a document type, which is not allowed")

    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = text, doctype
    return parser


def read_mt940(file: BankFile, charset: str, pages: list[StatementPage]) -> FileRows:
    """The booked entries of each message; the message is added to ``pages``.

    Raises:
        ReconcileRefused: The file is not MT940, or has an invalid balance.
    """
    page: StatementPage | None = None
    rows: list[tuple[int, Fields]] = []
    """The rows of the last entry: its ``:86:`` may follow."""
    line = 1
    for line, tag, text in _fields(file, charset):
        if tag != "86":
            yield from rows
            rows = []
        if tag == "20":
            _check_closed(page)
            page = StatementPage(file, line)
            continue
        if page is None:
            file.refuse(line, f":{tag}: is before the first :20:")
        page.line = line
        if tag == "61":
            try:
                rows = [(line, row) for row in _field_61(page, text)]
            except ValueError as error:
                yield page.damaged(f":61:{text!r} {error}")
        elif tag == "86" and rows:
            _field_86(rows[0][1], text.replace("\n", ""))
        else:
            _fill_page(page, tag, text)
            if tag in ("62F", "62M"):
                pages.append(page)
    if page is None:
        file.refuse(line, "it has no statement (:20:), so it is not MT940")
    _check_closed(page)


def _fields(file: BankFile, charset: str) -> Iterator[tuple[int, str, str]]:
    """The fields of a file: line, tag and text. A field may have several lines."""
    at, tag, texts = 0, "", list[str]()
    for number, raw in chain(file.lines(charset), [(0, "-")]):
        line = raw.rstrip("\r\n").rpartition("{4:")[2]  # SWIFT's own headers come before it.
        if (found := _MT_FIELD.fullmatch(line)) or line == "-" or line.startswith(("-}", "{")):
            if tag:
                yield at, tag, "\n".join(texts)
            at, tag, texts = (number, found[1], [found[2]]) if found else (0, "", [])
        elif tag:
            texts.append(line)
        elif line.strip():
            file.refuse(number, f"{line[:40]!r} belongs to no field, so it is not MT940")


def _check_closed(page: StatementPage | None) -> None:
    if page is not None and not page.closing:
        page.refuse("has no closing balance (:62F:), so the file may be truncated")


def _fill_page(page: StatementPage, tag: str, text: str) -> None:
    """Take a value of the page from a field."""
    match tag:
        case "25" | "25P":
            page.account = text.partition("\n")[0].strip()
        case "28C":
            page.name = page.number = text.strip()
        case "60F" | "60M":
            page.opening = _balance(page, text)
        case "62F" | "62M":
            if not page.opening:
                page.refuse("has no opening balance (:60F:)")
            page.closing, page.is_last = _balance(page, text), tag == "62F"
            (begun,), (currency,) = page.opening, page.closing
            if not page.account or currency != begun:
                why = f"begins in {begun} and ends in {currency}"
                page.refuse(f"{why}; a statement has one account and one currency")
            page.account = page.account.removesuffix(currency).strip()


def _balance(page: StatementPage, text: str) -> dict[str, Decimal]:
    if (found := _MT_BALANCE.fullmatch(text)) is None:
        page.refuse(f"has {text!r}, which is not a balance such as C240331EUR10,00")
    sign, currency, number = found.groups()
    return {currency: _signed(sign, number)}


def _field_61(page: StatementPage, text: str) -> list[Fields]:
    """The rows of an entry: itself, and an included charge; none if it is not booked yet."""
    if page.closing or not page.opening:
        page.refuse(f"has :61:{text!r}, which is not between :60F: and :62F:")
    if (found := _MT_ENTRY.fullmatch(text)) is None:
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
    (currency,), amount = page.opening, _signed(mark, number)
    page.moved[currency] += amount
    row: Fields = {
        "account": page.account.removesuffix(currency).strip(),  # Some banks append the currency.
        "currency": currency,
        "booked": entry_date.isoformat(),
        "value": value_date.isoformat(),
    }
    charges = re.findall(rf"/CHGS/{currency}([0-9]+,[0-9]*)", more or "")
    included = sum((_signed("C", charge) for charge in charges), Decimal(0))
    entry = row | {
        "amount": amount + included,
        "kind": _kind_of(mark in ("C", "RD"), "R" in mark),
        "code": code,
        "end_to_end_id": _known_id(customer),
        "customer_reference": _known_id(customer),
        "bank_reference": (bank or "").strip(),
    }
    return [entry, row | {"amount": -included, "kind": "charge"}] if included else [entry]


def _field_86(row: Fields, text: str) -> None:
    """Take the remittance information of an entry, and its id, from ``:86:``."""
    is_coded = text[:3].isdecimal() and text[3:4] == "?"
    row["remittance"] = text = "".join(_MT_SUBFIELD.findall(text)) if is_coded else text
    if found := _MT_END_TO_END.search(text):
        row["end_to_end_id"] = _known_id(found[1] or found[2]) or row["end_to_end_id"]


def _known_id(text: str) -> str:
    """An id; empty if the bank writes that the payer gave none."""
    return "" if (id_ := text.strip()) in ("NONREF", "NOTPROVIDED") else id_


def _signed(mark: str, number: str) -> Decimal:
    amount = Decimal(number.replace(",", "."))
    return -amount if mark in ("D", "RC") else amount


def stated_balances(pages: Iterable[StatementPage]) -> Iterator[tuple[StatementPage, Fields]]:
    """The balances of each account at the beginning and the end of the date, with the last page.

    A missing closing balance is computed from the entries.

    Raises:
        ReconcileRefused: A page does not add up, was sent twice, or does not begin where the page
            before it ends.
    """
    chains = defaultdict[tuple[str, str], list[StatementPage]](list)
    for page in pages:
        for currency in page.opening.keys() | page.moved.keys() | page.closing.keys():
            chains[page.account, currency].append(page)
    for (account, currency), series in sorted(chains.items()):
        series.sort(key=lambda page: [int(number) for number in _NUMBER.findall(page.number)])
        places, balance = dict[str, str](), series[0].opening.get(currency)
        row: Fields = {"account": account, "currency": currency, "opening": balance}
        for page in series:
            if page.name in places:
                page.refuse(f"is in {places[page.name]} too: remove one")
            places[page.name] = f"{page.file.name} line {page.line}"
            balance = _page_end(page, currency, balance)
        if not page.is_last:
            page.refuse("is not the last page, and no other follows")
        if balance is not None:
            yield page, row | {"closing": balance}


def _page_end(page: StatementPage, currency: str, before: Decimal | None) -> Decimal | None:
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
