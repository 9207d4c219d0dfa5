"""Both banks on a broker set of three members: its leader is killed, and no cent is lost."""

import asyncio
from itertools import count as numbers

import pytest

from tests.integration.bank.books_stage import sqlite_in
from tests.integration.bank.ways_stage import BALANCE, Banks
from tests.servers.broker_set import BrokerSet
from tests.soak import count

KILLS = count(3, 5)
SETTINGS = (
    "replication.lease=2",
    "transaction.timeout=500ms",
    "transaction.check_interval=500ms",
)


@pytest.mark.timeout(300)
def test_killed_leaders_lose_no_cent(etcd, tmp_path):
    urls = [sqlite_in(tmp_path, name) for name in ("icbc", "ccb")]
    with BrokerSet(tmp_path / "set", etcd.port, SETTINGS) as members:
        members.wait_in_sync(2)
        asyncio.run(transfers_go_on(members, urls))


async def transfers_go_on(members, urls):
    async with Banks(*urls, members.names.names) as banks:
        asked, is_over = [], asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(ask_for_transfers(banks, asked, is_over))
            for _ in range(KILLS):
                await until_longer(asked, 3)
                leader = await asyncio.to_thread(members.wait_in_sync, 2)
                leader.kill()
                await asyncio.to_thread(members.wait_for_leader, leader)
                leader.start()
            is_over.set()
        for transfer in asked:
            await banks.ended(transfer, "settled")
        assert banks.balance("A-1") == BALANCE - 100 * len(asked)
        assert banks.balance("B-1") == BALANCE + 100 * len(asked)
        assert banks.faults() == []


async def ask_for_transfers(banks, asked, is_over):
    """Ask for one transfer after the other, each until the bank has taken it."""
    for number in numbers():
        if is_over.is_set():
            return
        transfer = f"t-{number}"
        way = ("half", "outbox")[number % 2]
        while (await banks.ask(transfer, amount="1.00", way=way)).status_code != 201:
            await asyncio.sleep(0.05)
        asked.append(transfer)
        await asyncio.sleep(0.02)


async def until_longer(asked, more):
    wanted = len(asked) + more
    async with asyncio.timeout(60):
        while len(asked) < wanted:
            await asyncio.sleep(0.02)
