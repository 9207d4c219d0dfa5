"""The figures that must hold, each a ratio within one run, and whether they do."""

from typing import NamedTuple


class Check(NamedTuple):
    """A figure by its place in the document, and its limit."""

    what: str
    section: str
    figure: str
    limit: float
    is_most: bool


CHECKS = {
    "send_cost": Check(
        "broker CPU per 1 KB send over the floor's, 64 in flight, flush=async",
        "ratios",
        "broker_cpu_over_floor",
        2.0,
        is_most=True,
    ),
    "sync_throughput": Check(
        "messages per second with flush=sync over flush=async, 64 in flight",
        "ratios",
        "sync_over_async",
        0.6,
        is_most=False,
    ),
    "synced_alone": Check(
        "median time of a synced 1 KB send alone over that of the floor with a sync of its own",
        "synced",
        "alone_over_floor",
        1.35,
        is_most=True,
    ),
    "synced_few": Check(
        "synced 1 KB sends per second with 8 in flight over those of the floor with syncs",
        "synced",
        "eight_over_floor",
        0.75,
        is_most=False,
    ),
    "latency": Check(
        "milliseconds from a send to a push consumer's handler at 1,000 messages a second that 99"
        " of a hundred take at most, flush=async",
        "latency",
        "p99_ms",
        2.0,
        is_most=True,
    ),
    "access_cost": Check(
        "broker CPU per signed 1 KB send at a broker with accounts over that of a plain one, 64 in"
        " flight, flush=async",
        "access",
        "signed_over_plain",
        1.35,
        is_most=True,
    ),
    "scrape_cost": Check(
        "messages per second of 1 KB sends, 64 in flight, flush=sync, with a scrape of the metrics"
        " each second over those without",
        "scrape",
        "scraped_over_quiet",
        0.97,
        is_most=False,
    ),
    "batch_cost": Check(
        "broker CPU per 1 KB message that is sent alone, 64 in flight, over that of one in a batch"
        " of 32, 16 in flight, flush=async",
        "batches",
        "single_over_batched",
        2.5,
        is_most=False,
    ),
    "transaction_cost": Check(
        "broker CPU per durable transaction over that of a durable 1 KB send, 64 in flight",
        "transactions",
        "cpu_over_send",
        2.2,
        is_most=True,
    ),
    "transaction_bytes": Check(
        "bytes that log and indexes grow by for each transaction with a body of 1 KB",
        "transactions",
        "bytes_per_transaction",
        1.4 * 1024,
        is_most=True,
    ),
    "decorated_session": Check(
        "decorated local transactions per second over bare ones, AsyncSession, 16 at once",
        "decorated",
        "session_over_bare",
        0.55,
        is_most=False,
    ),
    "handwritten_session": Check(
        "decorated local transactions per second over a handwritten client's, AsyncSession, 16 at"
        " once",
        "decorated",
        "session_over_handwritten",
        0.85,
        is_most=False,
    ),
    "handwritten_psycopg": Check(
        "the same with psycopg",
        "decorated",
        "psycopg_over_handwritten",
        0.75,
        is_most=False,
    ),
    "guarded_session": Check(
        "handled messages per second behind a table of unique keys over bare ones, AsyncSession, 16"
        " at once",
        "guards",
        "session_over_bare",
        0.6,
        is_most=False,
    ),
    "pending_memory": Check(
        "bytes of memory for each open transaction, whatever it waits for",
        "pending",
        "bytes_each",
        200,
        is_most=True,
    ),
    "pending_round": Check(
        "a round of 1,000 checks among all open transactions over one among 10,000",
        "pending",
        "round_among_many_over_few",
        1.25,
        is_most=True,
    ),
    "delays_memory": Check(
        "MB by which a broker grows that keeps a million messages for later",
        "delays",
        "grown_mb",
        150,
        is_most=True,
    ),
    "delays_restart": Check(
        "seconds until a broker is ready that was killed with a million messages waiting",
        "delays",
        "ready_s",
        10,
        is_most=True,
    ),
    "delays_burst": Check(
        "seconds until 100,000 messages are delivered that were due within one",
        "delays",
        "burst_s",
        5,
        is_most=True,
    ),
    "delays_late": Check(
        "milliseconds by which a message comes late to an idle consumer",
        "delays",
        "late_ms",
        100,
        is_most=True,
    ),
    "consumer_rate": Check(
        "messages of 1 KB per CPU second of a push consumer with an empty handler",
        "consumer",
        "per_cpu_s",
        50_000,
        is_most=False,
    ),
    "client_growth": Check(
        "MB by which a client grows that sends and consumes for five minutes",
        "soak",
        "grown_mb",
        5,
        is_most=True,
    ),
    "producer_rate": Check(
        "messages of 1 KB per second of our producer over the C++ client's, 64 in flight",
        "producer",
        "over_cpp",
        3.0,
        is_most=False,
    ),
    "producer_batch_rate": Check(
        "the same where ours travel in batches, 1,024 in flight, of two ways the better one",
        "producer",
        "batched_over_cpp",
        10.0,
        is_most=False,
    ),
    "relay_latency": Check(
        "milliseconds from a commit until the message can be consumed, half of the time",
        "relay",
        "latency_ms",
        20,
        is_most=True,
    ),
    "relay_held": Check(
        "rows without a lane per second with a snapshot held over those without",
        "relay",
        "held_over_free",
        0.8,
        is_most=False,
    ),
    "relay_held_laned": Check(
        "the same of rows in lanes",
        "relay",
        "held_over_free_laned",
        0.8,
        is_most=False,
    ),
    "resolve_flat": Check(
        "transactions of dead services decided per second, of 100,000 over of 10,000",
        "resolve",
        "many_over_few",
        0.8,
        is_most=False,
    ),
    "reconcile_cost": Check(
        "seconds to reconcile the larger day, over the bare join of the same three ledgers",
        "reconcile",
        "whole_over_bare",
        2.5,
        is_most=True,
    ),
    "reconcile_by_hand": Check(
        "CPU seconds to reconcile the smaller day, over those of a PySpark job written by hand",
        "reconcile",
        "whole_cpu_over_by_hand",
        0.75,
        is_most=True,
    ),
    "reconcile_growth": Check(
        "seconds to reconcile one transfer of the larger day, over one of the smaller",
        "reconcile",
        "growth",
        1.2,
        is_most=True,
    ),
    "restart": Check(
        "restart after a crash, large log over small, same distance from the checkpoint",
        "restart",
        "large_over_small",
        1.5,
        is_most=True,
    ),
}


def checks(document):
    """A verdict on each check whose section was measured."""
    return {
        name: _verdict(check, document[check.section][check.figure]["median"])
        for name, check in CHECKS.items()
        if check.section in document
    }


def _verdict(check, figure):
    return {
        "what": check.what,
        "figure": figure,
        "at_most" if check.is_most else "at_least": check.limit,
        "passed": figure <= check.limit if check.is_most else figure >= check.limit,
    }
