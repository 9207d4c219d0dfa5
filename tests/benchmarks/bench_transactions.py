"""What a transaction costs: a half message and its END, both answered once they are durable.

Transactions go in rounds: as many half messages as are in flight at once, then as many ENDs, each
with the places that its half message was answered with. The broker and its producer check nothing
here; how the open ones are kept is measured by the section ``pending``.
"""

import gc
import re
import time

import bench_driver
import bench_frames
from bench_sends import BODY_BYTES, COMPARED_AT, IN_FLIGHT, TURN_WARM_UP_S, spread

ANSWER = re.compile(rb'"msgId":"[0-9A-F]{16}([0-9A-F]{16})","queueId":"\d+","queueOffset":"(\d+)"')
COMMIT = 8


class Producer:
    """Drives transactions over one connection."""

    def __init__(self, link, in_flight):
        self.link = link
        self.in_flight = in_flight
        self.count = 0
        self.run = time.time_ns() & 0xFFFF_FFFF
        self.half = bench_frames.half_template(BODY_BYTES)
        self.end = bench_frames.end_template(COMMIT)

    def round(self):
        """Prepare and commit once as many as are in flight."""
        ids = [b"%016X%08X%08X" % (0xA1, self.run, self.count + n) for n in range(self.in_flight)]
        self.count += self.in_flight
        self.link.send(b"".join([self.half.fill(each) for each in ids]))
        places = self._places()
        ends = [
            self.end.fill(each, b"%d" % int(position, 16), offset)
            for each, (position, offset) in zip(ids, places, strict=True)
        ]
        self.link.send(b"".join(ends))
        left = self.in_flight
        while left:
            left -= self.link.answers()

    def _places(self):
        found = []
        while len(found) < self.in_flight:
            self.link._receive()
            data, end = bytes(self.link.view[: self.link.held]), 0
            for length_at in self._frames(data):
                end = length_at
            found += ANSWER.findall(data[:end])
            self.link._drop(end)
        return found

    def _frames(self, data):
        at = 0
        while len(data) - at >= 4:
            at += 4 + bench_driver.LENGTH.unpack_from(data, at)[0]
            if at > len(data):
                return
            yield at


def measured(server, link, in_flight, seconds, warm_up_s):
    """Transactions for a while, and what they cost."""
    producer = Producer(link, in_flight)
    begun = time.perf_counter()
    while time.perf_counter() - begun < warm_up_s:
        producer.round()
    drive = bench_driver.Drive()
    gc.disable()
    used = server.cpu_s()
    begun = now = time.perf_counter()
    while now - begun < seconds:
        sent_at = now
        producer.round()
        now = time.perf_counter()
        drive.note(now - sent_at, in_flight)
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
    for in_flight in IN_FLIGHT:
        with bench.broker("sync") as server:
            link = bench_driver.Link(server.port)
            found["sync"][str(in_flight)] = measured(
                server, link, in_flight, plan.seconds, bench_driver.WARM_UP_S
            )
            link.close()
    found |= _compared(bench, plan, "sync")
    found["async"] = _compared(bench, plan, "async")
    found["bytes_per_transaction"] = _bytes(bench)
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


def _bytes(bench):
    """Bytes that the log and the indexes grow by, and what the system sent to the disk.

    The files are only ever appended to. The disk takes whole pages, so what it gets depends on how
    much is written at a time.
    """
    with bench.broker("sync") as server:
        link = bench_driver.Link(server.port)
        producer = Producer(link, COMPARED_AT)
        producer.round()
        link.close()
        server.stop()
        server.start()
        files, device = server.stored_bytes(), 0
        link = bench_driver.Link(server.port)
        producer.link = link
        device -= server.written_bytes()
        rounds = 500
        for _ in range(rounds):
            producer.round()
        device += server.written_bytes()
        link.close()
        server.stop()  # Which saves the indexes of all that was written.
        files = server.stored_bytes() - files
    count = rounds * COMPARED_AT
    return {
        "in_flight": COMPARED_AT,
        "body": BODY_BYTES,
        "median": round(files / count, 1),
        "to_disk_by_pages": round(device / count, 1),
    }
