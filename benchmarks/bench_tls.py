"""What TLS costs a send, and what a port costs that also speaks it: three brokers take turns."""

import os

import bench_driver
import bench_frames
from bench_sends import BODY_BYTES, COMPARED_AT, TURN_WARM_UP_S, spread

from tests.servers.certificates import Authority

COST = "cpu_us_per_message"


def tls(bench, plan):
    """Ratios of the CPU for a message to that at a port with ``tls.mode = disabled``."""
    authority = Authority(bench.new_folder())
    certificate, key = authority.issue("server")
    settings = [f"tls.certificate={certificate}", f"tls.key={key}"]
    context = authority.context()
    frames = bench_frames.sends(COMPARED_AT, BODY_BYTES)
    turns = []
    with (
        bench.broker() as off,
        bench.broker(settings=[*settings, "tls.mode=permissive"]) as both,
    ):
        ways = {"off": (off, None), "plain": (both, None), "tls": (both, context)}
        for turn in range(plan.turns + 1):
            found = {}
            for name, (server, way) in ways.items():
                os.sync()
                found[name] = bench_driver.measured_sends(
                    server, frames, plan.turn_s, warm_up_s=TURN_WARM_UP_S, context=way
                )[COST]
            if turn:  # The first warms the servers up.
                turns.append(found)
    return {
        "in_flight": COMPARED_AT,
        "turns": len(turns),
        "plain_over_off": spread([turn["plain"] / turn["off"] for turn in turns]),
        "tls_over_off": spread([turn["tls"] / turn["off"] for turn in turns]),
        "medians": {name: spread([turn[name] for turn in turns])["median"] for name in ways},
    }
