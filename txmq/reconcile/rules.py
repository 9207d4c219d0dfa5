"""The rules of a reconciliation: the places of the ledgers, their columns, and the limits; pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta, Struct, field

from txmq.reconcile.summary import digest_of
from txmq.settings.units import parse_duration

Name: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
Weekday: TypeAlias = Literal[
    "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"
]
_WEEKDAYS: Final[tuple[str, ...]] = Weekday.__args__  # type: ignore[attr-defined]  # of a Literal

TRANSFER_KINDS: Final = ("debit", "credit", "return", "recall", "fee")
"""The kinds of entries that belong to transfers."""
PAYERS_KINDS: Final = ("debit", "return")
"""The kinds that the payer's bank books."""
LOG_PLACES: Final = ("directory", "directories", "cluster")
SCHEMES: Final = ("hdfs", "viewfs", "s3a", "gs", "abfss")
"""The remote file systems that can hold extracts and results."""


class TransferBanks(NamedTuple):
    """The banks that may book each side of a transfer."""

    payer: frozenset[str]
    payee: frozenset[str]

    def for_kind(self, kind: str) -> frozenset[str]:
        """The banks that may book a kind of entry. Either bank may charge a fee."""
        if kind == "fee":
            return self.payer | self.payee
        return self.payer if kind in PAYERS_KINDS else self.payee


class DayWindow(NamedTuple):
    """The moments of a business date: from ``start_ms`` up to, but not including, ``end_ms``."""

    start_ms: int
    end_ms: int


class Constant(Struct, frozen=True, forbid_unknown_fields=True):
    """A value that is the same for all rows and has no column: ``{ is = "CNY" }``."""

    value: str = field(name="is")


ColumnSource: TypeAlias = str | Constant
"""A column's name, or a constant for all rows."""


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)


def _names(*columns: ColumnSource) -> frozenset[str]:
    return frozenset(name for name in columns if isinstance(name, str) and name)


class Namespaces(Struct, frozen=True, forbid_unknown_fields=True):
    """The banks that issue the transfer ids of a table with several namespaces."""

    names: Annotated[dict[str, Name], Meta(min_length=1)]
    """The bank for each value of ``column``; without a column, for each prefix of an id. The
    longest prefix counts, and the empty text is a prefix of every id."""
    column: str = ""
    """The column whose value decides."""


_FIELDS: Final = ("account", "currency", "amount", "kind", "booked", "value", "end_to_end_id")
STATEMENT_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "camt.053": (
        *_FIELDS, "transaction_id", "instruction_id", "message_id", "entry_reference",
        "bank_reference", "code", "remittance",
    ),
    "mt940": (*_FIELDS, "customer_reference", "bank_reference", "code", "remittance"),
}  # fmt: skip
"""The fields of a statement's entries, which take the place of columns."""


class Day(Struct, frozen=True, forbid_unknown_fields=True):
    """When a business date begins and ends, and how long transfers may take."""

    zone: str = "UTC"
    """The time zone of business dates."""
    cut_off: str = "00:00"
    """When a business date ends. One that ends at 17:00 begins at 17:00 on the day before; one that
    ends at 00:00 is a calendar day."""
    grace: str = "2h"
    """How long a transfer may be under way at the end of the date before it counts as a break."""
    weekend: frozenset[Weekday] = frozenset({"saturday", "sunday"})
    """Days of the week that do not count toward the age of a break."""
    holidays: frozenset[date] = frozenset()
    """Dates that do not count toward the age of a break."""
    history: Annotated[int, Meta(ge=0, le=366)] = 7
    """How many earlier dates are searched for a transfer that is booked again."""

    @property
    def grace_ms(self) -> int:
        """``grace`` in milliseconds."""
        return round(parse_duration(self.grace) * 1000)

    def window(self, day: date) -> DayWindow:
        """The moments of a date."""
        at, zone = time.fromisoformat(self.cut_off), ZoneInfo(self.zone)
        last = day + timedelta(days=1) if at == time.min else day
        ends = (datetime.combine(end, at, zone) for end in (last - timedelta(days=1), last))
        return DayWindow(*(round(end.timestamp() * 1000) for end in ends))

    def of(self, ms: int) -> date:
        """The business date of a moment."""
        day = datetime.fromtimestamp(ms / 1000, ZoneInfo(self.zone)).date()
        while ms >= self.window(day).end_ms:
            day += timedelta(days=1)
        while ms < self.window(day).start_ms:
            day -= timedelta(days=1)
        return day

    def is_business(self, day: date) -> bool:
        """Whether a date is a business day."""
        return _WEEKDAYS[day.weekday()] not in self.weekend and day not in self.holidays

    def age(self, first: date, today: date) -> int:
        """The number of business days between two dates; 0 on the same day."""
        days = range(1, (today - first).days + 1)
        return sum(self.is_business(first + timedelta(days=number)) for number in days)


class Money(Struct, frozen=True, forbid_unknown_fields=True):
    """A currency, by its three-letter code; all amounts are in minor units."""

    digits: Annotated[int, Meta(ge=0, le=6)] = 2
    """Digits after the decimal point of a major unit."""
    tolerance: Annotated[int, Meta(ge=0)] = 0
    """The sides of a transfer agree if their amounts differ by no more than this."""
    materiality: Annotated[int, Meta(ge=0)] = 0
    """Breaks are within the limits if their amounts at risk add up to no more than this."""


class Outcomes(Struct, frozen=True, forbid_unknown_fields=True):
    """The outcomes of a transfer that are agreed, besides one debit and one equal credit or
    return.
    """

    parts: bool = False
    """Several debits, orders or credits of one transfer agree if their sums are equal. By default
    a second one is a break."""
    charges: Literal["none", "payer", "payee"] = "none"
    """Who bears the fees that are booked under the id of a transfer. By default a fee is a
    break."""
    charges_max: dict[str, Annotated[int, Meta(ge=0)]] = {}
    """The greatest fee of a transfer by currency, in minor units: ``{ CNY = 50_00 }``. Required
    with ``charges``."""


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """How many breaks are within the limits or shown, and how many rows may be unreadable."""

    breaks: Annotated[int, Meta(ge=0)] = 100
    """The greatest number of breaks that is within the limits."""
    age_days: Annotated[int, Meta(ge=0)] = 7
    """The greatest age of a break that is within the limits, in business days."""
    evidence: Annotated[int, Meta(ge=0, le=10_000)] = 20
    """How many breaks of each class the report shows."""
    quarantine_max: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """How many rows of a bank's table may be unreadable. The run reports them without reconciling
    them; one more row ends the run."""


class EntryColumns(Struct, frozen=True, forbid_unknown_fields=True):
    """A bank's journal, or its table of transfers: one row for each side of a booking."""

    table: str = ""
    """The table's name, with its schema if needed. Required in a database; files have none."""
    key: str = ""
    """The column with the transfer's id; empty or blank in rows that belong to no transfer. This
    key and the next five are required, except for bank statements."""
    account: str = ""
    """The column with the account."""
    amount: str = ""
    """The column with the amount."""
    booked: str = ""
    """The column with the moment that decides the business date."""
    currency: ColumnSource = ""
    """The column with the currency, or the currency of all rows."""
    kind: ColumnSource = ""
    """The column with the kind of booking, or the kind of all rows."""
    namespace: Name | Namespaces = ""
    """The name of the bank that issues the transfer ids in this table; required. If several banks
    do, a column or the prefix of an id decides."""
    kinds: dict[str, tuple[str, ...]] = {}
    """The bank's words for each kind of row: lists under ``debit``, ``credit``, ``return``,
    ``recall`` and ``fee``. A row of any other kind belongs to no transfer."""
    id: str = ""
    """The column with the row's own number; it identifies duplicate rows."""
    recorded: str = ""
    """The column with the moment of writing, which backdating does not change. If it is named, a
    row counts on the date of writing, and a row booked into an earlier date is late."""
    where: str = ""
    """An SQL condition in the database's dialect; only rows that meet it are read."""
    time: Literal["milliseconds", "seconds", "timestamp", "timestamptz"] = "milliseconds"
    """The type of ``booked`` and ``recorded``. A ``timestamp`` is read in the bank's zone. In a
    file, a date without a time is the last moment of that business date."""
    units: Literal["minor", "major"] = "minor"
    """The unit of amounts and balances."""
    amounts: Literal["signed", "unsigned"] = "signed"
    """``signed``: a debit is negative; ``unsigned``: only its kind shows that it is a debit."""
    clearing: tuple[str, ...] = ()
    """Accounts for money in flight to another bank. If all banks name them, the clearing proofs
    check that they hold exactly this money."""
    suspense: tuple[str, ...] = ()
    """Accounts for money that could not be credited to its payee."""
    capital: tuple[str, ...] = ()
    """Accounts for money from outside. If they are named, all money that customers receive
    without a transfer must come from them."""
    double_entry: bool = False
    """Whether the rows of each booking add up to zero; if so, the run proves it."""
    gapless: bool = False
    """Whether the ids have no gaps, also from one day to the next; if so, the run proves it. Most
    databases leave gaps."""

    @property
    def names(self) -> frozenset[str]:
        """The names of the columns that are read."""
        decisive = self.namespace.column if isinstance(self.namespace, Namespaces) else ""
        named = self.id, self.key, self.account, self.amount, self.booked, self.recorded, decisive
        return _names(*named, self.kind, self.currency)

    @property
    def roles(self) -> dict[str, str]:
        """The roles of the bank's own accounts; all other accounts belong to customers."""
        roles = ("capital", "suspense", "clearing")
        return {account: role for role in roles for account in getattr(self, role)}


class AccountColumns(Struct, frozen=True, forbid_unknown_fields=True):
    """A bank's table of accounts with their balances."""

    table: str = ""
    """The table's name; required in a database. The next three keys are always required."""
    account: str = ""
    """The column with the account."""
    currency: ColumnSource = ""
    """The column with its currency, or the currency of all accounts."""
    balance: str = ""
    """The column with its balance, in the same units as the entries' amounts."""
    opening: str = ""
    """The column with the balance at the beginning of the date, only in ``files.balances``."""
    where: str = ""
    """An SQL condition, as for the entries."""

    @property
    def names(self) -> frozenset[str]:
        """The names of the columns that are read."""
        return _names(self.account, self.currency, self.balance, self.opening)


class BankFiles(Struct, frozen=True, forbid_unknown_fields=True):
    """Files with a bank's book, instead of its database."""

    path: str
    """Their path. ``*`` in the name stands for any text, and ``{date}`` for the business date,
    also with a format: ``{date:%Y%m%d}``. Without ``{date}``, the files have the whole journal."""
    format: Literal["csv", "json-lines", "parquet", "camt.053", "mt940"]
    """Rows with columns, or bank statements."""
    balances: str = ""
    """The path of files of the same format with the columns of ``[bank.accounts]``."""
    charset: str = "utf-8"
    """The encoding of text, such as ``gb18030`` or ``latin-1``. XML and Parquet name their own."""
    delimiter: Annotated[str, Meta(min_length=1, max_length=1)] = ","
    """The character between two values of a CSV file."""
    quote: Annotated[str, Meta(max_length=1)] = '"'
    """The quote character of a CSV file; empty if it has none."""
    columns: tuple[str, ...] = ()
    """The columns of a CSV file without a header; if empty, the first line names them."""
    decimal: Annotated[str, Meta(min_length=1, max_length=1)] = "."
    """The decimal separator of amounts."""
    grouping: Annotated[str, Meta(max_length=1)] = ""
    """The thousands separator of amounts: ``.`` in 1.234,56."""
    moments: str = ""
    """The format of moments for ``strptime``: ``%d.%m.%Y %H:%M:%S``; ISO 8601 if empty."""

    @property
    def is_dated(self) -> bool:
        """True if a file has the entries of one date."""
        return "{date" in self.path

    @property
    def is_statement(self) -> bool:
        """True if the files are bank statements."""
        return self.format in STATEMENT_FIELDS


class Bank(Struct, frozen=True, forbid_unknown_fields=True):
    """One bank: a database, or files."""

    name: Name
    """Unique among the banks, and not ``log``."""
    entries: EntryColumns
    database: str = ""
    """Its URL: ``postgresql://``, ``sqlite:///`` or ``jdbc:``; ``${VARIABLE}`` is replaced."""
    files: BankFiles | None = None
    accounts: AccountColumns | None = None
    zone: str = "UTC"
    """The time zone of moments that name none."""
    readers: Annotated[int, Meta(ge=1, le=64)] = 4
    """How many connections read in parallel."""
    properties: dict[str, str] = {}
    """Options for a JDBC driver, such as the name of its class."""


class Flow(Struct, frozen=True, forbid_unknown_fields=True):
    """Messages that order transfers: their topic, and the fields of their JSON."""

    topic: str
    """Their topic."""
    namespace: Name
    """The name of the bank that issues their transfer ids, as in its entries."""
    group: str = ""
    """The consumer group that credits; all flows of a topic must name the same group."""
    payer_bank: Name | None = None
    """The bank that debits and pays back. By default the bank that ``namespace`` names, or any bank
    if it names none."""
    payee_bank: Name | None = None
    """The bank that credits and recalls. By default any bank except the payer's; if there is only
    one bank, that one."""
    tags: tuple[str, ...] = ()
    """Only messages with one of these tags; all messages if empty."""
    key: str = ""
    """The field with the transfer's id; a dot leads into an object. If empty, the message's first
    key is the id."""
    payer: str = "payer"
    """The field with the debited account."""
    payee: str = "payee"
    """The field with the credited account."""
    amount: str = "amount"
    """The field with the amount."""
    units: Literal["minor", "major"] = "minor"
    """The unit of amounts. Major units are JSON numbers or texts, such as 12.34."""
    currency: ColumnSource = "currency"
    """The field with the currency, or the currency of all messages."""


class LogRules(Struct, frozen=True, forbid_unknown_fields=True):
    """The log of the broker or brokers: exactly one of ``directory``, ``directories`` and
    ``cluster`` says where it is.
    """

    directory: str = ""
    """The broker's data directory, or a copy of it; it is only read."""
    flow: tuple[Flow, ...] = ()
    directories: tuple[str, ...] = ()
    """The data directories of several brokers. Add a new one at the end: the positions of open
    items contain a directory's index in this list."""
    cluster: str = ""
    """The name servers of a RocketMQ cluster to read: ``host:9876``, several with ``;``."""

    @property
    def places(self) -> tuple[str, ...]:
        """The directories of the brokers; empty for a cluster."""
        return self.directories or ((self.directory,) if self.directory else ())


class Recon(Struct, frozen=True, forbid_unknown_fields=True):
    """A database that gets a copy of the results."""

    database: str
    """Its URL, as for a bank; not ``jdbc:``."""
    schema: Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,39}$")] = "recon"
    """The schema of the tables; in a database without schemas, the prefix of their names."""


class Rules(Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of a reconciliation; these keys stand before the first table of the file."""

    name: Name
    """The reconciliation's name; break ids depend on it, so do not change it."""
    directory: str
    """Where extracts and results are kept: a path, which a cluster's workers must share, or a URI
    of the scheme ``hdfs``, ``viewfs``, ``s3a``, ``gs`` or ``abfss``."""
    bank: Annotated[tuple[Bank, ...], Meta(min_length=1)]
    log: LogRules
    version: str = "1"
    """Raise it with each change, so that a result names the rules that made it."""
    day: Day = Day()
    money: dict[str, Money] = {}
    """If no currency is named, any is accepted, and all transfers are decided one by one. If some
    are named, another currency in a bank's book ends the run."""
    outcomes: Outcomes = Outcomes()
    limits: Limits = Limits()
    recon: Recon | None = None

    def money_of(self, currency: str) -> Money:
        """The rules of a currency; the defaults for one that they do not name."""
        return self.money.get(currency, Money())

    def banks(self, has: Callable[[Bank], object]) -> list[str]:
        """The names of the banks for which ``has`` is true."""
        return [bank.name for bank in self.bank if has(bank)]

    def banks_of_flow(self, flow: Flow) -> TransferBanks:
        """The banks that may book the transfers of a flow."""
        banks = frozenset(bank.name for bank in self.bank)
        named = flow.payer_bank or flow.namespace
        payer = frozenset({named}) if named in banks else banks
        payee = frozenset({flow.payee_bank}) if flow.payee_bank else banks - payer
        return TransferBanks(payer, payee or banks)

    def banks_of_transfer(
        self, namespace: str, topics: Collection[str] = ()
    ) -> TransferBanks | None:
        """The banks that may book a transfer with orders in these topics.

        Without an order, the transfer may belong to any flow of its namespace. ``None`` if the
        namespace has no flow.
        """
        flows = [flow for flow in self.log.flow if flow.namespace == namespace]
        flows = [flow for flow in flows if flow.topic in topics] or flows
        found = [self.banks_of_flow(flow) for flow in flows]
        return TransferBanks(*map(_union, zip(*found, strict=True))) if found else None

    @property
    def sure_banks(self) -> dict[str, TransferBanks]:
        """By namespace, the banks that may book a transfer whichever of its flows ordered it."""
        found: dict[str, TransferBanks] = {}
        for flow in self.log.flow:
            payer, payee = self.banks_of_flow(flow)
            known = found.get(flow.namespace, TransferBanks(payer, payee))
            found[flow.namespace] = TransferBanks(known.payer & payer, known.payee & payee)
        return found

    @property
    def both_sides(self) -> list[str]:
        """The banks that book both sides of a transfer; each kind of row must add up to zero."""
        return self.banks(lambda bank: bank.entries.double_entry)

    @property
    def proves_clearing(self) -> bool:
        """True if the clearing rows of all banks must add up."""
        return all(bank.entries.clearing for bank in self.bank)

    @property
    def digest(self) -> str:
        """A hash of the rules, without the places of the ledgers."""
        return digest_of(self._plain())

    @property
    def reading_digest(self) -> str:
        """A hash of the rules that say how ledgers are read, without limits."""
        plain, day = self._plain(), self.day
        del plain["version"], plain["limits"], plain["outcomes"]
        plain["day"] = [day.zone, day.cut_off]
        plain["money"] = {code: money.digits for code, money in self.money.items()}
        for flow in plain["log"]["flow"]:
            del flow["payer_bank"], flow["payee_bank"]
        return digest_of(plain)

    def _plain(self) -> dict[str, Any]:
        # The order of sets differs between processes.
        plain: dict[str, Any] = msgspec.to_builtins(self, order="sorted")
        del plain["directory"], plain["recon"]
        for place in LOG_PLACES:
            del plain["log"][place]
        for bank in plain["bank"]:
            del bank["database"], bank["properties"], bank["readers"]
            if bank["files"] is not None:
                del bank["files"]["path"], bank["files"]["balances"]
        return plain
