"""A program of the tour is ended even if its stop is cancelled."""

import asyncio
import os

import pytest

from examples.bank_transfer.tour.programs import Program

DEAF = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.timeout(15)
def test_a_program_is_killed_when_its_stop_is_cancelled(tmp_path, monkeypatch):
    (tmp_path / "deaf.py").write_text(DEAF)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    async def ended():
        program = Program("who does not listen", "deaf", [], tmp_path / "deaf.log")
        await program.start()
        stopping = asyncio.create_task(program.stop())
        await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.wait([stopping])
        return stopping.cancelled(), program.is_running

    assert asyncio.run(ended()) == (True, False)
