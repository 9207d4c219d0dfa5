"""Sends from blocking threads for a while; says how many were answered.

Each thread has a connection of its own, and sends one message after the other. The frames are
written beforehand, so that the program costs as little as Python allows.

bench_threads_alone.py PORT THREADS BODY_BYTES WARM_UP_S SECONDS
"""

import json
import sys
import threading
import time

import bench_driver
import bench_frames


def main():
    port, threads, body_bytes = map(int, sys.argv[1:4])
    warm_up_s, seconds = map(float, sys.argv[4:])
    frames = bench_frames.sends(threads, body_bytes)
    counts, before = [0] * threads, []
    begin = time.perf_counter() + warm_up_s
    end = begin + seconds

    def work(at):
        link, frame, now = bench_driver.Link(port), frames[at], 0.0
        while now < end:
            link.send(frame)
            while not link.answers():
                pass
            now = time.perf_counter()
            counts[at] += begin <= now < end
            if now >= begin and not before:
                before.append(time.process_time())
        link.close()

    working = [threading.Thread(target=work, args=(at,)) for at in range(threads)]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    busy = (time.process_time() - before[0]) / seconds
    print(json.dumps({"messages_per_s": round(sum(counts) / seconds), "busy": round(busy, 2)}))


if __name__ == "__main__":
    main()
