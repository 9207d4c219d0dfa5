"""A real Prometheus scrapes all programs with metrics, and promtool checks their pages."""

import asyncio
import json
import re
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import create_engine

from tests.integration.cli.test_cli_serve import started, stopped
from tests.integration.console.console_stage import ConsoleProcess, Visitor, park
from tests.integration.outbox.relay_stage import RelayProgram
from tests.integration.test_small_metrics import address_in
from tests.reconcile import runs
from tests.servers.prometheus_server import (
    RULES,
    data_of,
    programs,
    prometheus_server,
    promtool,
    samples,
)
from tests.servers.serving import BrokerProcess
from tests.servers.several_brokers import SeveralBrokers
from tests.waiting import until
from txmq import Message, Outbox, blocking
from txmq.cli.resolve import metrics_of as resolver_text
from txmq.outbox.table import create_outbox
from txmq.reconcile.report.metrics import exposition as reconciliation_text
from txmq.worker.figures import (
    HandlerSeries,
    ManagerFigures,
    ProcessReport,
    RelayFigures,
    ScheduleFigures,
    add_reports,
)
from txmq.worker.pages import WorkerState
from txmq.worker.pages import exposition as worker_text

WORKER_REPORT = ProcessReport(
    [HandlerSeries("g", "T", handled=2, calls=[1] * 12, seconds=3.5)],
    {"nightly": ScheduleFigures(1, 2)},
    {"bank": ManagerFigures(1)},
    {"txmq_outbox": RelayFigures(1)},
    lag={"g": 3},
    held={"g": 1},
)
DOCS = Path(__file__).resolve().parents[2] / "docs" / "howto"
SETTINGS = (
    "http_listen=127.0.0.1:0",
    "transaction.timeout=0s",
    "transaction.check_interval=10ms",
    "transaction.check_max=1",
)
DASHBOARD = RULES.parents[1] / "grafana" / "txmq-broker.json"
EMPTY = {
    "dead_letters",
    "follower_bytes_behind",
    "follower_seconds_behind",
    "group_lag_messages",
    "group_oldest_unread_age_seconds",
    "group_retries_waiting",
    "lease_age_seconds",
    "names_brokers",
    "names_refusals_total",
    "names_requests_total",
    "refusals_total",
}
"""What a broker lacks that has no follower, consumer or dead letter, and refuses nothing; and a
name server that nobody asks."""
CONFIGURATION = """
global: {{scrape_interval: 200ms, evaluation_interval: 200ms}}
rule_files: ["{rules}"]
scrape_configs:
  - {{job_name: txmq, static_configs: [{{targets: ["{broker}"]}}]}}
  - {{job_name: txmq-relay, static_configs: [{{targets: ["{relay}"]}}]}}
  - {{job_name: txmq-several, static_configs: [{{targets: ["{several}"]}}]}}
  - {{job_name: txmq-names, static_configs: [{{targets: ["{names}"]}}]}}
  - {{job_name: txmq-console, static_configs: [{{targets: ["{console}"]}}]}}
"""
ALERTS = """
rule_files: ["{rules}"]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'up{{job="txmq", instance="a"}}', values: "1 1 0 0 0"}}
      - {{series: 'up{{job="other", instance="b"}}', values: "0 0 0 0 0"}}
    alert_rule_test:
      - {{eval_time: 2m, alertname: TxmqBrokerDown, exp_alerts: []}}
      - eval_time: 3m
        alertname: TxmqBrokerDown
        exp_alerts:
          - exp_labels: {{severity: critical, job: txmq, instance: a}}
            exp_annotations: {{summary: "a does not answer"}}
  - interval: 1m
    input_series:
      - {{series: 'txmq_broker_info{{cluster="c", name="set", instance="a"}}', values: "1x10"}}
      - {{series: 'txmq_broker_info{{cluster="c", name="set", instance="b"}}', values: "1x10"}}
      - {{series: 'txmq_broker_role{{role="leader", instance="a"}}', values: "1 1 0x8"}}
      - {{series: 'txmq_broker_role{{role="leader", instance="b"}}', values: "0x3 0 0 1x4"}}
    alert_rule_test:
      - {{eval_time: 1m, alertname: TxmqNoLeader, exp_alerts: []}}
      - eval_time: 4m
        alertname: TxmqNoLeader
        exp_alerts:
          - exp_labels: {{severity: critical, cluster: c, name: set}}
            exp_annotations: {{summary: "no member of set leads"}}
      - {{eval_time: 7m, alertname: TxmqNoLeader, exp_alerts: []}}
  - interval: 1m
    input_series:
      - {{series: 'txmq_broker_dead_letters{{group="old"}}', values: "7x60"}}
      - {{series: 'txmq_broker_dead_letters{{group="first"}}', values: "_x29 1x30"}}
    alert_rule_test:
      - {{eval_time: 28m, alertname: TxmqDeadLetters, exp_alerts: []}}
      - eval_time: 31m
        alertname: TxmqDeadLetters
        exp_alerts:
          - exp_labels: {{severity: warning, group: first}}
            exp_annotations: {{summary: "the group first has new dead letters"}}
      - {{eval_time: 50m, alertname: TxmqDeadLetters, exp_alerts: []}}
  - interval: 1m
    input_series:
      - {{series: 'txmq_broker_disk_used_bytes{{instance="a"}}', values: "60 70 82x20"}}
      - {{series: 'txmq_broker_disk_bytes{{instance="a"}}', values: "100x22"}}
      - {{series: 'txmq_broker_disk_refusal_ratio{{instance="a"}}', values: "0.9x22"}}
    alert_rule_test:
      - {{eval_time: 6m, alertname: TxmqDiskFills, exp_alerts: []}}
      - eval_time: 8m
        alertname: TxmqDiskFills
        exp_alerts:
          - exp_labels: {{severity: warning, instance: a}}
            exp_annotations: {{summary: "the disk of a is 82% full"}}
"""


@pytest.fixture(scope="module", autouse=True)
def _has_prometheus():
    programs()


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), settings=SETTINGS)
    process.start()
    yield process
    process.close()


@pytest.fixture(scope="module")
def pages(broker):
    (address,) = re.findall(r"metrics and health at http://([\d.:]+)", broker.tail())
    return address


@pytest.fixture(scope="module")
def relay(broker, tmp_path_factory):
    """The address of the metrics of a relay that publishes two rows of an outbox."""
    folder = tmp_path_factory.mktemp("relay")
    url = f"sqlite:///{folder / 'shop.db'}"
    engine = create_engine(url)
    create_outbox(engine)
    with blocking.Client(broker.names) as client:
        client.admin.create_topic("Orders", queues=1)
    with engine.begin() as connection:
        for body in (b"tea", b"milk"):
            Outbox().add(connection, Message(topic="Orders", body=body))
    engine.dispose()
    at = ("--metrics", "127.0.0.1:0")
    with RelayProgram(folder, SimpleNamespace(url=url), broker.names, *at) as program:
        yield re.search(r"metrics http://([\d.:]+)", program.ready())[1]


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """The address of the metrics of two brokers under one supervisor."""
    brokers = SeveralBrokers(tmp_path_factory.mktemp("several"), options=("--name", "several-a"))
    brokers.start()
    yield brokers.http
    brokers.close()


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """The address of the metrics of a name server without brokers."""
    at = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    process = started("names", *at, cwd=tmp_path_factory.mktemp("names"))
    yield address_in(process.stdout.readline())
    stopped(process)


@pytest.fixture(scope="module")
def console(broker):
    """The address of the metrics of a console that was visited."""
    with ConsoleProcess(broker.names, "--http", "127.0.0.1:0") as process:
        with Visitor(process.url) as visitor:
            visitor.get("/topics")
        yield address_in(process.ready)


@pytest.fixture(scope="module")
def prometheus(pages, relay, several, names, console):
    targets = {"broker": pages, "relay": relay, "several": several}
    targets |= {"names": names, "console": console}
    with prometheus_server(CONFIGURATION.format(rules=RULES, **targets)) as server:
        yield server


@pytest.fixture(scope="module")
def parked(broker):
    park(broker.names, "t-17")


def read(address, path):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as page:
        return page.read().decode()


def test_prometheus_scrapes_the_metrics_of_every_program(prometheus):
    def holds(query, expected):
        labels = ("job", "broker", "topic")
        asyncio.run(until(lambda: samples(prometheus, query, *labels) == expected))

    jobs = ("txmq", "txmq-relay", "txmq-several", "txmq-names", "txmq-console")
    holds("up", {(job,): 1 for job in jobs})
    holds("txmq_relay_published_total", {("txmq-relay",): 2})
    holds('txmq_broker_topic_messages_received_total{topic="Orders"}', {("txmq", "Orders"): 2})
    leaders = {("txmq",): 1} | {("txmq-several", f"several-{letter}"): 1 for letter in "ab"}
    holds('txmq_broker_role{role="leader"}', leaders)
    holds("txmq_broker_processes", {("txmq-several",): 2})
    holds("txmq_names_topics", {("txmq-names",): 0})
    holds("txmq_console_name_server_reachable", {("txmq-console",): 1})
    holds(
        'txmq_names_info unless on (instance) txmq_names_brokers{role="leader"}',
        {("txmq-names",): 1},
    )


@pytest.mark.usefixtures("parked")
def test_every_rule_is_evaluated_and_a_parked_transaction_fires_its_alert(prometheus):
    def raised():
        alerts = data_of(prometheus, "alerts")["alerts"]
        rows = [(alert["state"], alert["labels"]["alertname"]) for alert in alerts]
        # The disk of this machine may be nearly full.
        return sorted(row for row in rows if row[1] != "TxmqDiskFills")

    # The alert for an empty name server waits two minutes.
    expected = [("firing", "TxmqTransactionsParked"), ("pending", "TxmqNamesEmpty")]
    asyncio.run(until(lambda: raised() == expected))
    (group,) = data_of(prometheus, "rules")["groups"]
    asyncio.run(until(lambda: data_of(prometheus, "rules")["groups"][0]["evaluationTime"] > 0))
    assert len(group["rules"]) == RULES.read_text().count("- alert:")
    assert [rule["name"] for rule in group["rules"] if rule.get("lastError")] == []


@pytest.mark.usefixtures("parked")
def test_every_dashboard_query_with_data_is_answered(prometheus):
    rates = "rate(txmq_broker_transaction_checks_undecided_total[10s])"
    asyncio.run(until(lambda: samples(prometheus, rates)))
    queries = set(re.findall(r'"expr": (".*")', DASHBOARD.read_text()))
    empty = set()
    for query in map(json.loads, queries):
        text = query.replace("$instance", ".+").replace("$__rate_interval", "10s")
        if not data_of(prometheus, "query", query=text)["result"]:
            empty |= set(re.findall(r"txmq_(?:broker_)?(\w+)", text))
    assert len(queries) > 30
    assert empty == EMPTY


def test_promtool_accepts_every_metrics_page(pages, relay, several, names, console):
    texts = {
        "broker": read(pages, "/metrics"),
        "several": read(several, "/metrics"),
        "names": read(names, "/metrics"),
        "console": read(console, "/metrics"),
        "relay": read(relay, "/metrics"),
        "worker": worker_text(add_reports([WORKER_REPORT]), WorkerState(2, 1, 3)),
        "resolver": resolver_text({"checks_committed": 1}, 3, is_answering=True),
        "reconciliation": reconciliation_text(runs.run(runs.busy())),
    }
    complaints = {name: promtool("check", "metrics", text=text)[1] for name, text in texts.items()}
    # It counts business days, which cannot be given in seconds.
    days = 'txmq_reconcile_oldest_break_days use base unit "seconds" instead of "days"\n'
    assert complaints == dict.fromkeys(texts, "") | {"reconciliation": days}


def test_promtool_accepts_the_rules_and_the_documented_configuration(tmp_path):
    for rules in RULES.parent.glob("*.rules.yml"):
        code, output = promtool("check", "rules", rules)
        assert code == 0, output
    (block, *_) = re.findall(
        r"^( *)```yaml\n(.*?)^ *```", (DOCS / "monitor.md").read_text(), re.MULTILINE | re.DOTALL
    )
    file = tmp_path / "config.yml"
    file.write_text(block[1].replace("\n" + block[0], "\n").removeprefix(block[0]))
    (tmp_path / RULES.name).write_bytes(RULES.read_bytes())
    code, output = promtool("check", "config", file)
    assert code == 0, output


def test_alerts_fire_and_resolve_as_their_rules_say(tmp_path):
    file = tmp_path / "alerts.yml"
    file.write_text(ALERTS.format(rules=RULES))
    code, output = promtool("test", "rules", file)
    assert code == 0, output
