"""A stage for transfers: a broker and both banks as programs open them, in one loop."""

import asyncio
import contextlib

import httpx
import msgspec
from starlette.applications import Starlette

from examples.bank_transfer.books import UNCLAIMED, Entry, State
from examples.bank_transfer.databases import Opening
from examples.bank_transfer.orders import TRANSFERS, Order
from examples.bank_transfer.service import BankSettings, opened
from examples.bank_transfer.web.security import SecurityMiddleware
from tests.integration.bank.books_stage import Books
from txmq import Client, Message, Producer
from txmq.settings.units import Duration
from txmq_broker.config import BrokerSettings, CheckBackSettings, StoreSettings
from txmq_broker.testing import embedded

PATIENCE_S = 40
BALANCE = 10_000_00
ICBC = [
    Opening("A-1", "Zhang", BALANCE), Opening("A-2", "Li", BALANCE),
    Opening("A-3", "Wang", BALANCE, "EUR"), Opening("A-4", "Zhao", BALANCE, is_open=False),
    Opening("A-5", "Qian", 10**10),
]  # fmt: skip
CCB = [
    Opening("B-1", "Sun", BALANCE), Opening("B-2", "Zhou", BALANCE),
    Opening("B-3", "Wu", BALANCE, "EUR"), Opening("B-4", "Zheng", BALANCE, is_open=False),
]  # fmt: skip
OPENING = sum(account.balance for account in (*ICBC, *CCB))


def broker_settings(asks_after_s=0.3):
    """Settings of a broker that checks transactions soon, or not during a test."""
    again = CheckBackSettings(timeout=Duration(asks_after_s), check_interval=Duration(0.2))
    return BrokerSettings(store=StoreSettings(flush="async"), transaction=again)


class Banks:
    """Both banks, over HTTP, and their books, read directly.

    Args:
        icbc: The URL of its database.
        ccb: The other's.
        names: The name servers.
    """

    def __init__(self, icbc, ccb, names):
        self.books = {"icbc": Books(icbc), "ccb": Books(ccb)}
        for books, accounts in zip(self.books.values(), (ICBC, CCB), strict=True):
            books.empty()
            books.open(accounts)
        self.names = names
        self.http = {}
        self._open = contextlib.AsyncExitStack()

    async def __aenter__(self):
        async with contextlib.AsyncExitStack() as stack:
            for books in self.books.values():
                stack.callback(books.close)
            for name in self.books:
                await self._start(stack, name)
            self.client = await stack.enter_async_context(Client(self.names))
            self._open = stack.pop_all()
        return self

    async def __aexit__(self, *problem):
        await self._open.aclose()

    async def _start(self, stack, name):
        is_xa = name == "icbc" and self.books["ccb"].url.startswith("postgres")
        settings = BankSettings(
            name=name, database=self.books[name].url, names=self.names, listen="",
            other_database=self.books["ccb"].url if is_xa else "",
        )  # fmt: skip
        routes = await stack.enter_async_context(opened(settings, asyncio.Event()))
        transport = httpx.ASGITransport(SecurityMiddleware(Starlette(routes=routes)))
        self.http[name] = await stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url=f"http://{name}", timeout=PATIENCE_S)
        )

    async def ask(self, of="t-1", payer="A-1", payee="B-1", amount="100.00", **more):
        """A transfer by the API."""
        asked = {"id": of, "payer": payer, "payee": payee, "amount": amount, **more}
        return await self.http["icbc"].post("/api/transfers", json=asked)

    async def shown(self, bank, of):
        return (await self.http[bank].get(f"/api/transfers/{of}")).json()

    async def ended(self, of, state):
        """What ICBC shows of a transfer once it has reached this state."""
        async with asyncio.timeout(PATIENCE_S):
            while (found := await self.shown("icbc", of)).get("state") != state:
                await asyncio.sleep(0.01)
        return found

    def balance(self, number):
        return self.books["icbc" if number.startswith("A") else "ccb"].account(number).balance

    def journal(self, bank, transfer):
        """The entries of a transfer."""
        found = self.books[bank].sums(Entry.transfer, Entry.kind, Entry.account)
        return {
            (kind, account): amount
            for (of, kind, account), amount in found.items()
            if of == transfer
        }

    def wealth(self):
        """What there is: in accounts, on its way, and unclaimed."""
        icbc, ccb = self.books.values()
        credited = {
            i for i, transfer in ccb.transfers().items() if transfer.state == State.CREDITED
        }
        on_its_way = sum(
            transfer.amount
            for transfer in icbc.transfers().values()
            if transfer.state == State.SENT and transfer.id not in credited
        )
        unclaimed = icbc.sums(Entry.account).get(UNCLAIMED, 0)
        customers = sum(sum(bank.balances().values()) for bank in (icbc, ccb))
        return customers + on_its_way + unclaimed

    def faults(self):
        """What is wrong with the books of both, if anything."""
        found = [fault for books in self.books.values() for fault in books.faults()]
        if (wealth := self.wealth()) != OPENING:
            found.append(f"there were {OPENING}, and are {wealth}")
        return found

    async def send(self, topic, body, *, key, tags="CCB"):
        """A message from a sender that is no bank; messages are handled in the order sent."""
        async with Producer("somebody", self.client) as producer:
            message = Message(topic=topic, tags=tags, keys=(key,), body=body)
            await producer.send_ordered(message, "one queue")

    async def send_order(self, order, *, key=None):
        await self.send(TRANSFERS, msgspec.json.encode(order), key=key or order.id)

    async def dead(self, group, count=1):
        """The dead letters of a group, once there are ``count``."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                letters = [letter async for letter in self.client.admin.dead_letters(group)]
                if len(letters) >= count:
                    return letters
                await asyncio.sleep(0.02)

    def states(self, bank):
        return {of: State(transfer.state) for of, transfer in self.books[bank].transfers().items()}


def order(of="t-1", payer="A-1", payee="B-1", amount=100_00, currency="CNY"):
    return Order(of, payer, payee, amount, currency)


@contextlib.asynccontextmanager
async def stage(urls, settings=None):
    """A broker, and both banks."""
    async with (
        embedded(settings or broker_settings()) as broker,
        Banks(*urls, broker.names) as banks,
    ):
        yield banks
