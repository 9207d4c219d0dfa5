"""Drives one broker from a process of its own: bursts of sends, after a line on stdin."""

import json
import os
import sys

import bench_driver
import bench_frames
from bench_sends import BODY_BYTES, COMPARED_AT

WARM_UP_S = 0.1


def main():
    port, seconds, core = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    link = bench_driver.Link(int(port))
    frames = bench_frames.sends(COMPARED_AT, BODY_BYTES)
    bench_driver.bursts(link, frames, WARM_UP_S)
    print("warm", flush=True)
    sys.stdin.readline()
    drive = bench_driver.bursts(link, frames, float(seconds))
    link.close()
    print(json.dumps({"messages": drive.messages}), flush=True)


if __name__ == "__main__":
    main()
