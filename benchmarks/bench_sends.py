"""What a send costs: the floor, the broker with either way to flush, and the ratios between them.

Tables by messages in flight are taken from fresh servers with empty logs. Ratios are taken from
servers that take turns.
"""

import os
import statistics

import bench_driver
import bench_frames

BODY_BYTES = 1024
COMPARED_AT = 64
TURN_WARM_UP_S = 0.05


def _slice(server, in_flight, plan):
    with server:
        frames = bench_frames.sends(in_flight, BODY_BYTES)
        rss_before = server.rss_mb()
        found = bench_driver.measured_sends(server, frames, plan.seconds, warm_up_s=plan.warm_up_s)
        return found | {"rss_mb_before": rss_before, "rss_mb": server.rss_mb()}


def floor(bench, plan):
    """The floor by messages in flight."""
    return {str(in_flight): _slice(bench.floor(), in_flight, plan) for in_flight in plan.in_flight}


def sends(bench, plan):
    """The broker by way of flushing and messages in flight."""
    return {
        flush: {
            str(in_flight): _slice(bench.broker(flush), in_flight, plan)
            for in_flight in plan.in_flight
        }
        for flush in ("async", "sync")
    }


def ratios(bench, plan):
    """Floor and broker by short turns, so that what disturbs the machine disturbs both.

    Cost is compared in bursts. Throughput of the two ways to flush is compared in a stream, where
    there are 64 in flight all the time: in bursts, which have rows of their own, none is while the
    disk syncs. What one server has left to be written goes to the disk before the next one's turn.
    """
    frames = bench_frames.sends(COMPARED_AT, BODY_BYTES)
    turns = []
    with bench.broker("async") as lazy, bench.floor() as bare, bench.broker("sync") as safe:
        for shape in (bench_driver.bursts, bench_driver.stream):
            for server in (lazy, bare, safe):
                bench_driver.measured_sends(
                    server, frames, plan.turn_s, shape, warm_up_s=plan.warm_up_s
                )
        for _ in range(plan.turns):
            turn = {}
            for shape in (bench_driver.bursts, bench_driver.stream):
                for name, server in (("async", lazy), ("floor", bare), ("sync", safe)):
                    os.sync()
                    turn[name, shape.__name__] = bench_driver.measured_sends(
                        server, frames, plan.turn_s, shape, warm_up_s=TURN_WARM_UP_S
                    )
            turns.append(turn)
    cost, speed = "cpu_us_per_message", "messages_per_s"
    return {
        "in_flight": COMPARED_AT,
        "turns": len(turns),
        "broker_cpu_over_floor": _ratio(turns, cost, "async", "floor", "bursts"),
        "broker_cpu_over_floor_stream": _ratio(turns, cost, "async", "floor", "stream"),
        "sync_cpu_over_floor": _ratio(turns, cost, "sync", "floor", "bursts"),
        "sync_over_async": _ratio(turns, speed, "sync", "async", "stream"),
        "sync_over_async_bursts": _ratio(turns, speed, "sync", "async", "bursts"),
        "medians": {
            " ".join(which): {
                figure: spread([turn[which][figure] for turn in turns])["median"]
                for figure in (cost, speed)
            }
            for which in turns[0]
        },
    }


def _ratio(turns, figure, ours, theirs, shape):
    return spread([turn[ours, shape][figure] / turn[theirs, shape][figure] for turn in turns])


def spread(figures):
    """The median, which counts, and the quartiles, which tell how far to trust it."""
    if len(figures) == 1:
        figures = 2 * figures
    low, middle, high = statistics.quantiles(figures, n=4, method="inclusive")
    return {"median": round(middle, 3), "quartiles": [round(low, 3), round(high, 3)]}
