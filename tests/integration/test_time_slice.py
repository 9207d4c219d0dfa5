"""Short time slices, in a process of their own: the test's process keeps its slice."""

import platform
import subprocess
import sys
import textwrap

import pytest

PROGRAM = textwrap.dedent(
    """
    import ctypes, os, struct, threading
    from txmq.runtime import process as time_slice

    def slice_ns():
        call = ctypes.CDLL(None).syscall
        found = ctypes.create_string_buffer(48)
        number = time_slice._NUMBERS[os.uname().machine].get_attributes
        assert call(number, 0, found, 48, 0) == 0
        return struct.unpack("<IIQiIQQQ", found)[5]

    NICE = os.nice(3)
    is_short = time_slice.shorten_time_slice()
    assert time_slice.shorten_time_slice() is is_short, "a second call"
    found = []
    thread = threading.Thread(target=lambda: found.append(slice_ns()))
    thread.start()
    thread.join()
    assert os.nice(0) == NICE
    assert is_short is (found == [100_000] == [slice_ns()]), (is_short, found)

    time_slice._NUMBERS = {}
    assert time_slice.shorten_time_slice() is False, "an unknown processor"
    """
)


def test_threads_inherit_a_short_time_slice_and_keep_their_priority():
    if platform.system() != "Linux" or platform.machine() not in {"x86_64", "aarch64"}:
        pytest.skip("no time slices are known for this system")
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=30)
