"""The dashboard and the alerts ask for metrics and labels that exist, and have a page."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from tools import cli_reference, dashboard
from txmq.cli.root import app
from txmq.console import metrics as console_metrics
from txmq.metrics.table import MetricKind
from txmq.reconcile.storage import LEASE_S
from txmq.runtime.child_process import KILL_GRACE_S
from txmq.runtime.clock import SystemClock
from txmq.runtime.entropy import SystemEntropy
from txmq.runtime.supervisor import Supervisor, SupervisorSettings
from txmq.settings.loading import load
from txmq.worker.figures import WorkerFigures
from txmq.worker.pages import WorkerPages
from txmq_broker.config import BrokerSettings
from txmq_broker.monitoring.metric_table import METRICS, PREFIX
from txmq_broker.monitoring.pages import MonitoringPages
from txmq_broker.monitoring.subject import LoneProcess
from txmq_broker.names import metrics as name_metrics

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus/txmq-broker.rules.yml"
OF_PROMETHEUS = {"instance", "job", "le", "broker"}
"""Labels that any metric may have; the supervisor of several brokers adds the last."""
OF_PROCESSES = {
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
    "process_open_fds",
}


def rules():
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return group["rules"]


def panel_queries():
    panels = json.loads((DEPLOY / "grafana/txmq-broker.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


QUERIES = panel_queries() + [rule["expr"] for rule in rules()]


KNOWN = {
    prefix + name: row
    for prefix, rows in (
        (PREFIX, METRICS),
        (name_metrics.PREFIX, name_metrics.ROWS),
        (console_metrics.PREFIX, console_metrics.ROWS),
    )
    for name, row in rows.items()
}


def metric_of(name):
    """The metric that a series belongs to."""
    if name in KNOWN:
        return KNOWN[name]
    histogram = KNOWN[re.sub(r"_(bucket|sum|count)$", "", name)]
    assert histogram.kind is MetricKind.HISTOGRAM, name
    return histogram


@pytest.mark.parametrize("query", QUERIES)
def test_every_metric_and_label_of_a_query_exists(query):
    named = re.findall(r"\b((?:txmq|process)_\w+|up\b)(?:\{([^}]*)\})?", query)
    assert named, query
    labels = set(OF_PROMETHEUS)
    for name, chosen in named:
        if name.startswith("txmq_"):
            own = OF_PROMETHEUS | set(metric_of(name).labels)
            labels |= own
            assert set(re.findall(r"(\w+)\s*[=!]", chosen)) <= own, query
        elif name != "up":
            assert name in OF_PROCESSES
    for group in re.findall(r"\b(?:by|on|group_left)\s*\(([^)]*)\)", query):
        assert {label.strip() for label in group.split(",") if label.strip()} <= labels, query
    assert query.count("(") == query.count(")")


def test_queries_use_rates_for_counters_and_none_for_gauges():
    for query in QUERIES:
        for name in re.findall(r"\btxmq_\w+", query):
            is_rate = re.search(rf"\b(?:rate|increase)\({name}\b", query) is not None
            is_gauge = metric_of(name).kind is MetricKind.GAUGE
            assert is_rate == (not is_gauge), query


def test_a_legend_names_only_labels_that_its_query_keeps():
    for panels in dashboard.ROWS.values():
        for panel in panels:
            for legend, query in panel.queries.items():
                kept = ",".join(re.findall(r"\bby \(([^)]*)\)", query)).replace(" ", "").split(",")
                assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= set(kept), panel.title


def test_the_dashboard_is_up_to_date():
    printed = json.dumps(dashboard.dashboard(), indent=1) + "\n"

    assert (DEPLOY / "grafana/txmq-broker.json").read_text() == printed, "run: make docs"


def test_every_alert_has_a_severity_a_summary_and_a_row_on_the_monitor_page():
    page = (ROOT / "docs/howto/monitor.md").read_text()
    described = re.findall(r"^\| `(Txmq\w+)` \|", page, re.MULTILINE)

    assert described == [rule["alert"] for rule in rules()]
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        summary = rule["annotations"]["summary"]
        shown = set(re.findall(r"\$labels\.(\w+)", summary))
        labels = {label for row in KNOWN.values() for label in row.labels} | OF_PROMETHEUS
        assert shown <= labels


def manifests():
    text = (DEPLOY / "kubernetes/txmq.yaml").read_text()
    return {found["kind"]: found for found in yaml.safe_load_all(text)}


def options_of(words, command="serve"):
    """The options of a command line, as the program reads them."""
    found = dict(cli_reference.commands(get_command(app), "txmq"))[f"txmq {command}"]
    return found.make_context(f"txmq {command}", list(words)).params


def test_the_systemd_unit_starts_a_broker_that_can_be_probed():
    unit = (DEPLOY / "systemd/txmq.service").read_text()
    (line,) = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
    program, command, *words = shlex.split(line)

    assert (Path(program).name, command) == ("txmq", "serve")
    options = options_of(words)
    assert options["http"] == "127.0.0.1:9877"
    assert options["data"] == "/var/lib/txmq"
    assert "StateDirectory=txmq\n" in unit


def test_the_pod_starts_a_broker_and_probes_existing_pages():
    found = manifests()
    pod = found["StatefulSet"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    program, command, *words = container["command"]
    options = options_of([word.replace("$(POD_IP)", "10.0.0.7") for word in words])
    settings = load(BrokerSettings, environ={}, arguments=options["set_"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    pages = MonitoringPages(BrokerSettings(), LoneProcess()).pages()

    assert (program, command) == ("txmq", "serve")
    assert settings.advertise == "10.0.0.7:10911"
    for option, port in (("http", "http"), ("listen", "broker"), ("names_listen", "names")):
        assert options[option] == f"0.0.0.0:{ports[port]}"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        wanted = container[probe]["httpGet"]
        assert wanted["path"] in pages
        assert wanted["port"] == "http"
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert options["data"] == mounts["data"]
    assert options["acl"].startswith(mounts["accounts"])
    label = found["StatefulSet"]["spec"]["selector"]["matchLabels"]
    assert pod["metadata"]["labels"] == found["Service"]["spec"]["selector"] == label
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == label


def test_the_worker_unit_has_time_to_drain(tmp_path):
    unit = (DEPLOY / "systemd/txmq-worker.service").read_text()
    (line,) = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
    program, command, *words = shlex.split(
        line.replace("--app-dir /opt/shop", f"--app-dir {tmp_path}")
    )
    options = options_of(words, "worker")
    (limit,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)

    assert (Path(program).name, command) == ("txmq", "worker")
    assert options["targets"] == ("orders:client",)
    assert int(limit) > options["drain_timeout"] + KILL_GRACE_S
    assert "KillMode=mixed\n" in unit
    assert "ExecReload=/bin/kill -HUP $MAINPID\n" in unit


def test_the_worker_pod_has_time_to_drain_and_probes_existing_pages(tmp_path):
    (found,) = yaml.safe_load_all((DEPLOY / "kubernetes/txmq-worker.yaml").read_text())
    pod = found["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    program, command, *words = container["command"]
    options = options_of([word.replace("=/app", f"={tmp_path}") for word in words], "worker")
    (port,) = container["ports"]
    supervisor = Supervisor(None, SupervisorSettings(), None, SystemClock(), SystemEntropy())
    pages = WorkerPages(supervisor, WorkerFigures(), [], SystemClock()).pages()

    assert (program, command) == ("txmq", "worker")
    assert options["http"] == f"0.0.0.0:{port['containerPort']}"
    grace_s = pod["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > options["drain_timeout"] + KILL_GRACE_S
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in pages
        assert container[probe]["httpGet"]["port"] == port["name"]
    assert pod["metadata"]["labels"] == found["spec"]["selector"]["matchLabels"]


def test_the_reconciliation_job_repeats_no_verdict_and_outlasts_a_lease():
    text = (DEPLOY / "kubernetes/txmq-reconcile.yaml").read_text()
    job = yaml.safe_load(text)["spec"]["jobTemplate"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    _, executors = re.findall(r"args: (\[[^]]+\])", text.replace("\n#", "\n"))

    options = options_of(container["args"], "reconcile")
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {str(Path(options["config"]).parent), "/scratch"} == mounts
    assert options_of(yaml.safe_load(executors), "reconcile")["master"].startswith("k8s://")
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["values"] == [1, 2]
    assert sum(10 * 2**retry for retry in range(job["backoffLimit"])) > LEASE_S
