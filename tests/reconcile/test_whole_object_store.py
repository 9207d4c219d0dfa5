"""Whole runs on an object store, which Spark reaches through Hadoop's ``s3a``, and Python by Arrow.

The store is a server in this process. A run that dies is the command in a process of its own; it
is killed before a request of its Python or its Java.
"""

import itertools
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from tests import s3a_jars, spark_session
from tests.bucket_server import Refusal, bucket_server
from tests.reconcile.whole_stage import RULES, THURSDAY, WEDNESDAY, Stage
from tests.serving import environment
from txmq.cli.root import app
from txmq.reconcile.explanations import Explanations
from txmq.reconcile.results import Results

# The first of them starts Spark. The store's files are 180 MB, which only a soak fetches.
pytestmark = [pytest.mark.timeout(300), pytest.mark.soak]

FOLDER, URI = "vault/recon/", "s3a://vault/recon"
END_SECONDS = 120
VOID_S = 1_000
"""After so long the claim of a process that was killed is void."""
QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.ui.explainMode": "simple",
}
FEW_ATTEMPTS = {
    "attempts.maximum": "1",
    "retry.interval": "10ms",
    "retry.limit": "1",
    "retry.throttle.limit": "1",
}


class Moment(NamedTuple):
    """A request of a run on Thursday."""

    stage: str
    is_java: bool
    method: str
    part: str
    """A part of its path."""
    number: int = 1
    """Which of several such requests it is."""

    def fits(self, request):
        return (
            (request.is_java, request.method) == (self.is_java, self.method)
            and self.part in request.path
            and "_temporary/0/task" not in request.path
            and str(WEDNESDAY) not in request.path
        )


PARTS = f"business_date={THURSDAY}"
COMPLETE_EXTRACT = Moment("extract is complete", False, "PUT", "manifest.json")
SPARKS_COMMIT = Moment("Spark commits", True, "PUT", "/part-", 5)
REPORT = Moment("report", False, "PUT", "run.json")
MOMENTS = [
    Moment("start", False, "PUT", "recon/claims/"),
    Moment("extract", False, "PUT", "icbc/entries/part-00000"),
    COMPLETE_EXTRACT,
    Moment("check", True, "HEAD", f"extracts/{THURSDAY}"),
    Moment("match", True, "GET", f"extracts/{THURSDAY}", 9),
    Moment("Spark writes", True, "PUT", "_temporary/attempt"),
    SPARKS_COMMIT,
    Moment("table", False, "PUT", f"results/matches/{PARTS}", 2),
    Moment("small table", False, "PUT", f"results/proofs/{PARTS}"),
    Moment("judge", False, "GET", f"results/totals/{PARTS}"),
    REPORT,
    Moment("in force", False, "PUT", f"{THURSDAY}/current"),
    Moment("tidy", False, "DELETE", "recon/claims/"),
]
OF_JAVA = [moment for moment in MOMENTS if moment.is_java]
OF_PYTHON = [moment for moment in MOMENTS[:-1] if not moment.is_java and moment != REPORT]
WITHOUT_JAVA = [SPARKS_COMMIT, REPORT]
"""Here Python alone is killed, and its Java has to end by itself."""
CODES = {500: "InternalError", 503: "SlowDown", 403: "AccessDenied"}
"""Statuses with which a store fails, and S3's names for them."""


def name_of(value):
    """The name of a parameter in that of the test."""
    return value.stage if isinstance(value, Moment) else str(value)


@pytest.fixture(scope="module")
def stages(spark, tmp_path_factory):
    """Two dates that were reconciled under a path: the state before the second, and after it."""
    before = Stage.set_up(tmp_path_factory.mktemp("whole") / "before")
    before.first_day()
    before.run(spark, WEDNESDAY)
    before.second_day()
    after = before.copy(before.home.with_name("after"))
    after.run(spark, THURSDAY)
    return before, after


@pytest.fixture(scope="module")
def server(spark, tmp_path_factory):
    """An object store and the folder of its settings; this process's Spark reaches it too."""
    site = tmp_path_factory.mktemp("site")
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    loader = hadoop.getClassLoader()
    for jar in s3a_jars.jars():
        spark.sql(f"ADD JAR '{jar}'")
    hadoop.setClassLoader(spark._jsparkSession.sharedState().jarClassLoader())
    with bucket_server() as store:
        settings = {
            **s3a_jars.SETTINGS,
            **FEW_ATTEMPTS,
            "access.key": "bank",
            "endpoint": store.endpoint,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "secret.key": "nobody checks it",
        }
        rows = ""
        for key, value in settings.items():
            rows += f"<property><name>fs.s3a.{key}</name><value>{value}</value></property>"
            hadoop.set(f"fs.s3a.{key}", value)
        (site / "core-site.xml").write_text(f"<configuration>{rows}</configuration>")
        yield store, site
    hadoop.setClassLoader(loader)


@pytest.fixture
def night(server, spark, stages, tmp_path, monkeypatch):
    """Wednesday is in the store, and Thursday is to be run."""
    (store, site), (before, after) = server, stages
    monkeypatch.setenv("HADOOP_CONF_DIR", str(site))
    spark_session.lend(monkeypatch, spark)
    store.objects.clear()
    for path, data in files_of(before).items():
        store.put(FOLDER + path, data)
    there = before.copy(tmp_path / "there")
    config = there.home / "recon.toml"
    config.write_text(RULES.replace('directory = "recon"', f'directory = "{URI}"'))
    return Night(store, config, after)


def files_of(stage):
    """The bytes of a directory's files, without those that only a path needs."""
    return {
        path.relative_to(stage.directory).as_posix(): path.read_bytes()
        for path in stage.directory.rglob("*")
        if path.is_file() and path.name != "lock" and path.suffix != ".crc"
    }


class Night:
    """Runs of a date, and the state that they come to."""

    def __init__(self, store, config, after):
        self.store = store
        self.after = after
        self.options = ["reconcile", "--date", str(THURSDAY), "--config", str(config), "--quiet"]

    @contextmanager
    def watch(self, act):
        """Let ``act`` receive each request before the store does, after all claims are void."""
        self.store.ahead_s += VOID_S
        self.store.on_request = act
        try:
            yield
        finally:
            self.store.on_request = lambda request: None

    def run_here(self, act=lambda request: None):
        """Run the command with this process's Spark."""
        with self.watch(act):
            found = CliRunner().invoke(app, self.options)
        return found.exit_code, found.stdout, found.stderr

    def run(self, act=lambda request, process: None):
        """Run the command in a process of its own."""
        jars = [option for jar in s3a_jars.jars() for option in ("--jar", jar)]
        quick = [option for pair in QUICK.items() for option in ("--spark", "=".join(pair))]
        with subprocess.Popen(
            [sys.executable, "-m", "txmq", *self.options, "--memory", "600m", *jars, *quick],
            env={**environment(), "HADOOP_CONF_DIR": os.environ["HADOOP_CONF_DIR"]},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process, self.watch(lambda request: act(request, process)):  # fmt: skip
            try:
                out, err = process.communicate(timeout=END_SECONDS)
            finally:
                process.kill()
        return process.returncode, out, err

    def run_killed(self, moment, *, kills_java=True):
        """Run the command, and kill it before a request; wait until its Java has ended."""
        numbers, javas = itertools.count(1), []

        def kill(request, process):
            if javas or not moment.fits(request) or next(numbers) < moment.number:
                return
            javas.extend(os.pidfd_open(pid) for pid in descendants(process.pid))
            process.kill()
            for java in javas if kills_java else ():
                signal.pidfd_send_signal(java, signal.SIGKILL)
            raise ConnectionResetError

        code, _, err = self.run(kill)
        assert code == -signal.SIGKILL, (moment, err)
        for java in javas:
            assert select.select([java], [], [], END_SECONDS)[0], "Java goes on"
            os.close(java)

    def check_between(self):
        """Wednesday is in force, and Thursday is not, or is whole."""
        results, wanted = Results(URI), self.after.results()
        assert results.days() in ([WEDNESDAY], [WEDNESDAY, THURSDAY])
        for day in results.days():
            current, other = results.current(day), wanted.current(day)
            assert (current.run_id, current.result) == (other.run_id, other.result)
            results.verify(current)

    def check(self):
        """All is as under a path: the same files, and the same bytes of tables and extracts."""
        self.check_between()
        found, wanted = self.store.data(FOLDER), files_of(self.after)
        found = {path: data for path, data in found.items() if not path.endswith("/")}
        assert found.keys() == wanted.keys()
        tables = {path for path in found if path.endswith(".parquet")}
        assert {path for path in tables if found[path] != wanted[path]} == set()
        current, other = Results(URI).current(THURSDAY), self.after.results().current(THURSDAY)
        assert current.result.contents == other.result.contents
        assert current.extract_id == other.extract_id


def descendants(pid):
    """The processes that a process started, and those that these started."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *descendants(child)]
    return found


@pytest.mark.fault("P22")
@pytest.mark.parametrize("run", [Night.run_here, Night.run])
def test_a_run_that_is_killed_twice_has_the_same_bytes_as_one_under_a_path(night, run):
    for moment in (COMPLETE_EXTRACT, SPARKS_COMMIT):
        night.run_killed(moment)
        night.check_between()

    code, out, err = run(night)

    assert (code, err) == (1, "")
    assert "1 break is within the limits" in out
    night.check()


@pytest.mark.parametrize(
    ("moment", "kills_java"),
    [*[(moment, True) for moment in MOMENTS], *[(moment, False) for moment in WITHOUT_JAVA]],
    ids=name_of,
)
def test_a_run_that_is_killed_at_any_stage_is_done_again(night, moment, kills_java):
    night.run_killed(moment, kills_java=kills_java)
    night.check_between()

    assert night.run_here()[0] == 1
    night.check()


def fail_from(moment, status):
    """Let the store fail from a request on: with a status, or with no answer."""
    numbers, is_down = itertools.count(1), threading.Event()

    def act(request, *_):
        if moment.fits(request) and next(numbers) == moment.number:
            is_down.set()
        if is_down.is_set():
            raise Refusal(status, CODES[status]) if status else ConnectionResetError

    return act


@pytest.mark.parametrize(
    ("moment", "status"),
    [(REPORT, 503), *zip(OF_PYTHON, itertools.cycle([0, *CODES]), strict=False)],
    ids=name_of,
)
def test_a_store_that_fails_is_one_line_and_loses_nothing(night, moment, status):
    code, out, err = night.run_here(fail_from(moment, status))

    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "AWS Error" in err
    night.check_between()
    assert night.run_here()[0] == 1
    night.check()


@pytest.mark.parametrize(
    ("moment", "status"), [*zip(OF_JAVA, itertools.cycle([503, 0]), strict=False)], ids=name_of
)
def test_a_store_that_fails_under_spark_is_one_line_and_loses_nothing(night, moment, status):
    code, out, err = night.run(fail_from(moment, status))

    assert (code, out, err.count("\n")) == (3, "", 1)
    assert err.startswith("txmq: Spark failed: ")
    night.check_between()
    assert night.run_here()[0] == 1
    night.check()


def test_people_work_on_the_store_without_spark(night):
    for path, data in files_of(night.after).items():
        night.store.put(FOLDER + path, data)

    def call(*arguments):
        found = CliRunner().invoke(app, ["reconcile", *arguments, *night.options[1:-1]])
        assert (found.exit_code, found.stderr) == (0, "")
        return found.stdout

    assert "delivered-uncredited" in call("breaks")
    call("proofs")
    call("breaks", "explain", "--class", "delivered-uncredited", "--by", "Li", "--reason", "late")
    for role, by in ("preparer", "Li"), ("reviewer", "Wu"):
        call("signoff", "--as", role, "--by", by, "--despite", "it is explained")

    done = Results(URI).current(THURSDAY)
    assert done.sign_off.is_complete
    assert [one.reason for one in Explanations(URI).in_force()] == ["late"]
    assert Results(URI).folder.at("claims").files() == []
