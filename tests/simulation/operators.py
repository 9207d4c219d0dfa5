"""Operators list open transactions, decide some by hand, and have some checked again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from tests.simulation.history import COMMIT, ROLLBACK, EndAnswered, EndSent, History, Word
from tests.simulation.mix import Mix
from tests.simulation.transactor import ANSWER_S
from tests.simulation.workload import TROUBLE, Client
from txmq.client import Session
from txmq.protocol.bodies import OpenTransactions, TransactionEntry
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import DecideTransaction, ListTransactions, NamedTransaction
from txmq.remoting.connection import Connection
from txmq.testing import World

__all__ = ["Operator", "open_transactions"]

PAGE: Final = 7
"""Few enough that listing takes several pages."""


class Operator(Client):
    """Lists open transactions now and then, decides some and has some checked again."""

    def __init__(
        self,
        world: World,
        name: str,
        names: str,
        mix: Mix,
        history: History,
        brokers: Sequence[str],
    ) -> None:
        super().__init__(world, name, names, mix, history)
        assert mix.transactions is not None
        self._pause_s = mix.transactions.operator_s
        self._brokers = brokers

    async def _work(self, session: Session) -> None:
        while True:
            await asyncio.sleep(self._pause_s * 2 * self._draw.fraction())
            with suppress(*TROUBLE):
                await self.tend(session)

    async def tend(self, session: Session) -> None:
        """List once, and perhaps act on one transaction."""
        draw = self._draw
        address = self._brokers[draw.below(len(self._brokers))]
        connection = await session.connection(address)
        # Mostly parked ones: those wait for an operator.
        state = "parked" if draw.chance(0.8) else ""
        found = await open_transactions(connection, state)
        if not found:
            return
        xid = found[draw.below(len(found))].transaction_id
        if draw.chance(0.4):
            named = NamedTransaction(xid)
            await connection.ask(RequestCode.RECHECK_TRANSACTION, named, timeout_s=ANSWER_S)
            return
        says = (COMMIT, ROLLBACK)[draw.below(2)]
        word = Word(says, "operator")
        self.history.add(EndSent(self.now(), xid, word))
        header = DecideTransaction(xid, says, self.name, "it has waited long enough")
        answer = await connection.ask(RequestCode.DECIDE_TRANSACTION, header, timeout_s=ANSWER_S)
        self.history.add(EndAnswered(self.now(), xid, word, answer.code))


async def open_transactions(connection: Connection, state: str = "") -> list[TransactionEntry]:
    """What a broker lists, oldest first, page by page.

    Raises:
        TransportError: It does not answer.
        BrokerRefused: It does not want to.
    """
    found: list[TransactionEntry] = []
    while True:
        start = found[-1].half_offset + 1 if found else 0
        header = ListTransactions(state, "", start, PAGE)
        answer = await connection.request(RequestCode.LIST_TRANSACTIONS, header, timeout_s=ANSWER_S)
        page = OpenTransactions.read(answer.body).transactions
        found += page
        if len(page) < PAGE:
            return found
