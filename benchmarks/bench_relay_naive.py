"""A plain relay as many write it, for comparison: it polls, locks rows, sends and deletes them.

python bench_relay_naive.py CONNINFO NAMES
"""

import asyncio
import sys

import psycopg
from psycopg.rows import namedtuple_row

from txmq import Producer
from txmq.outbox.table import unpack

POLL_S = 0.1
ROWS = 500
SELECT = (
    "SELECT id, message_id, topic, tags, keys_, properties, flag, delay, body FROM txmq_outbox "
    "ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED"
)


async def relay(conninfo, names):
    async with Producer("naive", names) as producer:
        connection = await psycopg.AsyncConnection.connect(conninfo, row_factory=namedtuple_row)
        print("ready", flush=True)
        while True:
            async with connection.transaction():
                rows = await (await connection.execute(SELECT, (ROWS,))).fetchall()
                if rows:
                    await producer.send_batch([unpack(row) for row in rows])
                    done = [row.id for row in rows]
                    await connection.execute("DELETE FROM txmq_outbox WHERE id = ANY(%s)", (done,))
            if not rows:
                await asyncio.sleep(POLL_S)


if __name__ == "__main__":
    asyncio.run(relay(*sys.argv[1:]))
