"""A simulated world in separate processes."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.running import run_by
from tests.unit.testing.test_simulated_loop import ROOT
from txmq.testing import (
    RealWorldError,
    simulate,
)


def test_a_seed_gives_the_same_trace_in_every_process():
    def digest(hash_seed):
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("trace_of_a_seed.py"))],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
            text=True,
        )
        return done.stdout

    assert digest("0") == digest("1") == digest("4711") != ""


@pytest.mark.parametrize(
    "leave",
    [
        lambda: asyncio.get_running_loop().run_in_executor(None, print),
        lambda: threading.Thread(target=print).start(),
        lambda: time.sleep(0.001),
        lambda: socket.create_connection(("127.0.0.1", 9)),
        lambda: subprocess.run(["true"]),
    ],
)
@run_by(simulate, 1)
async def test_a_simulation_refuses_threads_sleeps_sockets_and_processes(world, /, leave):
    with pytest.raises(RealWorldError):
        leave()
