"""Measures a pending table and its checks with nothing else in the process; prints JSON.

python bench_pending_alone.py NAME COUNT
"""

import asyncio
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from txmq.protocol.bodies import Heartbeat, ProducerRegistration
from txmq.protocol.record import tail_of, topic_field
from txmq.runtime.clock import SystemClock
from txmq.runtime.disk import LocalDisk
from txmq.runtime.entropy import SystemEntropy
from txmq_broker.config import CheckBackSettings, StoreSettings, TopicDefaults
from txmq_broker.core.clients import Clients
from txmq_broker.core.topics import Topics
from txmq_broker.core.transactions import Transactions
from txmq_broker.services.checker import Checker
from txmq_broker.store.message_store import MessageStore
from txmq_broker.store.pending_transactions import transaction_key

LATER_S = 1e6
DUE = 1000
ROUNDS = 9
GROUP = "bench"


class Sink:
    """A producer's connection that takes every check and answers none."""

    is_open, is_backed_up, active_at = True, False, 0.0

    def oneway(self, code, header, *, body):
        assert code == 39


class LeapingClock(SystemClock):
    """The system's clock, which can be put ahead."""

    ahead_s = 0.0

    def monotonic(self):
        return super().monotonic() + self.ahead_s


class Stage:
    """A store full of open transactions, and the parts that check them."""

    def __init__(self, folder, count):
        self.clock = LeapingClock()
        self.store = MessageStore(LocalDisk(folder), StoreSettings())
        self.store.take(SystemEntropy())
        self.store.open({})
        self.count = count
        topics = Topics(self.store, TopicDefaults())
        transactions = Transactions(self.store.halves, topics, CheckBackSettings(check_max=9999))
        self.clients, self.producer = Clients(), Sink()
        beat = Heartbeat("client", [ProducerRegistration(GROUP)], [])
        self.clients.beat(self.producer, beat, "JAVA", 409, 0.0)
        self.checker = Checker(transactions, self.clients, self.clock, self.clock.wall_ms)
        gc.collect()
        self.empty = resident()

    def bytes_each(self):
        """How much memory each of them takes."""
        gc.collect()
        return round((resident() - self.empty) / self.count, 1)

    def fill(self):
        """Prepare them, and save the indexes."""
        queue, halves = self.store.queue("T", 0), self.store.halves
        postmark = (4, 0, bytes(8), self.clock.wall_ms(), bytes(8), 0, 0)
        for number in range(self.count):
            key = transaction_key(f"{number:032X}")
            text = f"UNIQ_KEY\x01{number:032X}\x02TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"
            tail = tail_of(topic_field("T"), text.encode())
            record = (queue, postmark, 0, b"body", tail, 0, (1, 2), halves.half_queue)
            self.store.stage([record], [(0, key, GROUP, "client", 0)])
            if number % 5000 == 4999:
                self._write()
        self._write()
        self.checker.checks.arm_all(self.store.halves.pending, self.clock.monotonic() + LATER_S)

    def strand(self):
        """Have all of them due while no producer can be asked."""
        self.clients.drop(self.producer)
        self.clock.ahead_s = 2 * LATER_S
        while self.checker.round():
            continue
        assert len(self.checker.checks.stranded[GROUP]) == self.count

    def _write(self):
        if self.store.log.staged:
            span = self.store.write()
            self.store.publish(span)
            self.store.log.synced(self.store.log.sync_point())
        while (stretch := self.store.checkpoints.next_range()) is not None:
            self.store.checkpoints.confirm(self.store.checkpoints.begin(stretch))

    def round(self, number):
        """Seconds that a round takes which finds a thousand due, spread over all of them."""
        step = self.count // DUE
        due = [transaction_key(f"{nth:032X}") for nth in range(number % step, self.count, step)]
        due = due[:DUE]
        checks = self.checker.checks
        checks.arm_all(due, 0.0)
        begun = time.perf_counter()
        looked_at = 0
        while looked_at < DUE:
            looked_at += self.checker.round()
        took = time.perf_counter() - begun
        for key in due:
            checks.settle(key)
        return took


def resident():
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def main(count):
    """Measure."""
    with tempfile.TemporaryDirectory(prefix="txmq-bench-") as folder:
        stage = Stage(folder, count)
        stage.fill()
        waiting = stage.bytes_each()
        gc.disable()
        rounds = [stage.round(number) for number in range(ROUNDS)]
        gc.enable()
        stage.strand()
        stranded = stage.bytes_each()
        stage.store.close()
    return {
        "bytes_each": {"waiting": waiting, "stranded": stranded},
        "rounds": rounds,
        "check_us": round(statistics.median(rounds) / DUE * 1e6, 2),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(int(sys.argv[2])))))
