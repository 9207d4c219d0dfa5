"""What a transfer between two banks costs, end to end, in each of the three ways of the example.

ICBC and CCB are processes with a database each, over a real PostgreSQL that syncs its commits and a
broker that syncs as well. So many transfers are under way all the time, from the request until the
credit is committed; a bank has 16 connections, as its program has, so 64 wait for each other. The
ways take turns. Machine, disk and database server are shared by all of them.

Where the time went is found out by turns of their own, since steps that are watched cost a little.
Parts whose name begins with "beside" are none of the time from request to credit: they go on
meanwhile, or afterwards.

At the end the books are looked at: no money is lost, and every transfer is credited once.
"""

import os
import random
import statistics

from bench_decorated import Bank, family_cpu_s
from bench_process import cpu_s
from bench_sends import spread

WAYS = ("half", "outbox", "xa")
COMPARED_AT = 16
ACCOUNTS = 500
BALANCE, AMOUNT = 10_000_000, 100
PATIENCE_S = 60.0
WATCHED = 2
"""A turn whose steps are watched as well, and every third from there on."""


class WrongBooks(Exception):
    """Money was lost or made, or a transfer was credited not once."""


def bank(bench, plan):
    """Transfers per second, latencies and parts of each way, by transfers at once; and ratios."""
    from tests.servers import databases  # Other sections need no database.

    server = databases.postgres(is_durable=True)
    try:
        with server.database() as icbc, server.database() as ccb, bench.broker("sync") as broker:
            urls = [url.render_as_string(hide_password=False) for url in (icbc, ccb)]
            open_books(urls)
            pipe = str(bench.new_folder() / "credits")
            os.mkfifo(pipe)
            script = "bench_bank_alone.py"
            with (
                Bank(script, "icbc", broker.names, urls[0], pipe, urls[1]) as paying,
                Bank(script, "ccb", broker.names, urls[1], pipe) as paid,
            ):
                scene = Scene(server, broker, paying, paid)
                warm_up = _turn(scene, plan, 0, plan.transfers_at_once[1:2])
                turns = [
                    _turn(scene, plan, number, plan.transfers_at_once)
                    for number in range(1, 1 + turns_of(plan))
                ]
            made = sum(row["total"] for turn in (warm_up, *turns) for row in turn.values())
            audit(urls, made)
    finally:
        server.stop()
    rows = plan.transfers_at_once
    return {
        "turns": len(turns),
        "transfers": made,
        "over_half": {
            str(at_once): {way: _over_half(turns, way, at_once) for way in WAYS[1:]}
            for at_once in rows
        },
        **{way: {str(at_once): _row(turns, way, at_once) for at_once in rows} for way in WAYS},
    }


def turns_of(plan):
    """How many turns there are."""
    return plan.bank_turns * (3 if plan.is_full else 1)


class Scene:
    """Everybody who takes part, and what they use."""

    def __init__(self, server, broker, paying, paid):
        self.server, self.broker, self.paying, self.paid = server, broker, paying, paid

    def cpu_s(self):
        return {
            "icbc": cpu_s(self.paying.process.pid),
            "ccb": cpu_s(self.paid.process.pid),
            "broker": self.broker.cpu_s(),
            "postgres": family_cpu_s(self.server.pid),
        }

    def run(self, way, at_once, seconds):
        before = self.cpu_s()
        figures = self.paying.run(way, at_once, seconds)
        used = self.cpu_s()
        figures["cpu_us"] = {
            who: (used[who] - before[who]) / figures["total"] * 1e6 for who in used
        }
        return figures


def _turn(scene, plan, number, rows):
    """All ways with so many at once each."""
    plan.say(f"bank: turn {number} of {turns_of(plan)}")
    found = {}
    for at_once in rows:
        # What waits in a line takes longer to come to what is usual.
        seconds = plan.seconds / (5 if at_once > COMPARED_AT else 10)
        for suffix in ("", ".watched") if number % 3 == WATCHED else ("",):
            # Each way comes first and last as often as the others.
            for way in random.sample(WAYS, len(WAYS)):
                os.sync()  # What one has left to be written is not for the next to wait for.
                found[way + suffix, at_once] = scene.run(way + suffix, at_once, seconds)
    return found


def _over_half(turns, way, at_once):
    rate = "credited_per_s"
    return spread([turn[way, at_once][rate] / turn["half", at_once][rate] for turn in turns])


def _row(turns, way, at_once):
    found_turns = [turn[way, at_once] for turn in turns]
    asked = f"{way}.watched", at_once
    watched = [turn[asked] for turn in turns if asked in turn]
    return {
        "credited_per_s": spread([turn["credited_per_s"] for turn in found_turns]),
        "settled_per_s": spread([turn["settled_per_s"] for turn in found_turns]),
        "credited_ms": percentiles([one for turn in found_turns for one in turn["credited_ms"]]),
        "answered_ms": percentiles([one for turn in found_turns for one in turn["answered_ms"]]),
        "cpu_us": {
            who: round(statistics.median([turn["cpu_us"][who] for turn in found_turns]))
            for who in found_turns[0]["cpu_us"]
        },
        **{
            name: {
                part: round(statistics.fmean(turn[name][part] for turn in watched), 3)
                for part in watched[0][name]
            }
            for name in ("parts_ms", "shares")
        },
    }


def percentiles(taken):
    """Half are as fast, and 99 of a hundred."""
    taken.sort()
    return {
        "p50": round(taken[len(taken) // 2], 2),
        "p99": round(taken[len(taken) * 99 // 100], 2),
    }


def open_books(urls):
    """The tables of both banks, and their customers."""
    from examples.bank_transfer.databases import Opening, create_books, open_accounts

    for url, letter in zip(urls, "AB", strict=True):
        create_books(url)
        customers = (
            Opening(f"{letter}-{number}", "somebody", BALANCE) for number in range(ACCOUNTS)
        )
        open_accounts(url, customers, 0)


def audit(urls, made):
    """See that the books are right after so many transfers.

    Raises:
        WrongBooks: They are not.
    """
    debited, credited = (_book(url) for url in urls)
    expected = {
        "balances": 2 * ACCOUNTS * BALANCE,
        "at ICBC": (made, made, made),
        "at CCB": (made, made, made),
    }
    found = {
        "balances": debited["balances"] + credited["balances"],
        "at ICBC": debited["transfers"],
        "at CCB": credited["transfers"],
    }
    if found != expected:
        raise WrongBooks(f"{found}, where there should be {expected}")


def _book(url):
    """What customers have; how many transfers are ended well, are booked, and how often."""
    from sqlalchemy import text

    from examples.bank_transfer.databases import engine

    made = engine(url)
    with made.connect() as connection:
        balances = connection.execute(text("SELECT sum(balance) FROM accounts")).scalar_one()
        ended = connection.execute(
            text("SELECT count(*) FROM transfers WHERE state IN ('settled', 'credited')")
        ).scalar_one()
        booked = connection.execute(
            text(
                "SELECT count(DISTINCT transfer), count(*) FROM journal "
                "WHERE transfer IS NOT NULL AND account <> 'clearing'"
            )
        ).one()
    made.dispose()
    return {"balances": int(balances), "transfers": (ended, *booked)}
