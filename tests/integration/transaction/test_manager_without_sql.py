"""Without the extra, all but the resource works, and the resource names the missing package."""

import subprocess
import sys

import pytest

from tests.servers.serving import environment

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


def run(program):
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, env=environment(), timeout=30, check=False,
    )  # fmt: skip


def test_sqlresource_and_outbox_without_sqlalchemy_name_the_missing_extra():
    done = run(PROGRAM)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "TransactionManager",
        *["sqlalchemy is missing: pip install 'txmq[sql]'"] * 2,
    ]


def test_redis_guards_and_their_test_kit_need_no_sqlalchemy():
    program = (
        "import sys\nsys.modules['sqlalchemy'] = None\n"
        "from txmq.idempotent import RedisGuard, TokenGuard, idempotent\n"
        "from txmq.testing import Deliveries"
    )
    done = run(program)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("txmq.outbox.table", "sqlalchemy", "sql"),
        ("txmq.transaction.resources.schema", "sqlalchemy", "sql"),
        ("txmq.idempotent.unique_key", "sqlalchemy", "sql"),
        ("txmq.reconcile.log.source", "pyarrow", "spark"),
    ],
)
def test_importing_a_module_without_its_extra_names_the_extra(module, package, extra):
    program = f"import sys\nsys.modules[{package!r}] = None\nimport {module}"
    done = run(program)
    assert done.stderr.splitlines()[-1] == (
        f"txmq.errors.ConfigError: {package} is missing: pip install 'txmq[{extra}]'"
    )
