"""What accounts cost: the CPU of a signed send at a broker with accounts, over that of a plain one.

Both brokers take short turns, and a ratio is one of neighbours, so that what disturbs the machine
disturbs both.
"""

import bench_driver
import bench_frames
from bench_sends import BODY_BYTES, COMPARED_AT, TURN_WARM_UP_S, spread

ACCOUNT = "the-shop", "the-secret-of-the-shop"
FILE = f"""accounts:
- accessKey: {ACCOUNT[0]}
  secretKey: {ACCOUNT[1]}
  topicPerms: [{bench_frames.TOPIC}=PUB]
"""
COST = "cpu_us_per_message"


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
        turns = [
            [
                bench_driver.measured_sends(server, frames, plan.turn_s, warm_up_s=TURN_WARM_UP_S)
                for server, frames in pairs
            ]
            for _ in range(plan.turns)
        ]
    costs = [[each[COST] for each in turn] for turn in turns]
    return {
        "signed_over_plain": spread([signed / plain for plain, signed in costs]),
        "plain_us": spread([plain for plain, _ in costs]),
        "signed_us": spread([signed for _, signed in costs]),
    }
