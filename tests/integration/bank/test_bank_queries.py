"""What the bank's API reads from the books of a real database."""

import asyncio

import httpx
from starlette.applications import Starlette

from examples.bank_transfer.databases import Opening
from examples.bank_transfer.queries import Queries
from examples.bank_transfer.web.api import api_of
from tests.integration.bank.books_stage import Books, sqlite_in


def test_accounts_transfers_and_health_are_read_from_the_books(tmp_path):
    books = Books(sqlite_in(tmp_path), [Opening("A-1", "Zhang San", 10_000_00)])

    async def look():
        async with books.engine() as engine:
            routes = api_of(Queries(engine))
            transport = httpx.ASGITransport(Starlette(routes=routes))
            async with httpx.AsyncClient(transport=transport, base_url="http://bank") as client:
                paths = [
                    "accounts/A-1", "accounts/A-9", "accounts/%00", "accounts/a%00%ff",
                    "transfers/t-9", "transfers/%00", f"transfers/{'t' * 2_000}", "health",
                ]  # fmt: skip
                return [await client.get(f"/api/{path}") for path in paths]

    account, *missing, health = asyncio.run(look())

    assert account.json() == {
        "number": "A-1", "holder": "Zhang San", "is_open": True, "balance": 10_000_00,
        "currency": "CNY",
    }  # fmt: skip
    assert {answer.status_code for answer in missing} == {404}
    assert health.json() == {"state": "well"}
    books.close()
