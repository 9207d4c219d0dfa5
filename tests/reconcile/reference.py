"""What reconciliation means, in plain Python: slow, short, and written without looking at Spark.

A unit is all that has one key. :func:`classes` sorts units into classes; :func:`balances_hold` adds
up accounts.
"""

from collections import defaultdict
from typing import NamedTuple

from txmq.reconcile.classes import Class


class Entry(NamedTuple):
    bank: str
    id: int | None
    key: str | None
    kind: str
    role: str
    account: str
    amount: int
    currency: str
    booked_ms: int
    recorded_ms: int


class Message(NamedTuple):
    key: str | None
    id: str
    payer: str | None
    payee: str | None
    amount: int | None
    currency: str | None
    state: str
    topic: str
    queue: int
    queue_offset: int | None
    stored_ms: int
    decided_ms: int | None = None
    decided_by: str | None = None
    reason: str | None = None
    position: int = 0
    problem: str | None = None


class Failure(NamedTuple):
    key: str | None
    id: str
    group: str
    state: str
    attempts: int = 1
    stored_ms: int = 0
    reason: str | None = None
    position: int = 0


class Told(NamedTuple):
    """All that is known: rows of the day and of the days before it."""

    entries: list[Entry]
    messages: list[Message]
    failures: dict[str, list[Failure]]
    """By message."""
    offsets: dict[tuple[str, str, int], int]
    """By group, topic and queue."""


class Rule(NamedTuple):
    """The rules that classes depend on."""

    grace_ms: int
    groups: dict[str, str]
    """Who credits, by topic."""
    tolerance: dict[str, int]


class Found(NamedTuple):
    """A unit's class and sums."""

    class_: Class
    debits: int
    debited: int
    returns: int
    returned: int
    credits: int
    credited: int
    messages: int
    ordered: int
    amount: int
    """What is at risk."""


class Unit:
    """All rows with one key, and what can be said of them."""

    def __init__(self, told, entries, messages, end):
        self.told, self.end = told, end
        self.entries, self.messages = entries, messages
        legs = [e for e in entries if e.role in ("customer", "suspense")]
        self.debits = [e for e in legs if e.kind == "debit"]
        self.credits = [e for e in legs if e.kind == "credit"]
        self.returns = [e for e in legs if e.kind == "return"]
        self.legs = self.debits + self.credits + self.returns
        self.payer_bank = [*entries, *messages][0].key.partition("/")[0]
        self.states = {self.state(m) for m in messages}
        self.copies = [m for m in messages if self.state(m) in ("sent", "committed")]
        self.visible = {m.id for m in self.copies}

    def state(self, message):
        if message.decided_ms is not None and message.decided_ms >= self.end:
            return "prepared"
        return message.state

    @property
    def first_ms(self):
        moments = [e.recorded_ms for e in self.legs] + [m.stored_ms for m in self.messages]
        return min(moments)


def classes(
    told: Told, rule: Rule, start: int, end: int, as_of: int, known=frozenset(), unseen=frozenset()
):
    """Each key's class and sums.

    Args:
        told: Everything from the first day on.
        rule: What is forgiven.
        start: When the day begins that is reconciled.
        end: When it ends.
        as_of: Until when the books were read.
        known: Keys that were items when the day before ended.
        unseen: Those of them that were backdated.
    """
    entries, messages = defaultdict(list), defaultdict(list)
    for entry in told.entries:
        if entry.key is not None and entry.kind != "other" and entry.recorded_ms < end:
            entries[entry.key].append(entry)
    for message in told.messages:
        if message.key is not None and message.stored_ms < end:
            messages[message.key].append(message)
    found = {}
    for key in entries.keys() | messages.keys():
        unit = Unit(told, entries[key], messages[key], end)
        if unit.legs or unit.messages:
            is_old = key in known
            found[key] = _found(unit, rule, start, min(end, as_of), is_old, key in unseen)
    return found


def _found(unit, rule, start, as_of, is_known, is_unseen):
    class_ = _class(unit, rule, as_of)
    is_late = any(start > e.booked_ms and e.recorded_ms >= start for e in unit.legs)
    is_late = is_unseen or (is_late and not is_known)
    if class_ in (Class.MATCHED, Class.RETURNED) and is_late:
        class_ = Class.PRIOR_PERIOD
    known = [m for m in unit.messages if unit.state(m) != "rolled_back"]
    debited, returned, credited = map(_sum, (unit.debits, unit.returns, unit.credits))
    ordered = max((m.amount or 0 for m in known), default=0)
    return Found(
        class_,
        len(unit.debits),
        debited,
        len(unit.returns),
        returned,
        len(unit.credits),
        credited,
        len(unit.visible),
        ordered,
        _at_risk(unit, class_, debited - returned - credited, ordered),
    )


def _at_risk(unit, class_, taken, ordered):
    """What was taken and not given, or given and not taken. If that is nothing, or cannot be added
    up, the amount of the transfer.
    """
    if class_ in (Class.MATCHED, Class.RETURNED, Class.ROLLED_BACK):
        return 0
    amounts = [*map(abs, (e.amount for e in unit.legs)), *(m.amount or 0 for m in unit.copies)]
    if taken and class_ != Class.CURRENCY_MISMATCH:
        return abs(taken)
    readable = [amount for amount in amounts if amount]
    spread = max(readable, default=0) - min(readable, default=0)
    if spread and class_ == Class.AMOUNT_MISMATCH:
        return spread
    return max([*amounts, ordered])


def day_of(ms):
    """The business date: it ends at 17:00 in Shanghai."""
    return (ms + 15 * 3_600_000) // 86_400_000


def _sum(rows):
    return sum(-row.amount if row.kind == "debit" else row.amount for row in rows)


def _class(unit, rule, as_of):
    wrong = _repeated(unit) or _different(unit, rule)
    if wrong:
        return wrong
    class_, may_wait = _by_presence(unit, rule)
    is_young = unit.first_ms > as_of - rule.grace_ms
    parked = {m.id for m in unit.messages if unit.state(m) == "parked"} - unit.visible
    is_given_up = parked or _given_back(unit, rule) == "dead"
    if may_wait and is_young and not is_given_up:
        return Class.IN_FLIGHT
    return class_


def _repeated(unit):
    dates = [{day_of(e.recorded_ms) for e in unit.debits}]
    dates += [{day_of(m.stored_ms) for m in unit.copies}]
    if len(unit.visible) > 1 and min(map(len, dates)) > 1:
        return Class.DUPLICATE_ID
    if len(unit.debits) > 1 or len(unit.returns) > 1:
        return Class.DUPLICATE_DEBIT
    ids = [(e.bank, e.id) for e in unit.credits if e.id is not None]
    if len(set(ids)) < len(ids):
        return Class.DUPLICATE_CREDIT
    if len(unit.visible) > 1:
        return Class.DUPLICATE_MESSAGE
    if len(unit.credits) > 1 or (unit.credits and unit.returns):
        return Class.DOUBLE_CREDIT
    return None


def _different(unit, rule):
    currencies = {e.currency for e in unit.legs} | {m.currency for m in unit.copies}
    currencies.discard(None)
    if len(currencies) > 1:
        return Class.CURRENCY_MISMATCH
    tolerance = max((rule.tolerance.get(currency, 0) for currency in currencies), default=0)
    amounts = [abs(e.amount) for e in unit.legs] + [m.amount for m in unit.copies]
    is_unread = any(m.amount is None or m.currency is None for m in unit.copies)
    if is_unread or any((e.amount > 0) == (e.kind == "debit") for e in unit.legs):
        return Class.AMOUNT_MISMATCH
    if amounts and max(amounts) - min(amounts) > tolerance:
        return Class.AMOUNT_MISMATCH
    mine = [e for e in unit.legs if e.role == "customer"]
    payers = {e.account for e in mine if e.kind != "credit"} | {m.payer for m in unit.copies}
    payees = {e.account for e in mine if e.kind == "credit"} | {m.payee for m in unit.copies}
    if len(payers - {None}) > 1 or len(payees - {None}) > 1:
        return Class.ACCOUNT_MISMATCH
    return None


def _by_presence(unit, rule):
    """A class, and whether time may mend it."""
    debited, credited, returned = bool(unit.debits), bool(unit.credits), bool(unit.returns)
    visible = bool(unit.visible)
    undecided = not visible and bool(unit.states & {"prepared", "parked"})
    rolled_back = not visible and not undecided and "rolled_back" in unit.states
    if rolled_back and debited and not returned:
        return Class.ROLLED_BACK_BUT_DEBITED, False
    if not visible and (credited or (returned and not debited)):
        return Class.CREDIT_WITHOUT_MESSAGE, False
    if any((e.bank == unit.payer_bank) == (e.kind == "credit") for e in unit.legs):
        return Class.WRONG_BANK, False
    if visible and not debited:
        if "committed" in unit.states:
            return Class.COMMITTED_BUT_NOT_DEBITED, not credited and not returned
        return Class.MESSAGE_WITHOUT_DEBIT, not credited and not returned
    if undecided:
        return Class.PARKED, True
    if returned:
        return Class.RETURNED, False
    if debited and not visible:
        return Class.DEBIT_WITHOUT_MESSAGE, True
    if debited and not credited:
        return _on_its_way(unit, rule)
    return (Class.MATCHED if debited else Class.ROLLED_BACK), False


def _on_its_way(unit, rule):
    failed = _given_back(unit, rule)
    if failed == "dead":
        return Class.DEAD_LETTER, False
    if failed or any(_is_taken(unit.told, rule, message) for message in unit.copies):
        return Class.DELIVERED_UNCREDITED, True
    return Class.COMMITTED_UNDELIVERED, True


def _given_back(unit, rule):
    """The last state of a message that its consumers could not handle, or ``None``."""
    failed = [
        (failure.stored_ms, failure.position, failure.state)
        for message in unit.copies
        for failure in unit.told.failures.get(message.id, [])
        if failure.group == rule.groups[message.topic] and failure.stored_ms < unit.end
    ]
    return max(failed)[-1] if failed else None


def _is_taken(told, rule, message):
    place = (rule.groups[message.topic], message.topic, message.queue)
    return message.queue_offset is not None and message.queue_offset < told.offsets.get(place, 0)


def balances_hold(entries, opening, later, accounts):
    """The accounts of one bank whose sums differ from the bank's own table.

    Args:
        entries: Those of the day.
        opening: Sums before it, by account and currency.
        later: Sums after it.
        accounts: What the table says.
    """
    sums = defaultdict(int, opening)
    for entry in entries:
        sums[entry.account, entry.currency] += entry.amount
    for place, amount in later.items():
        sums[place] += amount
    return {
        place for place in sums.keys() | accounts.keys() if sums[place] != accounts.get(place, 0)
    }
