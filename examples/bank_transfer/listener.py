"""The transfer in the form of RocketMQ's tutorials: a listener, and the program that sends.

================================  ==================================================================
in the tutorial, in Java          here
================================  ==================================================================
``ICBCTransactionListener``       :class:`ICBCTransactionListener`, whose local transaction is real
``TransactionProducer.main``      :func:`produce`
``TransactionConsumer``           :func:`examples.bank_transfer.ccb.open_ccb`, which credits
================================  ==================================================================

The same with a decorated function is :mod:`examples.bank_transfer.ways.half_message`: it needs no
``check_local_transaction``, because txmq keeps a table of its own for checks.

Of the nine steps of the transfer, 5 and 6 are in the listener, and the others in :func:`produce`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Final

import msgspec
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from examples.bank_transfer.booking import debit, refuse, wall_ms
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
from examples.bank_transfer.texts import words
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

__all__ = ["GROUP", "ICBCTransactionListener", "main", "message_of", "produce"]

GROUP: Final = "tpg-icbc"
"""Not the tutorial's ``tpg``: it may have other members, and members answer for each other."""
TAG: Final = "TUTORIAL_TAG"
"""The property with one of the tutorial's tags; the message's own tag names the bank it is for."""
TAGS: Final = ("TAGA", "TAGB", "TAGC")
INTERRUPTED: Final = 130

# The tutorial's 20 s, and its thread pool: up to five checks at once, and two hundred waiting.
SETTINGS: Final = TransactionSettings(timeout="20s", check_workers=5, check_queue=200)


class ICBCTransactionListener:
    """Debits in a transaction of the bank's database, and reads that database when a broker asks.

    The row of the transfer decides; its key is the transfer's id. A debit inserts it with the
    message's id. A check that finds no row inserts one with the state "refused". The first insert
    wins, and the second fails on the key. So a check may overtake a debit or run in another
    process, and a transfer may have two messages.

    Args:
        engine: The bank's database.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self.answered: asyncio.Queue[str] = asyncio.Queue()
        """The ids of messages whose checks were answered."""

    async def execute_local_transaction(
        self, message: HalfMessage, arg: Order
    ) -> LocalTransactionState:
        """Step 5: called when the half message is stored; takes the money of A."""
        tag = message.properties[TAG]
        print(f"half message stored: {tag} {message.id}")
        # Step 6: the producer receives the returned state. An exception instead, such as a broken
        # connection during the commit, leaves the outcome unknown: a broker asks.
        try:
            await self._debit(message, arg)
        except Refused as error:
            print(f"{tag} is refused: {error}")
            await self._refuse(arg, str(error))
            return LocalTransactionState.ROLLBACK
        except IntegrityError:
            print(f"{tag} comes too late: transfer {arg.id} exists")
            return LocalTransactionState.ROLLBACK
        if tag == Drill.TAGC:
            return LocalTransactionState.UNKNOWN  # As if the answer to the commit were lost.
        return LocalTransactionState.COMMIT

    async def check_local_transaction(self, message: ReceivedMessage) -> LocalTransactionState:
        """Called when the broker received "unknown" or no answer, perhaps from another process.

        It does not debit. It makes a later debit impossible, and checks whether this message's
        debit was committed; the further state of the transfer makes no difference.
        """
        print(f"checked: {message.properties[TAG]} {message.id}")
        order = read_order(message.body)
        # This waits for a debit in progress, until it commits or rolls back.
        await self._refuse(order, "a broker asked before the debit was made")
        async with AsyncSession(self._engine) as session:
            row = await session.get(Transfer, order.id)
        assert row is not None, "rows of transfers are never removed"
        is_debited = row.xid == message.id and row.state != State.REFUSED
        self.answered.put_nowait(message.id)
        return LocalTransactionState.COMMIT if is_debited else LocalTransactionState.ROLLBACK

    async def _debit(self, message: HalfMessage, order: Order) -> None:
        """The local transaction."""
        now_ms, xid = wall_ms(), message.id
        async with AsyncSession(self._engine) as session, session.begin():
            await debit(session, order, now_ms, way=Way.HALF, xid=xid, state=State.SENT)
            if message.properties[TAG] == Drill.TAGB:
                raise Refused(Reason.DRILL, "the debit is written, and fails all the same")

    async def _refuse(self, order: Order, reason: str) -> None:
        """Insert a row with the state "refused", unless the transfer has one."""
        try:
            async with AsyncSession(self._engine) as session, session.begin():
                await refuse(session, order, Way.HALF, reason, wall_ms())
        except IntegrityError:
            return


def message_of(order: Order, tag: str) -> Message:
    """M: "credit B", for CCB, with the tutorial's tag."""
    body = msgspec.json.encode(order)
    return Message(
        topic=TRANSFERS, tags="CCB", keys=(order.id,), body=body, properties={TAG: tag}
    )  # fmt: skip


async def produce(names: str, engine: AsyncEngine, orders: Mapping[str, Order]) -> None:
    """Send a transfer for each tag; return once all are decided.

    The tutorial's program shuts down at once, so the broker has no producer to ask.
    """
    listener, undecided = ICBCTransactionListener(engine), dict[str, str]()
    # This replaces the tutorial's setters and start(); leaving it replaces shutdown().
    async with TransactionProducer(GROUP, names, listener, SETTINGS) as producer:
        for tag, order in orders.items():
            message = message_of(order, tag)
            # Steps 1 to 4: the transaction opens and gets an id; its message is sent, stored where
            # CCB does not see it, and reported. Then the listener is called, with the order as its
            # second argument. 7: the producer receives the result, 8: it tells the broker, and 9:
            # CCB receives the message, or the message is gone.
            outcome = await producer.send_in_transaction(message, order)
            state = "acknowledged" if outcome.is_acknowledged else "to be asked about"
            print(f"result of {tag}: {outcome.state.name}, {state}, xid={outcome.xid}")
            if not outcome.is_acknowledged:
                undecided[outcome.xid] = tag
        while undecided:
            print(f"waiting to be asked about {', '.join(undecided.values())}")
            undecided.pop(await listener.answered.get(), None)


def orders_of(given: Namespace) -> dict[str, Order]:
    """The same transfer for each tag, under ids of their own.

    Raises:
        Refused: The order is invalid.
        ValueError: The amount is invalid.
    """
    amount, run = Money.read(given.amount, "CNY").minor, secrets.token_hex(4)
    made = {tag: Order(f"{tag}-{run}", given.payer, given.payee, amount) for tag in given.tags}
    for made_order in made.values():
        see_order(made_order)
    return made


def arguments() -> ArgumentParser:
    """The options of the command line."""
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
    """Create the missing tables, and produce.

    Raises:
        TxmqError: The cluster cannot be used.
        TimeoutError: Some transfers were not decided in time.
        Refused, ValueError: An order is invalid.
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
    """Run the program; if it fails, exit with 1 and a sentence."""
    # A shell that starts this with `&` makes it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    given = arguments().parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if given.steps:
        logging.basicConfig(format="%(message)s")
        logging.getLogger("txmq.transaction").setLevel(logging.DEBUG)
    try:
        asyncio.run(run(given))
    except TimeoutError:
        sys.exit(
            f"some transfers were not decided within {given.wait:g} s; "
            "list open transactions with: txmq tx list"
        )
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except (TxmqError, SQLAlchemyError, ValueError) as error:
        sys.exit(f"the transfers cannot be made: {words(error)}")


if __name__ == "__main__":
    main()
