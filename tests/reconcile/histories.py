"""Random histories of two days: transfers as they should be, and what accidents make of them.

Moments stand at the edges of what the rules know: the days' beginnings and ends, and the grace.
"""

from random import Random

from tests.reconcile.days import RULES, VISIBLE
from tests.reconcile.reference import Entry, Failure, Message

FLOWS = {flow.namespace: flow for flow in RULES.log.flow}
OFFSETS = {
    (flow.group, flow.topic, queue): after
    for flow in FLOWS.values()
    for queue, after in ((0, 100), (1, 10))
}
STATES = ("sent", "prepared", "parked", "committed", "rolled_back")


class History:
    """Transfers of two days; the same seed gives the same ones."""

    def __init__(self, seed, days, grace_ms, transfers):
        self.random = Random(seed)
        (start, middle), (_, end) = days
        early = [middle - grace_ms + near for near in (-1, 0, 1)]
        late = [end - grace_ms + near for near in (-1, 0, 1)]
        self.moments = [start, start + 5, *early, middle - 1, middle, middle + 9, *late, end - 1]
        self.outside = [start - 1, end, end + 7]
        self.entries, self.messages, self.failures = [], [], []
        for number in range(transfers):
            self._transfer(f"{self.random.choice(('icbc', 'ccb'))}/{number}")
        # Drawn separately, so that everything else of a seed stays the same.
        strays = Random(-1 - seed)
        self.entries = [
            row._replace(bank="ccb" if row.bank == "icbc" else "icbc")
            if strays.random() < 0.05
            else row
            for row in self.entries
        ]

    def _transfer(self, key):
        """A matched transfer, or a part of one, and up to four accidents."""
        random = self.random
        payer_bank = key.partition("/")[0]
        payee_bank = "ccb" if payer_bank == "icbc" else "icbc"
        began = random.randrange(len(self.moments))
        amount, currency = random.choice((500, 501)), random.choice(("CNY", "CNY", "EUR"))
        debit = self._entry(payer_bank, key, "debit", "payer", -amount, currency, began)
        credit = self._entry(payee_bank, key, "credit", "payee", amount, currency, began)
        message = self._message(key, amount, currency, began)
        entries, messages, failures = [debit, credit], [message], []
        fate = random.random()
        if fate < 0.15:
            entries[1] = self._entry(payer_bank, key, "return", "payer", amount, currency, began)
        elif fate < 0.5:
            entries.pop()
        elif fate < 0.6:
            entries.clear()
        if random.random() < 0.2:
            messages.clear()
        if random.random() < 0.2:
            failures.append(self._failure(message))
        for _ in range(random.choice((0, 0, 1, 1, 2, 4))):
            self._accident(entries, messages, failures)
        self.entries += entries
        self.messages += messages
        told = {message.id for message in messages if message.state in VISIBLE}
        self.failures += [failure for failure in failures if failure.id in told]

    def _at(self, began, most=3):
        """A moment soon after another; now and then one outside of both days."""
        if self.random.random() < 0.02:
            return self.random.choice(self.outside)
        last = len(self.moments) - 1
        return self.moments[min(last, began + self.random.choice((0, 0, 0, 1, most)))]

    def _number(self):
        return self.random.randrange(1, 10**12)

    def _entry(self, bank, key, kind, account, amount, currency, began):
        recorded = self._at(began)
        booked = recorded
        if self.random.random() < 0.1:
            booked = self.random.choice([*self.outside[:1], *self.moments])
        number = self._number()
        return Entry(
            bank, number, key, kind, "customer", account, amount, currency, booked, recorded
        )

    def _message(self, key, amount, currency, began):
        random = self.random
        state = random.choice((*STATES, "committed", "committed", "sent"))
        stored = self._at(began)
        is_decided = state in ("committed", "rolled_back") or (
            state == "parked" and random.random() < 0.5
        )
        decided = max(stored, self._at(began, 4)) if is_decided else None
        is_visible = state in ("committed", "sent")
        return Message(
            key=key,
            id=f"{self._number():032X}",
            payer=random.choice(("payer",) * 9 + (None,)),
            payee=random.choice(("payee",) * 9 + (None,)),
            amount=amount,
            currency=currency,
            state=state,
            topic=FLOWS[key.partition("/")[0]].topic,
            queue=random.randrange(3),
            queue_offset=random.choice((0, 9, 10, 99, 100, None)) if is_visible else None,
            stored_ms=stored,
            decided_ms=decided,
            decided_by="operator" if is_decided else None,
            position=self._number(),
        )

    def _failure(self, message):
        flow = next(flow for flow in FLOWS.values() if flow.topic == message.topic)
        state = self.random.choice(("dead", "retrying"))
        group = flow.group if self.random.random() < 0.8 else "audit"
        at = message.decided_ms or message.stored_ms
        return Failure(message.key, message.id, group, state, 3, at, None, self._number())

    def _accident(self, entries, messages, failures):
        """Something is lost, doubled or altered."""
        random = self.random
        rows = random.choice((entries, messages))
        if not rows:
            return
        place = random.randrange(len(rows))
        what = random.random()
        if what < 0.25:
            rows.append(self._again(rows[place]))
        elif what < 0.4:
            del rows[place]
        elif what < 0.5 and messages:
            failures.append(self._failure(random.choice(messages)))
        elif rows is entries:
            entries[place] = self._altered(entries[place])
        else:
            messages[place] = self._rewritten(messages[place])

    def _again(self, row):
        """A copy of the row, or another one like it."""
        began = self.random.randrange(len(self.moments))
        if isinstance(row, Message):
            again = self._message(row.key, row.amount, row.currency, began)
            return again._replace(id=row.id) if self.random.random() < 0.6 else again
        again = row._replace(recorded_ms=self._at(began))
        return again if self.random.random() < 0.5 else again._replace(id=self._number())

    def _altered(self, row):
        sign = 1 if row.amount > 0 else -1
        return self.random.choice(
            (
                row._replace(amount=row.amount + sign * self.random.choice((1, 7))),
                row._replace(amount=-row.amount),
                row._replace(currency="JPY"),
                row._replace(account="somebody"),
                row._replace(role=self.random.choice(("suspense", "clearing"))),
                row._replace(id=None),
                row._replace(booked_ms=self.outside[0]),
            )
        )

    def _rewritten(self, row):
        return self.random.choice(
            (
                row._replace(amount=row.amount and row.amount + self.random.choice((1, 7))),
                row._replace(currency="JPY"),
                row._replace(payer="somebody"),
                row._replace(payee="somebody"),
                row._replace(amount=None, currency=None, payer=None, payee=None, problem="no JSON"),
            )
        )
