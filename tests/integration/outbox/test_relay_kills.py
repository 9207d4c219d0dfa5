"""Writers, relays that are killed at any moment, and one long transaction: committed messages are
published, rolled-back ones are not, each lane keeps its order, and a consumer behind a guard has
each effect once.
"""

import os
import random
import signal
import threading
from collections import Counter

import pytest
from sqlalchemy import text

from tests.integration.outbox.relay_stage import Book, RelayProgram, bodies, wait_until
from tests.servers.serving import BrokerProcess
from txmq import ConsumerSettings, Message, StartFrom, blocking
from txmq.idempotent import DoneTable, UniqueKeyTable, idempotent

SOAK = "TXMQ_SOAK" in os.environ
WRITERS = 32 if SOAK else 4
ROWS = 100_000 if SOAK else 600
RELAYS = 4 if SOAK else 3
KILLS = 60 if SOAK else 4
LANES = 40
QUEUES = 4
TOPIC = "Booked"
LEASE = ("--lease", "1")
COUNTED = (
    "INSERT INTO lane_count VALUES (:lane, 1) "
    "ON CONFLICT (lane) DO UPDATE SET n = lane_count.n + 1 RETURNING n"
)


EFFECTS = "CREATE TABLE effects (body VARCHAR(64) NOT NULL)"
EFFECT = text("INSERT INTO effects VALUES (:body)")


def consuming(book, broker):
    """A consumer behind a guard, which recognizes repeats by message id."""
    DoneTable().metadata.create_all(book.engine)
    book.ask(EFFECTS)
    settings = ConsumerSettings(start=StartFrom.FIRST, concurrency=8)
    consumer = blocking.PushConsumer("credit", broker.names, settings)

    @consumer.on(TOPIC)
    @idempotent(UniqueKeyTable(book.engine), key=lambda message: message.id)
    def credit(session, message):
        session.execute(EFFECT, {"body": message.body.decode()})

    return consumer


def see_each_effect_once(book, broker):
    wait_until(lambda: broker.all_committed("credit", TOPIC, QUEUES), 600 if SOAK else 30)
    effects = Counter(dict(book.ask("SELECT body, COUNT(*) FROM effects GROUP BY body")))
    committed = Counter(body for (body,) in book.ask("SELECT body FROM witness"))
    assert effects == committed


class Writer:
    """Adds messages in transactions of its own, of which it rolls some back.

    In a lane it first counts, in a row that it keeps locked until it commits: the counts are the
    order of the commits, whatever the outbox does.
    """

    def __init__(self, book, number, rows):
        self.book = book
        self.chance = random.Random(number)
        self.name = f"w{number}"
        self.left = rows
        self.loose = 0
        self.undone = 0
        self.thread = threading.Thread(target=self.run)
        self.problem = None

    def run(self):
        try:
            with self.book.engine.connect() as connection:
                while self.left > 0:
                    self.transact(connection)
        except Exception as problem:
            self.problem = problem

    def transact(self, connection):
        lane = f"lane-{self.chance.randrange(LANES)}" if self.chance.random() < 0.6 else None
        count = self.chance.randrange(1, 5)
        for _ in range(count):
            self.book.outbox.add(connection, self.message(connection, lane), lane=lane)
        if self.chance.random() < 0.1:
            connection.rollback()
            self.undone += count
        else:
            connection.commit()
            self.left -= count

    def message(self, connection, lane):
        if lane is None:
            self.loose += 1
            body = f"{self.name}:{self.loose}"
        else:
            number = connection.execute(text(COUNTED), {"lane": lane}).scalar_one()
            body = f"{lane}:{number}"
        connection.execute(text("INSERT INTO witness VALUES (:body)"), {"body": body})
        return Message(topic=TOPIC, body=body.encode())


def add_held(book, connection, name):
    lane = "held"
    number = connection.execute(text(COUNTED), {"lane": lane}).scalar_one()
    for body, where in ((f"{lane}:{number}", lane), (name, None)):
        connection.execute(text("INSERT INTO witness VALUES (:body)"), {"body": body})
        book.outbox.add(connection, Message(topic=TOPIC, body=body.encode()), lane=where)


@pytest.fixture
def broker(tmp_path):
    running = BrokerProcess(tmp_path / "broker", flush="sync")
    running.start()
    running.create_topic(TOPIC, QUEUES)
    yield running
    running.close()


@pytest.fixture
def book(postgres):
    with postgres.database() as url:
        made = Book(url)
        yield made
        made.close()


@pytest.mark.fault("P18")
@pytest.mark.timeout(60 if not SOAK else 3_600)
def test_no_message_is_lost_or_reordered_although_relays_are_killed(book, broker, tmp_path):
    chance = random.Random()
    relays = [RelayProgram(tmp_path, book, broker.names, *LEASE) for _ in range(RELAYS)]
    writers = [Writer(book, number, ROWS // WRITERS) for number in range(WRITERS)]
    after = threading.Thread(target=lambda: hold_and_wait(book))
    with consuming(book, broker), book.engine.connect() as held:
        try:
            for process in relays:
                process.ready()
            add_held(book, held, "late")
            for process in (*writers, after):
                getattr(process, "thread", process).start()
            for turn in range(KILLS):
                wait_until(lambda turn=turn: book_left(writers) <= ROWS - ROWS * turn // KILLS)
                at = chance.randrange(RELAYS)
                if turn % 4 == 3:
                    stop_for_longer_than_its_lease(book, relays[at])
                else:
                    relays[at].kill()
                    relays[at] = RelayProgram(tmp_path, book, broker.names, *LEASE)
            for writer in writers:
                writer.thread.join()
                assert writer.problem is None, writer.problem
            held.commit()
            after.join()
            wait_until(lambda: book.count() == 0, 600 if SOAK else 30)
            for process in relays:
                process.ready()
                process.stop()
            see_each_effect_once(book, broker)
        finally:
            for process in relays:
                process.__exit__()
    see_that_it_is_right(book, bodies(broker, TOPIC, QUEUES))
    assert sum(writer.undone for writer in writers)
    assert book.leases() == {}


def book_left(writers):
    assert [writer.problem for writer in writers if writer.problem] == []
    return sum(max(0, writer.left) for writer in writers)


def stop_for_longer_than_its_lease(book, relay):
    """Pause a relay until others have its slots, and let it continue."""
    relay.process.send_signal(signal.SIGSTOP)
    threading.Event().wait(1.3)
    relay.process.send_signal(signal.SIGCONT)


def hold_and_wait(book):
    """Wait for the lane that a long transaction holds, and add behind it."""
    with book.engine.begin() as connection:
        add_held(book, connection, "later")


def see_that_it_is_right(book, queues):
    committed = {body for (body,) in book.ask("SELECT body FROM witness")}
    published = [body for queue in queues for body in queue]
    assert set(published) == committed
    lanes = Counter()
    for queue in queues:
        for body in dict.fromkeys(queue):  # The first of each.
            lane, _, number = body.rpartition(":")
            if lane.startswith(("lane-", "held")):
                assert int(number) == lanes[lane] + 1, f"{body} is out of order"
                lanes[lane] += 1
    expected = dict(book.ask("SELECT lane, n FROM lane_count"))
    assert lanes == expected
    assert expected["held"] == 2
