"""What decorated functions cost: local transactions per second of theirs, over those without txmq.

A function with one insert and one update runs over a real PostgreSQL that syncs its commits, beside
a broker that syncs as well: bare, behind the fence alone, decorated, decorated without waiting for
the answer to an END, and by a handwritten client that does no more than a decorated call needs; by
turns in one process, with the same sessions of the same pool. All of them share the machine, so the
CPU of each is measured as well.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import bench_process
from bench_sends import spread
from sqlalchemy import create_engine, text

if str(bench_process.CHECKOUT) not in sys.path:
    sys.path.append(str(bench_process.CHECKOUT))

COLOURS = ("session", "psycopg", "blocking")
WAYS = ("bare", "fenced", "decorated", "unawaited", "handwritten")
COMPARED_AT = 16
ACCOUNTS = 10_000
TABLES = (
    "CREATE TABLE account (id INTEGER PRIMARY KEY, balance BIGINT NOT NULL)",
    "CREATE TABLE transfer (id BIGSERIAL PRIMARY KEY, account INTEGER, amount INTEGER)",
    f"INSERT INTO account SELECT n, 1000000 FROM generate_series(0, {ACCOUNTS - 1}) AS n",
)
TICKS = os.sysconf("SC_CLK_TCK")


class Bank:
    """A process that does transactions on demand."""

    def __init__(self, script, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, bench_process.HERE / script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(bench_process.CHECKOUT)},
        )
        self._line()

    def _line(self):
        line = self.process.stdout.readline()
        if not line:
            raise bench_process.CannotStart(f"a bank ended with {self.process.wait()}")
        return line

    def run(self, way, at_once, seconds):
        self.process.stdin.write(f"{way} {at_once} {seconds}\n")
        self.process.stdin.flush()
        return json.loads(self._line())

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


def decorated(bench, plan):
    """Transactions per second of each colour and way, and the ratios; checks look at 16 at once."""
    from tests.servers import databases  # Other sections need no database.

    server = databases.postgres(is_durable=True)
    try:
        with server.database() as database, bench.broker("sync") as broker:
            prepare(database)
            found = {}
            for colour in COLOURS:
                plan.say(f"decorated: {colour}")
                url = database.render_as_string(hide_password=False)
                with Bank("bench_decorated_alone.py", colour, broker.names, url) as bank:
                    found[colour] = {
                        str(at_once): _compared(bank, broker, server, plan, at_once)
                        for at_once in plan.decorated_at_once
                    }
    finally:
        server.stop()
    at = str(COMPARED_AT)
    ratios = {
        f"{name}_over_bare": figures[at]["decorated_over_bare"] for name, figures in found.items()
    }
    by_hand = {
        f"{name}_over_handwritten": figures[at]["decorated_over_handwritten"]
        for name, figures in found.items()
    }
    return {"compared_at": COMPARED_AT, **ratios, **by_hand, **found}


def prepare(database):
    """Accounts, and whatever tables of ours functions stand behind."""
    from txmq.idempotent.unique_key import DoneTable
    from txmq.transaction.resources.schema import create_fence

    engine = create_engine(database)
    with engine.begin() as connection:
        for statement in TABLES:
            connection.execute(text(statement))
    create_fence(engine, "txmq_fence", None)
    DoneTable().metadata.create_all(engine)
    engine.dispose()


def _compared(bank, broker, server, plan, at_once):
    turns = []
    for number in range(1 + (plan.turns if at_once == COMPARED_AT else max(2, plan.turns // 4))):
        turn = {}
        # Each way comes first and last as often as the others.
        for way in random.sample(WAYS, len(WAYS)):
            os.sync()  # What one has left to be written is not for the next to wait for.
            turn[way] = _measured(bank, broker, server, way, at_once, plan.turn_s)
        if number:  # The first turn warms up.
            turns.append(turn)
    return {
        "turns": len(turns),
        "decorated_over_bare": spread([_ratio(turn, "decorated") for turn in turns]),
        "fenced_over_bare": spread([_ratio(turn, "fenced") for turn in turns]),
        "unawaited_over_bare": spread([_ratio(turn, "unawaited") for turn in turns]),
        "handwritten_over_bare": spread([_ratio(turn, "handwritten") for turn in turns]),
        "decorated_over_handwritten": spread(
            [_ratio(turn, "decorated", "handwritten") for turn in turns]
        ),
        # Steadier than rates where others use the machine as well.
        "cpu_over_bare": spread(
            [_cpu_us(turn["decorated"]) / _cpu_us(turn["bare"]) for turn in turns]
        ),
        **{way: figures([turn[way] for turn in turns]) for way in WAYS},
    }


def _ratio(turn, way, other="bare"):
    return turn[way]["transactions_per_s"] / turn[other]["transactions_per_s"]


def _cpu_us(figures):
    return sum(figures[f"{who}_us"] for who in ("client", "broker", "postgres"))


def figures(measured):
    """The medians of some turns."""
    return {name: spread([turn[name] for turn in measured])["median"] for name in measured[0]}


def _measured(bank, broker, server, way, at_once, seconds):
    broker_s, server_s = broker.cpu_s(), family_cpu_s(server.pid)
    result = bank.run(way, at_once, seconds)
    server_s = family_cpu_s(server.pid) - server_s
    used = {
        "client": result["cpu_s"],
        "broker": broker.cpu_s() - broker_s,
        "postgres": server_s,
    }
    each_us = {f"{who}_us": seconds / result["total"] * 1e6 for who, seconds in used.items()}
    return {"transactions_per_s": result["per_s"], **each_us}


def family_cpu_s(pid):
    """CPU of a process and its children, which outlive what is measured; none of a stranger's."""
    if pid is None:
        return 0.0
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended meanwhile.
        if int(path.parent.name) == pid or int(fields[1]) == pid:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS
