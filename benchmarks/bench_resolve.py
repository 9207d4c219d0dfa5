"""How fast `txmq resolve` decides what dead services have left open.

A real broker, PostgreSQL, and the command as a user starts it. Of the transactions one half has
committed, which their rows in the fence say; of the others there is no row. No producer of their
group is left. The time is that of the whole command, from its start to its end with --until-empty.
"""

import asyncio
import json
import subprocess
import sys
import time
from contextlib import contextmanager

import bench_driver
import bench_frames
from bench_process import CHECKOUT, HERE, CannotStart
from bench_sends import spread

if str(CHECKOUT) not in sys.path:
    sys.path.append(str(CHECKOUT))

BODY_BYTES = 100
AT_ONCE = 1000
TIMES = 10
FENCE_MARK = b"TRAN_MSG"
PATIENCE_S = 600
DECIDED = "INSERT INTO txmq_fence SELECT lpad(upper(to_hex(n)), 32, '0'), 1, :owner, :now_ms "
EVERY_OTHER = "FROM generate_series(0, :last, 2) n"
SETTINGS = ("transaction.timeout=0.1s",)
"""The broker asks soon: before the command has started, all are due."""


def resolve(bench, plan):
    """Seconds and transactions per second of both sizes, and the ratio of these per second."""
    from tests.servers import databases

    few, many = sizes = [plan.resolved // TIMES, plan.resolved]
    server = databases.postgres()
    try:
        turns = [
            {count: _turn(bench, plan, server, count) for count in sizes}
            for _ in range(plan.resolutions)
        ]
    finally:
        server.stop()
    return {
        "sizes": sizes,
        "seconds": {str(count): spread([turn[count] for turn in turns]) for count in sizes},
        "per_s": {str(count): spread([count / turn[count] for turn in turns]) for count in sizes},
        "many_over_few": spread([TIMES * turn[few] / turn[many] for turn in turns]),
    }


def _turn(bench, plan, server, count):
    plan.say(f"resolve: {count:,} transactions")
    with (
        _fenced(server) as (engine, identity),
        bench.broker("async", settings=SETTINGS) as broker,
    ):
        _leave_open(broker, engine, identity, count)
        begun = time.perf_counter()
        said = _resolved(broker, engine)
        seconds = time.perf_counter() - begun
    if (said["committed"], said["rolled_back"], said["left"]) != (count // 2, count // 2, 0):
        raise CannotStart(f"not all were decided rightly: {said}")
    return seconds


@contextmanager
def _fenced(server):
    from sqlalchemy import create_engine

    from txmq.transaction.resources import SQLResource
    from txmq.transaction.resources.schema import create_fence

    with server.database() as url:
        engine = create_engine(url)
        create_fence(engine, "txmq_fence", None)
        resource = SQLResource(engine)
        asyncio.run(resource.verify())
        try:
            yield engine, resource.identity
        finally:
            resource.close()
            engine.dispose()


def _leave_open(broker, engine, identity, count):
    from sqlalchemy import text

    template = bench_frames.half_template(BODY_BYTES)
    named = b"TXMQ_FENCE\\u0001%b\\u0002" % identity.encode()
    template.text = template.text.replace(FENCE_MARK, named + FENCE_MARK)
    link = bench_driver.Link(broker.port)
    for first in range(0, count, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, count))
        frames = [template.fill(b"%032X" % n) for n in numbers]
        link.send(b"".join(frames))
        left = len(frames)
        while left:
            left -= link.answers()
    link.close()
    values = {"owner": bench_frames.GROUP, "now_ms": int(time.time() * 1000), "last": count - 1}
    with engine.begin() as connection:
        connection.execute(text(DECIDED + EVERY_OTHER), values)


def _resolved(broker, engine):
    url = engine.url.render_as_string(hide_password=False)
    command = [sys.executable, "-m", "txmq", "resolve", bench_frames.GROUP, "--until-empty"]
    done = subprocess.run(
        [*command, "--database", url, "--names", broker.names, "--json", "--quiet"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=HERE,
        env={"PYTHONPATH": str(CHECKOUT)},
    )
    if done.returncode:
        raise CannotStart(f"txmq resolve ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)
