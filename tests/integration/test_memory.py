"""The allocator's settings, in a process of their own: they last for its life."""

import ctypes
import subprocess
import sys

import pytest

from txmq.runtime.process import keep_freed_memory

KEEPS = """
import resource
from txmq.runtime.process import keep_freed_memory
keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
[bytearray(200_000) for _ in range(10)]
before = faults()
for _ in range(200):
    bytearray(200_000)
print(faults() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have another C library")
def test_a_large_buffer_is_reallocated_without_page_faults():
    done = subprocess.run(
        [sys.executable, "-c", KEEPS], capture_output=True, text=True, check=True, timeout=30
    )

    assert int(done.stdout) < 200


def test_keeping_freed_memory_without_glibc_does_nothing(monkeypatch):
    opened = []

    def without_mallopt(name):
        opened.append(name)
        return object()

    monkeypatch.setattr(ctypes, "CDLL", without_mallopt)

    keep_freed_memory()

    assert opened == [None]
