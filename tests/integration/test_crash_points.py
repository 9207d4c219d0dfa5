"""Real brokers kill themselves with kill -9 at every step of a transaction, one after another on
the same data.
"""

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager

import pytest

from tests.faults.crash_driver import Driver, connected
from tests.faults.crash_points import CHECK, COPY, LABELS, PARK, phase_of
from tests.servers.serving import BrokerProcess, environment
from tests.soak import IS_SOAK
from txmq.runtime.clock import SystemClock
from txmq.runtime.network import SystemNetwork

PATIENCE_S = 20.0
NOWHERE = "nowhere"
# A simulated broker dies at every label in every run; here one of each phase's seams will do.
CHOSEN = (
    LABELS if IS_SOAK else [*LABELS[::24], *{phase_of(label): label for label in LABELS}.values()]
)


class Launcher:
    """A process that runs brokers one after the other, each with a label at which it dies."""

    def __init__(self, folder):
        self._plan = BrokerProcess(folder, flush="sync")
        self._armed = self._plan.folder / "armed"
        self._process = None

    async def open(self):
        variables = environment() | {"CRASH_ARMED": str(self._armed), "CRASH_AT": NOWHERE}
        with self._plan.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.faults.crash_launcher",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=variables,
                cwd=self._plan.folder,
                start_new_session=True,
            )

    async def start(self, label):
        phase = phase_of(label)
        checks = {"timeout": "0.05s" if phase in (CHECK, PARK) else "60s", "check_max": 1}
        given = {f"transaction.{key}": value for key, value in checks.items()}
        given["store.checkpoint_every"] = "64KiB"
        if phase == COPY:
            # In a file this small no body may be left where it is.
            given["store.segment_size"] = "16MiB"
        serve = self._plan.command()
        arguments = serve[serve.index("serve") + 1 :]
        arguments += [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
        line = json.dumps({"arguments": arguments, "label": label})
        self._process.stdin.write(line.encode() + b"\n")
        reply = await self._line()
        assert reply.startswith("ready"), f"{label}: {reply}\n{self._plan.tail()}"

    def arm(self):
        self._armed.touch()

    async def ended(self):
        """The exit code of the broker."""
        reply = await self._line()
        self._armed.unlink()
        return int(reply.removeprefix("ended "))

    async def _line(self):
        async with asyncio.timeout(PATIENCE_S):
            return (await self._process.stdout.readline()).decode()

    @asynccontextmanager
    async def peer(self):
        async with connected(SystemNetwork(), SystemClock(), self._plan.address) as peer:
            yield peer

    async def close(self):
        if self._process is not None and self._process.returncode is None:
            # This also kills a running broker: both are in a session of their own.
            os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()


async def drive_until_gone(driver, peer, label):
    """Repeat the phase: a sync sets no mark, for example, if the next one has already begun."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await driver.drive(peer, phase_of(label)):
                continue
    except TimeoutError:
        pytest.fail(f"never reached: {label}")


async def dies_everywhere(folder):
    launcher, driver = Launcher(folder), Driver()
    await launcher.open()
    try:
        for label in CHOSEN:
            await launcher.start(label)
            async with launcher.peer() as peer:
                await driver.verify(peer)
                launcher.arm()
                await drive_until_gone(driver, peer, label)
            assert await launcher.ended() == -signal.SIGKILL, label
        await launcher.start(NOWHERE)
        async with launcher.peer() as peer:
            await driver.verify_all(peer)
    finally:
        await launcher.close()


@pytest.mark.fault("P10", "P11", "P12", "P13", "P14")
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_acknowledged_data_survives_a_kill_at_every_crash_point(tmp_path):
    asyncio.run(dies_everywhere(tmp_path))
