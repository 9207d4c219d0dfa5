"""Whole runs on an object store.

The store is a server in this process, whose objects are files. Our own small files go through it.
Spark sees the same files under the same URI through a Hadoop view, because it does not have the
package for S3. A run that dies is the command in a process of its own; it is killed before a
request.
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

from tests.reconcile.whole_stage import RULES, THURSDAY, WEDNESDAY
from tests.servers import spark_session
from tests.servers.bucket_server import Refusal, bucket_server
from tests.servers.serving import environment
from tests.soak import some_of
from txmq.cli.root import app
from txmq.reconcile.explanations import Explanations
from txmq.reconcile.results import Results

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

FOLDER, URI = "vault/recon/", "s3a://vault/recon"
END_SECONDS = 300
VOID_S = 1_000
"""After so long the claim of a process that was killed is void."""


class Moment(NamedTuple):
    """A request of a run on Thursday."""

    stage: str
    method: str
    part: str
    """A part of its path."""
    number: int = 1
    """Which of several such requests it is."""

    def fits(self, request):
        is_of_day = str(WEDNESDAY) not in request.path
        return is_of_day and request.method == self.method and self.part in request.path


PARTS = f"business_date={THURSDAY}"
COMPLETE_EXTRACT = Moment("extract is complete", "PUT", "manifest.json")
TABLE = Moment("table", "PUT", f"results/matches/{PARTS}")
REPORT = Moment("report", "PUT", "run.json")
MOMENTS = [
    Moment("start", "PUT", "recon/claims/"),
    Moment("extract", "PUT", f"extracts/{THURSDAY}"),
    COMPLETE_EXTRACT,
    TABLE,
    Moment("small table", "PUT", f"results/proofs/{PARTS}"),
    REPORT,
    Moment("in force", "PUT", f"{THURSDAY}/current"),
    Moment("tidy", "DELETE", "recon/claims/"),
]
FAILING = [moment for moment in MOMENTS[:-1] if moment != REPORT]
CODES = {500: "InternalError", 503: "SlowDown", 403: "AccessDenied"}
"""Statuses with which a store fails, and S3's names for them."""


def name_of(value):
    """The name of a parameter in the test id."""
    return value.stage if isinstance(value, Moment) else str(value)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """An object store and the folder of its settings."""
    site, objects = (tmp_path_factory.mktemp(name) for name in ("site", "objects"))
    with bucket_server(objects) as store:
        settings = {
            "access.key": "bank",
            "endpoint": store.endpoint,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "secret.key": "nobody checks it",
        }
        rows = ""
        for key, value in settings.items():
            rows += f"<property><name>fs.s3a.{key}</name><value>{value}</value></property>"
        (site / "core-site.xml").write_text(f"<configuration>{rows}</configuration>")
        yield store, site


@pytest.fixture
def night(server, spark, wednesday, thursday, tmp_path, monkeypatch):
    """Wednesday is in the store, and Thursday is to be run."""
    (store, site), (before, _), (after, _) = server, wednesday, thursday
    monkeypatch.setenv("HADOOP_CONF_DIR", str(site))
    spark_session.lend(monkeypatch, spark)
    for key, value in view_of(store).items():
        spark.conf.set(key, value)
    store.objects.clear()
    for path, data in files_of(before).items():
        store.put(FOLDER + path, data)
    there = before.copy(tmp_path / "there")
    there.second_day()
    config = there.home / "recon.toml"
    config.write_text(RULES.replace('directory = "recon"', f'directory = "{URI}"'))
    return Night(store, config, after)


def view_of(store):
    """Hadoop's settings for a view of the store's objects."""
    views = "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme"
    return {
        "fs.s3a.impl": views,
        "fs.viewfs.mounttable.vault.link./recon": f"file://{store.objects.folder}/vault/recon",
    }


def files_of(stage):
    """The bytes of a directory's files, without those that only a local folder needs."""
    return {
        path.relative_to(stage.directory).as_posix(): path.read_bytes()
        for path in stage.directory.rglob("*")
        if path.is_file() and path.name != "lock" and path.suffix != ".crc"
    }


class Night:
    """Runs of a date, and the state that they leave."""

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
        settings = {f"spark.hadoop.{key}": value for key, value in view_of(self.store).items()}
        settings |= spark_session.SETTINGS
        view = [f"--spark={key}={value}" for key, value in settings.items()]
        with subprocess.Popen(
            [sys.executable, "-m", "txmq", *self.options, *view],
            env={**environment(), "HADOOP_CONF_DIR": os.environ["HADOOP_CONF_DIR"]},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process, self.watch(lambda request: act(request, process)):  # fmt: skip
            try:
                out, err = process.communicate(timeout=END_SECONDS)
            finally:
                process.kill()
        return process.returncode, out, err

    def run_killed(self, moment):
        """Run the command, and kill it before a request; its Java ends by itself."""
        numbers, javas = itertools.count(1), []

        def kill(request, process):
            if javas or not moment.fits(request) or next(numbers) < moment.number:
                return
            javas.extend(os.pidfd_open(pid) for pid in descendants(process.pid))
            process.kill()
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
        """Everything is as in a local folder, and nothing else is there."""
        self.check_between()
        assert Results(URI).days() == [WEDNESDAY, THURSDAY]
        extras = {path for path in self.store.objects if "/." in path or "/claims/" in path}
        assert extras == set()


def descendants(pid):
    """The processes that a process started, and those that these started."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *descendants(child)]
    return found


@pytest.mark.soak
@pytest.mark.parametrize("run", [Night.run_here, Night.run])
def test_a_run_killed_twice_has_the_same_result_as_in_a_local_folder(night, run):
    for moment in (COMPLETE_EXTRACT, TABLE):
        night.run_killed(moment)
        night.check_between()

    code, out, err = run(night)

    assert (code, err) == (1, "")
    assert "1 break is within the limits" in out
    night.check()


@pytest.mark.fault("P22")
@pytest.mark.parametrize("moment", some_of(MOMENTS, [TABLE]), ids=name_of)
def test_a_run_killed_at_any_stage_can_be_run_again(night, moment):
    night.run_killed(moment)
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
    some_of(
        [(REPORT, 503), *zip(FAILING, itertools.cycle([0, *CODES]), strict=False)], [(REPORT, 503)]
    ),
    ids=name_of,
)
def test_a_failing_store_is_reported_in_one_line_and_loses_nothing(night, moment, status):
    code, out, err = night.run_here(fail_from(moment, status))

    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "AWS Error" in err
    night.check_between()
    assert night.run_here()[0] == 1
    night.check()


def test_breaks_are_explained_and_signed_on_the_store_without_spark(night):
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
    assert [explanation.reason for explanation in Explanations(URI).in_force()] == ["late"]
    assert Results(URI).folder.at("claims").files() == []
