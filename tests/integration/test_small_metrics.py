"""Metrics and health of processes other than brokers: a lone name server, and a console."""

import contextlib
import json
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.cli.test_cli_serve import started, stopped
from tests.integration.console.console_stage import ConsoleProcess, Visitor
from tests.integration.test_monitoring import read
from tests.servers.serving import ask, free_port
from txmq.console import metrics as console_metrics
from txmq_broker.names import metrics as name_metrics
from txmq_broker.testing import BrokerThread


def samples(text):
    """The values of a page by name and labels."""
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def address_in(line):
    return re.search(r"metrics http://(\S+)/metrics", line)[1]


def names_of(table, prefix, series):
    """The metrics of a table that a page has."""
    bases = {re.sub("_(bucket|count|sum)$", "", name) for name, *_ in series}
    return {name for name in table if prefix + name in bases}


@pytest.fixture(scope="module")
def name_server(tmp_path_factory):
    process = started(
        *("names", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
        cwd=tmp_path_factory.mktemp("names"),
    )
    line = process.stdout.readline()
    yield line.split()[2], address_in(line)
    assert stopped(process)[0] == 0


def test_a_name_server_shows_its_brokers_topics_and_requests(name_server):
    names, http = name_server
    fields = {"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": 0}
    topics = {"T": {"topicName": "T"}, "U": {"topicName": "U"}}
    body = {"topicConfigSerializeWrapper": {"dataVersion": {}, "topicConfigTable": topics}}
    content = json.dumps(body).encode()
    assert ask(names, 105, topic="T")[0] == 17
    assert ask(names, 103, content=content, haServerAddr="", **fields)[0] == 0

    assert read(http, "/health/live") == (200, "alive\n")
    assert read(http, "/health/ready") == (200, "ready\n")
    assert json.loads(read(http, "/info")[1])["address"] == names
    series = samples(read(http, "/metrics")[1])
    assert series["txmq_names_requests_total", "GET_ROUTEINFO_BY_TOPIC"] == 1
    assert series["txmq_names_requests_total", "REGISTER_BROKER"] == 1
    assert ("txmq_names_connections",) in series
    everything = names_of(name_metrics.ROWS, name_metrics.PREFIX, series)
    assert everything >= name_metrics.ROWS.keys() - {"brokers"}


def test_a_console_counts_pages_log_ins_and_streams():
    with (
        BrokerThread() as broker,
        ConsoleProcess(broker.names, "--http", "127.0.0.1:0") as console,
        Visitor(console.url) as visitor,
    ):
        http = address_in(console.ready)
        visitor.get("/topics")
        visitor.get("/topics?page=2")
        visitor.get("/nowhere/" + "x" * 500)
        visitor.get("/static/console.css")
        visitor.event("/topics", "other")
        visitor.post("/login", access_key="nobody-1", secret_key="a-long-secret")

        series = samples(read(http, "/metrics")[1])
        count = "txmq_console_requests_total"
        assert series[count, "/topics", "200", "GET"] == 2
        assert series[count, "404", "GET", "other"] == 1
        assert series["txmq_console_request_duration_seconds_count", "/topics"] == 2
        assert ("txmq_console_request_duration_seconds_count", "/live") not in series
        assert series["txmq_console_sessions",] == 1
        assert series["txmq_console_log_ins_total", "refused"] == 1
        assert series["txmq_console_stream_renderings_total",] == 1
        assert series["txmq_console_brokers", "reachable"] == 1
        assert "xxx" not in str(series)
        everything = names_of(console_metrics.ROWS, console_metrics.PREFIX, series)
        assert everything == console_metrics.ROWS.keys()
        assert json.loads(read(http, "/info")[1])["names"] == broker.names
        assert read(http, "/health/ready") == (200, "ready\n")
        assert visitor.get("/metrics").status_code == 404, "browsers cannot read them"


def test_a_console_without_a_cluster_is_alive_but_not_ready():
    with ConsoleProcess(f"127.0.0.1:{free_port()}", "--http", "127.0.0.1:0") as console:
        http = address_in(console.ready)
        assert read(http, "/health/live")[0] == 200
        status, text = read(http, "/health/ready")
        assert (status, "no name server answers" in text) == (503, True)
        series = samples(read(http, "/metrics")[1])
        assert series["txmq_console_name_server_reachable",] == 0
        assert not any(name == "txmq_console_brokers" for name, *_ in series)
        assert console.stop() == ""


@pytest.mark.parametrize("command", ["names", "console"])
def test_a_taken_metrics_address_fails_the_start_and_is_named(tmp_path, name_server, command):
    _, taken = name_server
    process = started(command, "--listen", "127.0.0.1:0", "--http", taken, cwd=tmp_path)
    with contextlib.closing(process.stdout):
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (1, "")
    assert taken in err.splitlines()[-1]
