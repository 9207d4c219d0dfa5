"""``txmq reconcile``: how it is called, what it refuses, and the files that call it at night."""

import ast
import configparser
import re
import shlex
import subprocess
import sys
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest
from typer.testing import CliRunner

from tests.reconcile.object_store import Store
from tests.servers.serving import CHECKOUT
from txmq.cli.reconcile import requested_days
from txmq.cli.root import app
from txmq.errors import ConfigError
from txmq.reconcile import results

HOWTO = CHECKOUT / "docs" / "howto"
RULES = """
name = "night"
directory = "results"
[[bank]]
name = "icbc"
database = "sqlite:///icbc.db"
[bank.entries]
table = "journal"
key = "transfer"
account = "account"
amount = "amount"
booked = "booked_ms"
currency = { is = "CNY" }
kind = "kind"
namespace = "icbc"
[log]
directory = "log"
"""


@pytest.fixture
def rules(tmp_path):
    path = tmp_path / "recon.toml"
    path.write_text(RULES)
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["reconcile", *map(str, arguments)])


@pytest.mark.parametrize(
    "wrong",
    [
        ("--date", "yesterday"),
        ("--nothing",),
        ("--cores", "0"),
        ("extract", "--date", "31.3.2026"),
        ("breaks", "--nothing"),
        ("breaks", "explain"),
        ("breaks", "withdraw", "b1", "--by", "Li"),
        ("signoff", "--as"),
        ("nothing",),
    ],
    ids=" ".join,
)
def test_a_wrong_call_exits_with_3_and_not_with_a_verdict(wrong):
    found = run(*wrong)

    assert (found.exit_code, found.stdout) == (3, "")
    assert "Error" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "the rules are missing; write --config recon.toml, or set TXMQ_RECONCILE_CONFIG"),
        (("--config", "missing.toml"), "the rules cannot be read"),
        (("--config", "RULES", "--from", "2026-03-01"), "or --from and --to for several"),
        (
            ("--config", "RULES", "--from", "2026-03-02", "--to", "2026-03-01"),
            "--to 2026-03-01 is before --from 2026-03-02",
        ),
        (
            ("--config", "RULES", "--extract", "e", "--reuse-extract"),
            "--extract names the one extract of one date",
        ),
        (("--config", "RULES", "--spark", "x=1"), "'x=1' is not a setting of Spark's"),
        (("breaks", "--config", "RULES", "--class", "bad-luck"), "class 'bad-luck' does not exist"),
    ],
    ids=lambda name: " ".join(name) if isinstance(name, tuple) else "",
)
def test_an_impossible_request_is_refused_in_one_sentence(rules, arguments, said):
    found = run(*(rules if argument == "RULES" else argument for argument in arguments))

    assert (found.exit_code, found.stdout, found.stderr.count("\n")) == (3, "", 1)
    assert found.stderr.startswith("txmq: ")
    assert said in found.stderr


def test_a_store_that_does_not_answer_is_reported_in_one_sentence(rules, monkeypatch):
    store = Store(has_objects=True)
    folder = store.folder()
    store.is_down = True
    monkeypatch.setattr(results, "open_folder", lambda _: folder)

    found = run("breaks", "--config", rules)

    assert (found.exit_code, found.stdout, found.stderr.count("\n")) == (3, "", 1)
    assert found.stderr.startswith("txmq: a file system failed: AWS Error")
    assert "503) for b/recon/runs/" in found.stderr


def test_the_help_explains_the_exit_codes():
    text = " ".join(run("--help").stdout.split())

    assert "0 all agree; 1 there are breaks, within the limits; 2 there are breaks over" in text
    assert "3 the run failed, or an option is invalid" in text


def test_help_does_not_load_spark():
    heavy = "pyspark", "pyarrow", "py4j", "sqlalchemy"
    program = (
        "import sys; from txmq.cli.root import app\n"
        "try: app(['reconcile', '--help'])\n"
        f"except SystemExit: print([name for name in {heavy!r} if name in sys.modules])"
    )
    asked = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=CHECKOUT
    )

    assert asked.stdout.splitlines()[-1] == "[]"


# The files that call it at night


def parsed(command):
    """Parse a command by our command line; the rest of the line belongs to the shell."""
    words = shlex.split(command)
    assert words[0].rpartition("/")[2] == "txmq"
    found = run(*words[2:])
    # It got to reading the rules, which do not exist at that path here.
    assert words[1] == "reconcile"
    assert (found.exit_code, found.stdout) == (3, "")
    assert found.stderr.startswith("txmq: the rules cannot be read: ")
    return words


def unit(name):
    read = configparser.ConfigParser(interpolation=None, strict=True)
    read.optionxform = str
    with (HOWTO / "systemd" / name).open() as file:
        read.read_file(file)
    return read


def test_the_systemd_service_calls_a_valid_command_and_reports_every_verdict():
    found = unit("txmq-reconcile.service")
    service = found["Service"]

    parsed(service["ExecStart"])
    assert service["Type"] == "oneshot"
    assert (HOWTO / "systemd" / found["Unit"]["OnFailure"]).exists()
    assert "1" not in service["SuccessExitStatus"].split()
    assert service["RestartPreventExitStatus"].split() == ["1", "2"]


def test_the_systemd_timer_starts_the_service_in_the_banks_zone():
    timer = unit("txmq-reconcile.timer")["Timer"]

    assert timer["Persistent"] == "true"
    assert (HOWTO / "systemd" / timer["Unit"]).exists()
    _, clock, zone = timer["OnCalendar"].split()
    assert re.fullmatch(r"[0-2]\d:[0-5]\d:00", clock)
    assert ZoneInfo(zone)


def test_the_cron_line_calls_a_valid_command():
    text = (HOWTO / "reconcile.md").read_text()
    (line,) = re.findall(r"^30 2 \* \* \* txmq (.+)$", text, re.MULTILINE)

    parsed(line)


def test_the_airflow_dag_calls_a_valid_command_and_does_not_retry_a_verdict(tmp_path):
    tree = ast.parse((HOWTO / "airflow_reconcile.py").read_text())
    said = {}
    for item in tree.body:
        if isinstance(item, ast.Assign):
            exec(ast.unparse(item), said)
    tasks = {
        item.targets[0].id: {
            keyword.arg: ast.unparse(keyword.value) for keyword in item.value.keywords
        }
        for item in ast.walk(tree)
        if isinstance(item, ast.Assign) and ast.unparse(item.value).startswith("BashOperator(")
    }

    assert "data_interval_start.in_timezone('Asia/Shanghai') | ds" in said["RECONCILE"]
    parsed(re.sub(r"\{\{.*?\}\}", "2026-03-31", said["RECONCILE"]))
    assert (tasks["reconcile"]["retries"], tasks["verdict"]["retries"]) == ("3", "0")
    for code in range(4):
        ended = subprocess.run(
            ["bash", "-c", f"(exit {code}){said['TELL']}"], capture_output=True, text=True
        )
        assert ended.stdout == f"{code}\n"
        assert ended.returncode == (0 if code <= 2 else 3)


def test_a_day_without_a_run_has_nothing_to_sign(rules):
    found = run("signoff", "--config", rules, "--date", "2026-03-31", "--show")

    assert (found.exit_code, found.stdout) == (3, "")
    assert found.stderr == (
        "txmq: 2026-03-31 was not reconciled yet: txmq reconcile --date 2026-03-31\n"
    )


def test_so_far_reconciles_the_date_in_progress(rules):
    _, (running,) = requested_days(rules, None, so_far=True)
    _, (finished,) = requested_days(rules, None)

    assert running == finished + timedelta(days=1)
    with pytest.raises(ConfigError, match="leave out --date"):
        requested_days(rules, running, so_far=True)
