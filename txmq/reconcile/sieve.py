"""The first pass over a day: it separates plainly agreed transfers from all others.

On most days nearly all transfers are a debit, a message and a credit that agree; most of the
others were paid back, or rolled back before money moved. To see this, the rows of all three
ledgers become one narrow shape of numbers and meet in one shuffle; no ledger is joined to
another. They meet by a hash of their key. Each row carries marks, which are hashes of its facts
and, once more, of its key: a debit and a return have a mark of the payer, a credit one of the
payee, a message both and one of its id. If the least mark of a kind equals the greatest, all
rows agree on the same transfer. A transfer with any deviation goes to the second pass, row by
row and letter by letter (:mod:`txmq.reconcile.second_pass`).

Expressions are SQL: Java gets each as one text, and column objects would need a call to Java for
every operator, which takes longer than a small day itself.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from txmq.reconcile.classes import Class
from txmq.reconcile.ledgers import EarlierDays, index_in, texts, union
from txmq.reconcile.rules import DayWindow, Rules
from txmq.reconcile.tables import LOWER_HALF
from txmq.reconcile.transfer import VISIBLE

__all__ = ["HASH", "PLAIN", "SUSPECT", "sift"]

HASH: Final = "xxhash64(key) AS hash"
"""The hash of a key, for joins: Spark shuffles and compares numbers faster than texts."""
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
"""The worth of a row without a readable amount or currency, or with an unknown currency."""
_WORTH: Final = 63
"""The bits of a number besides its sign."""


def sift(
    entries: DataFrame, messages: DataFrame, yesterday: EarlierDays, rules: Rules, window: DayWindow
) -> DataFrame:
    """Sift the day's transfers: matched ones become sums, every other one a row.

    The entries are those of :class:`~txmq.reconcile.ledgers.Ledgers`. A transfer that was left
    open before is not plain, and neither is one that was agreed before and whose money moved again.

    Returns:
        ``plain`` is ``SUSPECT``, or the code of a class in ``PLAIN``. ``hash`` is the hash
        of the key (:data:`HASH`), and NULL for matched transfers.
        ``transfers`` is their number, and ``low`` and ``high`` are the sums of the halves of their
        amounts in ``money``, the index of a currency; ``is_ordered`` is true if a message orders
        them, and ``is_seen`` if they were agreed on an earlier day.
    """
    sums = _sums(rules)
    earlier = yesterday.entries, yesterday.messages, yesterday.agreed
    marked = (
        None if table is None else table.selectExpr(HASH, f"{tag} AS tags")
        for table, tag in zip(earlier, (_ROW + _OTHER, _ROW + _OTHER, _SEEN), strict=True)
    )
    entries, messages = _of_entries(entries, rules, window, sums), _of_messages(messages, rules)
    narrow = union(entries, messages, *marked)
    # Repartitioned before grouping: rows are narrow, and partial sums would not pay. The number
    # is fixed, so that the same day always has the same partitions.
    parts = int(narrow.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    aggregates = (
        "sum(tags) AS tags",
        *(f"min({name}) AS {name}" for name in _MARKS),
        *(f"max({name}) AS {name}_hi" for name in _MARKS),
        # NULL if the sum does not fit into 64 bits.
        *(f"try_sum(coalesce({name}, 0)) AS {name}" for name in sums),
    )
    met = narrow.repartition(parts, "hash").groupBy("hash").agg(*map(f.expr, aggregates))
    if yesterday.agreed is not None:
        met = met.where(f"tags & {_SEEN - 1} > 0")
    digits = _digits(rules)
    found = met.selectExpr(
        "hash",
        f"{_plain(sums)} AS plain",
        f"worth & {(1 << digits) - 1} AS money",
        f"{_number(_MESSAGE)} > 0 AS is_ordered",
        f"coalesce(shiftright(worth, {digits}), 0) AS amount",
        f"tags >= {_SEEN} AS is_seen",
    )
    other_hash = f.expr(f"IF(plain != {PLAIN[Class.MATCHED]}, hash, NULL) AS hash")
    halves = f"sum(amount & {LOWER_HALF}) AS low", "sum(shiftright(amount, 32)) AS high"
    grouped = found.groupBy(other_hash, "plain", "money", "is_ordered", "is_seen")
    return grouped.agg(*map(f.expr, ("count(1) AS transfers", *halves)))


def _number(tag: int) -> str:
    """The number of rows with a tag, if there are not too many to count."""
    return f"(shiftright(tags, {tag.bit_length() - 1}) & {_MOST})"


def _plain(sums: dict[str, str]) -> str:
    rows = f"(tags & {_SEEN - 1})"
    debited, credited, returned = map(_number, (_DEBIT, _CREDIT, _RETURN))
    ordered, void, other = map(_number, (_MESSAGE, _VOID, _OTHER))
    is_whole = " AND ".join((
        f"{rows} < {(_MOST + 1) * _ROW}",
        *(f"coalesce({name} = 0, false)" for name in sums),
        # NULL means that no row has this mark, so none disagrees.
        *(f"coalesce({name} = {name}_hi, true)" for name in _MARKS),
    ))  # fmt: skip
    is_moved = f"{rows} = tags AND {debited} = 1 AND {other} = 0 AND worth >= 0"
    was_credited = f"{credited} = 1 AND {returned} = 0 AND {ordered} > 0 AND {void} = 0"
    was_returned = f"{credited} = 0 AND {returned} = 1 AND ({ordered} > 0) != ({void} > 0)"
    # A new order that was rolled back changes nothing about a transfer that is agreed.
    is_unmoved = f"{debited} + {credited} + {returned} + {other} + {ordered} = 0 AND {void} > 0"
    of_each = {
        Class.MATCHED: f"{is_moved} AND {was_credited}",
        Class.RETURNED: f"{is_moved} AND {was_returned}",
        Class.ROLLED_BACK: is_unmoved,
    }
    codes = " ".join(f"WHEN {is_so} THEN {PLAIN[class_]}" for class_, is_so in of_each.items())
    return f"IF({is_whole}, CASE {codes} ELSE {SUSPECT} END, {SUSPECT})"


def _sums(rules: Rules) -> dict[str, str]:
    """The sums that must be zero in each transfer, for banks that keep both sides."""
    found: dict[str, str] = {}
    if both_sides := [bank.name for bank in rules.bank if bank.entries.double_entry]:
        for side in ("debit", "credit", "return"):
            is_theirs = f"bank IN ({texts(both_sides)}) AND kind = '{side}'"
            found[f"{side}_sum"] = f"IF({is_theirs}, amount, 0L)"
    if all(bank.entries.clearing for bank in rules.bank):
        found["cleared"] = "IF(role = 'clearing', amount, 0L)"
    return found


def _of_entries(
    entries: DataFrame, rules: Rules, window: DayWindow, sums: dict[str, str]
) -> DataFrame:
    is_theirs = f"role = 'customer' AND booked_ms >= {window.start_ms}"
    if not sums:
        entries = entries.where("role != 'clearing'")
    # A debit must be negative and a credit positive, else the row is not plain. Numbers are
    # tested first: they compare faster than texts. Values that are used often are computed once.
    tagged = entries.selectExpr(
        "*",
        f"""CASE WHEN amount < 0 AND {is_theirs} AND kind = 'debit' THEN {_DEBIT}
            WHEN amount > 0 AND {is_theirs} AND kind = 'credit' THEN {_CREDIT}
            WHEN amount > 0 AND {is_theirs} AND kind = 'return' THEN {_RETURN}
            WHEN role = 'clearing' THEN {_CLEARING} ELSE {_OTHER} END AS tag""",
        f"{_mark('account')} AS mark",
        f"{index_in('currency', sorted(rules.money))} AS place",
        # Without its sign; NULL for the least number, which has no opposite of 64 bits.
        "IF(amount < 0, try_subtract(0, amount), amount) AS size",
    )
    return tagged.selectExpr(
        HASH,
        f"tag + {_ROW} AS tags",
        f"IF(tag IN ({_DEBIT}, {_RETURN}), mark, NULL) AS payer",
        f"IF(tag = {_CREDIT}, mark, NULL) AS payee",
        f"IF(tag != {_CLEARING}, {_worth('size', rules)}, NULL) AS worth",
        *(f"{sum_} AS {name}" for name, sum_ in sums.items()),
    )


def _of_messages(messages: DataFrame, rules: Rules) -> DataFrame:
    tagged = messages.selectExpr(
        "*",
        f"""CASE WHEN state IN ({texts(VISIBLE)}) THEN {_MESSAGE}
            WHEN state = 'rolled_back' THEN {_VOID} ELSE {_OTHER} END AS tag""",
        f"{index_in('currency', sorted(rules.money))} AS place",
    )

    def mark(name: str) -> str:
        return f"WHEN tag = {_MESSAGE} AND {name} IS NOT NULL THEN {_mark(name)}"

    return tagged.selectExpr(
        HASH,
        f"tag + {_ROW} AS tags",
        # A rolled-back message need not agree on anything but its transfer.
        f"CASE WHEN tag = {_VOID} THEN {_mark('payer')} {mark('payer')} END AS payer",
        f"CASE {mark('payee')} END AS payee",
        f"CASE {mark('id')} END AS twin",
        f"IF(tag = {_MESSAGE}, {_worth('amount', rules)}, NULL) AS worth",
    )


def _mark(name: str) -> str:
    """The key comes last: each hash is the seed of the next, so keys that collide as first value
    would collide in every mark.
    """
    return f"xxhash64({name}, key)"


def _worth(amount: str, rules: Rules) -> str:
    """An amount and its currency in one number; its last bits are the currency's index."""
    digits = _digits(rules)
    is_known = f"{amount} >= 0 AND {amount} < {1 << _WORTH - digits} AND place IS NOT NULL"
    return f"IF({is_known}, shiftleft({amount}, {digits}) | place, {_UNKNOWN})"


def _digits(rules: Rules) -> int:
    """The number of bits for the index of a currency."""
    return max(len(rules.money).bit_length(), 1)
