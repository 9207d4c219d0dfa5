import json

from txmq.client.observe import trace_records as trace
from txmq.client.observe.trace_records import (
    DecisionRecord,
    HandlerEnd,
    HandlerOutcome,
    HandlerStart,
    SendRecord,
)
from txmq.protocol import headers
from txmq.protocol.properties import render

TRACES = "RMQ_SYS_TRACE_TOPIC"
RECORDS = [
    SendRecord(at_ms=1700000000000, region="r", group="pg", topic="Orders", id="M1", keys="o-1",
         store_host="127.0.0.1:10911", body_bytes=5, cost_ms=3),
    SendRecord(at_ms=1700000000000, region="r", group="pg", topic="Others", id="M1"),
    HandlerStart(at_ms=1700000000010, region="r", group="cg", request_id="R", id="M1", attempts=1),
    HandlerEnd(at_ms=1700000000025, group="cg", request_id="R", id="M1", cost_ms=15,
            is_success=False, outcome=HandlerOutcome.TIMED_OUT),
    DecisionRecord(at_ms=1700000000005, region="r", group="pg", topic="Orders", id="M1",
            is_after_check=True),
    HandlerStart(at_ms=1, region="r", group="cg", request_id="R", id="M2"),
]  # fmt: skip


def traced(cluster, records, times=1):
    cluster.add_topic(TRACES, queues=1)
    broker = cluster.brokers[0]
    head = headers.SendMessage("g", TRACES, "TBW102", 4, 0, 0, 1, 0)
    for _ in range(times):
        broker.store(TRACES, 0, head, trace.encode(records), render({"KEYS": "M1 M2"}), 0)


def test_message_trace_shows_the_events_of_a_message_in_order(asking, cluster):
    traced(cluster, RECORDS, times=2)

    result = asking("message", "trace", "Orders", "M1")
    lines = [line.split() for line in result.stdout.splitlines() if line.strip()]

    assert result.exit_code == 0
    assert [line[0] for line in lines[2:]] == ["sent", "decided", "begun", "handled"]
    assert lines[2] == [
        "sent", "2023-11-14", "22:13:20.000+00:00", "pg", "yes", "3", "o-1",
        "normal,", "5", "bytes,", "at", "127.0.0.1:10911",
    ]  # fmt: skip
    assert lines[3][-4:] == ["COMMIT_MESSAGE", "after", "a", "check"]
    assert lines[4][-2:] == ["attempt", "2"]
    assert lines[5][-4:] == ["no", "15", "timed", "out"]


def test_message_trace_prints_json(asking, cluster):
    traced(cluster, RECORDS)

    events = json.loads(asking("message", "trace", "Orders", "M1", "--json").stdout)

    assert [row["event"] for row in events] == ["sent", "decided", "begun", "handled"]
    assert (events[0]["kind"], events[3]["outcome"]) == ("normal", "timed_out")
    assert events[2] == {
        "event": "begun", "at_ms": 1700000000010, "region": "r", "group": "cg", "request_id": "R",
        "id": "M1", "attempts": 1, "keys": "",
    }  # fmt: skip


def test_message_trace_reports_a_message_without_traces(asking, cluster):
    traced(cluster, RECORDS)
    cluster.add_topic("Orders")

    assert asking("message", "trace", "Orders", "M3").stdout == "no traces\n"
    misspelt = asking("message", "trace", "Ordres", "M3")
    assert (misspelt.exit_code, misspelt.stdout) == (1, "")
    assert "the nearest name is 'Orders'" in misspelt.stderr
    assert asking("message", "trace", "Orders", "M1", "--trace-topic", "T").exit_code == 1


def test_a_trace_record_without_a_time_is_shown_without_one(asking, cluster):
    traced(cluster, [HandlerEnd(request_id="R", id="M1", cost_ms=1, is_success=True)])

    assert asking("message", "trace", "Orders", "M1").stdout.split()[-4:] == [
        "handled", "yes", "1", "consumed",
    ]  # fmt: skip
