"""The transfer in the form of RocketMQ's tutorials: a listener, and the program that sends.

================================  ==================================================================
in the tutorial, in Java          here
================================  ==================================================================
``ICBCTransactionListener``       :class:`ICBCTransactionListener`, whose local transaction is real
``TransactionProducer.main``      :func:`produce`
``TransactionConsumer``           :func:`examples.bank_transfer.ccb.open_ccb`, which credits
================================  ==================================================================

The same with a decorated function is :mod:`examples.bank_transfer.ways.half_message`: there nobody
has to write ``check_local_transaction``, because txmq keeps a table of its own for it.

Of the nine steps of the transfer 5 and 6 stand in the listener, and the others in :func:`produce`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Final

import msgspec
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from examples.bank_transfer.booking import debit, refuse
from examples.bank_transfer.books import State, Transfer
from examples.bank_transfer.databases import async_engine, create_books
from examples.bank_transfer.money import Money
from examples.bank_transfer.orders import (
    TRANSFERS,
    Drill,
    Order,
    Reason,
    Refused,
    read_order,
    see_order,
)
from examples.bank_transfer.ways import Way
from txmq import (
    HalfMessage,
    LocalTransactionState,
    Message,
    ReceivedMessage,
    TransactionProducer,
    TransactionSettings,
    TxmqError,
)
from txmq.databases.failures import words
from txmq.runtime.clock import Clock, SystemClock
from txmq.runtime.interrupts import restore_interrupt

__all__ = ["GROUP", "ICBCTransactionListener", "main", "message_of", "produce"]

GROUP: Final = "tpg-icbc"
"""Not the tutorial's ``tpg``: that has other members, and members answer for each other."""
TAG: Final = "TUTORIAL_TAG"
"""The property with one of the tutorial's tags; the message's own is the bank that it is for."""
TAGS: Final = ("TAGA", "TAGB", "TAGC")
INTERRUPTED: Final = 130

# The tutorial's 20 s, and its thread pool: up to five checks at once, two hundred that wait.
SETTINGS: Final = TransactionSettings(timeout_s=20, check_workers=5, check_queue=200)


class ICBCTransactionListener:
    """Debits in a transaction of the bank's database, and looks there when a broker asks.

    What decides is the transfer's row, whose key is the transfer's id. A debit inserts it with the
    message's id, and a check that finds none inserts one that says "refused": whoever comes first
    wins, and the other one fails on the key. So a check may overtake a debit, or come from a
    process that knows nothing of it, or there may be two messages of one transfer.

    Args:
        engine: The bank's database.
        clock: Where the time comes from.
    """

    def __init__(self, engine: AsyncEngine, clock: Clock | None = None) -> None:
        self._engine = engine
        self._clock = clock or SystemClock()
        self.answered: asyncio.Queue[str] = asyncio.Queue()
        """The ids of messages that brokers have asked about and been told of."""

    async def execute_local_transaction(
        self, message: HalfMessage, arg: Order
    ) -> LocalTransactionState:
        """Step 5: called back once the half message is stored; takes the money of A."""
        tag = message.properties[TAG]
        print(f"half message stored: {tag} {message.id}")
        # Step 6: what is returned is what the producer hears. What is raised instead, such as a
        # connection that breaks during the commit, leaves open what became of it: a broker asks.
        try:
            await self._debit(message, arg)
        except Refused as error:
            print(f"{tag} is refused: {error}")
            await self._refuse(arg, str(error))
            return LocalTransactionState.ROLLBACK
        except IntegrityError:
            print(f"{tag} comes too late: there is a transfer {arg.id}")
            return LocalTransactionState.ROLLBACK
        if tag == Drill.TAGC:
            return LocalTransactionState.UNKNOWN  # As if the answer to the commit were lost.
        return LocalTransactionState.COMMIT

    async def check_local_transaction(self, message: ReceivedMessage) -> LocalTransactionState:
        """Called when the broker was told "unknown", or nothing at all, perhaps by another process.

        It does not debit. It makes sure that nobody debits any more, and looks whether somebody has
        with this very message; how far the transfer has come since makes no difference.
        """
        print(f"checked: {message.properties[TAG]} {message.id}")
        order = read_order(message.body)
        # A debit that is not committed keeps this waiting until it is, or is rolled back.
        await self._refuse(order, "a broker asked before the debit was made")
        async with AsyncSession(self._engine) as session:
            row = await session.get(Transfer, order.id)
        assert row is not None, "rows of transfers are never removed"
        is_debited = row.xid == message.id and row.state != State.REFUSED
        self.answered.put_nowait(message.id)
        return LocalTransactionState.COMMIT if is_debited else LocalTransactionState.ROLLBACK

    async def _debit(self, message: HalfMessage, order: Order) -> None:
        """The local transaction."""
        now_ms, xid = self._clock.wall_ms(), message.id
        async with AsyncSession(self._engine) as session, session.begin():
            await debit(session, order, now_ms, way=Way.HALF, xid=xid, state=State.SENT)
            if message.properties[TAG] == Drill.TAGB:
                raise Refused(Reason.DRILL, "the debit is written, and fails all the same")

    async def _refuse(self, order: Order, reason: str) -> None:
        """Insert a row that says so, unless the transfer has one."""
        try:
            async with AsyncSession(self._engine) as session, session.begin():
                await refuse(session, order, Way.HALF, reason, self._clock.wall_ms())
        except IntegrityError:
            return


def message_of(order: Order, tag: str) -> Message:
    """M: "credit B", for CCB, with the tag that the tutorial gives it."""
    body = msgspec.json.encode(order)
    return Message(
        topic=TRANSFERS, tags="CCB", keys=(order.id,), body=body, properties={TAG: tag}
    )  # fmt: skip


async def produce(names: str, engine: AsyncEngine, orders: Mapping[str, Order]) -> None:
    """Send a transfer for each tag; return once all are decided.

    The tutorial's program shuts down at once, so that nobody is left whom the broker could ask.
    """
    listener, undecided = ICBCTransactionListener(engine), dict[str, str]()
    # What the setters and start() are there; leaving is its shutdown().
    async with TransactionProducer(GROUP, names, listener, SETTINGS) as producer:
        for tag, order in orders.items():
            message = message_of(order, tag)
            # Steps 1 to 4: the transaction is opened and has an id, its message is sent, stored
            # where CCB does not see it, and reported. Then the listener is called, with the order
            # as its second argument, and 7: the producer hears what it says, 8: tells the broker,
            # and 9: the message is seen, or gone.
            outcome = await producer.send_in_transaction(message, order)
            said = "acknowledged" if outcome.is_acknowledged else "to be asked about"
            print(f"result of {tag}: {outcome.state.name}, {said}, xid={outcome.xid}")
            if not outcome.is_acknowledged:
                undecided[outcome.xid] = tag
        while undecided:
            print(f"waiting to be asked about {', '.join(undecided.values())}")
            undecided.pop(await listener.answered.get(), None)


def orders_of(given: Namespace) -> dict[str, Order]:
    """The same transfer for each tag, under ids of their own.

    Raises:
        Refused: No bank would carry it out.
        ValueError: There is no such amount.
    """
    amount, run = Money.read(given.amount, "CNY").minor, secrets.token_hex(4)
    made = {tag: Order(f"{tag}-{run}", given.payer, given.payee, amount) for tag in given.tags}
    for made_order in made.values():
        see_order(made_order)
    return made


def arguments() -> ArgumentParser:
    """What may be written on the command line."""
    parser = ArgumentParser(
        prog="python -m examples.bank_transfer.listener",
        description="ICBC in the form of RocketMQ's tutorials: a listener and its producer.",
    )
    parser.add_argument("--database", required=True, help="ICBC's: PostgreSQL or SQLite")
    parser.add_argument("--names", default="127.0.0.1:9876", help="the name servers")
    parser.add_argument("--tags", nargs="+", choices=TAGS, default=TAGS, help="in this order")
    parser.add_argument("--payer", default="ICBC-A", help="an account at ICBC")
    parser.add_argument("--payee", default="CCB-B", help="an account at CCB")
    parser.add_argument("--amount", default="10,000.00", help="of each transfer, in CNY")
    parser.add_argument("--wait", type=float, default=180.0, help="seconds, for brokers to ask")
    parser.add_argument("--steps", action="store_true", help="show the nine steps as they happen")
    return parser


async def run(given: Namespace) -> None:
    """Make the tables where there are none, and produce.

    Raises:
        TxmqError: The cluster cannot be used.
        TimeoutError: Not all was decided in time.
        Refused, ValueError: Nobody would carry out what is asked for.
    """
    orders = orders_of(given)
    await asyncio.to_thread(create_books, given.database)
    engine = async_engine(given.database)
    try:
        async with asyncio.timeout(given.wait):
            await produce(given.names, engine, orders)
    finally:
        await engine.dispose()


def main() -> None:
    """Run what the command line asks for; end with 1 and a sentence where that fails."""
    restore_interrupt()
    given = arguments().parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if given.steps:
        logging.basicConfig(format="%(message)s")
        logging.getLogger("txmq.transaction").setLevel(logging.DEBUG)
    try:
        asyncio.run(run(given))
    except TimeoutError:
        sys.exit(f"not all was decided within {given.wait:g} s; `txmq tx list` shows what is open")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except (TxmqError, SQLAlchemyError, ValueError) as error:
        sys.exit(f"the transfers cannot be made: {words(error)}")


if __name__ == "__main__":
    main()
