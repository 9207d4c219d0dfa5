"""ICBC pays CCB, in one file: two banks on SQLite, and a broker inside the process.

One transfer arrives, one is refused, and one is killed between its commit and its message.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session

from txmq import ConsumerSettings, ReceivedMessage, SQLResource, StartFrom, create_fence
from txmq.blocking import PushConsumer, TransactionManager
from txmq.errors import RollBack
from txmq.idempotent import UniqueKeyTable, create_done, idempotent
from txmq.testing import BrokerThread

TOTAL, PATIENCE_S = 10_000, 60
TAKE = text("UPDATE account SET balance = balance - :amount RETURNING balance")
GIVE = text("UPDATE account SET balance = balance + :amount")
ASK_SOON = {"transaction.timeout": "1s", "transaction.check_interval": "1s"}


def open_bank(url: str, balance: int) -> Engine:
    """A new bank with one account."""
    with create_engine(url).begin() as database:
        database.execute(text(f"CREATE TABLE account AS SELECT {balance} AS balance"))
    return database.engine


def pay(transactions: TransactionManager[Session], transfer: str, amount: int) -> str:
    """Take the money from ICBC, and send the message if that commits; what became of it."""

    @transactions.transactional(topic="transfer", keys=transfer)
    def debit(session: Session, order: dict[str, int]) -> None:
        if session.execute(TAKE, order).scalar_one() < 0:
            raise RollBack("too little money")

    return f"{transfer} {debit({'amount': amount}).state.name}"


def audit(said: str, *banks: Engine, in_flight: int = 0) -> None:
    """Count all money, and say where it is."""
    balances = []
    for bank in banks:
        with bank.connect() as database:
            balances.append(database.execute(text("SELECT balance FROM account")).scalar_one())
    assert sum(balances) + in_flight == TOTAL, (balances, in_flight)
    print(f"{said}: ICBC {balances[0]}, CCB {balances[1]}, in flight {in_flight}")


def pay_and_die(names: str, url: str) -> None:
    """Be a service of ICBC that is killed when only the database knows of its commit."""
    event.listen(Session, "after_commit", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    with TransactionManager("icbc", names, SQLResource(create_engine(url))) as transactions:
        pay(transactions, "t-3", 2000)


def main(folder: str) -> None:
    """Run both banks."""
    url, credited = f"sqlite:///{folder}/icbc.db", threading.Semaphore(0)
    icbc, ccb = open_bank(url, TOTAL), open_bank(f"sqlite:///{folder}/ccb.db", 0)
    create_fence(icbc)  # The table that ties a commit to its message.
    create_done(ccb)  # The keys whose credit is booked.
    with BrokerThread(ASK_SOON) as broker:
        consumer = PushConsumer("ccb", broker.names, ConsumerSettings(start=StartFrom.FIRST))

        @idempotent(UniqueKeyTable(ccb), key=lambda message: message.key, scope="ccb")
        def credit(session: Session, message: ReceivedMessage) -> None:
            session.execute(GIVE, json.loads(message.body))

        @consumer.on("transfer")
        def receive(message: ReceivedMessage) -> None:
            credit(message)
            credited.release()

        with TransactionManager("icbc", broker.names, SQLResource(icbc)) as transactions:
            audit(pay(transactions, "t-1", 3000), icbc, ccb, in_flight=3000)
            audit(pay(transactions, "t-2", 90_000), icbc, ccb, in_flight=3000)
            with consumer:
                assert credited.acquire(timeout=PATIENCE_S)
                audit("t-1 credited", icbc, ccb)
                subprocess.run([sys.executable, __file__, broker.names, url], check=False)
                audit("t-3 killed after its commit", icbc, ccb, in_flight=2000)
                assert credited.acquire(timeout=PATIENCE_S)  # The broker asks ICBC's fence.
                audit("t-3 committed by a check, and credited", icbc, ccb)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as data:
        pay_and_die(*sys.argv[1:]) if sys.argv[1:] else main(data)
