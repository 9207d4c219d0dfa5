"""Owns the stage of the two banks: a broker and both, each a real process with its own database."""

import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from sqlalchemy import text

from examples.bank_transfer.databases import Opening, engine, open_accounts
from tests.servers.serving import BrokerProcess

SOON = ("transaction.timeout=1s", "transaction.check_interval=1s")
CUSTOMERS = ("Lin Yue", "Chen Hao", "Wang Fang", "Zhao Min", "Liu Yang", "Sun Jia")
BALANCE = 50_000_00


class BankProcess(BrokerProcess):
    """A bank as a program, which can be stopped, killed and started again as a broker can."""

    def __init__(self, name, folder, names, database, more=()):
        super().__init__(folder)
        self.name = name
        self.url = f"http://{self.address}"
        self.names = names
        self.database = database
        self.more = more
        self.log = self.folder / f"{name}.log"

    def command(self):
        given = ["--database", self.database, "--names", self.names, "--listen", self.address]
        return [sys.executable, "-m", "examples.bank_transfer", self.name, *given, *self.more]

    def rows(self, statement, **about):
        """What a query of the bank's database finds."""
        made = engine(self.database)
        try:
            with made.connect() as connection:
                return [tuple(row) for row in connection.execute(text(statement), about)]
        finally:
            made.dispose()

    def open_accounts(self, count=6, balance=BALANCE):
        """ICBC-001, ICBC-002 and so on."""
        prefix = self.name.upper()
        open_accounts(
            self.database,
            [
                Opening(f"{prefix}-{number:03}", CUSTOMERS[(number - 1) % len(CUSTOMERS)], balance)
                for number in range(1, count + 1)
            ],
            now_ms=1_700_000_000_000,
        )


class Stage:
    """All three of them."""

    def __init__(self, folder, databases=None, settings=SOON):
        self.broker = BrokerProcess(folder / "broker", settings=settings)
        self.icbc, self.ccb = (
            BankProcess(
                name,
                folder / name,
                self.broker.names,
                (databases or {}).get(name) or f"sqlite:///{folder}/{name}/books.db",
            )
            for name in ("icbc", "ccb")
        )

    def __enter__(self):
        with contextlib.ExitStack() as undo:
            for process in (self.broker, self.icbc, self.ccb):
                undo.callback(process.close)
            self.broker.start()
            with ThreadPoolExecutor() as both:
                list(both.map(BankProcess.start, (self.icbc, self.ccb)))
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *problem):
        self._undo.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """Both banks on SQLite, with six accounts each; a module's tests share it."""
    with Stage(tmp_path_factory.mktemp("bank")) as found:
        for bank in (found.icbc, found.ccb):
            bank.open_accounts()
        yield found


@pytest.fixture
def http():
    """An HTTP client that is no browser."""
    with httpx.Client(timeout=20) as client:
        yield client
