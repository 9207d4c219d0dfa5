"""What a transaction costs: a half message and its END, both answered once they are durable.

How the open ones are kept is measured by the section ``pending``.
"""

import gc
import re
import time

import bench_driver
import bench_frames
from bench_sends import BODY_BYTES, COMPARED_AT, TURN_WARM_UP_S, spread

ANSWER = re.compile(rb'"msgId":"[0-9A-F]{16}([0-9A-F]{16})","queueId":"\d+","queueOffset":"(\d+)"')
COMMIT = 8
STOCK = 20_000


class Producer:
    """Drives transactions over one connection.

    As with many producers at once, half messages and ENDs arrive together: one half of the
    transactions in flight is prepared while the other is ended.
    """

    def __init__(self, link, in_flight):
        self.link = link
        self.size = max(1, in_flight // 2)
        self.is_alone = in_flight == 1
        self.count = 0
        self.run = time.time_ns() & 0xFFFF_FFFF
        self.half = bench_frames.half_template(BODY_BYTES)
        self.end = bench_frames.end_template(COMMIT)
        self.ready = []
        self.prepared = None

    def stock_up(self):
        """Write half messages for a while to come: a server that waits for us gets cold."""
        while len(self.ready) * self.size < STOCK:
            ids = [b"%016X%08X%08X" % (0xA1, self.run, self.count + n) for n in range(self.size)]
            self.count += self.size
            self.ready.append((ids, b"".join([self.half.fill(half_id) for half_id in ids])))

    def round(self):
        """Prepare some and end those before them; when the ended ones were begun, if there are any.

        With one transaction in flight there are no others.
        """
        ended_from, ends = None, b""
        if self.prepared is not None:
            ids, places, ended_from = self.prepared
            self.prepared = None
            ends = b"".join(
                [
                    self.end.fill(unique, b"%d" % int(position, 16), offset)
                    for unique, (position, offset) in zip(ids, places, strict=True)
                ]
            )
            if self.is_alone:
                self.link.send(ends)
                self._answers(1, 0)
                return ended_from
        if not self.ready:
            self.stock_up()
        ids, halves = self.ready.pop()
        begun = time.perf_counter()
        self.link.send(ends + halves)
        places = self._answers(len(ids) if ends else 0, len(ids))
        self.prepared = ids, places, begun
        return ended_from

    def _answers(self, ends, halves):
        """Wait for so many answers; returns the places of half messages among them."""
        found, left = [], ends + halves
        while left:
            self.link._receive()
            data, end = bytes(self.link.view[: self.link.held]), 0
            for frame_end in _frame_ends(data):
                end = frame_end
                left -= 1
            found += ANSWER.findall(data[:end])
            self.link._drop(end)
        assert len(found) == halves, "every answer to a half message tells its place"
        return found


def _frame_ends(data):
    at = 0
    while len(data) - at >= 4:
        at += 4 + bench_driver.LENGTH.unpack_from(data, at)[0]
        if at > len(data):
            return
        yield at


def measured(server, link, in_flight, seconds, warm_up_s):
    """Transactions for a while, and what they cost."""
    producer = Producer(link, in_flight)
    producer.stock_up()
    begun = time.perf_counter()
    while time.perf_counter() - begun < warm_up_s:
        producer.round()
    drive = bench_driver.Drive()
    producer.stock_up()
    gc.disable()
    used = server.cpu_s()
    begun = now = time.perf_counter()
    while now - begun < seconds:
        prepared_at = producer.round()
        now = time.perf_counter()
        if prepared_at is not None:
            drive.note(now - prepared_at, producer.size)
    drive.elapsed = now - begun
    used = server.cpu_s() - used
    gc.enable()
    return {
        "transactions_per_s": round(drive.messages / drive.elapsed),
        "cpu_us_per_transaction": round(used / drive.messages * 1e6, 3),
        "latency_ms": drive.percentiles_ms(),
        "transactions": drive.messages,
    }


def transactions(bench, plan):
    """Durable transactions by how many are in flight, their cost over a send's, their bytes."""
    found = {"sync": {}}
    for in_flight in plan.in_flight:
        with bench.broker("sync") as server:
            link = bench_driver.Link(server.port)
            found["sync"][str(in_flight)] = measured(
                server, link, in_flight, plan.seconds, plan.warm_up_s
            )
            link.close()
    found |= _compared(bench, plan, "sync")
    found["async"] = _compared(bench, plan, "async")
    found["bytes_per_transaction"] = _bytes(bench, plan.counted_rounds)
    return found


def _compared(bench, plan, flush):
    frames = bench_frames.sends(COMPARED_AT, BODY_BYTES)
    ratios, plain, whole = [], [], []
    with bench.broker(flush) as server:
        link = bench_driver.Link(server.port)
        for number in range(plan.turns + 1):
            send = bench_driver.measured_sends(server, frames, plan.turn_s, warm_up_s=0.05)
            both = measured(server, link, COMPARED_AT, plan.turn_s, TURN_WARM_UP_S)
            if number:  # The first turn warms up.
                plain.append(send["cpu_us_per_message"])
                whole.append(both["cpu_us_per_transaction"])
                ratios.append(whole[-1] / plain[-1])
        link.close()
    return {
        "cpu_over_send": spread(ratios),
        "cpu_us_per_send": spread(plain)["median"],
        "cpu_us_per_transaction": spread(whole)["median"],
    }


def _bytes(bench, rounds):
    """Bytes that the log and the indexes grow by, and what the system sent to the disk.

    The files are only ever appended to. The disk takes whole pages, so what it gets depends on how
    much is written at a time.
    """
    with bench.broker("sync") as server:
        link = bench_driver.Link(server.port)
        producer = Producer(link, COMPARED_AT)
        producer.round()
        producer.prepared = None
        link.close()
        server.stop()
        server.start()
        files, device = server.stored_bytes(), 0
        link = bench_driver.Link(server.port)
        producer.link = link
        device -= server.written_bytes()
        for _ in range(rounds):
            producer.round()
        device += server.written_bytes()
        link.close()
        server.stop()  # Which saves the indexes of all that was written.
        files = server.stored_bytes() - files
    count = rounds * producer.size
    return {
        "in_flight": COMPARED_AT,
        "body": BODY_BYTES,
        "median": round(files / count, 1),
        "to_disk_by_pages": round(device / count, 1),
    }
