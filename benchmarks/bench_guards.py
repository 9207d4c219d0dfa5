"""What a guard costs: messages handled per second behind it, over the bare handler transaction.

A function with one insert and one update runs over a real PostgreSQL that syncs its commits: bare,
and behind a table of unique keys, by turns in one process, with the same sessions of the same pool.
"""

import os
import random

from bench_decorated import COLOURS, Bank, figures, prepare
from bench_sends import spread

WAYS = ("bare", "guarded", "again")
AT_ONCE = (1, 16)
COMPARED_AT = 16


def guards(bench, plan):
    """Calls per second of each colour and way, and the ratios; checks look at 16 at once."""
    from tests.servers import databases  # Other sections need no database.

    del bench
    server = databases.postgres(is_durable=True)
    try:
        with server.database() as database:
            prepare(database)
            found = {}
            for colour in COLOURS:
                plan.say(f"guards: {colour}")
                url = database.render_as_string(hide_password=False)
                with Bank("bench_guards_alone.py", colour, url) as bank:
                    found[colour] = {
                        str(at_once): _compared(bank, plan, at_once) for at_once in AT_ONCE
                    }
    finally:
        server.stop()
    at = str(COMPARED_AT)
    ratios = {f"{name}_over_bare": found[name][at]["guarded_over_bare"] for name in found}
    return {"compared_at": COMPARED_AT, **ratios, **found}


def _compared(bank, plan, at_once):
    turns = []
    for number in range(1 + (plan.turns if at_once == COMPARED_AT else max(2, plan.turns // 4))):
        turn = {}
        # Each way comes first and last as often as the others.
        for way in random.sample(WAYS, len(WAYS)):
            os.sync()  # What one has left to be written is not for the next to wait for.
            result = bank.run(way, at_once, plan.turn_s)
            turn[way] = {
                "calls_per_s": result["per_s"],
                "client_us": result["cpu_s"] / result["total"] * 1e6,
            }
        if number:  # The first turn warms up.
            turns.append(turn)
    return {
        "turns": len(turns),
        "guarded_over_bare": spread([_ratio(turn, "guarded") for turn in turns]),
        "again_over_bare": spread([_ratio(turn, "again") for turn in turns]),
        **{way: figures([turn[way] for turn in turns]) for way in WAYS},
    }


def _ratio(turn, way):
    return turn[way]["calls_per_s"] / turn["bare"]["calls_per_s"]
