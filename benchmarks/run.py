"""The benchmarks: one JSON document on stdout, progress on stderr.

    python benchmarks/run.py [--quick] [--full] [--seconds S] [--only NAME ...] [--check]
    python benchmarks/run.py --against REVISION    a table of this tree and another

All figures that must hold are ratios taken within this run; they stand under ``checks`` with their
limits. The exit code is 0 whatever they are, unless ``--check`` asks for a verdict.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import dataclass, field

import bench_process
from bench_access import access
from bench_against import against, table
from bench_bank import bank
from bench_batches import batches
from bench_brokers import brokers
from bench_checks import checks
from bench_consumer import consumer, soak
from bench_decorated import decorated
from bench_delays import delays
from bench_disk import disk
from bench_guards import guards
from bench_idle import idle
from bench_latency import latency
from bench_pending import pending
from bench_producer import producer
from bench_reconcile import reconcile
from bench_relay import relay
from bench_resolve import resolve
from bench_restart import restart
from bench_scrape import scrape
from bench_sends import floor, ratios, sends
from bench_several import several
from bench_synced import synced
from bench_tls import tls
from bench_transactions import transactions

SECTIONS = {
    "disk": disk,
    "floor": floor,
    "sends": sends,
    "ratios": ratios,
    "synced": synced,
    "latency": latency,
    "access": access,
    "scrape": scrape,
    "tls": tls,
    "brokers": brokers,
    "batches": batches,
    "transactions": transactions,
    "several": several,
    "decorated": decorated,
    "guards": guards,
    "bank": bank,
    "pending": pending,
    "delays": delays,
    "idle": idle,
    "producer": producer,
    "resolve": resolve,
    "relay": relay,
    "reconcile": reconcile,
    "restart": restart,
    "consumer": consumer,
    "soak": soak,
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long and how often everything is measured."""

    seconds: float
    in_flight: tuple[int, ...] = (1, 8, 64, 512)
    warm_up_s: float = 0.3
    turn_s: float = 0.3
    turns: int = 20
    broker_turns: int = 5
    counted_rounds: int = 1000
    decorated_at_once: tuple[int, ...] = (1, 16, 64)
    syncs: int = 200
    connections: int = 2000
    starts: int = 5
    log_bytes: tuple[int, int] = (100_000_000, 1_000_000_000)
    open_transactions: int = 1_000_000
    waiting: int = 1_000_000
    burst: int = 100_000
    burst_ahead_s: float = 4.0
    late_messages: int = 100
    resolved: int = 100_000
    resolutions: int = 3
    relayed: int = 10_000
    relay_turns: int = 7
    reconciled: tuple[int, ...] = (1_000_000, 10_000_000)
    reconciled_turns: int = 2
    committed: int = 300
    bank_turns: int = 4
    transfers_at_once: tuple[int, ...] = (1, 16, 64)
    consumed: int = 200_000
    soak_s: int = 300
    latency_s: int = 60
    is_full: bool = False
    begun: float = field(default_factory=time.monotonic)

    def say(self, what):
        """Write a line for the person who waits."""
        print(f"{time.monotonic() - self.begun:6.1f} s  {what}", file=sys.stderr, flush=True)


def plan_for(options):
    """The plan that the options ask for."""
    if options.smoke:
        return Plan(
            seconds=0.1,
            in_flight=(1, 64),
            warm_up_s=0.05,
            turn_s=0.05,
            turns=2,
            broker_turns=1,
            counted_rounds=200,
            decorated_at_once=(16,),
            syncs=5,
            connections=50,
            starts=2,
            log_bytes=(2_000_000, 6_000_000),
            open_transactions=50_000,
            waiting=2_000,
            burst=400,
            burst_ahead_s=1.0,
            late_messages=2,
            resolved=400,
            resolutions=1,
            relayed=300,
            relay_turns=2,
            reconciled=(5_000,),
            reconciled_turns=1,
            committed=20,
            bank_turns=2,
            transfers_at_once=(1, 4),
            consumed=2_000,
            soak_s=1,
            latency_s=1,
            is_full=options.full,
        )
    if options.quick:
        seconds = options.seconds or 0.4
        return Plan(
            seconds=seconds,
            turn_s=min(seconds, 0.2),
            turns=2,
            broker_turns=2,
            syncs=50,
            connections=500,
            starts=2,
            log_bytes=(60_000_000, 180_000_000),
            open_transactions=50_000,
            waiting=20_000,
            burst=2_000,
            burst_ahead_s=1.0,
            late_messages=5,
            resolved=2_000,
            resolutions=2,
            relayed=3_000,
            relay_turns=3,
            reconciled=(5_000,),
            reconciled_turns=1,
            committed=40,
            bank_turns=2,
            transfers_at_once=(1, 4),
            consumed=30_000,
            soak_s=5,
            latency_s=10,
            is_full=options.full,
        )
    return Plan(seconds=options.seconds or 4.0, is_full=options.full)


def read_options(arguments):
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, help="of one row (default 4), and of a quick turn")
    parser.add_argument("--smoke", action="store_true", help="every step once or twice, for tests")
    parser.add_argument("--quick", action="store_true", help="under a minute; figures are rough")
    parser.add_argument(
        "--full", action="store_true", help="rebuild a log's indexes; more turns of bank"
    )
    parser.add_argument("--only", choices=SECTIONS, nargs="+", help="these sections alone")
    parser.add_argument(
        "--against",
        metavar="REVISION",
        help="instead, compare this tree with a revision of git; prints a table",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 where a check fails")
    parser.add_argument("--pin", action="store_true", help="servers on one core, driver on another")
    parser.add_argument("--dir", help="where logs and days lie; up to 5 GB, deleted afterwards")
    return parser.parse_args(arguments)


def measure(options):
    """The document."""
    plan = plan_for(options)
    bench_process.allow_files()
    core = bench_process.pin_driver() if options.pin else None
    document = {"machine": machine(), "settings": vars(options)}
    with tempfile.TemporaryDirectory(prefix="txmq-bench-", dir=options.dir) as folder:
        bench = bench_process.Bench(folder, core)
        for name, section in SECTIONS.items():
            if options.only is None or name in options.only:
                plan.say(name)
                document[name] = section(bench, plan)
    document["checks"] = checks(document)
    document["took_s"] = round(time.monotonic() - plan.begun, 1)
    return document


def compare(options):
    """The table of this tree and another."""
    plan = plan_for(options)
    core = bench_process.pin_driver()
    with tempfile.TemporaryDirectory(prefix="txmq-bench-", dir=options.dir) as folder:
        bench = bench_process.Bench(folder, core)
        rows = against(bench, plan, options.against)
    return table(rows, options.against)


def machine():
    """What has to be said of the machine for the figures to mean anything."""
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


def main(arguments=None):
    """Measure, print, and with ``--check`` judge."""
    options = read_options(arguments)
    if not sys.platform.startswith("linux"):
        print("the benchmarks read process clocks and memory as Linux tells them", file=sys.stderr)
        return 2
    if options.against:
        print(compare(options))
        return 0
    document = measure(options)
    print(json.dumps(document, indent=2))
    failed = any(not check["passed"] for check in document["checks"].values())
    return 1 if options.check and failed else 0


if __name__ == "__main__":
    sys.exit(main())
