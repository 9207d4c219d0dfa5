"""What a message costs in a batch of 32 and when it is pulled, next to one that is sent alone."""

import os
import time

import bench_driver
import bench_frames
from bench_sends import BODY_BYTES, COMPARED_AT, TURN_WARM_UP_S, spread

BATCHES_IN_FLIGHT = 16
"""As many messages as `sends per second, 512 in flight`."""


def batched_sends(server, frames, seconds, shape=bench_driver.bursts):
    """Drive a server with batches; the figures are those of their messages.

    Bursts compare costs. A rate is that of a stream: in bursts the server waits while the driver
    writes 300 KB, which takes as long as the server needs for half of the batches.
    """
    return bench_driver.measured_sends(
        server, frames, seconds, shape, warm_up_s=TURN_WARM_UP_S, batch=bench_frames.BATCH_MESSAGES
    )


def batches(bench, plan):
    """Single sends, then batches, then pulls of the batches, by turns."""
    singles = bench_frames.sends(COMPARED_AT, BODY_BYTES)
    frames = bench_frames.batches(BATCHES_IN_FLIGHT, BODY_BYTES)
    turns = []
    with bench.broker() as broker:
        link = bench_driver.Link(broker.port)
        for _ in range(plan.turns):
            os.sync()
            broker.drop_cached_pages()
            single = bench_driver.measured_sends(
                broker, singles, plan.turn_s, warm_up_s=TURN_WARM_UP_S
            )
            first = bench_driver.stored(link) // bench_frames.QUEUES
            batched = batched_sends(broker, frames, plan.turn_s)
            end = bench_driver.stored(link) // bench_frames.QUEUES
            turns.append({
                "single_cpu_us": single["cpu_us_per_message"],
                "cpu_us": batched["cpu_us_per_message"],
                **pulls(broker, link, first, end),
            })  # fmt: skip
        link.close()
        # A stream comes last: it leaves the queues at different offsets.
        for turn in turns:
            os.sync()
            broker.drop_cached_pages()
            streamed = batched_sends(broker, frames, plan.turn_s, bench_driver.stream)
            turn["messages_per_s"] = streamed["messages_per_s"]
    return {
        "batch_messages": bench_frames.BATCH_MESSAGES,
        "batches_in_flight": BATCHES_IN_FLIGHT,
        "turns": len(turns),
        "single_over_batched": spread([turn["single_cpu_us"] / turn["cpu_us"] for turn in turns]),
        "drain_over_batched": spread(
            [turn["pulled_per_cpu_s"] * turn["cpu_us"] / 1e6 for turn in turns]
        ),
        "medians": {
            figure: round(spread([turn[figure] for turn in turns])["median"], 3)
            for figure in turns[0]
        },
    }


def pulls(broker, link, first, end):
    """Pull every queue from one offset to another; messages per second, and per CPU second."""
    before, begun = broker.cpu_s(), time.perf_counter()
    bench_driver.drain(link, first, end)
    elapsed, used = time.perf_counter() - begun, broker.cpu_s() - before
    pulled = (end - first) * bench_frames.QUEUES
    return {"pulled_per_cpu_s": pulled / used, "pulled_per_s": pulled / elapsed}
