"""The client that drives a server: one blocking socket, frames written beforehand, answers counted.

It must cost so little that the server is the bottleneck, and it treats the floor and the broker
alike. There are two ways to keep ``n`` messages in flight. In *bursts* all are sent at once and the
next burst goes out when the last one is answered; in a *stream* each answer is followed by one new
message, so that there are always ``n``. Costs per message are compared in bursts, where every
server finds the same work waiting whatever its speed.
"""

import gc
import json
import socket
import time
from array import array
from collections import deque
from struct import Struct

import bench_frames
from bench_frames import PULLED_AT_ONCE, QUEUES

LENGTH = Struct(">I")
WORDS = Struct(">II")
TIMEVAL = Struct("ll")
SUCCESS = b'{"code":0,'
ANSWER_END = b'"version":409}'
"""The last bytes of an answer without a body."""
PATIENCE_S = 60


class Unexpected(Exception):
    """A server answered with something else than success; what it said is in the text."""


class Link:
    """One connection, and the answers that have arrived on it."""

    BUFFER_BYTES = 4 * 1024 * 1024

    def __init__(self, port, context=None):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel watches the time: Python's own time limit costs a poll for each call.
        self.socket.settimeout(None)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEVAL.pack(PATIENCE_S, 0))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, TIMEVAL.pack(PATIENCE_S, 0))
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self.buffer = bytearray(self.BUFFER_BYTES)
        self.view = memoryview(self.buffer)
        self.held = 0

    def close(self):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def _receive(self):
        got = self.socket.recv_into(self.view[self.held :])
        if got == 0:
            raise Unexpected("the server closed the connection")
        self.held += got

    def _drop(self, size):
        if size < self.held:
            self.buffer[: self.held - size] = self.view[size : self.held].tobytes()
        self.held -= size

    def answers(self):
        """Wait for something to arrive; returns how many answers it completed, all successes and
        without a body.
        """
        self._receive()
        buffer = self.buffer
        last = buffer.rfind(ANSWER_END, 0, self.held)
        if last < 0:
            return 0
        at = last + len(ANSWER_END)
        count = buffer.count(ANSWER_END, 0, at)
        if buffer.count(SUCCESS, 0, at) != count:
            raise Unexpected(self._first_failure())
        self._drop(at)
        return count

    def _first_failure(self):
        at = 0
        while self.buffer[at + 8 : at + 18] == SUCCESS:
            at += 4 + LENGTH.unpack_from(self.buffer, at)[0]
        stop = at + 4 + LENGTH.unpack_from(self.buffer, at)[0]
        return bytes(self.buffer[at + 8 : min(stop, at + 1000)]).decode()

    def answer(self):
        """The next answer: its header, and how long its body is."""
        while True:
            if self.held >= 8:
                length, header_size = WORDS.unpack_from(self.buffer)
                if self.held >= 4 + length:
                    header = json.loads(self.view[8 : 8 + header_size].tobytes())
                    self._drop(4 + length)
                    return header, length - 4 - header_size
            self._receive()

    def body(self):
        """The body of the next answer, which is JSON."""
        while self.held < 4 or self.held < 4 + LENGTH.unpack_from(self.buffer)[0]:
            self._receive()
        length, header_size = WORDS.unpack_from(self.buffer)
        body = json.loads(self.view[8 + header_size : 4 + length].tobytes())
        self._drop(4 + length)
        return body


class Drive:
    """What one drive measured. Latencies are noted once for all answers that arrived together."""

    def __init__(self):
        self.latencies = array("d")
        self.counts = array("L")
        self.elapsed = 0.0

    def note(self, latency, count):
        self.latencies.append(latency)
        self.counts.append(count)

    @property
    def messages(self):
        return sum(self.counts)

    def percentiles_ms(self):
        """Latency of a message: how long half, 99 and 99.9 of a hundred took at most."""
        ordered = sorted(zip(self.latencies, self.counts, strict=True))
        total = self.messages
        found, passed, at = {}, 0, -1
        for name, part in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
            while passed < part * total:
                at += 1
                passed += ordered[at][1]
            found[name] = round(ordered[at][0] * 1e3, 3)
        return found


def bursts(link, frames, seconds):
    """Send all frames at once, wait for all their answers, and again."""
    drive, batch, in_flight = Drive(), b"".join(frames), len(frames)
    clock = time.perf_counter
    gc.disable()
    begun = now = clock()
    while now - begun < seconds:
        sent_at = clock()
        link.send(batch)
        left = in_flight
        while left:
            count = link.answers()
            now = clock()
            if count:
                drive.note(now - sent_at, count)
                left -= count
    drive.elapsed = now - begun
    gc.enable()
    return drive


def stream(link, frames, seconds):
    """Keep as many messages in flight as there are frames, sending one for every answer."""
    drive, in_flight = Drive(), len(frames)
    ring = memoryview(b"".join(frames + frames))
    ends = [0]
    for frame in frames + frames:
        ends.append(ends[-1] + len(frame))
    clock = time.perf_counter
    gc.disable()
    begun = now = clock()
    link.send(ring[: ends[in_flight]])
    sent, at, left = deque([[now, in_flight]]), 0, in_flight
    while left:
        count = link.answers()
        now = clock()
        left -= count
        if count and now - begun < seconds:
            # Answers come in the order of the requests, so the oldest are the answered ones.
            link.send(ring[ends[at] : ends[at + count]])
            sent.append([now, count])
            at = (at + count) % in_flight
            left += count
        while count:
            sent_at, waiting = sent[0]
            step = min(waiting, count)
            drive.note(now - sent_at, step)
            count -= step
            if step == waiting:
                sent.popleft()
            else:
                sent[0][1] -= step
    drive.elapsed = now - begun
    gc.enable()
    return drive


def measured_sends(server, frames, seconds, shape=bursts, *, warm_up_s, context=None, batch=1):
    """Drive a server with sends, with a context through TLS, and tell what it did and cost. Each
    frame holds so many messages as a batch has.
    """
    link = Link(server.port, context)
    try:
        bursts(link, frames, warm_up_s)
        before = server.cpu_s()
        drive = shape(link, frames, seconds)
        used = server.cpu_s() - before
    finally:
        link.close()
    messages = drive.messages * batch
    return {
        "messages_per_s": round(messages / drive.elapsed),
        "cpu_us_per_message": round(used / messages * 1e6, 3),
        "latency_ms": drive.percentiles_ms(),
        "server_busy": round(used / drive.elapsed, 2),
        "messages": messages,
    }


def figures(port):
    """What a broker tells about itself."""
    link = Link(port)
    try:
        link.send(bench_frames.figures())
        return link.body()["table"]
    finally:
        link.close()


def fill(link, frames, count):
    """Send at least so many messages; returns how many."""
    batch, sent = b"".join(frames), 0
    while sent < count:
        link.send(batch)
        left = len(frames)
        while left:
            left -= link.answers()
        sent += len(frames)
    return sent


def stored(link):
    """How many messages all queues together have had."""
    total = 0
    for queue in range(QUEUES):
        link.send(bench_frames.max_offset(queue))
        header, _ = link.answer()
        total += int(header["extFields"]["offset"])
    return total


def drain(link, first, end):
    """Pull every queue from one offset to another, one pull of each queue in flight."""
    offsets = dict.fromkeys(range(QUEUES), first)
    for queue in offsets:
        link.send(bench_frames.pull(queue, first))
    while offsets:
        header, size = link.answer()
        queue = header["opaque"]
        if header["code"] != 0 or size == 0:
            raise Unexpected(json.dumps(header))
        reached = int(header["extFields"]["nextBeginOffset"])
        moved = reached - offsets[queue]
        if not 0 < moved <= PULLED_AT_ONCE:
            raise Unexpected(f"a pull moved by {moved}")
        offsets[queue] = reached
        if reached < end:
            link.send(bench_frames.pull(queue, reached))
        else:
            del offsets[queue]
