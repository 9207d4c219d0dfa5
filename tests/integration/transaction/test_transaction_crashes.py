"""Real processes, kill -9 at every step of a transaction: whatever was reached, the database and
the topic agree once checks have been answered, and no money is lost.

TXMQ_SOAK kills at each point 20 times, or as often as it says.
"""

import asyncio
import signal
from typing import NamedTuple

import pytest

from tests.integration.transaction.crash_bank import COMMITTED, ROLLED_BACK
from tests.integration.transaction.crash_stage import another, on_scene, plan, soak, soaked, wires
from tests.integration.transaction.crash_teller import AT_COMMIT, INSIDE_1, INSIDE_2
from tests.integration.transaction.crash_wire import REPLY, REQUEST
from tests.running import in_loop, run_by

NOTHING = None


class Crash(NamedTuple):
    """Where a teller dies, and what the fence must say then: one of the fault names, P1 to P7."""

    fault: str
    fate: int | None
    at: str | tuple[str, str]
    refuses: bool = False

    def __str__(self):
        return f"{self.fault} {self.at}{' of a rollback' if self.refuses else ''}"


CRASHES = (
    Crash("P1", NOTHING, "1"),
    Crash("P1", NOTHING, "2"),
    Crash("P2", NOTHING, ("half", REQUEST)),
    Crash("P2", ROLLED_BACK, ("half", REPLY)),
    Crash("P3", ROLLED_BACK, "3"),
    Crash("P3", ROLLED_BACK, "5"),
    Crash("P4", ROLLED_BACK, INSIDE_1),
    Crash("P4", ROLLED_BACK, INSIDE_2),
    Crash("P5", ROLLED_BACK, AT_COMMIT),
    Crash("P5", ROLLED_BACK, ("commit", REQUEST)),
    Crash("P5", COMMITTED, ("commit", REPLY)),
    Crash("P6", COMMITTED, "6"),
    Crash("P6", COMMITTED, "8"),
    Crash("P6", ROLLED_BACK, "6", refuses=True),
    Crash("P7", COMMITTED, ("end", REQUEST)),
    Crash("P7", COMMITTED, ("end", REPLY)),
    Crash("P7", NOTHING, ("end", REPLY), refuses=True),
    Crash("P7", COMMITTED, "9"),
)
ORPHAN = CRASHES[4]


def possible(crash, kind):
    """SQLite has no connection that could be cut."""
    return not (kind.startswith("sqlite") and crash.at[0] == "commit")


def armed(crash, ways, target, kill):
    """The point at which the teller kills itself; or the wire that does it."""
    if isinstance(crash.at, str):
        return crash.at
    what, side = crash.at
    to_broker, to_database = ways
    if what == "commit":
        to_database.wait_for(side, target, kill)
    else:
        to_broker.wait_for(what, side, target, kill)
    return "on the wire"


async def crashed(scene, tellers, kind, ways, crash, number):
    """A teller dies; returns the transaction that it died of."""
    name = f"{CRASHES.index(crash)}-{number}"
    target, bystanders = f"t-{name}", [f"b-{name}-{index}" for index in range(3)]
    wanted = plan(scene, kind, ways, target=target, bystanders=bystanders, refuses=crash.refuses)
    is_known = asyncio.Event()

    async def kill():
        await is_known.wait()
        await tellers.kill()

    wanted.point = armed(crash, ways, target, kill)
    await tellers.start(wanted)
    is_known.set()
    assert await tellers.ended() == -signal.SIGKILL, f"{crash}: {tellers.said}\n{tellers.tail()}"
    assert tellers.said[bystanders[0]]["state"] == "COMMITTED"
    assert target not in tellers.said, f"{crash}: {tellers.said}"
    return tellers.xids[target], tellers.said


async def restarted(scene, tellers, kind, ways):
    """A process of the group is started again, and answers."""
    await tellers.start(plan(scene, kind, ways))
    await tellers.opened()
    await scene.until_settled()
    tellers.send(signal.SIGTERM)
    assert await tellers.ended() == 0, tellers.tail()


async def dies_everywhere(scene, tellers, kind, heir, count):
    died, said = [], {}
    async with wires(scene) as ways:

        async def die(crash, number):
            xid, heard = await crashed(scene, tellers, kind, ways, crash, number)
            died.append((crash, xid))
            said.update(heard)

        async def die_everywhere():
            for crash in CRASHES:
                for number in range(count if possible(crash, kind) else 0):
                    await die(crash, number)

        if heir == "another":
            async with another(scene):
                await die_everywhere()
                await scene.until_settled()
        else:
            await die_everywhere()
            # Each teller may have answered for earlier ones; nobody has answered for the last one.
            await die(ORPHAN, count)
            assert scene.open()
            await restarted(scene, tellers, kind, ways)

    scene.agree()
    fence, visible = scene.bank.fence, {xid for _, xid in scene.visible()}
    assert [(str(crash), fence.get(xid), xid in visible) for crash, xid in died] == [
        (str(crash), crash.fate, crash.fate == COMMITTED) for crash, _ in died
    ]
    assert {order for order, heard in said.items() if heard.get("state") == "COMMITTED"} <= set(
        scene.bank.debits
    )
    print(
        f"{kind}, {heir}: {len(died)} killed, {len(visible)} committed, {len(fence)} in the fence"
    )


@pytest.mark.fault("P1", "P2", "P3", "P4", "P5", "P6", "P7")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "heir"),
    soaked(
        [("postgres-async", "another"), ("sqlite", "restarted")],
        [
            ("postgres", "another"),
            ("postgres", "restarted"),
            ("postgres-async", "restarted"),
            ("sqlite", "another"),
        ],
    ),
)
@run_by(in_loop)
async def test_database_and_topic_agree_wherever_a_producer_is_killed(
    patient_broker, bank_for, tellers, kind, heir
):
    bank = bank_for(kind)

    async with on_scene(patient_broker, bank) as scene:
        await dies_everywhere(scene, tellers, kind, heir, soak(1, 20))
