"""The first pass over a day: what is plainly agreed falls through, and all else is kept.

On most days nearly all transfers are a debit, a message and a credit that agree; of the others most
were paid back, or rolled back before any money moved. To see that, the rows of all three ledgers
are made one narrow shape of numbers and meet in one shuffle; no ledger is joined to another. They
meet by a hash of their key, and each carries marks of what it says, in which the key is once more,
by another hash: a debit and a return say who pays, a credit who is paid, a message both and its own
id. Where the least mark of a kind is also the greatest, all rows say the same of the same transfer.
A transfer of which anything is more, less or other is looked at again, row by row and letter by
letter (:mod:`txmq.reconcile.units`).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from txmq.reconcile.classes import Class
from txmq.reconcile.rows import VISIBLE, hash_of, place_of
from txmq.reconcile.rules import Rules, Window

__all__ = ["PLAIN", "SUSPECT", "plain_class", "plain_currency", "sieved"]

SUSPECT: Final = 0
"""What does not fall through."""
PLAIN: Final = {Class.MATCHED: 1, Class.RETURNED: 2, Class.ROLLED_BACK: 3}
"""What does, by a number for each class."""
_BITS: Final = 4
_MOST: Final = (1 << _BITS) - 1
"""So many rows of a transfer are counted by their tags, all tags in one number; of more than these
none is plain.
"""
_DEBIT, _CREDIT, _RETURN, _MESSAGE, _VOID, _OTHER, _CLEARING, _ROW = (
    1 << place * _BITS for place in range(8)
)
"""Above all tags are the rows themselves, which have the room that is left."""
_ONE_THING: Final = ("payer", "payee", "twin", "worth")
"""What all rows of a plain transfer say alike, as far as they say it."""
_UNKNOWN: Final = -1
"""What a row is worth whose amount or currency nobody can read, or whose currency the rules do not
know.
"""
_WORTH: Final = 63
"""Digits that a number has beside its sign."""


def sieved(
    entries: DataFrame,
    messages: DataFrame,
    carried: DataFrame | None,
    rules: Rules,
    window: Window,
) -> DataFrame:
    """What the day's transfers come to: the matched ones as sums, each other one as a row.

    Args:
        entries: What was booked on the day (:func:`~txmq.reconcile.rows.transfers_of`).
        messages: What was told (:func:`~txmq.reconcile.rows.messages_of`).
        carried: The keys of what was left open before; none of them is plain.
        rules: They say which banks keep both sides of a booking, and which currencies there are.
        window: The day.

    Returns:
        ``plain`` is ``SUSPECT``, or stands for a class (:func:`plain_class`). ``hash`` is that of
        the key (:func:`~txmq.reconcile.rows.hash_of`), and nothing for what is matched.
        ``transfers`` are so many, ``amount`` is their sum in ``money`` (:func:`plain_currency`);
        ``is_ordered`` tells whether a message says so.
    """
    sums = _sums(rules)
    narrow = _of_entries(entries, rules, window, sums).unionByName(
        _of_messages(messages, rules), allowMissingColumns=True
    )
    if carried is not None:
        keys = carried.select(hash_of("key"), f.lit(_ROW + _OTHER).alias("tags"))
        narrow = narrow.unionByName(keys, allowMissingColumns=True)
    # Sent to their places before they are grouped: rows travel as they are, and narrow. The places
    # have a number, so that the same day is parted in the same way each time.
    parts = int(narrow.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    met = narrow.repartition(parts, "hash").groupBy("hash").agg(
        f.sum("tags").alias("tags"),
        *(f.min(name).alias(name) for name in _ONE_THING),
        *(f.max(name).alias(f"{name}_hi") for name in _ONE_THING),
        *(f.sum(name).alias(name) for name in sums),
    )  # fmt: skip
    found = met.select(
        "hash",
        _plain(sums).alias("plain"),
        f.col("worth").bitwiseAND(f.lit((1 << _digits(rules)) - 1)).alias("money"),
        (_number(_MESSAGE) > 0).alias("is_ordered"),
        f.coalesce(f.shiftright("worth", _digits(rules)), f.lit(0)).alias("amount"),
    )
    is_other = f.col("plain") != PLAIN[Class.MATCHED]
    other_hash = f.when(is_other, f.col("hash")).alias("hash")
    return found.groupBy(other_hash, "plain", "money", "is_ordered").agg(
        f.count(f.lit(1)).alias("transfers"), f.sum("amount").alias("amount")
    )


def plain_class(plain: Column) -> Column:
    """The class of what fell through."""
    return f.get(f.array(*(f.lit(class_.value) for class_ in PLAIN)), plain - 1)


def plain_currency(money: Column, rules: Rules) -> Column:
    """The currency of what fell through; what was rolled back has none."""
    names = f.array(*(f.lit(currency) for currency in sorted(rules.money)))
    return f.coalesce(f.get(names, money), f.lit(""))


def _number(tag: int) -> Column:
    """How many rows have a tag, where they are not too many to be counted so."""
    return f.shiftright("tags", tag.bit_length() - 1).bitwiseAND(f.lit(_MOST))


def _plain(sums: dict[str, Column]) -> Column:
    col = f.col
    is_whole = col("tags") < (_MOST + 1) * _ROW
    for name in sums:
        is_whole &= f.coalesce(col(name), f.lit(0)) == 0
    for name in _ONE_THING:
        # Where no row says anything of it, none says anything else.
        is_whole &= f.coalesce(col(name) == col(f"{name}_hi"), f.lit(True))
    debited, credited, returned = map(_number, (_DEBIT, _CREDIT, _RETURN))
    told, void, other = map(_number, (_MESSAGE, _VOID, _OTHER))
    is_told, is_void = (told > 0) & (void == 0), (told == 0) & (void > 0)
    is_moved = is_whole & (debited == 1) & (other == 0) & (col("worth") >= 0)
    is_unmoved = is_whole & (debited + credited + returned + other == 0)
    was_credited = (credited == 1) & (returned == 0)
    was_returned = (credited == 0) & (returned == 1)
    of_each = {
        Class.MATCHED: is_moved & was_credited & is_told,
        Class.RETURNED: is_moved & was_returned & (is_told | is_void),
        Class.ROLLED_BACK: is_unmoved & is_void,
    }
    codes = (f.when(is_so, PLAIN[class_]) for class_, is_so in of_each.items())
    return f.coalesce(*codes, f.lit(SUSPECT))


def _sums(rules: Rules) -> dict[str, Column]:
    """What has to be nothing in each transfer, as far as the banks keep it."""
    amount, kind = f.col("amount"), f.col("kind")
    zero = f.lit(0).cast("long")
    found: dict[str, Column] = {}
    both_sides = [bank.name for bank in rules.bank if bank.entries.double_entry]
    if both_sides:
        is_theirs = f.col("bank").isin(both_sides)
        for side in ("debit", "credit", "return"):
            found[f"{side}_sum"] = f.when(is_theirs & (kind == side), amount).otherwise(zero)
    if all(bank.entries.clearing for bank in rules.bank):
        found["cleared"] = f.when(f.col("role") == "clearing", amount).otherwise(zero)
    return found


def _of_entries(
    entries: DataFrame, rules: Rules, window: Window, sums: dict[str, Column]
) -> DataFrame:
    kind, role, amount, tag = f.col("kind"), f.col("role"), f.col("amount"), f.col("tag")
    is_theirs = (role == "customer") & (f.col("booked_ms") >= window.start_ms)
    is_clearing = role == "clearing"
    # A debit takes and a credit gives; a row that does the other is no plain one. Numbers are asked
    # first: they are compared sooner than texts.
    of_row = (
        f.when((amount < 0) & is_theirs & (kind == "debit"), _DEBIT)
        .when((amount > 0) & is_theirs & (kind == "credit"), _CREDIT)
        .when((amount > 0) & is_theirs & (kind == "return"), _RETURN)
        .when(is_clearing, _CLEARING)
        .otherwise(_OTHER)
    )
    if not sums:
        entries = entries.where(~is_clearing)
    # What is asked for often is worked out once.
    told = entries.withColumns({"tag": of_row, "mark": _mark("account"), "place": _place(rules)})
    return told.select(
        hash_of("key"),
        (tag + _ROW).alias("tags"),
        f.when((tag == _DEBIT) | (tag == _RETURN), f.col("mark")).alias("payer"),
        f.when(tag == _CREDIT, f.col("mark")).alias("payee"),
        f.when(tag != _CLEARING, _worth(f.abs(amount), rules)).alias("worth"),
        *(column.alias(name) for name, column in sums.items()),
    )


def _of_messages(messages: DataFrame, rules: Rules) -> DataFrame:
    state, tag = f.col("state"), f.col("tag")
    of_row = f.when(state.isin(*VISIBLE), _MESSAGE)
    of_row = of_row.when(state == "rolled_back", _VOID).otherwise(_OTHER)

    def mark(name: str) -> Column:
        return f.when((tag == _MESSAGE) & f.col(name).isNotNull(), _mark(name))

    return messages.withColumns({"tag": of_row, "place": _place(rules)}).select(
        hash_of("key"),
        (tag + _ROW).alias("tags"),
        # What was rolled back says nothing that has to be, but of which transfer.
        f.when(tag == _VOID, _mark("payer")).otherwise(mark("payer")).alias("payer"),
        mark("payee").alias("payee"),
        mark("id").alias("twin"),
        f.when(tag == _MESSAGE, _worth(f.col("amount"), rules)).alias("worth"),
    )


def _mark(name: str) -> Column:
    """The key is last: one hash goes on from the other, and keys whose hashes are the same before
    anything else was hashed would be the same with anything behind them.
    """
    return f.xxhash64(name, "key")


def _worth(amount: Column, rules: Rules) -> Column:
    """An amount and its currency in one number, whose last digits are the currency's place among
    those that the rules know.
    """
    digits, place = _digits(rules), f.col("place")
    is_known = (amount >= 0) & (amount < 1 << _WORTH - digits) & place.isNotNull()
    worth = f.shiftleft(amount, digits).bitwiseOR(place.cast("long"))
    return f.when(is_known, worth).otherwise(_UNKNOWN)


def _place(rules: Rules) -> Column:
    return place_of("currency", sorted(rules.money))


def _digits(rules: Rules) -> int:
    """How many of them, in twos, the places of currencies need."""
    return max(len(rules.money).bit_length(), 1)
