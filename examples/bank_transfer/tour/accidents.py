"""Random accidents: which program is killed when, and which message comes twice.

They happen after a number of answers to customers, not at a time. So the same seed has them at the
same places of the story on every machine.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from examples.bank_transfer.orders import TRANSFERS
from examples.bank_transfer.tour.orders import id_of
from examples.bank_transfer.tour.programs import Program
from examples.bank_transfer.tour.record import Record
from txmq import Client, Message, Producer
from txmq.errors import TxmqError

__all__ = ["Accident", "Accidents", "plan"]

LOOK_S: Final = 0.02
LAST: Final = 0.9
"""No accident happens after this share of the transfers."""
ATTEMPTS_MAX: Final = 5
"""How often a copy is tried if the broker or the message is not found."""


class Accident(NamedTuple):
    """A kill, or a message delivered twice, after a number of answers."""

    after: int
    name: str
    """The name of the program that is killed; "" for a message that comes twice."""


def plan(
    transfers: int, programs: Sequence[str], kills: int, copies: int, seed: int
) -> list[Accident]:
    """All accidents in order."""
    lot = random.Random(f"accidents of {seed}")  # noqa: S311 - a lot, and no secret
    last = max(1, int(transfers * LAST))
    names = [name for name in programs for _ in range(kills)] + [""] * copies
    return sorted(Accident(lot.randrange(last), name) for name in names)


class Accidents:
    """Makes the accidents happen.

    Args:
        programs: The programs that may be killed.
        names: The name server, to send messages again.
        record: The number of answers so far.
        mark: The mark of the transfers.
        seed: Decides which messages come twice.
    """

    def __init__(
        self, programs: Sequence[Program], names: str, record: Record, mark: str, seed: int
    ) -> None:
        self._mark = mark
        self._programs = {program.name: program for program in programs}
        self._names = names
        self._record = record
        self._lot = random.Random(f"copies of {seed}")  # noqa: S311 - a lot, and no secret

    async def happen(self, planned: Sequence[Accident]) -> None:
        """Make each accident happen at its place; returns when all have happened."""
        async with Client(self._names) as client, Producer("postman", client) as producer:
            for accident in planned:
                await self._record.until_asked(accident.after)
                if accident.name:
                    await self._kill(self._programs[accident.name])
                else:
                    await self._deliver_again(client, producer)

    async def _kill(self, program: Program) -> None:
        await program.kill()
        self._record.kills[program.name] += 1
        self._record.tell(f"{program.name} is killed")
        await program.start()
        self._record.tell(f"{program.name} is back")

    async def _deliver_again(self, client: Client, producer: Producer) -> None:
        """Send a message again that CCB has received already, or is about to: with the same id,
        because it is the same message, and not a second order.
        """
        for _ in range(ATTEMPTS_MAX):
            transfer = id_of(self._mark, self._lot.randrange(max(1, self._record.asked)))
            try:
                for message in await client.admin.query(TRANSFERS, transfer):
                    copy = Message(
                        topic=TRANSFERS, tags=message.tags, keys=message.keys, body=message.body,
                        properties={"UNIQ_KEY": message.id},
                    )  # fmt: skip
                    await producer.send(copy)
                    self._record.copies += 1
                    return
            except TxmqError:
                await asyncio.sleep(LOOK_S)
