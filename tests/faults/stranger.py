"""A stranger that sends a server one hostile frame after another, in a process of its own.

Run as ``python -m tests.faults.stranger HOST:PORT KIND``. It connects again whenever the server
closes the connection, works until its input closes, and then prints how many frames it has begun to
send.
"""

import os
import select
import socket
import struct
import sys
from contextlib import suppress

FRAME_BYTES = 16_000_000
HEADER_BYTES = 262_000 - 100
"""A little less than a server accepts."""


def _frame(header, body=b"", kind=0):
    size = 4 + len(header) + len(body)
    return struct.pack(">II", size, kind << 24 | len(header)) + header + body


def _json(fields, code=34):
    text = b'{"code":%d,"flag":0,"language":"JAVA","opaque":1,"version":409,"extFields":{%b}}'
    return text % (code, fields)


def _fields(size, field):
    """Fields of about ``size`` bytes together."""
    return b",".join(field % number for number in range(size // (len(field % 0) + 1)))


def _binary(fields):
    head = struct.pack(">hBhiii", 34, 0, 409, 1, 0, 0)
    return _frame(head + struct.pack(">i", len(fields)) + fields, kind=1)


FRAMES = {
    # 800,000 fields once held a server for 0.6 s.
    "fields": lambda: _frame(_json(_fields(12_500_000, b'"%08d":"v"'))),
    "garbage": lambda: b"\xff" * 8,
    # No scan counts these, because of the blank.
    "blanks": lambda: _frame(_json(_fields(HEADER_BYTES, b'"%05d" :""'))),
    "numbers": lambda: _frame(_json(_fields(HEADER_BYTES, b'"%05d" :1'))),
    "dialect": lambda: _frame(b"{code:34,extFields:{a:[%b]}}" % (b"[]," * 660)),
    "binary": lambda: _binary(b"\0" * HEADER_BYTES),
    # The refusal of an operator's request is recorded with what its body says.
    "body": lambda: _frame(_json(b'"topic":"T"', 215), b"\xff" * FRAME_BYTES),
}


def main(address, kind):
    os.nice(10)  # It stands for another machine, so its own work must not count.
    host, port = address.rsplit(":", 1)
    frame, count = FRAMES[kind](), 0
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        with (
            suppress(OSError),
            socket.create_connection((host, int(port)), timeout=5) as connection,
        ):
            while not select.select([sys.stdin], [], [], 0)[0]:
                count += 1
                connection.sendall(frame)
                if not connection.recv(64 * 1024):
                    break
    print(count)


if __name__ == "__main__":
    main(*sys.argv[1:])
