"""Without the extra, everything but the resource is there, and that says what is missing."""

import subprocess
import sys

from tests.serving import environment

PROGRAM = """
import sys
sys.modules["sqlalchemy"] = None
import txmq, txmq.blocking
print(txmq.TransactionManager.__name__)
for name in ("SQLResource", "Outbox"):
    try:
        getattr(txmq, name)
    except txmq.errors.ConfigError as problem:
        print(problem)
"""


def test_what_needs_the_extra_names_it():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True, text=True, env=environment(), timeout=30, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "TransactionManager",
        *["sqlalchemy is missing: pip install 'txmq[sql]'"] * 2,
    ]
