"""The SQL that reads a bank, made from its rules; pure. Each dialect has its own expressions.

An expression gives the extract's column, or NULL if the bank's value is invalid. A row with an
invalid value is left out of all rows and sums, and listed for the quarantine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias

from txmq.reconcile.rules import AccountColumns, Bank, Constant, DayWindow, EntryColumns, Money
from txmq.reconcile.tables import ACCOUNTS, ENTRIES, LIMIT, LOWER_HALF

__all__ = ["AccountStatements", "Dialect", "EntryStatements", "Statements", "TableColumns"]

TableColumns: TypeAlias = EntryColumns | AccountColumns

_TIME_SCALES: Final = {"milliseconds": "1", "seconds": "1000"}
"""The milliseconds in each unit, for moments that are numbers."""
_IN_MINOR: Final = "not a whole number of minor units"


class Dialect(Protocol):
    """The SQL expressions of a database; columns are given by their names."""

    types: Mapping[str, str]
    """The database's types of columns, if it has any."""
    place: Mapping[str, str] = {}
    """The columns that identify a row in an error; if empty, its id and its key do."""
    damage: str = ""
    """The column with the reason why a row is damaged; empty if rows cannot be damaged."""

    def __init__(self, types: Mapping[str, str] | None = None) -> None:
        self.types = types or {}

    def quoted(self, name: str) -> str:
        """A name in quotes."""
        return '"' + name.replace('"', '""') + '"'

    def relation(self, table: str) -> str:
        """A table, perhaps with its schema."""
        return ".".join(map(self.quoted, table.split(".")))

    def literal(self, text: str) -> str:
        """A text as a literal."""
        return "'" + text.replace("'", "''") + "'"

    def whole(self, number: str, most: int = LIMIT - 1) -> str:
        """A 64-bit number; NULL if it is not whole, or exceeds ``most``."""
        return (
            f"(CASE WHEN {number} = floor({number}) AND abs({number}) <= {most} "
            f"THEN CAST({number} AS BIGINT) END)"
        )

    def text(self, column: str) -> str:
        """A column as text."""

    def code(self, text: str) -> str:
        """A condition that a text is three capital letters."""

    def scaled(self, column: str, scale: str, *, floored: bool = False) -> str:
        """A column times a number, rounded down if ``floored``; else NULL if it is not whole."""

    def moment(self, column: str, held: str, zone: str) -> str:
        """A moment in milliseconds; ``held`` is ``timestamp`` or ``timestamptz``."""


class RowFault(NamedTuple):
    """A reason why a row cannot be read."""

    column: str
    expected: str
    """What is wrong with the column's value; empty if the value is itself the reason."""
    condition: str
    """An SQL condition that is true for such rows, and never NULL."""
    known: Collection[str] = ()
    """The valid values, if they are few."""


class Statements:
    """The statements for one of a bank's tables.

    If ``money`` has no currencies, any currency is accepted.
    """

    def __init__(
        self, columns: TableColumns, units: str, money: Mapping[str, Money], dialect: Dialect
    ) -> None:
        if isinstance(columns, EntryColumns):
            self.table, amount = ENTRIES, columns.amount
            place = {"id": columns.id, "key": columns.key}
        else:
            self.table, amount = ACCOUNTS, columns.balance
            place = {"account": columns.account}
        self.dialect = dialect
        self.place = dialect.place or {name: column for name, column in place.items() if column}
        """The columns that identify a row, by the names that messages use."""
        self._columns = columns
        self._scale = self._scale_of(columns.currency, units, money)
        account, currency = dialect.text(columns.account), self._currency(columns, money)
        self.values = {"account": account, "currency": currency}
        """The expression of each column of the extract."""
        self.faults: list[RowFault] = []
        """The reasons why a row cannot be read."""
        if dialect.damage:
            damage = dialect.quoted(dialect.damage)
            self.faults.append(RowFault(dialect.damage, "", f"{damage} IS NOT NULL"))
        if isinstance(columns.currency, str):
            # This fault comes first: the amounts of an unknown currency have no unit.
            known = sorted(money)
            expected = f"not one of {', '.join(known)}" if known else "not a currency code"
            self._require(columns.currency, currency, expected, known)
        # The least 64-bit number cannot be negated.
        minor = f"NULLIF({self._minor(amount)}, CAST('{-LIMIT}' AS BIGINT))"
        self._require(amount, minor, _IN_MINOR)
        self._require(columns.account, account, "not an account")

    @staticmethod
    def halves(number: str) -> tuple[str, str]:
        """The sums of the lower and of the upper halves of a number, which fit into 64 bits."""
        low, high = f"sum({number} & {LOWER_HALF})", f"sum({number} >> 32)"
        return f"CAST({low} AS BIGINT)", f"CAST({high} AS BIGINT)"

    def select(self, names: Iterable[str], *conditions: str) -> str:
        """A query for some values of the rows that can be read."""
        return f"SELECT {self._named(names)} {self._from(*conditions, f'NOT {self._unreadable}')}"

    def rows(self, condition: str = "") -> str:
        """A query for the rows that can be read; its columns are those of the extract."""
        return self.select(self.table.names, condition)

    def unreadable(self, most: int) -> str:
        """A query for the first rows that cannot be read, up to ``most``.

        Each has the number of all such rows, the index of its first fault, the invalid value, and
        the values of ``place``; the last two as text.
        """
        text, found = self.dialect.text, self._from(self._unreadable)
        index = value = "CASE"
        for at, fault in enumerate(self.faults):
            index += f" WHEN {fault.condition} THEN {at}"
            value += f" WHEN {fault.condition} THEN {text(fault.column)}"
        places = map(text, self.place.values())
        chosen = ", ".join([f"(SELECT count(*) {found}), {index} END, {value} END", *places])
        order = ", ".join(map(self.dialect.quoted, self.place.values()))
        return f"SELECT {chosen} {found} ORDER BY {order} LIMIT {most}"

    @property
    def _unreadable(self) -> str:
        return f"({' OR '.join(f'({fault.condition})' for fault in self.faults)})"

    def _named(self, names: Iterable[str]) -> str:
        return ", ".join(f"{self.values[name]} AS {name}" for name in names)

    def _from(self, *conditions: str) -> str:
        given = f"({self._columns.where})" if self._columns.where else ""
        if given and (damage := self.dialect.damage):
            # A damaged row has no values that the condition could test.
            given = f"({given} OR {self.dialect.quoted(damage)} IS NOT NULL)"
        all_ = " AND ".join(filter(None, [given, *conditions]))
        return f"FROM {self.dialect.relation(self._columns.table)} WHERE {all_}"

    def _minor(self, column: str) -> str:
        return self.dialect.scaled(column, self._scale)

    def _require(self, column: str, found: str, expected: str, known: Collection[str] = ()) -> None:
        """Make NULL or an invalid value a fault."""
        self.faults.append(RowFault(column, expected, f"{found} IS NULL", known))

    def _check(self, column: str, found: str, expected: str) -> None:
        """Make an invalid value a fault, but not NULL."""
        condition = f"{found} IS NULL AND {self.dialect.text(column)} IS NOT NULL"
        self.faults.append(RowFault(column, expected, condition))

    def _currency(self, columns: TableColumns, money: Mapping[str, Money]) -> str:
        """The currency; NULL if it is unknown."""
        if isinstance(columns.currency, Constant):
            return self.dialect.literal(columns.currency.value)
        text = self.dialect.text(columns.currency)
        known = ", ".join(map(self.dialect.literal, sorted(money)))
        is_known = f"{text} IN ({known})" if known else self.dialect.code(text)
        return f"CASE WHEN {is_known} THEN {text} END"

    def _scale_of(self, currency: str | Constant, units: str, money: Mapping[str, Money]) -> str:
        """The number of minor units in a major one."""
        if units == "minor":
            return "1"
        powers = {name: str(10**one.digits) for name, one in sorted(money.items())}
        return self._case(currency, powers, str(10 ** Money().digits))

    def _case(self, column: str | Constant, results: Mapping[str, str], otherwise: str) -> str:
        """The expression that belongs to a column's value."""
        if isinstance(column, Constant):
            return results.get(column.value, otherwise)
        if not results:
            return otherwise
        literal = self.dialect.literal
        whens = " ".join(f"WHEN {literal(word)} THEN {found}" for word, found in results.items())
        return f"(CASE {self.dialect.text(column)} {whens} ELSE {otherwise} END)"


class EntryStatements(Statements):
    """The statements for a bank's journal."""

    def __init__(
        self, bank: Bank, money: Mapping[str, Money], window: DayWindow, dialect: Dialect
    ) -> None:
        entries, text, literal = bank.entries, dialect.text, dialect.literal
        super().__init__(entries, entries.units, money, dialect)
        self._window = window
        recorded = booked = self._moment(entries.booked, bank)
        if entries.recorded:
            recorded = self._moment(entries.recorded, bank)
        # A blank is not an id: all rows with a blank would be one transfer.
        has_key = f"coalesce(trim({text(entries.key)}), '') <> ''"
        key = f"CASE WHEN {has_key} THEN {self._issuer(entries)} || {text(entries.key)} END"
        if not isinstance(namespace := entries.namespace, str):
            known = ", ".join(map(repr, sorted(namespace.names)))
            why = f"{namespace.column or 'its beginning'} is not one of {known}"
            unknown = f"{has_key} AND {key} IS NULL"
            self.faults.append(RowFault(entries.key, why, unknown, tuple(namespace.names)))
        id_ = "CAST(NULL AS BIGINT)"
        if entries.id:
            id_ = dialect.scaled(entries.id, "1")
            self._check(entries.id, id_, "not a whole number")
        kinds = {word: literal(kind) for kind, words in entries.kinds.items() for word in words}
        kind, amount = self._case(entries.kind, kinds, "'other'"), self._minor(entries.amount)
        if entries.amounts == "unsigned":
            # Only the kind says in which direction the money went.
            if isinstance(entries.kind, str):
                self._require(entries.kind, text(entries.kind), "not a kind")
            is_paid = f"{kind} IN ('debit', 'recall')"
            amount = f"CASE WHEN {is_paid} THEN -({amount}) ELSE {amount} END"
        roles = {account: literal(role) for account, role in entries.roles.items()}
        role = self._case(entries.account, roles, "'customer'")
        if bank.files is not None and bank.files.is_dated:
            # Later rows are a fault: they count on a date whose file does not have them. Earlier
            # ones count on the date of the file. SQLite reads files: its max of two values is the
            # greater one, or NULL.
            expected = "after the end of the file's date: compare day.cut_off and day.zone"
            is_later = f"coalesce({recorded} >= {window.end_ms}, FALSE)"
            self.faults.append(RowFault(entries.recorded or entries.booked, expected, is_later))
            recorded = f"max({recorded}, {window.start_ms})"
        self.values |= {"id": id_, "key": key, "kind": kind, "role": role, "amount": amount}
        self.values |= {"booked_ms": booked, "recorded_ms": recorded}

    def rows(self, condition: str = "") -> str:
        """A query for the day's entries."""
        by, window = self.values["recorded_ms"], self._window
        within = f"{by} >= {window.start_ms} AND {by} < {window.end_ms}"
        return self.select(self.table.names, condition, within)

    def sums(self) -> str:
        """A query for the sums of every account before the day and after it, and for the rows that
        cannot be read, in one pass over the table.

        A row has the period (0 before, 1 after, 2 for rows that cannot be read), account, role,
        currency, the sums of the lower and the upper halves of the amounts, and the number of
        entries.
        """
        by, (low, high) = self.values["recorded_ms"], self.halves("amount")
        is_before = f"{by} < {self._window.start_ms}"
        is_other = f"({self._unreadable} OR {is_before} OR {by} >= {self._window.end_ms})"
        period = f"CASE WHEN {self._unreadable} THEN 2 WHEN {is_before} THEN 0 ELSE 1 END"
        values = self._named(("account", "role", "currency", "amount"))
        return (
            f"WITH found AS (SELECT {period} AS period, {values} {self._from(is_other)}) "
            f"SELECT period, account, role, currency, {low} AS low, {high} AS high, "
            "count(*) AS lines FROM found GROUP BY period, account, role, currency"
        )

    def _moment(self, column: str, bank: Bank) -> str:
        """A column's moment in milliseconds."""
        held = bank.entries.time
        if (scale := _TIME_SCALES.get(held)) is None:
            found = self.dialect.moment(column, held, bank.zone)
        else:
            found = self.dialect.scaled(column, scale, floored=True)
        self._require(column, found, "not a moment")
        return found

    def _issuer(self, entries: EntryColumns) -> str:
        """The prefix of a key: the bank that issues it; NULL if the bank is unknown."""
        namespace, text, literal = entries.namespace, self.dialect.text, self.dialect.literal
        if isinstance(namespace, str):
            return literal(f"{namespace}/")
        results = {word: literal(f"{name}/") for word, name in namespace.names.items()}
        if namespace.column:
            return self._case(namespace.column, results, "NULL")
        whens = [
            f"WHEN substr({text(entries.key)}, 1, {len(word)}) = {literal(word)} THEN {found}"
            for word, found in sorted(results.items(), key=lambda pair: -len(pair[0]))
        ]
        return f"CASE {' '.join(whens)} END"


class AccountStatements(Statements):
    """The statements for a bank's table of accounts; its units are those of the journal."""

    def __init__(
        self, accounts: AccountColumns, units: str, money: Mapping[str, Money], dialect: Dialect
    ) -> None:
        super().__init__(accounts, units, money, dialect)
        self.values |= {"balance": self._minor(accounts.balance), "opening": "NULL"}
        if accounts.opening:
            self.values["opening"] = opening = self._minor(accounts.opening)
            self._check(accounts.opening, opening, _IN_MINOR)
