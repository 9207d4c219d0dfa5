"""The alert rules name existing metrics, and each metric has the labels of its row."""

import re
from pathlib import Path

import pytest
import yaml

from tests.reconcile import runs
from txmq.reconcile.classes import Class
from txmq.reconcile.report.metrics import METRICS, exposition
from txmq.reconcile.report.words import VERDICTS

RULES = Path(__file__).resolve().parents[2] / "deploy/prometheus/txmq-reconcile.rules.yml"
VALUES = {
    "class": {class_.value for class_ in Class},
    "group": {item.group for item in Class},
    "verdict": set(VERDICTS),
}


@pytest.mark.parametrize("metric", METRICS)
def test_each_metric_has_the_labels_of_its_row(metric):
    lines = re.findall(
        rf"^txmq_reconcile_{metric}\{{(.+)\}} ", exposition(runs.run(runs.busy())), re.MULTILINE
    )

    assert lines
    for labels in lines:
        assert re.findall(r'(\w+)="', labels) == sorted(["name", *METRICS[metric].labels])


def test_alerts_query_existing_metrics_and_label_values():
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    queries = [rule["expr"] for rule in group["rules"]]
    asked = {metric for query in queries for metric in re.findall(r"txmq_reconcile_(\w+)", query)}

    assert {"verdict", "broken_proofs", "at_risk"} < asked <= METRICS.keys()
    for query in queries:
        for label, values in re.findall(r'(\w+)=~?"([^"]+)"', query):
            assert set(values.split("|")) <= VALUES[label]
