"""A client with a steady, modest rate, in a process of its own: how long does each answer take?

Run as ``python -m tests.traffic.honest_client HOST:PORT broker|names``. It prints "ready" after the
first answer, works until its input closes, and then prints the latencies in seconds as JSON.
"""

import json
import select
import socket
import struct
import sys
import time

TOPIC = "Honest"
PAUSE_S = 0.004
SEND = {
    "a": "honest", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0",
    "i": "", "j": "0",
}  # fmt: skip
PULL = {
    "consumerGroup": "honest", "topic": TOPIC, "queueId": "0", "maxMsgNums": "8", "sysFlag": "4",
    "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
}  # fmt: skip


def frame(code, fields, body=b"", opaque=1):
    header = {"code": code, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 409}
    text = json.dumps({**header, "extFields": fields}).encode()
    return struct.pack(">ii", 4 + len(text) + len(body), len(text)) + text + body


def answer(stream):
    length, word = struct.unpack(">ii", stream.read(8))
    rest = stream.read(length - 4)
    return json.loads(rest[: word & 0xFFFFFF])


def questions(kind):
    """The requests of one round."""
    if kind == "names":
        while True:
            yield [(105, {"topic": TOPIC}, b"")]
    offset = 0
    while True:
        yield [(310, SEND, b"honest"), (11, {**PULL, "queueOffset": str(offset)}, b"")]
        offset += 1


def main(address, kind):
    host, port = address.rsplit(":", 1)
    taken = []
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = connection.makefile("rb")
        for questions_of_round in questions(kind):
            for code, fields, body in questions_of_round:
                begun = time.perf_counter()
                connection.sendall(frame(code, fields, body))
                header = answer(stream)
                taken.append(time.perf_counter() - begun)
                assert kind == "names" or header["code"] in (0, 19, 20), header
            if len(taken) == len(questions_of_round):
                print("ready", flush=True)
                taken = [0.0]
            if select.select([sys.stdin], [], [], PAUSE_S)[0]:
                break
    print(json.dumps(taken[1:]))


if __name__ == "__main__":
    main(*sys.argv[1:])
