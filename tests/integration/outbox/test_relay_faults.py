"""A relay survives the loss of connections, brokers and other relays, and rows that no broker
accepts do not delay others.
"""

import asyncio
import secrets
import socket
import urllib.request
from contextlib import AsyncExitStack, ExitStack, contextmanager

import pytest
from msgspec.structs import replace
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.event import listen
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tests.integration.outbox.outbox_stage import DATABASES
from tests.integration.outbox.relay_stage import Book, RelayProgram, bodies, wait_until
from tests.running import in_loop, run_by
from tests.servers.serving import BrokerProcess
from txmq import Client, Message, Producer, ProducerSettings, Relay, RelaySettings, errors
from txmq.databases.dialects import NOW_MS
from txmq.limits import SLOTS
from txmq.outbox.table import Outbox
from txmq.protocol import properties

QUEUES = 2
SOON = RelaySettings(lease=1.5, blocked_interval=0.2)


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    running = BrokerProcess(tmp_path_factory.mktemp("broker"))
    running.start()
    yield running
    running.close()


@pytest.fixture(params=["postgresql" if kind == "postgres" else kind for kind in DATABASES])
def book(request, tmp_path, broker):
    """An outbox in a database of the kind, for a topic of its own."""
    with book_of(request, tmp_path) as made:
        made.topic = f"Booked-{secrets.token_hex(4)}"
        broker.create_topic(made.topic, QUEUES)
        yield made


@contextmanager
def book_of(request, tmp_path):
    with ExitStack() as stack:
        if request.param == "sqlite":
            url = make_url(f"sqlite:///{tmp_path}/book.db")
        else:
            server = "outbox_mariadb" if request.param == "mysql" else "postgres"
            url = stack.enter_context(request.getfixturevalue(server).database())
        made = Book(url)
        yield made
        made.close()


only_sqlite = pytest.mark.parametrize("book", ["sqlite"], indirect=True)
only_postgresql = pytest.mark.parametrize("book", ["postgresql"], indirect=True)


def add(book, *names, lane=None, **how):
    with book.engine.begin() as connection:
        for name in names:
            message = Message(topic=book.topic, body=name.encode(), **how)
            book.outbox.add(connection, message, lane=lane)


async def until(holds, within_s=20.0):
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.01)


def all_of(broker, book):
    return sorted(body for queue in bodies(broker, book.topic, QUEUES) for body in queue)


def numbered(kind, count):
    return [f"{kind}-{number:03}" for number in range(count)]


def test_a_message_arrives_with_all_its_fields_and_its_row_is_removed(book, broker):
    add(book, "full", tags="red", keys=("k1", "k2"), properties={"colour": "é"})
    add(book, "laned", lane="account-1")
    add(book, "later", delay_level=1)

    async def run():
        async with Relay(book.engine, broker.names, SOON, outbox=book.outbox) as relay:
            await until(lambda: relay.tally.published == 3)

    asyncio.run(run())
    found = {
        record.body: record
        for number in range(QUEUES)
        if broker.max_offset(book.topic, number)
        for record in broker.records(book.topic, number)
    }
    full, laned = found[b"full"], found[b"laned"]
    assert (full.tags, full.properties["KEYS"]) == ("red", "k1 k2")
    assert full.properties["colour"] == "é"
    assert full.properties[properties.OUTBOX] == "txmq_outbox:1"
    assert full.properties[properties.UNIQUE_KEY]
    assert laned.properties[properties.SHARDING_KEY] == "account-1"
    assert b"later" not in found
    assert book.count() == 0
    assert book.leases() == {}


def test_each_lane_goes_to_one_queue_in_order(book, broker):
    for number in range(30):
        add(book, f"a:{number}", lane="a")
        add(book, f"b:{number}", lane="b")
        add(book, f"loose:{number}")

    async def run():
        async with Relay(book.engine, broker.names, SOON, outbox=book.outbox) as relay:
            await until(lambda: relay.tally.published == 90)

    asyncio.run(run())
    queues = bodies(broker, book.topic, QUEUES)
    for lane in "ab":
        (ours,) = filter(
            None, [[body for body in queue if body.startswith(f"{lane}:")] for queue in queues]
        )
        assert ours == [f"{lane}:{number}" for number in range(30)]


@only_postgresql
def test_a_relay_continues_after_its_connections_are_cut(book, broker, postgres):
    theirs = create_engine(book.engine.url)

    async def run():
        async with Relay(theirs, broker.names, SOON, outbox=book.outbox) as relay:
            for turn in range(3):
                add(book, *numbered(f"turn{turn}", 50), lane=f"l{turn}")
                cut(postgres, book)
                add(book, *numbered(f"again{turn}", 50))
            await until(lambda: book.count() == 0)
            assert relay.tally.lost_leases == 0

    asyncio.run(run())
    theirs.dispose()
    expected = [body for turn in range(3) for kind in ("turn", "again")
                for body in numbered(f"{kind}{turn}", 50)]  # fmt: skip
    assert sorted(set(all_of(broker, book))) == sorted(expected)


def cut(postgres, book):
    book.engine.dispose()  # Its pool would keep the cut connections, and nothing uses it now.
    name = book.engine.url.database
    postgres.order(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    )


def test_rows_wait_for_a_broker_that_is_down(book, broker):
    async def run():
        async with Relay(book.engine, broker.names, SOON, outbox=book.outbox) as relay:
            add(book, *numbered("before", 20), lane="a")
            await until(lambda: book.count() == 0)
            broker.kill()
            add(book, *numbered("while", 20), lane="a")
            add(book, *numbered("loose", 20))
            await until(lambda: relay.tally.deferred > 0)
            assert book.count() == 40
            assert relay.tally.failed == 0
            await asyncio.to_thread(broker.start)
            await until(lambda: book.count() == 0)

    asyncio.run(run())
    expected = [body for kind in ("before", "while", "loose") for body in numbered(kind, 20)]
    assert sorted(set(all_of(broker, book))) == sorted(expected)
    lane = [
        body
        for queue in bodies(broker, book.topic, QUEUES)
        for body in queue
        if "loose" not in body
    ]
    assert list(dict.fromkeys(lane)) == numbered("before", 20) + numbered("while", 20)


@contextmanager
def poisoned(book):
    """One row in the middle of a lane, and one without a lane, that no broker accepts."""
    add(book, "a:1", lane="a")
    add(book, "a:poison", lane="a")
    add(book, "a:2", lane="a")
    add(book, "b:1", lane="b")
    add(book, "poison")
    add(book, "loose")
    rows = book.outbox.name
    spoilt = f"UPDATE {rows} SET topic = 'no such name' WHERE id IN (2, 5)"
    book.ask(spoilt)
    yield lambda: book.ask(f"UPDATE {rows} SET topic = '{book.topic}' WHERE id IN (2, 5)")


@run_by(in_loop)
async def test_a_poisoned_row_blocks_its_lane_until_it_is_repaired(book, broker):
    with poisoned(book) as repair:
        async with Relay(book.engine, broker.names, SOON, outbox=book.outbox) as relay:
            await until(lambda: relay.tally.published == 3 and relay.tally.failed >= 4)
            assert all_of(broker, book) == ["a:1", "b:1", "loose"]
            told = book.ask(f"SELECT id, failed_ms, problem FROM {book.outbox.name} ORDER BY 1")
            assert [row[:2] for row in told] == [(2, None), (3, None), (5, None)]
            assert "no such name" in told[0][2]
            repair()
            await until(lambda: book.count() == 0)
    queue = next(queue for queue in bodies(broker, book.topic, QUEUES) if "a:1" in queue)
    assert [body for body in queue if body.startswith("a:")] == ["a:1", "a:poison", "a:2"]


@run_by(in_loop)
async def test_a_poisoned_row_is_put_aside_with_on_poison_skip(book, broker):
    skip = RelaySettings(on_poison="skip", lease=1.5)

    with poisoned(book) as repair:
        async with Relay(book.engine, broker.names, skip, outbox=book.outbox) as relay:
            await until(lambda: book.count() == 2 and relay.tally.failed == 2)
            assert relay.tally.published == 4
            waiting = await relay.waiting()
            assert (waiting.rows, waiting.failed) == (0, 2)
            repair()
            book.ask(f"UPDATE {book.outbox.name} SET failed_ms = NULL")
            await until(lambda: book.count() == 0)
    assert all_of(broker, book) == sorted(["a:1", "a:2", "a:poison", "b:1", "loose", "poison"])


def test_a_poisoned_row_becomes_a_dead_letter(book, broker):
    topic = f"Dead-{book.topic}"
    broker.create_topic(topic, 1)
    dead = RelaySettings(on_poison="dead_letter", dead_letter_topic=topic, lease=1.5)

    async def run():
        with poisoned(book):
            async with Relay(book.engine, broker.names, dead, outbox=book.outbox) as relay:
                await until(lambda: book.count() == 0)
                assert (relay.tally.dead_letters, relay.tally.failed) == (2, 2)

    asyncio.run(run())
    assert all_of(broker, book) == ["a:1", "a:2", "b:1", "loose"]
    letters = broker.records(topic, 0)
    assert sorted(letter.body for letter in letters) == [b"a:poison", b"poison"]
    assert {letter.properties[properties.DEAD_TOPIC] for letter in letters} == {"no such name"}
    assert all("no such name" in letter.properties[properties.DEAD_REASON] for letter in letters)


def test_rows_of_a_missing_topic_do_not_block_others(book, tmp_path):
    broker = BrokerProcess(tmp_path / "strict", settings=("topics.auto_create=false",))
    broker.start()
    broker.create_topic(book.topic, QUEUES)
    try:
        with book.engine.begin() as connection:
            later = [Message(topic="Missing", body=b"later")] * 60
            book.outbox.add_many(connection, later)
            book.outbox.add_many(connection, later, lane="a")
        add(book, *numbered("good", 5))
        few = replace(SOON, rows_max=40)  # More rows have to wait than it has room for.

        async def run():
            async with Relay(book.engine, broker.names, few, outbox=book.outbox) as relay:
                await until(lambda: relay.tally.published == 5 and relay.tally.deferred > 0)
                await asyncio.to_thread(broker.create_topic, "Missing", 1)
                await until(lambda: book.count() == 0)
                assert relay.tally.failed == 0

        asyncio.run(run())
        assert broker.max_offset("Missing", 0) == 120
    finally:
        broker.close()


@only_sqlite
@run_by(in_loop)
async def test_no_row_is_put_aside_while_the_name_server_is_silent(book):
    skip = RelaySettings(on_poison="skip", attempts_max=1, lease=0.6)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        names = "{}:{}".format(*silent.getsockname())
        add(book, "laned", lane="a")
        add(book, "loose")
        async with Relay(book.engine, names, skip, outbox=book.outbox) as relay:
            await until(lambda: relay.tally.deferred + relay.tally.failed >= 4)
            assert relay.tally.failed == 0


@only_sqlite
def test_a_relay_continues_after_its_source_gave_no_connections(book, broker):
    refused = []

    def connect(*_):
        if is_refused:
            refused.append(1)
            raise LookupError("no password is to be had")

    async def run():
        nonlocal is_refused
        engine = create_engine(book.engine.url, poolclass=NullPool)
        listen(engine, "do_connect", connect)
        async with Relay(engine, broker.names, SOON, outbox=book.outbox):
            is_refused = True
            await until(lambda: len(refused) >= 4)
            is_refused = False
            add(book, "then")
            await until(lambda: book.count() == 0)

    is_refused = False
    asyncio.run(run())


@only_sqlite
def test_a_read_only_database_is_reported(book, broker):
    async def run():
        url = f"sqlite:///file:{book.engine.url.database}?mode=ro&uri=true"
        async with Relay(create_engine(url), broker.names, SOON, outbox=book.outbox):
            pass

    with pytest.raises(errors.DatabaseFailed, match="readonly"):
        asyncio.run(run())


@only_postgresql
def test_relays_share_the_slots_and_release_them(book, broker):
    def shares():
        return sorted(book.leases().values(), reverse=True)

    async def run():
        async with AsyncExitStack() as stack:
            for expected in ([64], [32, 32], [22, 22, 20], [16, 16, 16, 16]):
                relay = Relay(book.engine, broker.names, SOON, outbox=book.outbox)
                await stack.enter_async_context(relay)
                await until(lambda expected=expected: shares() == expected)
            add(book, *numbered("shared", 200))
            await until(lambda: book.count() == 0)
        assert shares() == []

    asyncio.run(run())
    assert all_of(broker, book) == numbered("shared", 200)


@only_postgresql
def test_a_killed_relay_is_replaced_when_its_lease_ends(book, broker, tmp_path):
    with RelayProgram(tmp_path, book, broker.names, "--lease", "1") as first:
        first.ready()
        wait_until(lambda: book.leases())
        first.kill()
        add(book, *numbered("left", 20))
        with RelayProgram(tmp_path, book, broker.names, "--lease", "1") as second:
            second.ready()
            wait_until(lambda: book.count() == 0)
            assert sum(book.leases().values()) == SLOTS
            second.stop()
    assert all_of(broker, book) == numbered("left", 20)
    assert "20 published" in second.lines[-1]


@only_postgresql
def test_metrics_are_served_and_a_missing_outbox_is_reported(book, broker, tmp_path):
    with RelayProgram(tmp_path, book, broker.names, "--http", "127.0.0.1:0") as program:
        address = program.ready().split("metrics ")[1].strip()
        add(book, *numbered("counted", 3))
        wait_until(lambda: book.count() == 0)
        page = urllib.request.urlopen(address, timeout=10).read().decode()
        assert "\ntxmq_relay_published_total 3.0\n" in page
        assert "\ntxmq_relay_rows_waiting 0.0\n" in page
        assert "\ntxmq_relay_slots 64.0\n" in page
        for path, answer in (("live", b"alive\n"), ("ready", b"ready\n")):
            probe = address.replace("metrics", f"health/{path}")
            assert urllib.request.urlopen(probe, timeout=10).read() == answer
        program.stop()

    async def elsewhere():
        async with Relay(book.engine, broker.names, outbox=Outbox("other")):
            pass

    with pytest.raises(
        errors.TableMissing,
        match=r"`txmq schema create outbox --outbox other --database URL` creates it",
    ):
        asyncio.run(elsewhere())


@only_postgresql
@run_by(in_loop)
async def test_leases_are_renewed_while_figures_wait_for_a_locked_table(book, broker):
    slots = book.outbox.slots.fullname
    living = f"SELECT COUNT(*) FROM {slots} WHERE until_ms >= {NOW_MS['postgresql']}"

    async with Relay(book.engine, broker.names, SOON, outbox=book.outbox) as relay:
        with book.engine.begin() as connection:
            connection.execute(text(f"LOCK TABLE {book.outbox.name}"))
            for _ in range(5):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(relay.waiting(), 0.05)
            await asyncio.sleep(2 * SOON.lease)
            assert book.ask(living)[0][0] == SLOTS
        assert (await relay.waiting()).rows == 0
        assert relay.tally.lost_leases == 0


@only_postgresql
def test_a_relay_works_with_an_async_engine_and_a_shared_client(book, broker):
    async def run():
        engine = create_async_engine(book.engine.url)
        async with (
            Client(broker.names) as client,
            Relay(engine, client, SOON, outbox=book.outbox) as relay,
        ):
            add(book, *numbered("a", 10), lane="x")
            await until(lambda: relay.tally.published == 10)
            await until(lambda: book.count() == 0)
        await engine.dispose()

    asyncio.run(run())
    assert all_of(broker, book) == numbered("a", 10)


@only_postgresql
@run_by(in_loop)
async def test_a_relay_leaves_a_shared_producer_open(book, broker):
    settings = ProducerSettings(timeout=SOON.lease / 3)
    async with Producer(SOON.group, broker.names, settings) as producer:
        async with Relay(book.engine, producer, SOON, outbox=book.outbox):
            add(book, *numbered("a", 3), lane="x")
            await until(lambda: book.count() == 0)
        assert producer.is_open


@only_postgresql
def test_a_row_committed_late_is_published_soon(book, broker):
    async def run():
        async with Relay(book.engine, broker.names, SOON, outbox=book.outbox) as relay:
            with book.engine.connect() as slow:
                book.outbox.add(slow, Message(topic=book.topic, body=b"late"))
                for turn in range(4):
                    add(book, f"soon{turn}")
                    await until(lambda turn=turn: relay.tally.published == turn + 1)
                    await asyncio.sleep(0.3)
                slow.commit()
            await until(lambda: relay.tally.published == 5, 2.0)

    asyncio.run(run())
    assert "late" in all_of(broker, book)


@only_postgresql
@run_by(in_loop)
async def test_an_idle_relay_leaves_no_transaction_open(book, broker):
    async with Relay(book.engine, broker.names, SOON, outbox=book.outbox) as relay:
        add(book, "one")
        await until(lambda: relay.tally.published == 1)

        def idle():
            with book.engine.connect() as connection:
                found = connection.execute(
                    text(
                        "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                        "AND datname = current_database() AND xact_start < now() - "
                        "interval '0.5 s'"
                    )
                ).scalar_one()
            return found == 0

        await asyncio.sleep(0.6)
        assert idle()
