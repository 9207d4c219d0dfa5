"""How fast our producer sends, next to the C++ client, to the same broker and by turns.

Each client runs in a process of its own. The C++ client sends from 64 threads, which is the best it
can do; ours has 64 messages in flight, and in two further rows 1,024 that travel in batches: such
as the producer makes of messages that linger, and lists of 256 that the program sends as such.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import bench_process
from bench_sends import BODY_BYTES, COMPARED_AT, spread

INTEROP = bench_process.CHECKOUT / "tests" / "interop"
BATCHED_IN_FLIGHT = 1024
WARM_UP_S = 0.3
PATIENCE_S = 120
BATCHED = ("linger", "send_batch")
ROWS = ("cpp", "single", *BATCHED)


def producer(bench, plan):
    """Messages per second of each client, and how many times those of the C++ client ours are."""
    seconds = max(plan.turn_s, 0.5) * 2
    turns = []
    with bench.broker() as broker:
        for _ in range(max(3, plan.turns // 4)):
            turn = {}
            for row in ROWS:
                os.sync()  # What one has left to be written is not for the next to wait for.
                turn[row] = _rate(broker, row, seconds)
            turns.append(turn)
    over_cpp = {
        row: spread([turn[row] / turn["cpp"] for turn in turns]) for row in ("single", *BATCHED)
    }
    better = max(BATCHED, key=lambda row: over_cpp[row]["median"])
    return {
        "in_flight": COMPARED_AT,
        "batched_in_flight": BATCHED_IN_FLIGHT,
        "turns": len(turns),
        "over_cpp": over_cpp["single"],
        "linger_over_cpp": over_cpp["linger"],
        "send_batch_over_cpp": over_cpp["send_batch"],
        "batched_row": better,
        "batched_over_cpp": over_cpp[better],
        "messages_per_s": {
            row: round(spread([turn[row] for turn in turns])["median"]) for row in ROWS
        },
    }


def _rate(broker, row, seconds):
    if row == "cpp":
        shape = [str(BODY_BYTES), str(WARM_UP_S), str(seconds)]
        command = [_cpp_python(), "bench_cpp_sends.py", broker.names, "T", str(COMPARED_AT), *shape]
        figures = _figures(command, row, broker, bench_process.CHECKOUT)
    else:
        figures = producer_figures(broker, row, seconds, bench_process.CHECKOUT)
    return figures["messages"] / figures["elapsed_s"]


def producer_figures(broker, row, seconds, checkout):
    """What a producer process of a checkout says about its sends."""
    in_flight = COMPARED_AT if row == "single" else BATCHED_IN_FLIGHT
    alone = [sys.executable, "bench_producer_alone.py", row, broker.names, "T", in_flight]
    return _figures([*alone, BODY_BYTES, WARM_UP_S, seconds], row, broker, checkout)


def _figures(command, row, broker, checkout):
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=Path(__file__).parent,
        # A home of its own: the C++ client logs there.
        env={**os.environ, "HOME": str(broker.folder), "PYTHONPATH": str(checkout)},
    )
    if done.returncode:
        raise bench_process.CannotStart(f"{row} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _cpp_python():
    """The interpreter that has the package, prepared as the interoperation tests do."""
    for folder in (bench_process.CHECKOUT, INTEROP):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    import interop_clients

    return interop_clients.cpp_python()
