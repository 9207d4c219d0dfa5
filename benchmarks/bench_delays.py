"""What waiting messages cost: memory and a restart among a million of them, and how late they come.

Memory and the restart are a broker's that was killed with all of them waiting, for times spread
over three days. The burst is due within one second; it counts as delivered when one client has
pulled all of it. Lateness is taken one message at a time, from a broker with nothing else to do.
"""

import time

import bench_driver
import bench_frames
from bench_frames import QUEUES
from bench_sends import spread

BODY_BYTES = 100
DAY_MS = 86_400_000
BURST_BYTES = 1_000


def delays(bench, plan):
    """The figures, with as many waiting messages as the plan says."""
    return {
        "waiting": plan.waiting,
        **_waiting(bench, plan),
        **_burst(bench, plan),
        "late_ms": _late(bench, plan),
    }


def _waiting(bench, plan):
    with bench.broker("async") as empty:
        nothing_s = empty.start_s
    with bench.broker("async") as broker:
        link = bench_driver.Link(broker.port)
        template = bench_frames.timer_template(BODY_BYTES)
        now_ms = int(time.time() * 1000)
        # What a broker takes that has stored and indexed as much, none of it waiting.
        _send(link, template, plan.waiting, lambda _: now_ms - 1)
        before = broker.rss_mb()
        plan.say(f"delays: {plan.waiting:,} messages are sent for later")
        begun = now_ms + 3_600_000
        step = (3 * DAY_MS - 7_200_000) / plan.waiting
        _send(link, template, plan.waiting, lambda n: begun + int(n * 7919 % plan.waiting * step))
        grown = broker.rss_mb() - before
        link.close()
        broker.kill()
        broker.start()
        return {
            "grown_mb": {"median": round(grown, 1)},
            "bytes_each": round(grown * 2**20 / plan.waiting, 1),
            "ready_s": {"median": round(broker.start_s, 2)},
            "empty_s": round(nothing_s, 2),
            "rss_mb": broker.rss_mb(),
        }


def _send(link, template, count, due_ms):
    for first in range(0, count, 1000):
        numbers = range(first, min(first + 1000, count))
        frames = [
            template.fill(str(n % QUEUES).encode(), b"%032X" % n, b"%d" % due_ms(n))
            for n in numbers
        ]
        link.send(b"".join(frames))
        left = len(frames)
        while left:
            left -= link.answers()


def _burst(bench, plan):
    """Seconds from the last one's time until all have been pulled."""
    template = bench_frames.timer_template(BURST_BYTES)
    count = plan.burst // QUEUES * QUEUES
    with bench.broker("sync") as broker:
        link = bench_driver.Link(broker.port)
        # Long enough to send them all, twice over.
        ahead_ms = int(plan.burst_ahead_s * 1000) + count // 4
        due_ms = int(time.time() * 1000) + ahead_ms
        plan.say(f"delays: a burst of {count:,}, due in {ahead_ms} ms")
        _send(link, template, count, lambda n: due_ms + n % 1000)
        assert time.time() * 1000 < due_ms, "the burst was not sent in time"
        puller = bench_driver.Link(broker.port)
        _pull_all(puller, count // QUEUES)
        took = time.time() - (due_ms + 1000) / 1000
        puller.close()
        link.close()
    return {"burst": count, "burst_s": {"median": round(took, 2)}}


def _pull_all(link, end):
    """Pull every queue to its end, waiting for what is not there yet."""
    offsets = dict.fromkeys(range(QUEUES), 0)
    for queue in offsets:
        link.send(bench_frames.held_pull(queue, 0))
    while offsets:
        header, _ = link.answer()
        queue = header["opaque"]
        offsets[queue] = int(header["extFields"]["nextBeginOffset"])
        if offsets[queue] < end:
            link.send(bench_frames.held_pull(queue, offsets[queue]))
        else:
            del offsets[queue]


def _late(bench, plan):
    """How long after its time a message has arrived at a client that waits for it."""
    template = bench_frames.timer_template(BODY_BYTES)
    found = []
    with bench.broker("sync") as broker:
        sender, waiter = bench_driver.Link(broker.port), bench_driver.Link(broker.port)
        for number in range(plan.late_messages):
            due_ms = int(time.time() * 1000) + 130 + number * 37 % 200
            sender.send(template.fill(b"0", b"%032X" % number, b"%d" % due_ms))
            while not sender.answers():
                continue
            waiter.send(bench_frames.held_pull(0, number))
            while (answer := waiter.answer()[0])["code"] != 0:
                # No message was in the topic, or the wait was over.
                waiter.send(bench_frames.held_pull(0, number))
            found.append(time.time() * 1000 - due_ms)
            assert answer["extFields"]["nextBeginOffset"] == str(number + 1)
        sender.close()
        waiter.close()
    assert min(found) >= 0, f"a message came {-min(found)} ms early"
    return spread(found) | {"worst": round(max(found), 1), "earliest": round(min(found), 2)}
