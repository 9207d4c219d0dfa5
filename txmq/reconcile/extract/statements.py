"""The SQL that reads a bank, made from its rules; pure. Each dialect has its own expressions.

An expression gives the extract's column, or NULL if the bank's value is invalid. Such a row is left
out of all rows and sums, and listed for the quarantine. The database computes the sums under the
same snapshot, so that rows lost on the way to the files are detected.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from txmq.reconcile.extract.controls import (
    LIMIT,
    LOWER_HALF,
    has_number,
    number_columns,
)
from txmq.reconcile.rules import (
    AccountColumns,
    Bank,
    Constant,
    DayWindow,
    EntryColumns,
    Money,
    Namespaces,
)
from txmq.reconcile.tables import ENTRIES, TableSchema

__all__ = [
    "AccountStatements",
    "Dialect",
    "EntryStatements",
    "RowFault",
    "column_names",
    "control_query",
    "halves",
    "roles_of",
]

_Columns = TypeVar("_Columns", bound=EntryColumns | AccountColumns)
_POWERS: Final = {digits: 10**digits for digits in range(7)}


class Dialect(Protocol):
    """The SQL expressions of a database; columns are given by their names."""

    place: Mapping[str, str] = {}
    """The columns that identify a row in an error; its id and its key if there are none."""

    def quoted(self, name: str) -> str:
        """A name."""
        return '"' + name.replace('"', '""') + '"'

    def relation(self, table: str) -> str:
        """A table, perhaps with its schema."""
        return ".".join(map(self.quoted, table.split(".")))

    def literal(self, text: str) -> str:
        """A text."""
        return "'" + text.replace("'", "''") + "'"

    def text(self, column: str) -> str:
        """A column as text."""

    def code(self, text: str) -> str:
        """A condition: the text is three capital letters."""

    def minor(self, column: str, scale: str) -> str:
        """A column as whole minor units; ``scale`` is the number of them in a major unit."""

    def moment(self, column: str, held: str, zone: str) -> str:
        """A column as milliseconds; ``held`` is a value of ``EntryColumns.time``."""


class RowFault(NamedTuple):
    """A reason why a row cannot be read."""

    column: str
    """The bank's column."""
    expected: str
    condition: str
    """An SQL condition that is true for such rows, and never NULL."""
    known: Collection[str] = ()
    """The valid values, if they are few."""


def column_names(columns: EntryColumns | AccountColumns) -> frozenset[str]:
    """The names of a bank's columns that are read."""
    sources = ("id", "key", "account", "amount", "balance", "opening", "booked", "recorded", "kind")
    names = {getattr(columns, source, "") for source in (*sources, "currency")}
    namespace = getattr(columns, "namespace", "")
    names.add(namespace.column if isinstance(namespace, Namespaces) else "")
    return frozenset(name for name in names if isinstance(name, str) and name)


def roles_of(entries: EntryColumns) -> dict[str, str]:
    """The roles of a bank's own accounts; all other accounts belong to customers."""
    return {
        account: role
        for role in ("capital", "suspense", "clearing")
        for account in getattr(entries, role)
    }


class _Statements(ABC, Generic[_Columns]):
    """The SQL that both of a bank's tables need.

    Args:
        columns: The table's columns.
        units: The units of amounts and balances.
        money: The known currencies; if empty, any currency is accepted.
        dialect: The database's dialect.
    """

    def __init__(
        self, columns: _Columns, units: str, money: Mapping[str, Money], dialect: Dialect
    ) -> None:
        self._columns = columns
        self._units = units
        self._money = money
        names = ("id", "key") if isinstance(columns, EntryColumns) else ("account",)
        named = {name: getattr(columns, name) for name in names}
        self.place = dialect.place or {name: named[name] for name in named if named[name]}
        """The columns that identify a row, by the names that messages use."""
        self.dialect = dialect

    def currency(self) -> str:
        """The currency; NULL if it is unknown."""
        given = self._columns.currency
        if isinstance(given, Constant):
            return self.dialect.literal(given.value)
        text = self.dialect.text(given)
        if not self._money:
            return f"CASE WHEN {self.dialect.code(text)} THEN {text} END"
        known = ", ".join(self.dialect.literal(currency) for currency in sorted(self._money))
        return f"CASE WHEN {text} IN ({known}) THEN {text} END"

    def _minor(self, column: str) -> str:
        return self.dialect.minor(column, self._scale())

    def _scale(self) -> str:
        """The number of minor units in a major one."""
        given = self._columns.currency
        if self._units == "minor":
            return "1"
        if isinstance(given, Constant):
            return str(_POWERS[self._money.get(given.value, Money()).digits])
        powers = {
            currency: _POWERS[money.digits] for currency, money in sorted(self._money.items())
        }
        if len(set(powers.values())) <= 1:
            return str(next(iter(powers.values()), _POWERS[Money().digits]))
        text = self.dialect.text(given)
        whens = (
            f"WHEN {self.dialect.literal(currency)} THEN {powers[currency]}" for currency in powers
        )
        return f"(CASE {text} {' '.join(whens)} END)"

    def _from(self, *conditions: str) -> str:
        given = [f"({self._columns.where})"] if self._columns.where else []
        all_ = " AND ".join([*given, *(condition for condition in conditions if condition)])
        found = f"FROM {self.dialect.relation(self._columns.table)}"
        return f"{found} WHERE {all_}" if all_ else found

    @abstractmethod
    def faults(self) -> list[RowFault]:
        """The reasons why a row cannot be read. An unknown currency comes first: its amounts have
        no unit.
        """

    def unreadable_count(self) -> str:
        """A query for the number of rows that cannot be read."""
        return f"SELECT count(*) {self._from(self._is_unreadable())}"

    def unreadable(self, most: int) -> str:
        """A query for the first rows that cannot be read, up to a number.

        A row has the index of its first fault, the invalid value, and the values of ``place``; all
        but the index as text.
        """
        faults, text = self.faults(), self.dialect.text
        index = " ".join(f"WHEN {fault.condition} THEN {at}" for at, fault in enumerate(faults))
        values = " ".join(f"WHEN {fault.condition} THEN {text(fault.column)}" for fault in faults)
        places = map(text, self.place.values())
        chosen = ", ".join([f"CASE {index} END", f"CASE {values} END", *places])
        order = ", ".join(map(self.dialect.quoted, self.place.values()))
        return f"SELECT {chosen} {self._from(self._is_unreadable())} ORDER BY {order} LIMIT {most}"

    def _is_unreadable(self) -> str:
        return f"({' OR '.join(f'({fault.condition})' for fault in self.faults())})"

    def _is_readable(self) -> str:
        return f"NOT {self._is_unreadable()}"

    def _fault(
        self, column: str, expression: str, expected: str, *, optional: bool = False
    ) -> RowFault:
        when = f"{expression} IS NULL"
        if optional:
            when += f" AND {self.dialect.text(column)} IS NOT NULL"
        return RowFault(column, expected, when)

    def _currency_faults(self) -> list[RowFault]:
        given = self._columns.currency
        if isinstance(given, Constant):
            return []
        known = (
            f"not one of {', '.join(sorted(self._money))}" if self._money else "not a currency code"
        )
        return [self._fault(given, self.currency(), known)._replace(known=sorted(self._money))]


class EntryStatements(_Statements[EntryColumns]):
    """The statements for a bank's journal.

    Args:
        bank: The bank.
        money: The known currencies; if empty, any currency is accepted.
        window: The day.
        dialect: The database's dialect.
    """

    def __init__(
        self, bank: Bank, money: Mapping[str, Money], window: DayWindow, dialect: Dialect
    ) -> None:
        super().__init__(bank.entries, bank.entries.units, money, dialect)
        self._zone = bank.zone
        self._window = window

    def rows(self, slice_: str = "") -> str:
        """The day's entries; the columns are those of ``ENTRIES``.

        Args:
            slice_: A condition on the rows; all rows if left out.
        """
        booked = self._moment(self._columns.booked)
        recorded = self._columns.recorded
        values = {
            "id": self._id(),
            "key": self._key(),
            "kind": self._kind(),
            "role": self._role(),
            "account": self.dialect.text(self._columns.account),
            "amount": self._amount(),
            "currency": self.currency(),
            "booked_ms": booked,
            "recorded_ms": self._moment(recorded) if recorded else booked,
        }
        chosen = ", ".join(f"{values[name]} AS {name}" for name in ENTRIES.names)
        by = self._decisive_moment()
        start_ms, end_ms = self._window
        within = f"{by} >= {start_ms} AND {by} < {end_ms}"
        return f"SELECT {chosen} {self._from(slice_, within, self._is_readable())}"

    def sums(self) -> str:
        """The sum of every account before the day and after it, and the rows that cannot be read:
        all in one pass over the table.

        A row has 0, the period (0 before, 1 after, 2 of rows that cannot be read), account, role,
        currency, the sums of the lower and the upper halves of the amounts, number of entries,
        and 0. Rows that begin with 1 are
        the sums of these by period and currency; they end with the number of accounts.
        """
        by, (low, high) = self._decisive_moment(), halves("amount")
        start_ms, end_ms = self._window
        unreadable = self._is_unreadable()
        period = f"CASE WHEN {unreadable} THEN 2 WHEN {by} < {start_ms} THEN 0 ELSE 1 END"
        return (
            f"WITH lines AS (SELECT {period} AS period, "
            f"{self.dialect.text(self._columns.account)} AS account, "
            f"{self._role()} AS role, {self.currency()} AS currency, {self._amount()} AS amount "
            f"{self._from(f'({unreadable} OR {by} < {start_ms} OR {by} >= {end_ms})')}), "
            "found AS (SELECT period, account, role, currency, "
            f"{low} AS low, {high} AS high, count(*) AS lines "
            "FROM lines GROUP BY period, account, role, currency) "
            "SELECT 0 AS is_sum, period, account, role, currency, low, high, lines, 0 AS accounts "
            "FROM found UNION ALL SELECT 1, period, NULL, NULL, currency, "
            "CAST(sum(low) AS BIGINT), CAST(sum(high) AS BIGINT), CAST(sum(lines) AS BIGINT), "
            "count(*) FROM found GROUP BY period, currency"
        )

    def faults(self) -> list[RowFault]:
        """The reasons why an entry cannot be read."""
        entries, namespace = self._columns, self._columns.namespace
        found = [
            *self._currency_faults(),
            # The least number has no opposite of 64 bits.
            self._fault(
                entries.amount,
                f"NULLIF({self._minor(entries.amount)}, CAST('{-LIMIT}' AS BIGINT))",
                "not whole minor units",
            ),
            self._fault(entries.account, self.dialect.text(entries.account), "not an account"),
        ]
        moments = dict.fromkeys((entries.booked, entries.recorded or entries.booked))
        found += [self._fault(moment, self._moment(moment), "not a moment") for moment in moments]
        if isinstance(namespace, Namespaces):
            known = ", ".join(map(repr, sorted(namespace.names)))
            why = f"{namespace.column or 'its beginning'} is not one of {known}"
            unknown = f"{self._has_key()} AND {self._key()} IS NULL"
            found.append(RowFault(entries.key, why, unknown, tuple(namespace.names)))
        if entries.id:
            found.append(self._fault(entries.id, self._id(), "not a whole number", optional=True))
        if entries.amounts == "unsigned" and isinstance(entries.kind, str):
            # Only the kind says in which direction the money went.
            text = self.dialect.text(entries.kind)
            found.append(self._fault(entries.kind, text, "not a kind"))
        return found

    def _decisive_moment(self) -> str:
        return self._moment(self._columns.recorded or self._columns.booked)

    def _id(self) -> str:
        id_ = self._columns.id
        return self.dialect.minor(id_, "1") if id_ else "CAST(NULL AS BIGINT)"

    def _key(self) -> str:
        namespace, text = self._columns.namespace, self.dialect.text(self._columns.key)
        literal = self.dialect.literal
        if isinstance(namespace, str):
            return f"CASE WHEN {self._has_key()} THEN {literal(f'{namespace}/')} || {text} END"
        decisive = self.dialect.text(namespace.column) if namespace.column else ""
        whens = (
            f"WHEN {decisive or f'substr({text}, 1, {len(word)})'} = {literal(word)} "
            f"THEN {literal(f'{name}/')}"
            for word, name in sorted(namespace.names.items(), key=lambda pair: -len(pair[0]))
        )
        return f"CASE WHEN {self._has_key()} THEN CASE {' '.join(whens)} END || {text} END"

    def _has_key(self) -> str:
        """A condition, never NULL. A blank is no id: all rows with one would be one transfer."""
        text = self.dialect.text(self._columns.key)
        return f"({text} IS NOT NULL AND trim({text}) <> '')"

    def _kind(self) -> str:
        given = self._columns.kind
        kinds = {word: kind for kind, words in self._columns.kinds.items() for word in words}
        if isinstance(given, Constant):
            return self.dialect.literal(kinds.get(given.value, "other"))
        return self._case(given, kinds, "other")

    def _role(self) -> str:
        return self._case(self._columns.account, roles_of(self._columns), "customer")

    def _case(self, column: str, words: Mapping[str, str], otherwise: str) -> str:
        text, literal = self.dialect.text(column), self.dialect.literal
        whens = [f"WHEN {literal(value)} THEN {literal(word)}" for value, word in words.items()]
        if not whens:
            return literal(otherwise)
        return f"CASE {text} {' '.join(whens)} ELSE {literal(otherwise)} END"

    def _amount(self) -> str:
        amount = self._minor(self._columns.amount)
        if self._columns.amounts == "signed":
            return amount
        return f"CASE WHEN {self._kind()} IN ('debit', 'recall') THEN -({amount}) ELSE {amount} END"

    def _moment(self, column: str) -> str:
        return self.dialect.moment(column, self._columns.time, self._zone)


class AccountStatements(_Statements[AccountColumns]):
    """The statements for a bank's table of accounts."""

    def rows(self) -> str:
        """All accounts; the columns are those of ``ACCOUNTS``."""
        return (
            f"SELECT {self.dialect.text(self._columns.account)} AS account, "
            f"{self.currency()} AS currency, {self._minor(self._columns.balance)} AS balance "
            f"{self._from(self._is_readable())}"
        )

    def ends(self) -> str:
        """All accounts with their balances at the beginning and the end of the day."""
        opening = self._columns.opening
        begun = self._minor(opening) if opening else "NULL"
        account, ended = self.dialect.text(self._columns.account), self._columns.balance
        chosen = f"{account}, {self.currency()}, {begun}, {self._minor(ended)}"
        return f"SELECT {chosen} {self._from(self._is_readable())}"

    def faults(self) -> list[RowFault]:
        """The reasons why an account cannot be read."""
        accounts, amount = self._columns, "not whole minor units"
        found = [
            *self._currency_faults(),
            self._fault(accounts.balance, self._minor(accounts.balance), amount),
            self._fault(accounts.account, self.dialect.text(accounts.account), "not an account"),
        ]
        if accounts.opening:
            minor = self._minor(accounts.opening)
            found.append(self._fault(accounts.opening, minor, amount, optional=True))
        return found


def halves(number: str) -> tuple[str, str]:
    """The sums of the lower and of the upper halves of a number, which fit into 64 bits."""
    sums = f"sum({number} & {LOWER_HALF})", f"sum({number} >> 32)"
    return f"CAST({sums[0]} AS BIGINT)", f"CAST({sums[1]} AS BIGINT)"


def control_query(rows: str, table: TableSchema) -> str:
    """A query for the control totals of a table at its source; for :func:`control_from_answer`.

    Args:
        rows: The statement that reads the table.
        table: The table.
    """
    ends = "min(id), max(id)" if has_number(table) else "NULL, NULL"
    sums = (half for column in number_columns(table) for half in halves(column))
    return (
        f"SELECT currency, count(*), {ends}, {', '.join(sums)} FROM ({rows}) AS found "
        "GROUP BY currency"
    )
