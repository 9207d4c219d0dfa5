"""The page on alerts names the figures that there are, and says of each what the file says."""

import re
from pathlib import Path

import pytest

from tests.reconcile import runs
from txmq.reconcile.classes import Class
from txmq.reconcile.report.metrics import METRICS, exposition
from txmq.reconcile.report.words import VERDICTS

PAGE = (Path(__file__).resolve().parents[2] / "docs/howto/reconcile-alerts.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| (.*?) ?\| (.+) \|$", re.MULTILINE)
VALUES = {
    "class": {class_.value for class_ in Class},
    "group": {item.group for item in Class},
    "verdict": set(VERDICTS),
}


def test_the_table_is_what_a_run_writes():
    assert {name: meaning for name, _, meaning in ROW.findall(PAGE)} == METRICS


@pytest.mark.parametrize("metric", METRICS)
def test_the_table_has_the_labels_of_each_figure(metric):
    told = {name: re.findall(r"`(\w+)`", labels) for name, labels, _ in ROW.findall(PAGE)}
    lines = re.findall(
        rf"^txmq_reconcile_{metric}\{{(.+)\}} ", exposition(runs.run(runs.busy())), re.MULTILINE
    )

    assert lines
    for labels in lines:
        assert re.findall(r'(\w+)="', labels) == sorted(["name", *told[metric]])


def test_alerts_ask_for_figures_that_there_are():
    rules = re.findall(r"expr: (.+?)\n +labels: ", PAGE, re.DOTALL)
    asked = {item for rule in rules for item in re.findall(r"txmq_reconcile_(\w+)", rule)}

    assert len(rules) == PAGE.count("- alert: ")
    assert {"verdict", "broken_proofs", "at_risk"} < asked
    assert asked <= METRICS.keys()
    for rule in rules:
        for label, values in re.findall(r'(\w+)=~?"([^"]+)"', rule):
            assert set(values.split("|")) <= VALUES[label]
