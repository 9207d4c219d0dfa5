"""What reading costs: everything that was sent, pulled in answers of 32 messages."""

import time

import bench_driver
import bench_frames
from bench_sends import BODY_BYTES, COMPARED_AT, TURN_WARM_UP_S, spread


def drain(bench, plan):
    """Sends, then pulls of the same messages, by turns; messages per second of the broker's CPU."""
    frames = bench_frames.sends(COMPARED_AT, BODY_BYTES)
    turns = []
    with bench.broker() as broker:
        bench_driver.measured_sends(broker, frames, plan.turn_s, warm_up_s=plan.warm_up_s)
        link = bench_driver.Link(broker.port)
        first = bench_driver.stored(link) // bench_frames.QUEUES
        for _ in range(plan.turns):
            sent = bench_driver.measured_sends(
                broker, frames, plan.turn_s, warm_up_s=TURN_WARM_UP_S
            )
            end = bench_driver.stored(link) // bench_frames.QUEUES
            turns.append(pulls(broker, link, first, end))
            turns[-1]["sent_per_cpu_s"] = 1e6 / sent["cpu_us_per_message"]
            first = end
        link.close()
    ratios = [turn["pulled_per_cpu_s"] / turn["sent_per_cpu_s"] for turn in turns]
    return {
        "pulled_at_once": bench_frames.PULLED_AT_ONCE,
        "turns": len(turns),
        "drain_over_sends": spread(ratios),
        "medians": {
            figure: round(spread([turn[figure] for turn in turns])["median"]) for figure in turns[0]
        },
    }


def pulls(broker, link, first, end):
    """Pull every queue from one offset to another; messages per second, and per CPU second."""
    before, begun = broker.cpu_s(), time.perf_counter()
    bench_driver.drain(link, first, end)
    elapsed, used = time.perf_counter() - begun, broker.cpu_s() - before
    pulled = (end - first) * bench_frames.QUEUES
    return {"pulled_per_cpu_s": pulled / used, "pulled_per_s": pulled / elapsed}
