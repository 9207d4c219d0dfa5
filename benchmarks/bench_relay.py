"""How fast an outbox is emptied, and how soon one row is seen: `txmq relay` beside a plain relay
that polls, each as a process over the same PostgreSQL and a broker that sync their writes.

Rows per second are those of a heap that is committed at once, from its commit until all of it can
be consumed. By turns the same is done where another session holds a snapshot, so that nothing that
was deleted can be cleared away. A latency is that from a commit's return until the message can be
consumed.
"""

import asyncio
import os
import select
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import bench_process
from bench_process import CHECKOUT, HERE, CannotStart
from bench_sends import spread

TOPIC, QUEUES = "Relayed", 4
LANES = 1_000
PATIENCE_S = 120
LOOK_S = 0.001
PAUSE_S = 0.005
WAYS = ("relay", "polling")
KINDS = ("loose", "laned")
FILL = (
    "INSERT INTO txmq_outbox (slot, lane, message_id, topic, tags, keys_, properties, flag, body, "
    "created_ms) SELECT n % 64, {lane}, 'M' || n || '-' || :turn, '"
    + TOPIC
    + "', '', '[]', '{{}}', "
    "0, decode(repeat('6b', 1000), 'hex'), 0 FROM generate_series(1, :count) AS n"
)
LANE_OF = {"loose": "NULL", "laned": f"'lane-' || (n % 64) + 64 * (n % {LANES} / 64)"}
NOTIFY = "SELECT pg_notify('txmq_outbox', '')"


def relay(bench, plan):
    """Rows per second of each way and kind, without and with a snapshot held; and latencies."""
    from tests.servers import databases  # Other sections need no database.

    server = databases.postgres(is_durable=True)
    found = {}
    try:
        for way in WAYS:
            for kind in KINDS if way == "relay" else KINDS[:1]:
                plan.say(f"relay: {way}, {kind}")
                found.setdefault(way, {})[kind] = _rates(bench, server, way, kind, plan)
            with bench.broker("sync") as broker, _scene(bench, server, broker, way) as scene:
                found[way]["latency_ms"] = asyncio.run(scene.latencies(plan.committed))
    finally:
        server.stop()
    ours = found["relay"]
    return {
        "rows": plan.relayed,
        "latency_ms": {"median": ours["latency_ms"]["p50"]},
        "held_over_free": ours["loose"]["held_over_free"],
        "held_over_free_laned": ours["laned"]["held_over_free"],
        **found,
    }


def _rates(bench, server, way, kind, plan):
    """Two databases by turns; a snapshot keeps only those things that are in its own."""
    # Polling walks over all that is deleted each time, and would take minutes.
    turns = plan.relay_turns if way == "relay" else min(plan.relay_turns, 3)
    free, held = [], []
    with bench.broker("sync") as broker, ExitStack() as stack:
        freely, behind = (stack.enter_context(_scene(bench, server, broker, way)) for _ in range(2))
        holder = stack.enter_context(behind.engine.connect())
        holder.execution_options(isolation_level="REPEATABLE READ")
        holder.exec_driver_sql("SELECT count(*) FROM txmq_outbox")
        for turn in range(1 + turns):
            for scene, rates in ((freely, free), (behind, held))[:: 1 if turn % 2 else -1]:
                rates.append(scene.drained(kind, plan.relayed))
    free, held = free[1:], held[1:]  # The first warms up.
    ratios = [one / other for one, other in zip(held, free, strict=True)]
    return {
        "rows_per_s": spread(free),
        "rows_per_s_held": spread(held),
        "held_over_free": spread(ratios),
    }


class Scene:
    """A database with an outbox, a broker, and a relay at work."""

    def __init__(self, engine, broker):
        self.engine = engine
        self.names = broker.names
        self.turn = 0

    def drained(self, kind, count):
        """Rows per second."""
        return asyncio.run(self._drained(kind, count))

    async def _drained(self, kind, count):
        from sqlalchemy import text

        self.turn += 1
        statement = text(FILL.format(lane=LANE_OF[kind]))
        async with _looking(self.names) as stored:
            before = await stored()
            with self.engine.begin() as connection:
                connection.execute(statement, {"turn": self.turn, "count": count})
                connection.execute(text(NOTIFY))
            begun = time.perf_counter()
            while await stored() < before + count:
                if time.perf_counter() - begun > PATIENCE_S:
                    raise CannotStart(f"of {count} rows not all were published")
                await asyncio.sleep(0.002)
            seconds = time.perf_counter() - begun
        self._until_empty()
        return count / seconds

    def _until_empty(self):
        from sqlalchemy import text

        while True:
            with self.engine.connect() as connection:
                if not connection.execute(text("SELECT count(*) FROM txmq_outbox")).scalar_one():
                    return

    async def latencies(self, count):
        """Milliseconds from a commit's return until the message can be pulled."""

        from txmq import Message
        from txmq.outbox.table import Outbox

        outbox, taken = Outbox(), []
        async with _looking(self.names) as stored:
            before = await stored()
            for number in range(20 + count):
                with self.engine.begin() as connection:
                    outbox.add(connection, Message(topic=TOPIC, body=b"k" * 1000))
                begun = time.perf_counter()
                while await stored() <= before + number:
                    await asyncio.sleep(LOOK_S)
                if number >= 20:
                    taken.append((time.perf_counter() - begun) * 1000)
                await asyncio.sleep(PAUSE_S * (number % 7))
        taken.sort()
        return {
            "p50": round(taken[len(taken) // 2], 2),
            "p99": round(taken[len(taken) * 99 // 100], 2),
        }


class _looking:
    """Asks a broker how many messages it has shown so far."""

    def __init__(self, names):
        self.names = names

    async def __aenter__(self):
        from txmq import Client

        self.client = Client(self.names)
        admin = (await self.client.__aenter__()).admin

        async def stored():
            return sum(queue.max_offset for queue in await admin.topic_status(TOPIC))

        return stored

    async def __aexit__(self, *problem):
        await self.client.__aexit__(None, None, None)


@contextmanager
def _scene(bench, server, broker, way):
    from sqlalchemy import create_engine, text

    from tests.servers import databases
    from txmq.outbox.table import Outbox

    with server.database() as url:
        engine = create_engine(url)
        with engine.begin() as connection:
            for statement in Outbox().ddl("postgresql"):
                connection.execute(text(statement))
        asyncio.run(_make_topic(broker.names))
        if way == "relay":
            words = ["-m", "txmq", "relay", "--database", url.render_as_string(hide_password=False)]
            words += ["--names", broker.names]
        else:
            words = [str(HERE / "bench_relay_naive.py"), databases.conninfo(url), broker.names]
        try:
            with _program(bench, words):
                yield Scene(engine, broker)
        finally:
            engine.dispose()


async def _make_topic(names):
    from txmq import Client

    async with Client(names) as client:
        await client.admin.create_topic(TOPIC, QUEUES)


@contextmanager
def _program(bench, words):
    process = subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        cwd=bench.folder,
    )
    try:
        ready = select.select([process.stdout], [], [], bench_process.START_S)[0]
        if not ready or not process.stdout.readline().startswith("ready"):
            raise CannotStart(f"a relay did not become ready: {words}")
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
