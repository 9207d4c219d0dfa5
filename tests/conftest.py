"""Which tests run, in which order, and how many examples a generated test tries.

A soak run (see tests/soak.py) tries 5,000 examples a test or as many as TXMQ_SOAK says, and sets no
time limit. A modest run deselects what is marked ``soak``.
"""

import logging
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.servers import java_archive
from tests.servers.certificates import Authority
from tests.soak import SOAK, count, left_to_the_soak
from tools import java
from tools.packages import Unprepared
from txmq.runtime.process import restore_interrupt

# Many containers forbid bytecode. Then every worker would rewrite the assertions of all tests anew,
# and each of the hundreds of programs that tests start would compile txmq anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# pytest loads readline, which gives every program that a test starts the width of a terminal; then
# commands would draw their tables for it.
os.environ.pop("COLUMNS", None)
os.unsetenv("COLUMNS")

# The assertions of stages explain themselves, as those of tests do.
for _part in ("contract", "integration", "interop", "property", "reconcile", "simulation", "unit"):
    pytest.register_assert_rewrite(f"tests.{_part}")

TESTS = Path(__file__).parent
_FOUND = DirectoryBasedExampleDatabase(Path(__file__).parents[1] / ".cache" / "hypothesis")
_INTEROP = "tests/interop/"
_SPARK = "with Spark"
# The files that use Spark are tested in one process: it is warm only once.
WITH_SPARK = (
    "reconcile/test_whole_runs.py",
    "reconcile/test_whole_cleared.py",
    "reconcile/test_whole_files.py",
    "reconcile/test_whole_storage.py",
    "reconcile/test_whole_object_store.py",
    "reconcile/test_whole_cluster.py",
    "reconcile/test_as_library.py",
    "reconcile/test_planted_cases.py",
    "integration/test_bank_reconciled.py",
    "reconcile/test_metamorphic.py",
    "reconcile/test_seeded_defects.py",
    "reconcile/test_reference_model.py",
    "reconcile/test_balance_proofs.py",
    "reconcile/test_carried_proofs.py",
    "reconcile/test_balances.py",
    "reconcile/test_clearing.py",
    "reconcile/test_quarantine.py",
    "reconcile/test_log_source.py",
    "compatibility/test_released_results.py",
    "reconcile/test_log_cluster.py",
    "reconcile/test_extract_jdbc.py",
    "reconcile/test_extract_whole.py",
    "reconcile/test_extract_loading.py",
    "reconcile/test_progress.py",
    "docs/test_tutorial_reconciled.py",
)
# The files that take longest, which start first so that no worker waits at the end for another.
LONGEST = (
    *WITH_SPARK,
    "interop",
    "integration/test_bank_tour.py",
    "integration/test_broker_sets.py",
    "integration/test_set_integrity.py",
    "integration/test_set_repairs.py",
    "integration/test_partitions.py",
    "integration/console/test_console_browser.py",
    "reconcile/test_spark_start.py",
    "integration/test_benchmarks.py",
    "reconcile/test_extract_books.py",
    "simulation/test_simulated_crash_points.py",
    "simulation/test_seeds.py",
    "simulation/test_transaction_seeds.py",
    "integration/idempotent/test_guard_kills.py",
    "integration/test_tour.py",
    "integration/test_crash_points.py",
)
HANG_SECONDS = 300
"""The least time limit of a test: on a busy machine, seconds of work take minutes."""
_SHARED_MACHINE = [HealthCheck.too_slow]

# In the background, and under some supervisors, this process ignores SIGINT and SIGQUIT, and every
# program that a test starts inherits that. Tests end programs with the one, servers with the other.
restore_interrupt()
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)

if (_home := java.home()) is not None:
    os.environ["JAVA_HOME"] = _home
# What is started with a Java of its own is over before thorough compilation would pay off.
os.environ.setdefault("JAVA_TOOL_OPTIONS", f"-XX:TieredStopAtLevel=1 {java_archive.options()}")

settings.register_profile(
    "brief", max_examples=25, deadline=None, database=_FOUND, suppress_health_check=_SHARED_MACHINE
)
settings.register_profile(
    "soak",
    max_examples=count(1, 5_000),
    deadline=None,
    database=_FOUND,
    print_blob=True,
    suppress_health_check=_SHARED_MACHINE,
)
settings.load_profile("soak" if SOAK else "brief")


def pytest_sessionstart(session):
    """A run of the whole suite does not begin without what every test needs."""
    config = session.config
    is_worker = hasattr(config, "workerinput")
    is_part = config.option.keyword or config.option.markexpr or config.option.collectonly
    chosen = {Path(config.invocation_params.dir, argument).resolve() for argument in config.args}
    if is_worker or is_part or not chosen & {TESTS, TESTS.parent}:
        return
    from tests import needs

    if message := needs.refusal():
        raise pytest.UsageError(message)


def pytest_collection_modifyitems(config, items):
    if SOAK:
        for item in items:
            item.add_marker(pytest.mark.timeout(0))
        return
    is_named = config.option.keyword or any("::" in argument for argument in config.args)
    if not is_named and (left := set(left_to_the_soak(items))):
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    for item in items:
        limit = item.get_closest_marker("timeout")
        if limit and 0 < limit.args[0] < HANG_SECONDS:
            item.add_marker(pytest.mark.timeout(HANG_SECONDS), append=False)
        if (
            not {"spark", "connect"}.isdisjoint(item.fixturenames)
            and item.path.relative_to(TESTS).as_posix() not in WITH_SPARK
        ):
            raise pytest.UsageError(f"{item.path.name} uses Spark: add it to WITH_SPARK")
    places = {TESTS / name: place for place, name in enumerate(LONGEST)}

    def place(item):
        return places.get(TESTS / "interop" if _is_interop(item) else item.path, len(places))

    items.sort(key=lambda item: (place(item), _is_interop(item) and _turn_in_interop(item)))


def _is_interop(item):
    return item.nodeid.startswith(_INTEROP)


def _turn_in_interop(item):
    """Plays mostly wait. They begin with the first of these tests and are asked for after those
    that may go on meanwhile; plays that measure times come when all others are over.
    """
    if "play" not in item.fixturenames:
        return 0
    return 2 if item.callspec.params["play"].is_measured else 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """On several cores, what is shared is set up once: a file's tests stay in one process, and so
    do all that use Spark, and all of interop, whose plays go on at the same time.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            if file.removeprefix("tests/") in WITH_SPARK:
                return _SPARK
            return _INTEROP if file.startswith(_INTEROP) else file

    return ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A test is skipped if it needs what cannot be had here; one line at the end says what and why
    for all of these tests together. `.ci/skips` refuses those that CI must not skip.
    """
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, Unprepared):
        report.outcome = "skipped"
        report.longrepr = ("tests", None, str(call.excinfo.value))
    return report


@pytest.fixture(autouse=True)
def logs_go_where_they_went():
    """Commands say where the logs of their process go, and here that is everybody's."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server."""
    from tests.servers import database_server, databases

    with database_server.wanted(databases.postgres) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server():
    """A Redis server; a test that breaks it mends it."""
    from tests.servers import database_server, redis_server

    with database_server.wanted(redis_server.redis_server) as server:
        yield server


@pytest.fixture(scope="session")
def spark():
    """One Spark for all tests of a process: it takes seconds to start, and a minute to warm up."""
    from tests.servers import spark_session

    session = spark_session.start()
    yield session
    session.stop()


@pytest.fixture(scope="module")
def browser():
    """A Chromium without a window.

    Of one module: while it is open its thread has a running loop, and no other can be run there.
    """
    from tests.servers import browser

    with browser.opened() as found:
        yield found


@pytest.fixture
def browser_page(browser):
    """A page of a browser that knows nothing yet."""
    context = browser.new_context(viewport={"width": 1100, "height": 900})
    try:
        yield context.new_page()
    finally:
        context.close()


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    """Issues certificates that ``authority.certificate`` vouches for."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def etcd():
    """An etcd that a test may kill and start again."""
    from tests.servers import database_server, etcd_server

    with database_server.wanted(etcd_server.etcd_server) as server:
        yield server
