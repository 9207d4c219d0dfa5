"""Runs `txmq serve` again and again, each time in a process that kills itself at a label.

Each line of its input is a JSON object: the arguments of one broker, and its label. The broker runs
in a fork, so that the modules need not be loaded anew; it kills itself where it comes to the label
that stands in CRASH_AT, once the file named by CRASH_ARMED is there. When it has ended, that is
told in one line.
"""

import json
import os
import signal
import sys

# Loaded before the first fork.
import uvloop  # noqa: F401

import txmq_broker.app  # noqa: F401
from tests.faults.crash_points import watched
from txmq import cli
from txmq.cli import root  # noqa: F401
from txmq.cli.serve import serve as run_broker  # noqa: F401


def reached(label: str) -> None:
    """Die, if this is the place."""
    if label == os.environ["CRASH_AT"] and os.path.exists(os.environ["CRASH_ARMED"]):
        os.kill(os.getpid(), signal.SIGKILL)


def serve(arguments: list[str], label: str) -> int:
    """Be a broker that is to die at a label."""
    os.environ["CRASH_AT"] = label
    sys.argv = ["txmq", "serve", *arguments]
    with watched(reached):
        return cli.main()


def main() -> None:
    """Run one broker after another."""
    for line in sys.stdin:
        wanted = json.loads(line)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.close(0)
            sys.exit(serve(wanted["arguments"], wanted["label"]))
        _, status = os.waitpid(child, 0)
        print("ended", os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
