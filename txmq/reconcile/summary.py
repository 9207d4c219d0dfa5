"""The summary of a run, small enough for a page: written as JSON, HTML and metrics; pure.

Nothing in :class:`Result` depends on the time or place of the computation, so the same day with
the same rules has the same hash. :class:`Run` has the fields that do depend on them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import date
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from txmq.reconcile.classes import Class
from txmq.text import quantity

BUCKETS: Final = ("0", "1", "2-3", "4-7", ">7")
"""Ages in business days."""

Verdict: TypeAlias = Literal["clean", "within limits", "over limits"]
SignatureState: TypeAlias = Literal["unsigned", "prepared", "signed", "invalidated"]


def digest_of(value: object) -> str:
    """A hash of a value as JSON, with sorted names."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


class Control(Struct, frozen=True):
    """The control totals of a table. Any loss, copy or change on the way changes one of them."""

    source: str
    """A bank's name, or ``log``."""
    table: str
    rows: int
    amounts: dict[str, int] = {}
    """Sums by currency."""
    hash_total: int = 0
    """A sum of all numbers modulo 2^63; it only detects changes."""
    least: int | None = None
    most: int | None = None
    """The least and the greatest id."""

    def difference(self, now: Control) -> str | None:
        """The first total that differs from one computed later, in words; ``None`` if all agree."""
        where = f"{self.source}/{self.table}"
        if self.rows != now.rows:
            extracted = quantity(self.rows, "row was", "rows were")
            return f"{where}: {extracted} extracted and {quantity(now.rows, 'is', 'are')} there"
        for currency in sorted(self.amounts.keys() | now.amounts.keys()):
            one, other = self.amounts.get(currency), now.amounts.get(currency)
            money = currency or "no currency"
            if one is None or other is None:
                was_it, is_it = ("not ", "") if one is None else ("", "not ")
                return f"{where}: {money} was {was_it}extracted and is {is_it}there"
            if one != other:
                return f"{where}: the sum of {money} was {one} when it was extracted and is {other}"
        ends = ("the least id", self.least, now.least), ("the greatest id", self.most, now.most)
        for name, then, since in (*ends, ("the hash total", self.hash_total, now.hash_total)):
            if then != since:
                return f"{where}: {name} was {then} when it was extracted and is {since}"
        return None


class Total(Struct, frozen=True):
    """A row of the table of totals."""

    class_: str = msgspec.field(name="class")
    group: str
    currency: str
    transfers: int
    debited: int
    returned: int
    credited: int
    ordered: int
    at_risk: int


def sum_totals(totals: Iterable[Total]) -> tuple[Total, ...]:
    """The sums of these rows, as one row for each currency."""
    found: dict[str, Total] = {}
    for total in totals:
        sum_ = found.get(total.currency, Total("all", "", total.currency, 0, 0, 0, 0, 0, 0))
        names = Total.__struct_fields__[3:]
        more = {name: getattr(sum_, name) + getattr(total, name) for name in names}
        found[total.currency] = msgspec.structs.replace(sum_, **more)
    return tuple(found[currency] for currency in sorted(found))


def place_of_proof(proof: str, currency: str | None) -> str:
    """The place on the page of a proof that does not hold, in one currency."""
    return f"proof-{proof}-{currency or 'rows'}"


class Proof(Struct, frozen=True):
    """A row of the table of proofs."""

    proof: str
    bank: str | None
    account: str | None
    currency: str | None
    expected: int
    found: int
    holds: bool
    about: str
    first_seen: str | None = None
    """The business date that a difference comes from; ``None`` for a proof as a whole."""
    is_open: bool = False
    """True if a part of the difference is explained by neither items nor a person."""
    by_items: int = 0
    """The part of the difference that items explain."""
    by_person: int = 0
    """The part that a person explains."""
    explained_by: str | None = None
    explanation: str | None = None
    until: str | None = None
    """The last business date on which this explanation counts, if it has one."""

    @property
    def place(self) -> str:
        """The place on the page of all rows of this proof in one currency."""
        return place_of_proof(self.proof, self.currency)

    @property
    def difference(self) -> int:
        """Found less expected."""
        return self.found - self.expected

    @property
    def rest(self) -> int:
        """The part of the difference that nothing explains."""
        return self.difference - self.by_items - self.by_person


class Aged(Struct, frozen=True):
    """A cell of the aging matrix."""

    class_: str = msgspec.field(name="class")
    bucket: str
    currency: str
    transfers: int
    at_risk: int


FIGURES: Final = (
    *("amount", "currency", "debit_bank", "credit_bank", "payer", "payee"),
    *("debits", "debited", "returns", "returned", "credits", "credited", "messages", "ordered"),
    "last_ms",
)
"""The columns of ``ITEMS`` that events change. Time alone changes none of them; each further row or
decision changes at least ``last_ms``."""


_ADDED: Final = {"why_at", "carried", "first_seen"}


class Result(Struct, frozen=True):
    """The result of a day."""

    name: str
    business_date: str
    rules_version: str
    rules_digest: str
    start_ms: int
    end_ms: int
    as_of_ms: int
    """The end of the day, or the time of reading if that was earlier."""
    is_final: bool
    """True if the day was over when the books were read."""
    verdict: Verdict
    why: tuple[str, ...]
    """The reasons for the verdict, in sentences."""
    controls: tuple[Control, ...]
    totals: tuple[Total, ...]
    aging: tuple[Aged, ...]
    proofs: tuple[Proof, ...]
    """One row for each proof, bank and currency, and one for each difference, up to
    ``limits.evidence``. If a proof of sums alone fails, it has only a row of the second kind."""
    broken_proofs: int
    """The number of proofs that do not hold and are not explained, shown or not."""
    items: tuple[dict[str, Any], ...]
    """A sample of each class that is not agreed: columns of ``ITEMS``, with masked accounts."""
    closed: int
    """The number of items of earlier days that were agreed on this one."""
    decisions: tuple[dict[str, Any], ...]
    """The operators' decisions of the day, the latest first, up to ``limits.evidence``; most of
    their transfers are agreed now. Columns of ``MESSAGES``, with masked accounts."""
    decided_by_hand: int
    """The number of these decisions, shown or not."""
    digits: dict[str, int]
    """The digits after the point, by currency."""
    contents: dict[str, str]
    """A hash of each table's rows, in any order."""
    oldest_days: int = 0
    """The age of the oldest break in business days; 0 without breaks."""
    zone: str = "UTC"
    """The zone of the rules, in which reports show moments."""
    why_at: tuple[str, ...] = ()
    """The place on the page that shows each reason: ``break-…``, ``proof-…`` or ``evidence``."""
    carried: int = 0
    """The number of items of earlier days that are still open, explained or not."""

    @property
    def digest(self) -> str:
        """The result's hash, which people sign.

        Fields that txmq 0.1.0 did not have count only if they are set, so its results keep their
        hashes.
        """
        plain = msgspec.to_builtins(self)
        for part in (plain, *plain["proofs"]):
            for name in _ADDED & part.keys():
                if not part[name]:
                    del part[name]
        return digest_of(plain)

    @property
    def transfers(self) -> int:
        """The number of all transfers, including the items of earlier days."""
        return sum(total.transfers for total in self.totals)

    @property
    def own_transfers(self) -> int:
        """The number of transfers that are not items of earlier days."""
        return self.transfers - self.carried - self.closed

    @property
    def match_rate(self) -> float:
        """The share of the day's own transfers that are agreed; 1 without such transfers."""
        own = self.own_transfers
        return (self._count("agreed") - self.closed) / own if own else 1.0

    @property
    def at_risk(self) -> dict[str, int]:
        """The value at risk in breaks, by currency."""
        found = sum_totals(total for total in self.totals if total.group == "break")
        return {total.currency: total.at_risk for total in found}

    @property
    def in_flight(self) -> dict[str, Any]:
        """The number of transfers in flight, and their amounts by currency."""
        totals = [total for total in self.totals if total.class_ == Class.IN_FLIGHT]
        amounts = {total.currency: total.at_risk for total in totals}
        return {"transfers": sum(total.transfers for total in totals), "amounts": amounts}

    @property
    def currencies(self) -> tuple[str, ...]:
        """The currencies of the result."""
        return tuple(sorted({total.currency for total in self.totals} | self.digits.keys()))

    @property
    def breaks(self) -> int:
        """The number of breaks."""
        return self._count("break")

    @property
    def open(self) -> int:
        """The number of transfers that are in flight or explained."""
        return self._count("open")

    def places(self, currency: str | None) -> int:
        """The digits after the point; 0 without a currency, since that is a count."""
        return 0 if currency is None else self.digits.get(currency, 2)

    @property
    def unsolved(self) -> str:
        """The breaks and failed proofs that are left, in words; empty if there are none."""
        counts = (self.breaks, "break"), (self.broken_proofs, "failed proof")
        return " and ".join(quantity(count, noun) for count, noun in counts if count)

    @property
    def past(self) -> Past:
        """The result as a day of a trend."""
        same = {name: getattr(self, name) for name in Past.__struct_fields__}
        return Past(**same | {"transfers": self.own_transfers})

    def _count(self, group: str) -> int:
        return sum(total.transfers for total in self.totals if total.group == group)


class Past(Struct, frozen=True):
    """An earlier day, for the trend."""

    business_date: str
    transfers: int
    """The number of its own transfers, without items of earlier days."""
    match_rate: float
    breaks: int
    open: int
    at_risk: dict[str, int]
    verdict: Verdict


class Stage(Struct):
    """A part of a run, and the time it took; 0 while it lasts."""

    name: str
    seconds: float = 0.0
    rows: int = 0


class SignOff(Struct, frozen=True):
    """The signatures of two people on a result."""

    result_digest: str
    preparer: str
    prepared_ms: int
    prepared_note: str = ""
    prepared_despite: str = ""
    reviewer: str = ""
    reviewed_ms: int = 0
    reviewed_note: str = ""
    reviewed_despite: str = ""

    @property
    def is_complete(self) -> bool:
        """True if both people have signed."""
        return bool(self.reviewer)


class Run(Struct, frozen=True):
    """A run: its inputs, its result, and the time it took."""

    run_id: str
    """Equal for equal dates, rules and inputs."""
    extract_id: str
    result: Result
    result_digest: str
    trend: tuple[Past, ...]
    """Earlier days, oldest first; not part of the result."""
    stages: tuple[Stage, ...]
    began_ms: int
    ended_ms: int
    txmq_version: str
    spark_version: str
    previous_run_id: str | None = None
    previous_digest: str | None = None
    """The digest of the result of the day before, which this run continues."""
    sign_off: SignOff | None = None
    """The signatures of the result; if it has none, the latest of another result of the day."""
    notes: tuple[str, ...] = ()
    """What the ledgers cannot tell, such as who decided a transaction on a foreign cluster."""

    @property
    def day(self) -> date:
        """The business date."""
        return date.fromisoformat(self.result.business_date)

    @property
    def days(self) -> tuple[Past, ...]:
        """The earlier days and this one, oldest first."""
        return (*self.trend, self.result.past)

    @property
    def signature(self) -> SignatureState:
        """The state of the signatures, regardless of other days."""
        if self.sign_off is None:
            return "unsigned"
        if self.sign_off.result_digest != self.result_digest:
            return "invalidated"
        return "signed" if self.sign_off.is_complete else "prepared"

    def as_json(self) -> bytes:
        """This run as JSON, for programs: the same bytes for the same run, with sorted names.

        The object has the fields of this class, and one more::

            figures
                match_rate      the share of the day's own transfers that are agreed, from 0
                                to 1; 1 without such transfers
                own_transfers   their number
                transfers       the number with items of earlier days
                breaks          the number of breaks
                open            the number in flight or explained
                at_risk         the amounts of breaks: {"CNY": 120000}
                in_flight       {"transfers": 3, "amounts": {"CNY": 4500}}
                signature       unsigned, prepared, signed or invalidated

        Every amount is a whole number of minor units; ``result.digits`` has the digits after the
        point. Hash totals have up to 19 digits: read them with a parser that keeps whole numbers,
        such as Python's, but not JavaScript's. Moments end in ``_ms`` and are milliseconds since
        1970 in UTC.
        """
        names = (
            *("match_rate", "own_transfers", "transfers", "breaks", "open", "at_risk"),
            "in_flight",
        )
        figures = {name: getattr(self.result, name) for name in names}
        more = {"figures": figures | {"signature": self.signature}}
        text = msgspec.json.encode(msgspec.to_builtins(self) | more, order="sorted")
        return msgspec.json.format(text, indent=1) + b"\n"
