"""Two banks against a plain reference: whatever is asked, in whatever order, no money is lost.

``TXMQ_SOAK`` plays many more games, and on PostgreSQL as many as on SQLite.
"""

import asyncio
import contextlib
import tempfile
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from examples.bank_transfer.booking import credit, debit, pay_in, refuse, settle
from examples.bank_transfer.books import BALANCE_MAX, UNCLAIMED, Entry, State
from examples.bank_transfer.databases import Opening, async_engine, create_books
from examples.bank_transfer.orders import DAY_MAX, Advice, Order, Outcome, Reason, Refused
from tests.integration.bank.books_stage import DAY_MS, NOON_MS, Books, sqlite_in

pytestmark = pytest.mark.slow

MANY = settings().max_examples
HOUR_MS = 3_600_000
OPENED = {
    "icbc": [
        Opening("A-1", "", 1_000), Opening("A-2", "", 3 * DAY_MAX), Opening("A-3", "", 50, "JPY"),
    ],
    "ccb": [
        Opening("B-1", "", 0), Opening("B-2", "", BALANCE_MAX - 300), Opening("B-3", "", 7, "JPY"),
    ],
}  # fmt: skip
IDS = [f"t-{n}" for n in range(5)]
orders = st.builds(
    Order,
    id=st.sampled_from(IDS),
    payer=st.sampled_from(["A-1", "A-2", "A-2", "A-2", "A-3", "A-9"]),
    payee=st.sampled_from(["B-1", "B-2", "B-3", "B-9"]),
    amount=st.sampled_from([1, 50, 100, 400, 1_001, DAY_MAX // 2, DAY_MAX, DAY_MAX + 1]),
    currency=st.sampled_from(["CNY", "CNY", "CNY", "CNY", "JPY"]),
)


@dataclass
class Holder:
    currency: str
    balance: int
    is_open: bool = True
    day: int = 0
    sent: int = 0


@dataclass
class Reference:
    """The expected books of one bank."""

    accounts: dict[str, Holder]
    transfers: dict[str, tuple[Order, State]] = field(default_factory=dict)
    unclaimed: int = 0

    def sees(self, number, order):
        """The reason why an account cannot be used for the order."""
        holder = self.accounts.get(number)
        if holder is None:
            return Reason.UNKNOWN_ACCOUNT
        if not holder.is_open:
            return Reason.CLOSED_ACCOUNT
        return None if holder.currency == order.currency else Reason.WRONG_CURRENCY

    def debit(self, order, day, state):
        """Reasons are returned, as they would be raised."""
        if order.id in self.transfers:
            return Reason.SAME_ID
        if (reason := self.sees(order.payer, order)) is not None:
            return reason
        holder = self.accounts[order.payer]
        sent = order.amount + (holder.sent if holder.day == day else 0)
        if sent > DAY_MAX:
            return Reason.OVER_LIMIT
        if holder.balance < order.amount:
            return Reason.TOO_LITTLE_MONEY
        holder.balance -= order.amount
        holder.day, holder.sent = day, sent
        self.transfers[order.id] = order, state
        return None

    def cannot_credit(self, order):
        if (reason := self.sees(order.payee, order)) is not None:
            return reason
        is_full = self.accounts[order.payee].balance + order.amount > BALANCE_MAX
        return Reason.TOO_MUCH_MONEY if is_full else None

    def credit(self, order):
        self.accounts[order.payee].balance += order.amount
        self.transfers[order.id] = order, State.CREDITED

    def settle(self, advice):
        order, state = self.transfers.get(advice.id, (None, None))
        if state is not State.SENT:
            return Reason.BAD_ADVICE
        if advice.outcome is Outcome.CREDITED:
            self.transfers[advice.id] = order, State.SETTLED
            return None
        self.transfers[advice.id] = order, State.RETURNED
        holder = self.accounts[order.payer]
        if holder.is_open:
            holder.balance += order.amount
        else:
            self.unclaimed += order.amount
        return None


class Broken(Exception):
    """The steps in the middle."""


class Transfers(RuleBasedStateMachine):
    """Steps of both banks, as if messages came late, twice, and out of their order."""

    urls = None

    def __init__(self):
        super().__init__()
        self.open = contextlib.ExitStack()
        self.runner = self.open.enter_context(asyncio.Runner())
        if self.urls is None:
            folder = self.open.enter_context(tempfile.TemporaryDirectory())
            urls = [sqlite_in(folder, item) for item in OPENED]
        else:
            urls = self.urls
        self.books, self.engines, self.reference = {}, {}, {}
        for url, (name, opened) in zip(urls, OPENED.items(), strict=True):
            books = self.books[name] = Books(url)
            books.empty()
            books.open(opened)
            self.engines[name] = async_engine(url)
            self.reference[name] = Reference(
                {item.number: Holder(item.currency, item.balance) for item in opened}
            )
        self.now_ms = NOON_MS
        self.advices = {}
        self.opening = self.wealth()

    def teardown(self):
        for resource in self.engines.values():
            self.runner.run(resource.dispose())
        for resource in self.books.values():
            resource.close()
        self.open.close()

    def wealth(self):
        """The customers' money by currency."""
        found = {"CNY": 0, "JPY": 0}
        for bank in self.reference.values():
            for account in bank.accounts.values():
                found[account.currency] += account.balance
        return found

    def do(self, bank, step, *args, is_broken=False, **kwargs):
        """Run a step in its own transaction; return its result or its error."""

        async def work():
            async with AsyncSession(self.engines[bank]) as session, session.begin():
                said = await step(session, *args, **kwargs)
                if is_broken:
                    raise Broken
                return said

        try:
            return self.runner.run(work())
        except (Refused, IntegrityError, Broken) as problem:
            return problem

    @rule(order=orders, is_broken=st.booleans(), notes_it=st.booleans())
    def ask(self, order, is_broken, notes_it):
        """A customer asks, perhaps for what was asked for before, or is."""
        sent = {"way": "half", "xid": "X", "state": State.SENT}
        said = self.do("icbc", debit, order, self.now_ms, is_broken=is_broken, **sent)

        if is_broken and isinstance(said, Broken):
            return
        icbc = self.reference["icbc"]
        expected = icbc.debit(order, self.now_ms // DAY_MS, State.SENT)
        self.see(said, expected)
        if isinstance(said, Refused) and notes_it:
            assert self.do("icbc", refuse, order, "half", str(said), self.now_ms) is None
            icbc.transfers[order.id] = order, State.REFUSED

    @rule(order=orders, is_broken=st.booleans())
    def ask_both(self, order, is_broken):
        """The same by XA: both banks, or neither."""

        async def work():
            async with (
                AsyncSession(self.engines["icbc"]) as paying,
                AsyncSession(self.engines["ccb"]) as paid,
            ):
                how = {"way": "xa", "xid": "X", "state": State.SETTLED}
                await debit(paying, order, self.now_ms, **how)
                await credit(paid, order, self.now_ms, way="xa", xid="X")
                await paid.flush()
                if not is_broken:
                    await paying.commit()
                    await paid.commit()

        said = None
        try:
            self.runner.run(work())
        except (Refused, IntegrityError) as problem:
            said = problem
        if said is None and is_broken:
            return
        icbc, ccb = self.reference.values()
        if said is not None:
            debited = Reference({n: Holder(**vars(h)) for n, h in icbc.accounts.items()})
            debited.transfers = dict(icbc.transfers)
            expected = debited.debit(order, self.now_ms // DAY_MS, State.SETTLED)
            expected = expected or ccb.cannot_credit(order)
            self.see(said, expected or Reason.SAME_ID)
            return
        assert icbc.debit(order, self.now_ms // DAY_MS, State.SETTLED) is None
        assert ccb.cannot_credit(order) is None
        ccb.credit(order)

    def sent(self):
        return [
            order
            for order, state in self.reference["icbc"].transfers.values()
            if state in (State.SENT, State.SETTLED, State.RETURNED)
        ]

    @precondition(lambda self: self.sent())
    @rule(which=st.integers(0, 99), is_broken=st.booleans())
    def deliver(self, which, is_broken):
        """A message reaches CCB, perhaps not for the first time."""
        order = self.sent()[which % len(self.sent())]
        said = self.do("ccb", pay_in, order, self.now_ms, is_broken=is_broken)

        ccb = self.reference["ccb"]
        if order.id in ccb.transfers:
            assert isinstance(said, IntegrityError)
        elif not is_broken:
            reason = ccb.cannot_credit(order)
            outcome = Outcome.RETURNED if reason else Outcome.CREDITED
            assert (said.id, said.outcome) == (order.id, outcome)
            assert said.reason.startswith(reason or "")
            if reason is None:
                ccb.credit(order)
            else:
                ccb.transfers[order.id] = order, State.RETURNED
            self.advices[order.id] = said

    @precondition(lambda self: self.advices)
    @rule(which=st.integers(0, 99), times=st.integers(1, 2), closes=st.booleans())
    def advise(self, which, times, closes):
        """An advice reaches ICBC, perhaps not for the first time, or too late for the payer."""
        advice = list(self.advices.values())[-1 - which % len(self.advices)]
        order, _ = self.reference["icbc"].transfers[advice.id]
        if closes:
            self.open_or_close(order.payer, False)
        for _ in range(times):
            broken = self.do("icbc", settle, advice, self.now_ms, is_broken=True)
            assert isinstance(broken, Broken | Refused)
            said = self.do("icbc", settle, advice, self.now_ms)
            self.see(said, self.reference["icbc"].settle(advice))

    @rule(of=st.sampled_from([*IDS, "t-9"]), outcome=st.sampled_from(Outcome))
    def advise_falsely(self, of, outcome):
        """An advice that CCB never gave. For a transfer in flight it would be believed."""
        icbc = self.reference["icbc"]
        if icbc.transfers.get(of, (None, None))[1] is State.SENT:
            return
        advice = Advice(of, outcome, "made up")
        self.see(self.do("icbc", settle, advice, self.now_ms), icbc.settle(advice))

    @rule(number=st.sampled_from(["A-1", "A-2", "B-1", "B-3"]))
    def reopen(self, number):
        self.open_or_close(number, True)

    @rule(number=st.sampled_from(["A-1", "A-2", "B-1", "B-3"]))
    def close(self, number):
        self.open_or_close(number, False)

    def open_or_close(self, number, is_open):
        bank = "icbc" if number.startswith("A") else "ccb"
        self.books[bank].change(number, is_open=is_open)
        self.reference[bank].accounts[number].is_open = is_open

    @rule(hours=st.sampled_from([0, 1, 11, 12, 13, 24]))
    def wait(self, hours):
        self.now_ms += hours * HOUR_MS

    def see(self, said, expected):
        if expected is None:
            assert said is None or isinstance(said, State), said
        elif expected is Reason.SAME_ID:
            assert isinstance(said, IntegrityError), said
        else:
            assert isinstance(said, Refused), said
            assert said.reason is expected

    @invariant()
    def books_say_what_they_should(self):
        for name, reference in self.reference.items():
            books = self.books[name]
            balances = {number: row.balance for number, row in reference.accounts.items()}
            assert books.balances() == balances
            found = {of: State(row.state) for of, row in books.transfers().items()}
            assert found == {of: state for of, (_, state) in reference.transfers.items()}
            assert books.faults() == []
            assert books.sums(Entry.account).get(UNCLAIMED, 0) == reference.unclaimed

    @invariant()
    def no_money_is_lost(self):
        icbc, ccb = self.reference.values()
        found = self.wealth()
        for of, (order, state) in icbc.transfers.items():
            is_credited = ccb.transfers.get(of, (None, None))[1] is State.CREDITED
            if state is State.SENT and not is_credited:
                found[order.currency] += order.amount
            assert not (state is State.RETURNED and is_credited)
        opening = dict(self.opening)
        unclaimed = self.books["icbc"].sums(Entry.account, Entry.currency)
        for currency in opening:
            found[currency] += unclaimed.get((UNCLAIMED, currency), 0)
        assert found == opening


def game(games, urls=None):
    class Played(Transfers):
        pass

    Played.urls = urls
    how = settings(max_examples=max(1, games), stateful_step_count=30)
    run_state_machine_as_test(Played, settings=how)


def test_two_banks_on_sqlite_behave_like_the_model():
    game(MANY // 4)


@pytest.mark.timeout(300)  # The first test on PostgreSQL may have to download it.
def test_two_banks_on_postgres_behave_like_the_model(postgres):
    with postgres.database() as icbc, postgres.database() as ccb:
        urls = [url.render_as_string(hide_password=False) for url in (icbc, ccb)]
        for url in urls:
            create_books(url)
        game(MANY // 10, urls)
