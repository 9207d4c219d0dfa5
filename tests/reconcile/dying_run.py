"""A run in its own process, which is killed in the middle of a table after TABLES whole ones.

python -m tests.reconcile.dying_run DIRECTORY DAY TABLES
"""

import io
import os
import signal
import sys
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq

from tests.reconcile import breaks
from txmq.reconcile.contents import ContentHash
from txmq.reconcile.results import open_results
from txmq.reconcile.storage import LocalFolder
from txmq.reconcile.tables import MATCHES, TABLES, TOTALS

CLASSES = {"icbc/1": "parked", "icbc/2": "in-flight", "icbc/3": "dead-letter"}
RUN = "b" * 16
NAMES = ("matches", "items", "closed", "totals")


def tables(day):
    """The tables of the run."""
    matches = [(f"icbc/{index}", "matched", index, "CNY") for index in range(500)]
    rows = [("parked", "break", "CNY", 1, 1, 1, 1, 1, 1), ("matched", "agreed", "CNY", *[2] * 6)]
    return {
        "matches": breaks.table(MATCHES, matches),
        "items": breaks.items(CLASSES, day),
        "closed": breaks.items({}, day),
        "totals": breaks.table(TOTALS, rows),
    }


def write(results, day, names=NAMES):
    found = tables(day)
    for name in names:
        write_table(results, name, found[name], day, RUN, parts=4 if name == "matches" else 1)


def write_table(results, name, rows, day, run, parts=1):
    """Write a table as Spark does, in some parts; returns its hash."""
    draft = results.draft(name, run)
    for part in range(parts):
        file = io.BytesIO()
        pq.write_table(rows.take(pa.array(range(part, len(rows), parts), pa.int64())), file)
        draft.write(f"part-{part:05}.parquet", file.getvalue())
    whole = ContentHash(TABLES[name])
    for batch in rows.to_batches():
        whole.add(batch)
    results.take(draft, name, day, run, whole.word)
    return whole.word


def main():
    directory, day, count = sys.argv[1], date.fromisoformat(sys.argv[2]), int(sys.argv[3])
    with open_results(directory) as results:
        write(results, day, NAMES[:count])
        LocalFolder.take = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        write(results, day, NAMES[count:])


if __name__ == "__main__":
    main()
