"""The first pass over a day: it separates plainly agreed transfers from all others.

On most days nearly all transfers are a debit, a message and a credit that agree; most of the
others were paid back, or rolled back before money moved. To see this, the rows of all three
ledgers become one narrow shape of numbers and meet at one place; no ledger is joined to another.
They meet by a hash of their key. Each row carries marks, which are hashes of its facts and of its
key by another seed: a debit and a return have a mark of the payer, a credit one of the payee, a
message both and one of its id. If the least mark of a kind equals the greatest, all rows agree on
the same transfer. A transfer with any deviation goes to the second pass, row by row and letter by
letter (:mod:`txmq.reconcile.second_pass`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.reconcile.classes import Class
from txmq.reconcile.columns import (
    Numbers,
    Truths,
    Words,
    hash_column,
    index_in,
    numbers,
    truths,
)
from txmq.reconcile.rules import Rules
from txmq.reconcile.tables import LOWER_HALF, Sums
from txmq.reconcile.transfer import VISIBLE

__all__ = ["PLAIN", "SUSPECT", "Others", "OthersFilter", "Sieve", "split_by_hash"]

SUSPECT: Final = 0
"""The code of a transfer that needs the second pass."""
PLAIN: Final = {Class.MATCHED: 1, Class.RETURNED: 2, Class.ROLLED_BACK: 3}
"""The codes of plainly agreed transfers, by class."""
_MATCHED: Final = PLAIN[Class.MATCHED]
_CLASSES: Final = {code: class_ for class_, code in PLAIN.items()}
_RECEIVED: Final = {_MATCHED: "credited", PLAIN[Class.RETURNED]: "returned"}
"""Where the money of a plain transfer went, by its code."""
_BITS: Final = 4
_MOST: Final = (1 << _BITS) - 1
"""The most rows of a transfer that a tag can count; all tags share one number. A transfer with
more rows is never plain.
"""
_DEBIT, _CREDIT, _RETURN, _MESSAGE, _VOID, _OTHER, _CLEARING = (
    1 << place * _BITS for place in range(7)
)
_CODE: Final = 32
"""Where an entry has the code of its sums, above the tag: two bits for a negative amount and for a
clearing row, then the place of its bank and kind among those with two sides."""
_NEGATIVE, _CLEARED, _SIDES = 1, 2, 2
_KINDS: Final = ("debit", "credit", "return")
_BOOKED: Final = 4
"""The numbers of an entry."""
_TOLD: Final = 6
"""The numbers of a message."""
_MARKS: Final = [3, 4, 5, 2]
"""Where a message has what must be equal in all rows of a plain transfer that have it; 0 if not."""
_UNKNOWN: Final = 1
"""The worth of a row without a readable amount or currency, or with an unknown currency."""
_KNOWN: Final = 2
"""Other worths begin here."""
_WORTH: Final = 61
"""The bits of a worth: few enough that no sum of ``_MOST`` amounts is zero by an overflow."""
_KEY_SEED: Final = 1 << 20
"""Keys that collide as hashes differ in every mark."""
_ALL: Final = np.uint64((1 << 64) - 1)
_FILTER_BITS_MAX: Final = 24


class Others(NamedTuple):
    """The transfers that are not matched."""

    hashes: Words
    """Sorted."""
    plain: Numbers
    """``SUSPECT``, or the code of a class in ``PLAIN``."""
    is_seen: Truths
    """True if a transfer was agreed on an earlier day."""

    def look_up(self, hashes: Words) -> tuple[Numbers, Truths]:
        """For each hash: its code, and whether it was seen."""
        if not len(self.hashes):
            return np.full(len(hashes), _MATCHED), np.zeros(len(hashes), np.bool_)
        is_here, places = _find_in(self.hashes, hashes)
        return np.where(is_here, self.plain[places], _MATCHED), is_here & self.is_seen[places]


class OthersFilter:
    """Tells which transfers may be among the others: all of these, and a few more."""

    def __init__(self, others: Sequence[Others]) -> None:
        count = sum(len(some.hashes) for some in others)
        bits = max(1, min(_FILTER_BITS_MAX, (16 * count).bit_length()))
        self._shift = np.uint64(64 - bits)
        self._filter = np.zeros(1 << bits, np.bool_)
        for some in others:
            self._filter[some.hashes >> self._shift] = True

    def may_have(self, hashes: Words) -> Truths:
        """True for each hash that may be among the others."""
        found: Truths = self._filter[hashes >> self._shift]
        return found


class Sieve(NamedTuple):
    """Makes rows narrow, and sifts them."""

    rules: Rules
    start_ms: int
    """The beginning of the day."""

    def entries(self, rows: pa.Table) -> Words:
        """The entries of transfers as narrow rows: hash, tag with code, mark, and worth."""
        has_sums = self.rules.both_sides or self.rules.proves_clearing
        if not has_sums:
            rows = rows.filter(pc.not_equal(rows["role"], "clearing"))
        kind, role = index_in(rows["kind"], _KINDS), rows["role"]
        amount, is_clearing = numbers(rows["amount"]), truths(pc.equal(role, "clearing"))
        is_theirs = truths(pc.equal(role, "customer")) & (
            numbers(rows["booked_ms"]) >= self.start_ms
        )
        # A debit must be negative and a credit positive, else the row is not plain.
        tags = np.where(is_clearing, _CLEARING, _OTHER)
        for place, tag in enumerate((_DEBIT, _CREDIT, _RETURN)):
            has_sign = amount < 0 if tag == _DEBIT else amount > 0
            is_of_kind = is_theirs & has_sign & (kind == place)
            tags[is_of_kind & self._is_at_its_bank(rows, _KINDS[place])] = tag
        if has_sums:
            bank = index_in(rows["bank"], self.rules.both_sides)
            side = np.where((bank >= 0) & (kind >= 0), bank * len(_KINDS) + kind + 1, 0)
            code = np.where(amount < 0, _NEGATIVE, 0) | np.where(is_clearing, _CLEARED, 0)
            tags |= (code | side << _SIDES) << _CODE
        found = np.zeros((_BOOKED, len(rows)), np.uint64)
        found[0], found[1] = hash_column(rows["key"]), tags.view(np.uint64)
        (found[2],) = _marks(rows, "account")
        found[3] = self._worth(np.abs(amount), rows["currency"])
        return found

    def messages(self, rows: pa.Table) -> Words:
        """The messages of a day as narrow rows: hash, tag, worth, and the marks of payer, payee
        and id.
        """
        state = index_in(rows["state"], (*VISIBLE, "rolled_back"))
        tags = np.where(state < 0, _OTHER, np.where(state < len(VISIBLE), _MESSAGE, _VOID))
        is_visible, is_void = tags == _MESSAGE, tags == _VOID
        found = np.zeros((_TOLD, len(rows)), np.uint64)
        found[0], found[1] = hash_column(rows["key"]), tags.view(np.uint64)
        amount = numbers(pc.fill_null(rows["amount"], -1))
        found[2] = np.where(is_visible, self._worth(amount, rows["currency"]), 0)
        # A rolled-back message need not agree on anything but its transfer and payer.
        names = "payer", "payee", "id"
        for at, (name, marks) in enumerate(zip(names, _marks(rows, *names), strict=True), 3):
            has_mark = is_visible & truths(rows[name].is_valid())
            if name == "payer":
                has_mark |= is_void
            found[at] = np.where(has_mark, marks, 0)
        return found

    def carried(self, rows: pa.Table) -> Words:
        """Entries or messages of transfers that were left open before: these are never plain."""
        found = np.zeros((_BOOKED, len(rows)), np.uint64)
        found[0], found[1] = hash_column(rows["key"]), _OTHER
        return found

    def sift(
        self, entries: Sequence[Words], messages: Sequence[Words], agreed: Sequence[Words]
    ) -> tuple[Others, Sums]:
        """Sift all rows of a place: what is not matched, and the sums of what plainly agrees.

        ``agreed`` are the hashes of transfers of earlier days. A transfer that was agreed before
        and whose money moved again is not plain.
        """
        booked = np.concatenate([np.zeros((_BOOKED, 0), np.uint64), *entries], axis=1)
        told = np.concatenate([np.zeros((_TOLD, 0), np.uint64), *messages], axis=1)
        hashes = np.concatenate([booked[0], told[0]])
        order = np.argsort(hashes)
        hashes = hashes[order]
        first = np.flatnonzero(np.diff(hashes, prepend=hashes[:1] - np.uint64(1)))
        if not len(first):
            nothing = np.empty(0, np.int64)
            return Others(hashes, nothing, nothing.astype(np.bool_)), Counter()
        kind, mark = booked[1] & LOWER_HALF, booked[2]
        tags = np.add.reduceat(np.concatenate([kind, told[1]]).view(np.int64)[order], first)
        is_whole = np.diff(first, append=len(hashes)) <= _MOST
        payer = np.where((kind == _DEBIT) | (kind == _RETURN), mark, 0)
        payee = np.where(kind == _CREDIT, mark, 0)
        of_entries = payer, payee, np.zeros_like(mark), booked[3]
        for of_both in zip(of_entries, told[_MARKS], strict=True):
            column = np.concatenate(of_both)[order]
            most = np.maximum.reduceat(column, first)
            column[column == 0] = _ALL
            # Without a row that has this mark, none disagrees.
            is_whole &= (most == 0) | (np.minimum.reduceat(column, first) == most)
        for of_sum in self._summed(booked):
            amount = np.concatenate([of_sum, np.zeros(len(told[0]), np.int64)])
            is_whole &= np.add.reduceat(amount[order], first) == 0
        hashes, worth = hashes[first], most.astype(np.int64)
        is_seen, _ = _find_in(np.sort(np.concatenate([hashes[:0], *agreed])), hashes)
        plain = _plain(tags, is_whole, worth, is_seen)
        is_other = plain != _MATCHED
        others = Others(*(column[is_other] for column in (hashes, plain, is_seen)))
        is_ordered = _count(tags, _MESSAGE) > 0
        return others, self._totals(plain, worth, is_ordered)

    def _is_at_its_bank(self, rows: pa.Table, kind: str) -> Truths:
        """True for each row that its bank may book, if the row is of this kind."""
        found = np.ones(len(rows), np.bool_)
        for namespace, banks in self.rules.sure_banks.items():
            is_here = index_in(rows["bank"], sorted(banks.for_kind(kind))) >= 0
            is_its = truths(pc.starts_with(rows["key"], f"{namespace}/"))
            found &= is_here | ~is_its
        return found

    def _totals(self, plain: Numbers, worth: Numbers, is_ordered: Truths) -> Sums:
        """The sums of the classes of plain transfers."""
        # A rolled-back transfer has no money, though rows of clearing may have.
        worth = np.where(plain == PLAIN[Class.ROLLED_BACK], 0, worth)
        known = np.maximum(worth - _KNOWN, 0)
        money = np.where(worth >= _KNOWN, known & ((1 << self._digits) - 1), -1)
        currencies = [*sorted(self.rules.money), ""]
        groups = (plain * 2 + is_ordered) * len(currencies) + money + 1
        sums: Sums = Counter()
        for group in np.unique(groups[plain != SUSPECT]):
            some = groups == group
            amounts = known[some] >> self._digits
            amount = int((amounts & LOWER_HALF).sum()) + (int((amounts >> 32).sum()) << 32)
            one = int(np.argmax(some))
            place = _CLASSES[plain[one]].value, currencies[money[one]]
            sums["transfers", *place] += len(amounts)
            sums["debited", *place] += amount
            if plain[one] in _RECEIVED:
                sums[_RECEIVED[plain[one]], *place] += amount
            if is_ordered[one]:
                sums["ordered", *place] += amount
        return sums

    def _summed(self, booked: Words) -> Iterator[Numbers]:
        """The amounts of entries in each sum that must be zero in a transfer; 0 if not in it."""
        code = (booked[1] >> _CODE).view(np.int64)
        amount = np.maximum(booked[3].view(np.int64) - _KNOWN, 0) >> self._digits
        amount = np.where(code & _NEGATIVE, -amount, amount)
        for side in range(1, len(self.rules.both_sides) * len(_KINDS) + 1):
            yield np.where(code >> _SIDES == side, amount, 0)
        if self.rules.proves_clearing:
            yield np.where(code & _CLEARED, amount, 0)

    @property
    def _digits(self) -> int:
        """The number of bits for the index of a currency."""
        return max(len(self.rules.money).bit_length(), 1)

    def _worth(self, amount: Numbers, currency: pa.ChunkedArray) -> Words:
        """An amount and its currency in one number; its last bits are the currency's index."""
        place = index_in(currency, sorted(self.rules.money))
        # The least number has no opposite of 64 bits, and stays negative.
        is_known = (amount >= 0) & (amount < 1 << _WORTH - self._digits) & (place >= 0)
        worth = (np.where(is_known, amount, 0) << self._digits | place) + _KNOWN
        return np.where(is_known, worth, _UNKNOWN).view(np.uint64)


def _find_in(known: Words, hashes: Words) -> tuple[Truths, Numbers]:
    """For each hash, whether it is among sorted ones, and at which place."""
    if not len(known):
        return np.zeros(len(hashes), np.bool_), np.zeros(len(hashes), np.int64)
    places = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    return known[places] == hashes, places


def split_by_hash(hashes: Words, places: int) -> Iterator[tuple[int, Numbers]]:
    """The rows of each place, a power of two of them: which rows have a hash in its range."""
    if places == 1:
        yield 0, np.arange(len(hashes))
        return
    at = (hashes >> np.uint64(64 - (places - 1).bit_length())).astype(np.uint16)
    order = np.argsort(at, kind="stable")
    ends = np.searchsorted(at[order], np.arange(places + 1))
    for place in range(places):
        if len(rows := order[ends[place] : ends[place + 1]]):
            yield place, rows


def _marks(rows: pa.Table, *names: str) -> Iterator[Words]:
    of_keys = hash_column(rows["key"], _KEY_SEED)
    return ((hash_column(rows[name]) ^ of_keys) | np.uint64(1) for name in names)


def _count(tags: Numbers, tag: int) -> Numbers:
    """The number of rows with a tag, if there are not too many to count."""
    return tags >> (tag.bit_length() - 1) & _MOST


def _plain(tags: Numbers, is_whole: Truths, worth: Numbers, is_seen: Truths) -> Numbers:
    debited, credited, returned = (_count(tags, tag) for tag in (_DEBIT, _CREDIT, _RETURN))
    ordered, void, other = (_count(tags, tag) for tag in (_MESSAGE, _VOID, _OTHER))
    is_whole = is_whole & (worth != _UNKNOWN)  # A row of such a worth is in no sum.
    is_moved = ~is_seen & (debited == 1) & (other == 0)
    was_credited = (credited == 1) & (returned == 0) & (ordered > 0) & (void == 0)
    was_returned = (credited == 0) & (returned == 1) & ((ordered > 0) != (void > 0))
    # A new order that was rolled back changes nothing about a transfer that is agreed.
    is_unmoved = (debited + credited + returned + other + ordered == 0) & (void > 0)
    plain = np.full(len(tags), SUSPECT)
    plain[is_whole & is_moved & was_credited] = _MATCHED
    plain[is_whole & is_moved & was_returned] = PLAIN[Class.RETURNED]
    plain[is_whole & is_unmoved] = PLAIN[Class.ROLLED_BACK]
    return plain
