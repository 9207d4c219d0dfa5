"""What accounts cost: the CPU of a signed send at a broker with accounts, over that of a plain one.

Both brokers take many short turns in some rounds. A round's ratio is one of its quickest turns:
what disturbs the machine makes turns dearer, and never cheaper.
"""

import statistics

import bench_driver
import bench_frames
from bench_sends import BODY_BYTES, COMPARED_AT, spread

ACCOUNT = "the-shop", "the-secret-of-the-shop"
FILE = f"""accounts:
- accessKey: {ACCOUNT[0]}
  secretKey: {ACCOUNT[1]}
  topicPerms: [{bench_frames.TOPIC}=PUB]
"""
COST = "cpu_us_per_message"
TURNS = 20
WARM_UP_S = 0.01


def access(bench, plan):
    """The ratio, and the costs that it comes from."""
    accounts = bench.new_folder() / "plain_acl.yml"
    accounts.touch(0o600)
    accounts.write_text(FILE)
    plain = bench_frames.sends(COMPARED_AT, BODY_BYTES)
    signed = bench_frames.sends(COMPARED_AT, BODY_BYTES, ACCOUNT)
    with bench.broker() as free, bench.broker(settings=[f"acl={accounts}"]) as guarded:
        pairs = ((free, plain), (guarded, signed))
        for server, frames in pairs:
            bench_driver.measured_sends(server, frames, plan.turn_s, warm_up_s=plan.warm_up_s)
        rounds = [_round(pairs, plan.turn_s) for _ in range(max(2, plan.turns // 2))]
    return {
        "signed_over_plain": spread([signed / plain for plain, signed in rounds]),
        "plain_us": spread([plain for plain, _ in rounds]),
        "signed_us": spread([signed for _, signed in rounds]),
    }


def _round(pairs, turn_s):
    """The CPU per message of each broker's quickest turns."""
    turns = [
        [
            bench_driver.measured_sends(server, frames, turn_s / 10, warm_up_s=WARM_UP_S)[COST]
            for server, frames in pairs
        ]
        for _ in range(TURNS)
    ]
    return [statistics.quantiles(costs, n=10)[0] for costs in zip(*turns, strict=True)]
