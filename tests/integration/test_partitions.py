"""A leader that is cut off, in a network of our own: what clients saw is linearizable."""

import subprocess

import msgspec
import pytest

from tests.faults import own_network, partition_driver
from tests.servers import etcd_server
from tests.servers.database_server import die_with_us
from tests.servers.serving import environment
from tests.soak import count, some_of
from tests.traffic.linearizability import Operation, contradiction
from tools.packages import Unprepared

SECONDS = count(5, 60)
SECONDS_MAX = 180 + 10 * SECONDS
"""With starting the set, healing and reading everything, on a busy machine."""

OFTEN = ("etcd", "followers", "all but clients", "one way to etcd", "one way from followers")

pytestmark = pytest.mark.timeout(2 * SECONDS_MAX)


class History(msgspec.Struct):
    """What :mod:`tests.faults.partition_driver` writes."""

    counts: dict[str, int]
    operations: dict[str, list[Operation]]


@pytest.fixture(scope="module", autouse=True)
def _possible():
    """Require networks of our own and an etcd, or say why there are none."""
    if reason := own_network.reason_against():
        raise Unprepared(f"the tests of broker sets whose leader is cut off: {reason}")
    if etcd_server.program() is None:
        raise Unprepared(etcd_server.HINT)


def history_of(case, folder):
    done = subprocess.run(
        partition_driver.command(case, SECONDS, folder),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        preexec_fn=die_with_us,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode((folder / "history.json").read_bytes(), type=History)


@pytest.mark.parametrize("case", some_of(partition_driver.CASES, OFTEN))
def test_clients_of_a_cut_off_leader_see_a_linearizable_history(case, tmp_path):
    history = history_of(case, tmp_path)

    contradictions = [
        contradiction(key, operations) for key, operations in history.operations.items()
    ]
    assert not any(contradictions), "\n".join(filter(None, contradictions))
    print(f"{case}: {history.counts}")
    assert all(history.counts[kind] > 50 for kind in ("Append", "Read", "Write", "Show", "End"))
