"""ICBCTransactionListener: a bank's word on its local transactions; here the tag says it all."""

from __future__ import annotations

import asyncio
from typing import Final

from txmq import HalfMessage, LocalTransactionState, ReceivedMessage

__all__ = ["ICBCListener"]

ANSWERS: Final = {
    "TAGA": LocalTransactionState.COMMIT,
    "TAGB": LocalTransactionState.ROLLBACK,
    "TAGC": LocalTransactionState.UNKNOWN,
}


class ICBCListener:
    """Takes money for TAGA, has none for TAGB, and does not know about TAGC until it is asked."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def execute_local_transaction(
        self, message: HalfMessage, arg: object
    ) -> LocalTransactionState:
        """Called once the half message is stored: this is where the account is debited."""
        del arg
        print(f"half message stored: {message.tags} {message.id}")
        return ANSWERS.get(message.tags, LocalTransactionState.UNKNOWN)

    async def check_local_transaction(self, message: ReceivedMessage) -> LocalTransactionState:
        """The broker calls this after the answer "unknown", or after no answer at all."""
        print(f"checked: {message.tags} {message.id}")
        self.asked.set()
        return LocalTransactionState.COMMIT
