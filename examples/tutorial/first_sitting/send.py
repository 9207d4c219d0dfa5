"""Send orders from the first number to the last: python send.py 1 100."""

import sys
import time
from pathlib import Path

from txmq import Message, TxmqError
from txmq.blocking import Producer

first, last = int(sys.argv[1]), int(sys.argv[2])

with Producer("shop", "127.0.0.1:9876") as producer, Path("sent.txt").open("a") as sent:
    for number in range(first, last + 1):
        order = f"order-{number}"
        message = Message(topic="Orders", keys=(order,), body=b"one teapot")
        while True:
            try:
                producer.send(message)
                break
            except TxmqError as error:
                if not error.retryable:
                    raise
                print(f"no answer about {order}, so it is sent again", flush=True)
                time.sleep(0.5)
        print(order, file=sent, flush=True)
        time.sleep(0.02)  # Leaves you the time to kill something.
