"""This tree against another revision of it: the same measurements by turns, on one machine.

Both revisions run with the libraries of this environment. Turns alternate, so what disturbs the
machine disturbs both. A row says how much of the other revision's figure this tree's is, and how
far the machine lets one trust that.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from itertools import groupby
from math import comb
from pathlib import Path
from typing import NamedTuple

import bench_driver
import bench_frames
import bench_process
import bench_transactions
from bench_batches import BATCHES_IN_FLIGHT, batched_sends
from bench_producer import producer_figures
from bench_sends import BODY_BYTES, TURN_WARM_UP_S

CONFIDENCE = 0.95
TURNS_MIN = 6
"""Of fewer turns, not even the extremes hold the true median with that confidence."""


class Row(NamedTuple):
    """One figure of a broker."""

    what: str
    flush: str
    is_cost: bool
    """True if less is better."""
    measure: object
    """Called with a server and the plan; returns the figure."""
    settings: tuple[str, ...] = ()
    """Settings of the servers that are not the default."""


def _sends(figure, in_flight, shape=bench_driver.bursts):
    frames = bench_frames.sends(in_flight, BODY_BYTES)

    def measure(server, plan):
        found = bench_driver.measured_sends(
            server, frames, plan.turn_s, shape, warm_up_s=TURN_WARM_UP_S
        )
        return found["latency_ms"]["p50"] if figure == "p50" else found[figure]

    return measure


def _batches(figure, shape=bench_driver.bursts):
    frames = bench_frames.batches(BATCHES_IN_FLIGHT, BODY_BYTES)

    def measure(server, plan):
        return batched_sends(server, frames, plan.turn_s, shape)[figure]

    return measure


def _produced(server, plan):
    """CPU per message of a producer process of the same revision."""
    figures = producer_figures(server, "send_batch_32", max(plan.turn_s, 0.3), server.checkout)
    return figures["busy"] * figures["elapsed_s"] / figures["messages"] * 1e6


def _transactions(server, plan):
    link = bench_driver.Link(server.port)
    try:
        found = bench_transactions.measured(server, link, 64, plan.turn_s, TURN_WARM_UP_S)
    finally:
        link.close()
    return found["cpu_us_per_transaction"]


def _drained(send):
    """Messages per second of CPU that are pulled, of those that are sent for it."""

    def measure(server, plan):
        link = bench_driver.Link(server.port)
        try:
            first = bench_driver.stored(link) // bench_frames.QUEUES
            send(server, plan)
            end = bench_driver.stored(link) // bench_frames.QUEUES
            before = server.cpu_s()
            bench_driver.drain(link, first, end)
            return (end - first) * bench_frames.QUEUES / (server.cpu_s() - before)
        finally:
            link.close()

    return measure


WITHOUT_DISK = (
    "store.flush_interval=1h",
    "store.checkpoint_every=64GiB",
    "store.segment_size=64GiB",
)
"""The disk gets what a turn has written only after the turn. Otherwise it decides the rate: it has
to take 600 MB a second, and writes wait for syncs.
"""

ROWS = (
    Row("CPU of a send, 64 in flight", "async", True, _sends("cpu_us_per_message", 64)),
    Row("sends per second, 512 in flight", "async", False, _sends("messages_per_s", 512)),
    Row("pulls per second of CPU", "async", False, _drained(_sends("messages_per_s", 64))),
    Row("CPU of a message in batches of 32", "async", True, _batches("cpu_us_per_message")),
    Row(
        "pulls per second of CPU, of batches",
        "async",
        False,
        _drained(_batches("messages_per_s")),
    ),
    Row("CPU of a producer's message in batches of 32", "async", True, _produced),
    Row(
        "messages per second in batches of 32",
        "async",
        False,
        _batches("messages_per_s", bench_driver.stream),
        WITHOUT_DISK,
    ),
    Row("CPU of a synced send, 64 in flight", "sync", True, _sends("cpu_us_per_message", 64)),
    Row(
        "synced sends per second, 64 in flight",
        "sync",
        False,
        _sends("messages_per_s", 64, bench_driver.stream),
    ),
    Row(
        "synced sends per second, 8 in flight",
        "sync",
        False,
        _sends("messages_per_s", 8, bench_driver.stream),
    ),
    Row("time of a synced send alone", "sync", True, _sends("p50", 1)),
    Row("CPU of a durable transaction, 64 in flight", "sync", True, _transactions),
)


class Compared(NamedTuple):
    """A row as measured: medians of both, and the ratio with its bounds."""

    what: str
    theirs: float
    ours: float
    ratio: float
    low: float
    high: float

    def verdict(self, *, is_cost):
        """What the bounds allow to say."""
        if self.low <= 1 <= self.high:
            return "as before"
        return "better" if (self.high < 1) == is_cost else "worse"


@contextmanager
def checkout_of(revision):
    """A folder with the files of a revision.

    Raises:
        SystemExit: git does not know the revision.
    """
    with tempfile.TemporaryDirectory(prefix="txmq-revision-") as folder:
        archive = Path(folder) / "files.tar"
        git = ["git", "-C", bench_process.CHECKOUT, "archive", "--output", archive, revision]
        done = subprocess.run(git, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"no such revision to compare with: {done.stderr.strip()}")
        files = Path(folder) / "files"
        files.mkdir()
        subprocess.run(["tar", "-xf", archive, "-C", files], check=True)
        yield files


def against(bench, plan, revision):
    """The rows of the table."""
    with checkout_of(revision) as theirs:
        found = []
        for (flush, settings), rows in groupby(ROWS, lambda row: (row.flush, row.settings)):
            with ExitStack() as stack:
                servers = [
                    stack.enter_context(bench.broker(flush, settings=settings, checkout=checkout))
                    for checkout in (theirs, bench_process.CHECKOUT)
                ]
                found += [_compared(row, servers, plan) for row in rows]
    return found


def _compared(row, servers, plan):
    plan.say(row.what)
    figures = [[], []]
    for turn in range(max(plan.turns, TURNS_MIN) + 1):
        # Which of the two is first changes with each turn.
        for which in (0, 1) if turn % 2 else (1, 0):
            os.sync()
            for server in servers:
                server.drop_cached_pages()
            figure = row.measure(servers[which], plan)
            if turn:  # The first turn warms up.
                figures[which].append(figure)
    theirs, ours = figures
    ratios = [our / their for their, our in zip(theirs, ours, strict=True)]
    low, high = median_bounds(ratios)
    return Compared(
        row.what,
        statistics.median(theirs),
        statistics.median(ours),
        statistics.median(ratios),
        low,
        high,
    )


def median_bounds(figures):
    """Bounds that hold the true median with a confidence of 95 %, by the order of the figures.

    Each figure lies below the true median with a chance of one half, whatever their distribution.
    At least :data:`TURNS_MIN` figures are needed.
    """
    ordered, count = sorted(figures), len(figures)
    outside, chance = 0, 0.0
    while outside < count // 2:
        chance += 2 * comb(count, outside) / 2**count
        if chance > 1 - CONFIDENCE:
            break
        outside += 1
    skipped = max(outside - 1, 0)
    return ordered[skipped], ordered[-1 - skipped]


def table(rows, revision):
    """The rows as Markdown."""
    lines = [
        f"| figure | {revision} | this tree | ratio | 95 % bounds | |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for row, known in zip(rows, ROWS, strict=True):
        lines.append(
            f"| {row.what} | {_short(row.theirs)} | {_short(row.ours)} | {row.ratio:.3f} "
            f"| {row.low:.3f} to {row.high:.3f} | {row.verdict(is_cost=known.is_cost)} |"
        )
    return "\n".join(lines)


def _short(figure):
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
