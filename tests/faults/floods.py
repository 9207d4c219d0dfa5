"""What a stranger can pour over a server, and what it costs the server and an honest client.

A flood is a coroutine that opens connections of its own, sends, and reads what comes back.
:func:`measure` runs one next to an honest client in another process, and takes the server's memory
from ``/proc``. Run as ``python -m tests.faults.floods [NAME ...]`` to see the figures of
the full floods.
"""

import asyncio
import json
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.servers.serving import CHECKOUT, BrokerProcess, environment
from tests.traffic.honest_client import frame

MIB = 1024 * 1024
PATIENCE_S = 300
TOPIC = "Poured"


class Cost(NamedTuple):
    """What one flood cost."""

    memory: int
    """Bytes of memory at the highest point, more than before."""

    p99: float
    slowest: float
    """Seconds an answer to the honest client took."""

    answers: Counter
    """How often the flood was answered with which code; ``None`` counts lost connections."""

    seconds: float

    def __str__(self):
        return (
            f"{self.memory / MIB:.0f} MB more, honest p99 {self.p99 * 1000:.1f} ms, slowest "
            f"{self.slowest * 1000:.0f} ms, {self.seconds:.1f} s, answers {dict(self.answers)}"
        )


class NamesProcess(BrokerProcess):
    """A name server of its own; ``address`` is where it listens."""

    def command(self):
        where = ["--data", str(self.folder / "names"), "--listen", self.address]
        return [sys.executable, "-m", "txmq", "names", *where]


def measure(server, flood, count):
    """The cost of one flood while an honest client works."""
    kind = "names" if isinstance(server, NamesProcess) else "broker"
    honest = subprocess.Popen(
        [sys.executable, "-m", "tests.traffic.honest_client", server.address, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        cwd=CHECKOUT,
    )
    try:
        assert honest.stdout.readline() == b"ready\n"
        status = Path(f"/proc/{server.process.pid}/status")
        (status.parent / "clear_refs").write_text("5")  # The peak starts again from here.
        before = _kib(status, "VmRSS")
        begun = time.monotonic()
        answers = asyncio.run(asyncio.wait_for(flood(server.address, count), PATIENCE_S))
        seconds = time.monotonic() - begun
        peak = _kib(status, "VmHWM")
        taken = sorted(json.loads(honest.communicate(timeout=PATIENCE_S)[0]))
    finally:
        honest.kill()
        honest.communicate()
    p99 = taken[int(len(taken) * 0.99)]
    return Cost((peak - before) * 1024, p99, taken[-1], answers, seconds)


def _kib(status, name):
    lines = status.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


async def _pour(address, frames, count, answers):
    """Send frames over one connection as fast as it takes them; count the codes of the answers."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))

    async def send():
        for data in frames:
            writer.write(data)
            await writer.drain()

    sending = asyncio.ensure_future(send())
    try:
        for _ in range(count):
            length, word = struct.unpack(">ii", await reader.readexactly(8))
            rest = await reader.readexactly(length - 4)
            answers[json.loads(rest[: word & 0xFFFFFF])["code"]] += 1
    except (asyncio.IncompleteReadError, ConnectionError):
        answers[None] += 1
    finally:
        sending.cancel()
        await asyncio.wait([sending])
        writer.close()
    return answers


async def _pour_over(connections, address, count, frame_of):
    """Spread ``count`` frames over some connections."""
    answers = Counter()
    shares = [range(at, count, connections) for at in range(connections)]
    await asyncio.gather(
        *[
            _pour(address, (frame_of(number) for number in share), len(share), answers)
            for share in shares
        ]
    )
    return answers


def _beat(client, producers=(), topics=()):
    subscriptions = [
        {"topic": topic, "subString": "*", "subVersion": 1, "expressionType": "TAG"}
        for topic in topics
    ]
    consumer = {"groupName": "poured", "subscriptionDataSet": subscriptions}
    body = {
        "clientID": client,
        "producerDataSet": [{"groupName": name} for name in producers],
        "consumerDataSet": [consumer] if subscriptions else [],
    }
    return frame(34, {}, json.dumps(body, separators=(",", ":")).encode())


async def producer_names(address, count):
    """Heartbeats with 1,000 names of producers each, over a connection for 10,000 names."""
    together = 1_000

    def beat(number):
        names = [f"producer-{number * together + at}" for at in range(together)]
        return _beat(f"client-{number}", names)

    return await _pour_over(max(1, count // 10_000), address, count // together, beat)


async def half_sent_frames(address, count):
    """Connections that each announce a frame of 15 MB and send 700 kB of it."""
    host, port = address.rsplit(":", 1)
    begin = struct.pack(">ii", 15_000_000, 100) + b"x" * 700_000
    answers, writers = Counter(), []

    async def begin_one():
        _, writer = await asyncio.open_connection(host, int(port))
        writers.append(writer)
        writer.transport.set_write_buffer_limits(high=0)
        try:
            writer.write(begin)
            await writer.drain()
        except ConnectionError:
            answers[None] += 1

    for at in range(0, count, 50):
        await asyncio.gather(*[begin_one() for _ in range(min(50, count - at))])
    # The server has read everything before it answers this.
    await _pour(address, [frame(34, {}, b'{"clientID":"c"}')], 1, answers)
    for writer in writers:
        writer.close()
    return answers


async def offsets(address, count):
    """Offsets of groups that nobody knows."""
    fields = {"topic": "Honest", "queueId": "0", "commitOffset": "0"}
    return await _pour_over(
        4, address, count, lambda at: frame(15, {**fields, "consumerGroup": f"unknown-{at}"})
    )


async def key_values(address, count):
    """Values of 64 kB at a name server."""
    value = "v" * 64 * 1024
    return await _pour_over(
        2,
        address,
        count,
        lambda at: frame(100, {"namespace": "N", "key": f"k{at}", "value": value}),
    )


async def topics(address, count):
    """Sends that create topics, 100 a second."""
    fields = {"a": "p", "c": "TBW102", "d": "8", "e": "0", "f": "0", "g": "1", "h": "0", "j": "0"}
    begun, answers = time.monotonic(), Counter()

    async def send(at):
        await asyncio.sleep(begun + at / 100 - time.monotonic())
        await _pour(address, [frame(310, {**fields, "b": f"{TOPIC}-{at}"}, b"x")], 1, answers)

    await asyncio.gather(*[send(at) for at in range(count)])
    return answers


async def subscriptions(address, count):
    """One heartbeat with that many subscriptions."""
    return await _pour(
        address, [_beat("c", topics=[f"T{at}" for at in range(count)])], 1, Counter()
    )


FLOODS = {
    "producer names": (producer_names, 20_000, 400_000),
    "half-sent frames": (half_sent_frames, 100, 1_500),
    "offsets": (offsets, 12_000, 400_000),
    "key values": (key_values, 64, 2_400),
    "topics": (topics, 50, 6_000),
    "subscriptions": (subscriptions, 20_000, 150_000),
}
"""The floods by name, with a modest count and the full one."""


def main(*names):
    """Print what the full floods cost, each over a server of its own."""
    for name in names or FLOODS:
        flood, _, count = FLOODS[name]
        kind = NamesProcess if flood is key_values else BrokerProcess
        with tempfile.TemporaryDirectory() as folder:
            server = kind(folder)
            server.start()
            try:
                print(f"{count} {name}: {measure(server, flood, count)}", flush=True)
            finally:
                server.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
