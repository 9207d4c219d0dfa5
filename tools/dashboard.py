"""Print deploy/grafana/txmq-broker.json: the dashboard of brokers, name servers and consoles.

python -m tools.dashboard > deploy/grafana/txmq-broker.json
"""

import json
from typing import Any, NamedTuple

WIDTH = 24
HEIGHT = 7
INSTANCES = 'instance=~"$instance"'


class Panel(NamedTuple):
    """A chart, or a number with ``is_stat``."""

    title: str
    unit: str
    queries: dict[str, str]
    """PromQL by legend; ``%s`` in it is replaced by the instances that are chosen."""
    width: int = 8
    is_stat: bool = False
    note: str = ""


def rate(metric: str, by: str = "instance") -> str:
    """The rate of a counter."""
    return f"sum by ({by}) (rate(txmq_broker_{metric}{{%s}}[$__rate_interval]))"


def largest(metric: str, by: str = "instance") -> str:
    """A gauge."""
    return f"max by ({by}) (txmq_broker_{metric}{{%s}})"


def top(query: str) -> str:
    """The ten largest."""
    return f"topk(10, {query})"


def quantiles(metric: str) -> dict[str, str]:
    """What half and 99 of a hundred took at most."""
    buckets = rate(f"{metric}_bucket", by="le, instance")
    return {
        f"{{{{instance}}}} p{part:g}": f"histogram_quantile({part / 100}, {buckets})"
        for part in (50, 99)
    }


EACH = "{{instance}}"
UNREAD_AGE = "txmq_broker_group_oldest_unread_age_seconds{%s}"

ROWS: dict[str, list[Panel]] = {
    "Today": [
        Panel("Ready", "short", {EACH: largest("ready")}, 4, is_stat=True,
              note="1: a send would be acknowledged. A follower shows 0."),
        Panel("Parked transactions", "short",
              {EACH: largest("transactions_parked")}, 4, is_stat=True),
        Panel("Oldest open transaction", "s",
              {EACH: largest("oldest_transaction_age_seconds")}, 4, is_stat=True),
        Panel("Dead letters", "short", {"all": "sum(txmq_broker_dead_letters{%s})"}, 4,
              is_stat=True),
        Panel("Conflicting decisions, 1 h", "short",
              {"all": "sum(increase(txmq_broker_transaction_conflicts_total{%s}[1h]))"}, 4,
              is_stat=True),
        Panel("Disk used", "percentunit",
              {EACH: f"{largest('disk_used_bytes')} / {largest('disk_bytes')}"}, 4, is_stat=True),
    ],
    "Messages": [
        Panel("Messages a second", "short", {
            "in {{instance}}": rate("messages_received_total"),
            "out {{instance}}": rate("messages_delivered_total"),
        }),
        Panel("Bytes a second", "Bps", {
            "in {{instance}}": rate("received_bytes_total"),
            "out {{instance}}": rate("delivered_bytes_total"),
        }),
        Panel("Busiest topics, messages a second", "short",
              {"{{topic}}": top(rate("topic_messages_received_total", by="topic"))}),
        Panel("Consumer lag of groups, messages", "short",
              {"{{group}}": top("sum by (group) (txmq_broker_group_lag_messages{%s})")}),
        Panel("Oldest unread message of groups", "s",
              {"{{group}}": top(f"max by (group) ({UNREAD_AGE})")}),
        Panel("Messages that wait for a retry, by group", "short",
              {"{{group}}": top("sum by (group) (txmq_broker_group_retries_waiting{%s})")}),
        Panel("Delayed messages", "short", {EACH: largest("messages_delayed")}),
        Panel("Dead letters by group", "short",
              {"{{group}}": top("sum by (group) (txmq_broker_dead_letters{%s})")}),
    ],
    "Latency": [
        Panel("Sends: arrival to acknowledgement", "s", quantiles("send_duration_seconds")),
        Panel("Syncs of the log", "s", quantiles("sync_duration_seconds")),
        Panel("Pulls: reading messages", "s", quantiles("pull_duration_seconds")),
    ],
    "Transactions": [
        Panel("Open and parked", "short", {
            "open {{instance}}": largest("transactions_open"),
            "parked {{instance}}": largest("transactions_parked"),
        }),
        Panel("Prepared and decided a second", "short", {
            "prepared": "sum(rate(txmq_broker_transactions_prepared_total{%s}[$__rate_interval]))",
            "{{outcome}}": rate("transactions_decided_total", by="outcome"),
        }),
        Panel("Checks a second", "short", {
            "sent": "sum(rate(txmq_broker_transaction_checks_sent_total{%s}[$__rate_interval]))",
            "undecided: {{reason}}": rate("transaction_checks_undecided_total", by="reason"),
        }),
    ],
    "Disk and limits": [
        Panel("Disk used, and where sends are refused", "percentunit", {
            EACH: f"{largest('disk_used_bytes')} / {largest('disk_bytes')}",
            "refusal {{instance}}": largest("disk_refusal_ratio"),
        }),
        Panel("Log", "bytes", {EACH: largest("log_bytes")}),
        Panel("Bytes that wait for the disk", "bytes", {EACH: largest("unsynced_bytes")}),
        Panel("Nearest limits", "percentunit", {
            "{{limit}}": top("max by (limit) (txmq_broker_limit_used{%s} / txmq_broker_limit{%s})"),
        }),
        Panel("Refusals a second", "short",
              {"{{reason}}": rate("refusals_total", by="reason") + " > 0"}),
        Panel("Connections", "short", {EACH: largest("connections")}),
    ],
    "Replication": [
        Panel("Role", "short", {
            "{{role}} {{instance}}": "max by (role, instance) (txmq_broker_role{%s}) > 0",
        }),
        Panel("Copies in sync, and required", "short", {
            "in sync {{instance}}": largest("copies_in_sync"),
            "required {{instance}}": largest("copies_required"),
        }),
        Panel("Fail-overs an hour", "short", {
            "all": "sum(increase(txmq_broker_leaderships_total{%s}[1h]))",
        }),
        Panel("Followers behind, bytes", "bytes",
              {"{{member}}": largest("follower_bytes_behind", by="member")}),
        Panel("Followers behind, time", "s",
              {"{{member}}": largest("follower_seconds_behind", by="member")}),
        Panel("Age of the lease", "s", {EACH: largest("lease_age_seconds")}),
    ],
    "Name servers and consoles": [
        Panel("Registered brokers", "short", {
            "{{role}} {{instance}}": "sum by (role, instance) (txmq_names_brokers)",
        }, note="Of name servers that run alone."),
        Panel("Requests to name servers a second", "short", {
            "{{request}}":
                "sum by (request) (rate(txmq_names_requests_total[$__rate_interval]))",
            "refused: {{reason}}":
                "sum by (reason) (rate(txmq_names_refusals_total[$__rate_interval])) > 0",
        }),
        Panel("Topics with a route", "short",
              {EACH: "max by (instance) (txmq_names_topics)"}),
        Panel("Pages of consoles a second", "short", {
            "{{status}}":
                "sum by (status) (rate(txmq_console_requests_total[$__rate_interval]))",
        }),
        Panel("Pages of consoles: 99 of a hundred take at most", "s", {
            EACH: "histogram_quantile(0.99, sum by (le, instance) "
            "(rate(txmq_console_request_duration_seconds_bucket[$__rate_interval])))",
        }),
        Panel("Visitors of consoles", "short", {
            "sessions {{instance}}": "max by (instance) (txmq_console_sessions)",
            "open pages {{instance}}": "max by (instance) (txmq_console_streams)",
        }),
    ],
    "Process": [
        Panel("Memory", "bytes",
              {EACH: "max by (instance) (process_resident_memory_bytes{%s})"}),
        Panel("CPU", "percentunit",
              {EACH: "max by (instance) (rate(process_cpu_seconds_total{%s}[$__rate_interval]))"}),
        Panel("Open files", "short", {EACH: "max by (instance) (process_open_fds{%s})"}),
    ],
}  # fmt: skip


def targets(panel: Panel) -> list[dict[str, Any]]:
    """The queries of a panel."""
    return [
        {
            "refId": chr(ord("A") + number),
            "expr": query.replace("%s", INSTANCES),
            "legendFormat": legend,
            "instant": panel.is_stat,
        }
        for number, (legend, query) in enumerate(panel.queries.items())
    ]


def panels() -> list[dict[str, Any]]:
    """All panels, from top to bottom."""
    found: list[dict[str, Any]] = []
    top_y = 0
    for title, row in ROWS.items():
        place = {"h": 1, "w": WIDTH, "x": 0, "y": top_y}
        found.append({"id": len(found) + 1, "type": "row", "title": title, "gridPos": place})
        left, top_y = 0, top_y + 1
        for panel in row:
            if left + panel.width > WIDTH:
                left, top_y = 0, top_y + HEIGHT
            found.append({
                "id": len(found) + 1,
                "type": "stat" if panel.is_stat else "timeseries",
                "title": panel.title,
                "description": panel.note,
                "datasource": {"type": "prometheus", "uid": "$datasource"},
                "gridPos": {"h": HEIGHT, "w": panel.width, "x": left, "y": top_y},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": targets(panel),
            })  # fmt: skip
            left += panel.width
        top_y += HEIGHT
    return found


def dashboard() -> dict[str, Any]:
    """The whole dashboard."""
    return {
        "title": "txmq brokers",
        "uid": "txmq-broker",
        "schemaVersion": 39,
        "tags": ["txmq"],
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "30s",
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "instance",
                    "type": "query",
                    "datasource": {"type": "prometheus", "uid": "$datasource"},
                    "query": "label_values(txmq_broker_info, instance)",
                    "includeAll": True,
                    "multi": True,
                    "refresh": 2,
                },
            ]
        },
        "panels": panels(),
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
