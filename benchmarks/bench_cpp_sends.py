"""Sends with the C++ client (PyPI rocketmq-client-python) for a while; says how many arrived.

Stands alone: it runs in the interpreter that holds the package and imports nothing of txmq. Each
thread sends one message after the other with `send_sync`, so that as many are in flight as there
are threads. That is the best way the package has: its asynchronous sends were taken out, and a
one-way send is never acknowledged.
"""

import json
import sys
import threading
import time

from rocketmq.client import Message, Producer
from rocketmq.exceptions import RocketMQException


def send(producer, topic, body):
    message = Message(topic)
    message.set_body(body)
    producer.send_sync(message)
    message.destroy()


def main():
    names, topic, threads, body_bytes, warm_up_s, seconds = sys.argv[1:]
    body = "x" * int(body_bytes)
    producer = Producer("bench-cpp")
    producer.set_namesrv_addr(names)
    producer.start()
    send(producer, topic, body)  # Threads that ask for the route all at once fail.
    failures = []
    counts = [0] * int(threads)
    begin = time.perf_counter() + float(warm_up_s)
    end = begin + float(seconds)

    def work(at):
        now = time.perf_counter()
        while now < end:
            try:
                send(producer, topic, body)
            except RocketMQException as error:  # Its first sends fail where many begin at once.
                failures.append(error)
                continue
            finally:
                now = time.perf_counter()
            if begin <= now < end:
                counts[at] += 1

    working = [threading.Thread(target=work, args=(at,)) for at in range(int(threads))]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    figures = {"messages": sum(counts), "elapsed_s": float(seconds), "failures": len(failures)}
    print(json.dumps(figures), flush=True)
    producer.shutdown()


if __name__ == "__main__":
    main()
