"""A consumer's handler that is called for a while, each time a line on stdin says so.

    bench_guards_alone.py COLOUR DATABASE

The lines and answers are those of `bench_decorated_alone.py`, and so are the function, its session
and the pool that has it. The ways are:

- bare: as it is written without txmq, in a transaction of its own;
- guarded: behind a table of unique keys, each call with a key of its own;
- again: the same with a key that was done before.
"""

import sys
import time

import uvloop
from bench_decorated_alone import (
    BANKS,
    Count,
    Pool,
    Threads,
    answer,
    awaiting,
    order,
    threading_on,
)

from txmq.idempotent import UniqueKeyTable, idempotent

SCOPE = "bench"
DONE = "done before"
BODY = b"a transfer of some hundred bytes".ljust(300, b".")


class Guarded:
    """A bank's function behind its guard."""

    def __init__(self, bank):
        self.ids = f"{time.time_ns():020X}"
        self.count = 0
        guard = UniqueKeyTable(bank.source)
        self.guarded = idempotent(guard, key=self.next, payload=body, scope=SCOPE)(bank.transfer)
        self.again = idempotent(guard, key=same, payload=body, scope=SCOPE)(bank.transfer)

    def next(self, account, amount):
        self.count += 1
        return f"{self.ids}{self.count:012X}"


def same(account, amount):
    return DONE


def body(account, amount):
    return BODY


def calls(bank):
    behind = Guarded(bank)
    return {"bare": bank.bare, "guarded": behind.guarded, "again": behind.again}


async def serve(kind, database):
    bank = kind(database)
    if isinstance(bank, Pool):
        await bank.source.open()
    ways = calls(bank)
    await ways["again"](1, 1)
    print("ready", flush=True)
    while (asked := order()) is not None:
        way, at_once, seconds = asked
        count = Count(at_once, seconds)
        await awaiting(ways[way], at_once, count)
        answer(count)
    await (bank.source.close() if isinstance(bank, Pool) else bank.source.dispose())


def serve_threads(database):
    bank = Threads(database)
    ways = calls(bank)
    ways["again"](1, 1)
    print("ready", flush=True)
    while (asked := order()) is not None:
        way, at_once, seconds = asked
        count = Count(at_once, seconds)
        threading_on(ways[way], at_once, count)
        answer(count)
    bank.source.dispose()


def main():
    colour, database = sys.argv[1:]
    kind = BANKS[colour]
    if kind is Threads:
        serve_threads(database)
    else:
        uvloop.run(serve(kind, database))


if __name__ == "__main__":
    main()
