"""A chain of three services with a database each, and kill -9 of everything: the broker, each
service, and the database server. Every order goes through the chain once, and no piece is lost.

A soak kills for ten minutes, or for as many seconds as TXMQ_SOAK says.
"""

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError

from tests.integration.idempotent.guard_stage import QUEUES, is_consumed
from tests.integration.outbox.chain_service import HEARS, SAYS
from tests.integration.outbox.relay_stage import bodies, wait_until
from tests.servers.serving import START_SECONDS, BrokerProcess
from tests.soak import IS_SOAK, count
from txmq import Message, blocking, create_outbox
from txmq.errors import TxmqError
from txmq.idempotent import create_done

CHAOS_S = count(4, 600)
PIECES = 60 * CHAOS_S
TOO_MANY = 10**9
SETTLE_S = 600 if IS_SOAK else 120
LONGEST_S = 0.5
LEVELS = f"delay.levels=100ms 200ms 400ms {' '.join(['500ms'] * 15)}"
"""What fails comes again soon, and often enough to outlive a database."""
PAUSE_S = 0.02
VICTIMS = ("broker", "order", "stock", "bill", "databases")
TABLES = (
    "CREATE TABLE entry (customer_order TEXT, pieces INTEGER, is_accepted BOOLEAN)",
    "CREATE TABLE item (pieces INTEGER)",
    f"INSERT INTO item VALUES ({PIECES})",
)


class Service(BrokerProcess):
    """A process of the chain and its database; it is started and killed as a broker is."""

    def __init__(self, folder, name, url, names, doomed):
        super().__init__(folder)
        self.name, self.names, self.doomed = name, names, doomed
        self.url = url.render_as_string(hide_password=False)
        self.engine = create_engine(url, poolclass=NullPool)
        create_done(self.engine)
        create_outbox(self.engine)
        with self.engine.begin() as connection:
            for statement in TABLES:
                connection.execute(text(statement))

    def command(self):
        program = [sys.executable, "-m", "tests.integration.outbox.chain_service"]
        return [*program, self.name, self.url, self.names, self.doomed]

    def start(self):
        """Start it as a supervisor does: again, if it ends because something is not back yet."""
        deadline = time.monotonic() + START_SECONDS
        while not self.launch().get(timeout=START_SECONDS):
            assert time.monotonic() < deadline, f"{self.name} does not start:\n{self.tail()}"

    def ask(self, question):
        with self.engine.connect() as connection:
            return connection.execute(text(question)).scalars().all()

    def entered(self):
        """How often each order was entered."""
        return Counter(self.ask("SELECT customer_order FROM entry"))

    def waiting(self):
        """How many messages are in its outbox."""
        return self.ask("SELECT count(*) FROM txmq_outbox")[0]


class Chain:
    """All of it, and the orders that the broker has acknowledged."""

    def __init__(self, postgres, broker, services):
        self.postgres, self.broker, self.services = postgres, broker, services
        self.processes = {"broker": broker, **services}
        self.sent = {}
        self.kills = Counter()

    def send(self, producer, key, pieces):
        """Send an order until the broker has it, which may take several times."""
        while True:
            with contextlib.suppress(TxmqError):
                producer.send(Message(topic="cart", keys=(key,), body=b"%d" % pieces))
                self.sent[key] = pieces
                return

    def shop(self, chance, is_over):
        """Send orders until it is over, some of them again, some for more than there ever is."""
        with blocking.Producer("shop", self.broker.names) as producer:
            while not is_over.wait(PAUSE_S):
                pieces = TOO_MANY if chance.random() < 0.1 else chance.randrange(1, 6)
                is_again = self.sent and chance.random() < 0.2
                key = f"o-{chance.randrange(len(self.sent)) if is_again else len(self.sent)}"
                self.send(producer, key, self.sent.get(key, pieces))

    def disturb(self, chance):
        """Kill one or two at any moment, each as often as the others, and start them again."""
        deadline, left = time.monotonic() + CHAOS_S, []
        while left or time.monotonic() < deadline:
            left = left or chance.sample(VICTIMS, len(VICTIMS))
            victims, left = left[: (number := chance.choice((1, 1, 2)))], left[number:]
            threading.Event().wait(chance.uniform(0, 0.6))
            for victim in victims:
                self.kill(victim, chance)
            threading.Event().wait(chance.choice((0, 0, chance.uniform(0, 1))))
            # A service starts only when the broker answers.
            for victim in sorted({*victims} & {*self.processes}, key="broker".__ne__):
                self.processes[victim].start()

    def kill(self, victim, chance):
        self.kills[victim] += 1
        if victim != "databases":
            self.processes[victim].kill()
            return
        names = [service.engine.url.database for service in self.services.values()]
        which = f"FROM pg_stat_activity WHERE datname = ANY('{{{','.join(names)}}}')"
        service = chance.choice([*self.services.values()])
        if self.postgres.pid is None:  # It is not ours, and others may use it.
            self.postgres.order(f"SELECT pg_terminate_backend(pid) {which}")
            return

        def is_dead():
            # A backend that is killed makes the server end all others, and recover from its log.
            with contextlib.suppress(DBAPIError, ProcessLookupError):
                os.kill(chance.choice(service.ask(f"SELECT pid {which} ORDER BY pid")), 9)
                return True

        wait_until(is_dead)

    def state(self):
        """What has been done so far, if nothing is on its way; otherwise None."""
        for name, service in self.services.items():
            if not is_consumed(self.broker, name, HEARS[name]) or service.waiting():
                return None
        return [service.entered().total() for service in self.services.values()]

    def settle(self):
        """Wait until nothing is on its way, for so long that no retry is still to come."""
        was, since = None, 0.0

        def is_quiet():
            nonlocal was, since
            if (now := self.state()) is None or now != was:
                was, since = now, time.monotonic()
            return was is not None and time.monotonic() - since > 2 * LONGEST_S

        wait_until(is_quiet, SETTLE_S, lambda: "\n".join(["orders are stuck", *self.losses()]))
        for name, process in self.processes.items():
            assert process.process.poll() is None, f"{name} has ended:\n{process.tail()}"

    def losses(self):
        """What customers and the shop have lost, in words."""
        order, stock, bill = (service.entered() for service in self.services.values())
        accepted = {
            *self.services["stock"].ask("SELECT customer_order FROM entry WHERE is_accepted")
        }
        announced = {body for queue in bodies(self.broker, SAYS["bill"], QUEUES) for body in queue}
        harm = {
            "the customer ordered, and nobody knows of it": self.sent.keys() - order.keys(),
            "the order was entered more than once": repeated(order),
            "the order was entered, and never came to the stock": order.keys() - stock.keys(),
            "the pieces were taken more than once": repeated(stock),
            "the pieces were given away, and nobody billed them": accepted - bill.keys(),
            "the customer was billed for what the stock refused": bill.keys() - accepted,
            "the customer was billed more than once": repeated(bill),
            "the order is billed, and no message says so": bill.keys() - announced,
            "it is in the books, and nobody ordered it": {*order, *stock, *bill, *announced}
            - self.sent.keys(),
        }
        found = [f"{what}: {', '.join(sorted(keys))}" for what, keys in harm.items() if keys]
        taken = PIECES - self.services["stock"].ask("SELECT pieces FROM item")[0]
        billed = self.services["bill"].ask("SELECT coalesce(sum(pieces), 0) FROM entry")[0]
        if taken != billed:
            found.append(f"{taken} of {PIECES} pieces left the stock, and {billed} are billed")
        for name, service in self.services.items():
            if waiting := service.waiting():
                found.append(f"{waiting} messages never leave the outbox of {name}")
            if self.broker.knows(f"%DLQ%{name}"):
                found.append(f"{name} has given up orders: they are dead letters")
        return found


def repeated(counts):
    return {key for key, number in counts.items() if number > 1}


@pytest.fixture
def chain(postgres, tmp_path):
    """Makes a chain; with a doomed order, its stock publishes wrongly and dies at that order."""
    with contextlib.ExitStack() as stack:

        def make(doomed=""):
            broker = BrokerProcess(tmp_path / "broker", settings=(LEVELS,))
            stack.callback(broker.close)
            broker.start()
            for topic in ("cart", *SAYS.values()):
                broker.create_topic(topic, QUEUES)
            services = {}
            for name in HEARS:
                url = stack.enter_context(postgres.database())
                key = doomed if name == "stock" else ""
                services[name] = Service(tmp_path / name, name, url, broker.names, key)
                stack.callback(services[name].close)
            with ThreadPoolExecutor() as pool:
                [*pool.map(Service.start, services.values())]
            return Chain(postgres, broker, services)

        yield make


@pytest.mark.fault("P15", "P16", "P18")
@pytest.mark.slow
def test_every_order_goes_through_the_chain_once_although_everything_is_killed(chain):
    seed = int(os.environ.get("TXMQ_SEED", random.SystemRandom().randrange(2**32)))
    print(f"TXMQ_SEED={seed}")
    running, is_over, began = chain(), threading.Event(), time.monotonic()
    with ThreadPoolExecutor() as pool:
        shopping = pool.submit(running.shop, random.Random(seed), is_over)
        try:
            running.disturb(random.Random(seed + 1))
        finally:
            is_over.set()
        shopping.result()

    running.settle()

    losses = running.losses()
    assert not losses, "\n".join(losses)
    accepted = running.services["bill"].entered().total()
    assert 0 < accepted < len(running.sent)
    assert {*running.kills} == {*VICTIMS}
    print(
        f"{len(running.sent)} orders, {accepted} accepted, {running.kills.total()} kills "
        f"{dict(running.kills)}, {time.monotonic() - began:.0f} s"
    )


def test_a_service_that_publishes_without_the_key_is_caught_losing_a_bill(chain):
    """It dies once, between its two commits."""
    running = chain(doomed="o-1")
    stock = running.services["stock"]
    with blocking.Producer("shop", running.broker.names) as producer:
        running.send(producer, "o-1", 2)
        assert stock.process.wait(START_SECONDS) == -signal.SIGKILL
        stock.start()
        running.send(producer, "o-2", 3)

    running.settle()

    assert running.losses() == [
        "the pieces were given away, and nobody billed them: o-1",
        f"5 of {PIECES} pieces left the stock, and 3 are billed",
    ]
