"""The allocator's settings, in a process of their own: they last for its life."""

import subprocess
import sys

import pytest

KEEPS = """
import ctypes, resource
from txmq.runtime.process import keep_freed_memory
{before}
keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
[bytearray(200_000) for _ in range(10)]
before = faults()
for _ in range(200):
    bytearray(200_000)
print(faults() - before)
"""


def faults(before=""):
    done = subprocess.run(
        [sys.executable, "-c", KEEPS.format(before=before)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have another C library")
def test_a_large_buffer_is_reallocated_without_page_faults():
    assert faults() < 200


def test_keeping_freed_memory_without_glibc_does_not_fail():
    assert faults("ctypes.CDLL = lambda name: object()") >= 0
