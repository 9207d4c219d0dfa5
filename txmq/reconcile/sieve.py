"""The first pass over a day: it separates plainly agreed transfers from all others.

On most days nearly all transfers are a debit, a message and a credit that agree; most of the
others were paid back, or rolled back before money moved. To see this, the rows of all three
ledgers become one narrow shape of numbers and meet in one shuffle; no ledger is joined to
another. They meet by a hash of their key. Each row carries marks, which are hashes of its facts
and, once more, of its key: a debit and a return have a mark of the payer, a credit one of the
payee, a message both and one of its id. If the least mark of a kind equals the greatest, all
rows agree on the same transfer. A transfer with any deviation goes to the second pass, row by
row and letter by letter (:mod:`txmq.reconcile.second_pass`).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from txmq.reconcile.classes import Class
from txmq.reconcile.extract.controls import LOWER_HALF
from txmq.reconcile.rows import hash_of, index_in
from txmq.reconcile.rules import DayWindow, Rules
from txmq.reconcile.transfer import VISIBLE

__all__ = ["PLAIN", "SUSPECT", "plain_class", "plain_currency", "sift"]

SUSPECT: Final = 0
"""The code of a transfer that needs the second pass."""
PLAIN: Final = {Class.MATCHED: 1, Class.RETURNED: 2, Class.ROLLED_BACK: 3}
"""The codes of plainly agreed transfers, by class."""
_BITS: Final = 4
_MOST: Final = (1 << _BITS) - 1
"""The most rows of a transfer that a tag can count; all tags share one number. A transfer with
more rows is never plain.
"""
_DEBIT, _CREDIT, _RETURN, _MESSAGE, _VOID, _OTHER, _CLEARING, _ROW = (
    1 << place * _BITS for place in range(8)
)
"""The count of all rows is above the tags."""
_SEEN: Final = 1 << 48
"""The count of the earlier days on which the transfer was agreed is above that."""
_MARKS: Final = ("payer", "payee", "twin", "worth")
"""The marks that must be equal in all rows of a plain transfer that have them."""
_UNKNOWN: Final = -1
"""The worth of a row without a readable amount or currency, or with an unknown currency.
"""
_WORTH: Final = 63
"""The bits of a number besides its sign."""


def sift(
    entries: DataFrame,
    messages: DataFrame,
    carried: DataFrame | None,
    agreed: DataFrame | None,
    rules: Rules,
    window: DayWindow,
) -> DataFrame:
    """Sift the day's transfers: matched ones become sums, every other one a row.

    Args:
        entries: The day's entries (:func:`~txmq.reconcile.rows.transfers_of`).
        messages: The day's messages (:func:`~txmq.reconcile.rows.messages_of`).
        carried: The keys of transfers left open before; none of them is plain.
        agreed: The keys of transfers agreed on earlier days; one whose money moved again is not
            plain.
        rules: The banks with double entry, and the currencies.
        window: The day.

    Returns:
        ``plain`` is ``SUSPECT``, or the code of a class (:func:`plain_class`). ``hash`` is the hash
        of the key (:func:`~txmq.reconcile.rows.hash_of`), and NULL for matched transfers.
        ``transfers`` is their number, and ``low`` and ``high`` are the sums of the halves of their
        amounts in ``money`` (:func:`plain_currency`); ``is_ordered`` is true if a message orders
        them, and ``is_seen`` if they were agreed on an earlier day.
    """
    sums = _sums(rules)
    narrow = _of_entries(entries, rules, window, sums).unionByName(
        _of_messages(messages, rules), allowMissingColumns=True
    )
    for keys, tag in ((carried, _ROW + _OTHER), (agreed, _SEEN)):
        if keys is not None:
            marked = keys.select(hash_of("key"), f.lit(tag).alias("tags"))
            narrow = narrow.unionByName(marked, allowMissingColumns=True)
    # Repartitioned before grouping: rows are narrow, and partial sums would not pay. The number
    # is fixed, so that the same day always has the same partitions.
    parts = int(narrow.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    met = narrow.repartition(parts, "hash").groupBy("hash").agg(
        f.sum("tags").alias("tags"),
        *(f.min(name).alias(name) for name in _MARKS),
        *(f.max(name).alias(f"{name}_hi") for name in _MARKS),
        # NULL if the sum does not fit into 64 bits.
        *(f.try_sum(f.coalesce(name, f.lit(0))).alias(name) for name in sums),
    )  # fmt: skip
    if agreed is not None:
        met = met.where(f.col("tags").bitwiseAND(f.lit(_SEEN - 1)) > 0)
    found = met.select(
        "hash",
        _plain(sums).alias("plain"),
        f.col("worth").bitwiseAND(f.lit((1 << _digits(rules)) - 1)).alias("money"),
        (_number(_MESSAGE) > 0).alias("is_ordered"),
        f.coalesce(f.shiftright("worth", _digits(rules)), f.lit(0)).alias("amount"),
        (f.col("tags") >= _SEEN).alias("is_seen"),
    )
    is_other = f.col("plain") != PLAIN[Class.MATCHED]
    other_hash = f.when(is_other, f.col("hash")).alias("hash")
    return found.groupBy(other_hash, "plain", "money", "is_ordered", "is_seen").agg(
        f.count(f.lit(1)).alias("transfers"),
        f.sum(f.col("amount").bitwiseAND(LOWER_HALF)).alias("low"),
        f.sum(f.shiftright("amount", 32)).alias("high"),
    )


def plain_class(plain: Column) -> Column:
    """The class of a code."""
    return f.get(f.array(*(f.lit(class_.value) for class_ in PLAIN)), plain - 1)


def plain_currency(money: Column, rules: Rules) -> Column:
    """The currency of a plain transfer; a rolled-back one has none."""
    names = f.array(*(f.lit(currency) for currency in sorted(rules.money)))
    return f.coalesce(f.get(names, money), f.lit(""))


def _number(tag: int) -> Column:
    """The number of rows with a tag, if there are not too many to count."""
    return f.shiftright("tags", tag.bit_length() - 1).bitwiseAND(f.lit(_MOST))


def _plain(sums: dict[str, Column]) -> Column:
    col = f.col
    rows = col("tags").bitwiseAND(f.lit(_SEEN - 1))
    is_whole = rows < (_MOST + 1) * _ROW
    for name in sums:
        is_whole &= f.coalesce(col(name) == 0, f.lit(False))
    for name in _MARKS:
        # NULL means that no row has this mark, so none disagrees.
        is_whole &= f.coalesce(col(name) == col(f"{name}_hi"), f.lit(True))
    debited, credited, returned = map(_number, (_DEBIT, _CREDIT, _RETURN))
    ordered, void, other = map(_number, (_MESSAGE, _VOID, _OTHER))
    is_ordered, is_void = (ordered > 0) & (void == 0), (ordered == 0) & (void > 0)
    is_new = is_whole & (rows == col("tags"))
    is_moved = is_new & (debited == 1) & (other == 0) & (col("worth") >= 0)
    # A new order that was rolled back changes nothing about a transfer that is agreed.
    is_unmoved = is_whole & (debited + credited + returned + other == 0)
    was_credited = (credited == 1) & (returned == 0)
    was_returned = (credited == 0) & (returned == 1)
    of_each = {
        Class.MATCHED: is_moved & was_credited & is_ordered,
        Class.RETURNED: is_moved & was_returned & (is_ordered | is_void),
        Class.ROLLED_BACK: is_unmoved & is_void,
    }
    codes = (f.when(is_so, PLAIN[class_]) for class_, is_so in of_each.items())
    return f.coalesce(*codes, f.lit(SUSPECT))


def _sums(rules: Rules) -> dict[str, Column]:
    """The sums that must be zero in each transfer, for banks that keep both sides."""
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
    entries: DataFrame, rules: Rules, window: DayWindow, sums: dict[str, Column]
) -> DataFrame:
    kind, role, amount, tag = f.col("kind"), f.col("role"), f.col("amount"), f.col("tag")
    is_theirs = (role == "customer") & (f.col("booked_ms") >= window.start_ms)
    is_clearing = role == "clearing"
    # A debit must be negative and a credit positive, else the row is not plain. Numbers are
    # tested first: they compare faster than texts.
    of_row = (
        f.when((amount < 0) & is_theirs & (kind == "debit"), _DEBIT)
        .when((amount > 0) & is_theirs & (kind == "credit"), _CREDIT)
        .when((amount > 0) & is_theirs & (kind == "return"), _RETURN)
        .when(is_clearing, _CLEARING)
        .otherwise(_OTHER)
    )
    if not sums:
        entries = entries.where(~is_clearing)
    # Compute values that are used often once.
    tagged = entries.withColumns({"tag": of_row, "mark": _mark("account"), "place": _place(rules)})
    return tagged.select(
        hash_of("key"),
        (tag + _ROW).alias("tags"),
        f.when((tag == _DEBIT) | (tag == _RETURN), f.col("mark")).alias("payer"),
        f.when(tag == _CREDIT, f.col("mark")).alias("payee"),
        f.when(tag != _CLEARING, _worth(_size(amount), rules)).alias("worth"),
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
        # A rolled-back message need not agree on anything but its transfer.
        f.when(tag == _VOID, _mark("payer")).otherwise(mark("payer")).alias("payer"),
        mark("payee").alias("payee"),
        mark("id").alias("twin"),
        f.when(tag == _MESSAGE, _worth(f.col("amount"), rules)).alias("worth"),
    )


def _mark(name: str) -> Column:
    """The key comes last: each hash is the seed of the next, so keys that collide as first value
    would collide in every mark.
    """
    return f.xxhash64(name, "key")


def _size(amount: Column) -> Column:
    """An amount without its sign; NULL for the least number, which has no opposite of 64 bits."""
    return f.when(amount < 0, f.try_subtract(f.lit(0), amount)).otherwise(amount)


def _worth(amount: Column, rules: Rules) -> Column:
    """An amount and its currency in one number; the last bits are the index of the currency in
    the rules.
    """
    digits, place = _digits(rules), f.col("place")
    is_known = (amount >= 0) & (amount < 1 << _WORTH - digits) & place.isNotNull()
    worth = f.shiftleft(amount, digits).bitwiseOR(place.cast("long"))
    return f.when(is_known, worth).otherwise(_UNKNOWN)


def _place(rules: Rules) -> Column:
    return index_in("currency", sorted(rules.money))


def _digits(rules: Rules) -> int:
    """The number of bits for the index of a currency."""
    return max(len(rules.money).bit_length(), 1)
