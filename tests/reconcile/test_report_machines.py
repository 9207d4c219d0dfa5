"""What programs read of a run, and what a terminal shows."""

import contextlib
import io
import json
import os
import re
from decimal import Decimal

import msgspec
import pytest
import typer
from rich.console import Console

from tests.reconcile import runs
from txmq.cli.reconcile import _show_run as show_run
from txmq.cli.reconcile import report_failures
from txmq.reconcile.classes import Class
from txmq.reconcile.report.metrics import METRICS, exposition
from txmq.reconcile.report.page import page
from txmq.reconcile.report.terminal import show
from txmq.reconcile.summary import Run

LINE = re.compile(
    r'txmq_reconcile_(\w+)\{((?:\w+="(?:[^"\\\n]|\\.)*",?)+)\} (-?\d+\.\d+(?:e\+\d+)?)'
)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@pytest.fixture
def busy():
    return runs.run(runs.busy())


def samples(run):
    """All samples as (metric, labels) -> value, as numbers."""
    found = {}
    for line in exposition(run).splitlines():
        if not line.startswith("#"):
            name, labels, value = LINE.fullmatch(line).groups()
            key = (name, frozenset(LABEL.findall(labels)))
            assert key not in found, f"twice: {line}"
            found[key] = float(value)
    return found


def value(found, metric, **labels):
    wanted = {(name.rstrip("_"), text) for name, text in labels.items()}
    hits = [text for (name, has), text in found.items() if name == metric and wanted <= has]
    assert len(hits) == 1, (metric, labels, hits)
    return hits[0]


def shown(run, width=100, report="", **options):
    out = io.StringIO()
    show(run, Console(file=out, width=width, **options), report)
    return out.getvalue()


def test_json_is_read_back_as_the_same_run(busy):
    signed = runs.signed(busy)

    read = msgspec.json.decode(signed.as_json(), type=Run)

    assert read == signed
    assert read.as_json() == signed.as_json()
    assert read.result.digest == signed.result_digest


def test_json_is_sorted_and_has_the_figures(busy):
    pairs = []
    plain = json.loads(
        busy.as_json(), object_pairs_hook=lambda item: pairs.append(item) or dict(item)
    )

    assert all([name for name, _ in pair] == sorted(name for name, _ in pair) for pair in pairs)
    assert plain["figures"] == {
        "match_rate": busy.result.match_rate, "transfers": 1_000_004,
        "own_transfers": 999_970, "breaks": 43, "open": 450,
        "at_risk": {"CNY": 18_422_700, "USD": 184_000},
        "in_flight": {"transfers": 449, "amounts": {"CNY": 39_638_520, "USD": 1_550_300}},
        "signature": "unsigned",
    }  # fmt: skip
    assert plain["result"]["controls"][0]["hash_total"] == 7_720_114_630_028_511_204


def test_amounts_in_json_are_whole_numbers(busy):
    floats = []
    json.loads(busy.as_json(), parse_float=floats.append)

    rates = 1 + 1 + len(busy.trend) - 1 + len(busy.stages)
    assert len(floats) == rates, "the match rates, and how long the stages took"


def test_metrics_match_the_run(busy):
    found = samples(busy)

    assert value(found, "verdict", verdict="over limits") == 1
    assert value(found, "verdict", verdict="clean") == 0
    assert value(found, "match_ratio") == busy.result.match_rate
    assert value(found, "transfers", class_="dead-letter", currency="CNY", group="break") == 13
    assert value(found, "at_risk", class_="dead-letter", currency="CNY") == 11895
    assert value(found, "oldest_break_days") == 9
    assert value(found, "in_flight") == 449
    assert value(found, "run_seconds") == 50
    assert value(found, "stage_rows_per_second", stage="classify") == 70424
    assert value(found, "last_success_timestamp_seconds") == busy.ended_ms / 1000
    assert {name for name, _ in found} == set(METRICS)


def test_every_class_has_a_metric_even_at_zero(busy):
    quiet = samples(runs.run(runs.clean()))

    assert quiet.keys() >= {
        sample for sample in samples(busy) if sample[0] in {"transfers", "at_risk"}
    }
    for name in Class:
        if name not in {Class.MATCHED, Class.RETURNED, Class.ROLLED_BACK}:
            assert value(quiet, "transfers", class_=name.value, currency="CNY") == 0
    assert value(quiet, "verdict", verdict="clean") == 1
    assert value(quiet, "oldest_break_days") == 0


def test_metrics_add_up_to_the_totals_of_the_run(busy):
    found = samples(busy)
    counts = [number for (name, _), number in found.items() if name == "transfers"]
    risks = [
        Decimal(repr(number))
        for (name, labels), number in found.items()
        if name == "at_risk" and {("group", "break"), ("currency", "CNY")} <= labels
    ]

    assert sum(counts) == busy.result.transfers
    assert sum(risks).scaleb(2) == busy.result.at_risk["CNY"]


def test_each_metric_has_one_help_and_one_type(busy):
    text = exposition(busy)

    assert re.findall(r"# HELP txmq_reconcile_(\w+) \S", text) == list(METRICS)
    assert re.findall(r"# TYPE txmq_reconcile_(\w+) gauge\n", text) == list(METRICS)
    assert text.endswith("\n")


def test_the_prometheus_parser_reads_the_metrics(busy):
    from prometheus_client.parser import text_string_to_metric_families

    families = {family.name: family for family in text_string_to_metric_families(exposition(busy))}

    assert {family.removeprefix("txmq_reconcile_") for family in families} == set(METRICS)
    assert families["txmq_reconcile_breaks"].samples[0].value == 43


def test_a_hostile_label_value_is_escaped():
    name = 'x"} 1\ntxmq_reconcile_verdict{verdict="clean\\'
    found = samples(runs.run(runs.clean(name=name)))

    assert value(found, "breaks", name='x\\"} 1\\ntxmq_reconcile_verdict{verdict=\\"clean\\\\') == 0


def test_a_terminal_shows_the_verdict_classes_and_failed_proofs(busy):
    said = shown(busy, report="results/report.html")

    assert said.index("Over the limits") < said.index("double-credit") < said.index("1 balance")
    assert all(item in said for item in busy.result.why)
    assert re.search(r"dead-letter +break +13 +11,895\.00 +0\.00 +11,895\.00 +CNY", said)
    assert "account-table of ccb, 62…0045: 124,500.00 expected, 174,500.00 found" in said
    assert "5 transactions were decided by hand; the report says why." in said
    assert said.endswith("report: results/report.html\n")


@pytest.mark.parametrize("width", [30, 44, 60, 80, 100, 200])
def test_no_amount_is_cut_on_a_narrow_terminal(busy, width):
    said = shown(busy, width, force_terminal=True, no_color=True)

    assert "11,895.00" in said
    assert "583,112.20" in said
    assert "…" not in said.replace("62…0045", "")
    assert max(map(len, re.sub(r"\x1b\[[\d;]*m", "", said).splitlines())) <= width


def test_80_columns_show_the_sums_of_each_currency(busy):
    lines = shown(busy, 80).splitlines()
    at = lines.index("dead-letter (break)")

    assert [line.split() for line in lines[at + 1 : at + 3]] == [
        ["CNY", "13", "11,895.00", "0.00", "11,895.00"],
        ["USD", "1", "640.00", "0.00", "640.00"],
    ]
    assert [line.split()[0] for line in lines[lines.index("all") + 1 :][:2]] == ["CNY", "USD"]


def test_a_terminal_says_that_a_day_had_no_transfers():
    carried = runs.total(Class.IN_FLIGHT, "CNY", 3, 100, "DO")
    said = shown(runs.run(runs.result(totals=(carried,), carried=3)))

    assert "The day had no transfers; of earlier days 0 are breaks, 0 were closed, 3 are" in said


def test_a_pipe_gets_no_colours_and_whole_lines(busy):
    said = shown(busy, 40)

    assert "\x1b" not in said
    assert "account-table of ccb, 62…0045: 124,500.00 expected, 174,500.00 found" in said


def test_a_terminal_without_unicode_shows_plain_words(busy):
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, "ascii", errors="replace") as out:
        show(busy, Console(file=out, width=100), "report.html")
        out.flush()
        said = raw.getvalue().decode()

    assert "\nOver the limits\n" in said


def test_markup_and_escapes_from_a_ledger_are_shown_as_text(busy):
    run = runs.with_result(busy, why=("[red]not red[/red] \x1b]0;title\x07 \u202e",))
    said = shown(run, force_terminal=True, no_color=True)

    assert "[red]not red[/red] ⟨U+001B⟩]0;title⟨U+0007⟩ ⟨U+202E⟩" in said
    assert "\x1b]" not in said


def test_a_terminal_shows_a_clean_day():
    said = shown(runs.run(runs.clean()))

    assert "Clean" in said
    assert "by hand" not in said
    assert "All balance proofs hold." in said
    assert "100% of 999,511 transfers are agreed, 0 are breaks" in said


def test_a_closed_pipe_exits_with_3_and_not_with_a_verdict(monkeypatch, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "w") as closed:
        monkeypatch.setattr("sys.stdout", closed)
        with pytest.raises(typer.Exit) as ended, report_failures():
            show_run(runs.run(runs.clean()), tmp_path, json=False)

    assert ended.value.exit_code == 3


@pytest.mark.parametrize(
    ("first_seen", "told"),
    [("2026-11-18", "+50,000.00 CNY, since 2026-11-18\n"), ("2026-11-20", "+50,000.00 CNY\n")],
)
def test_a_difference_of_an_earlier_date_says_since_when(busy, first_seen, told):
    proof = msgspec.structs.replace(runs.proofs()[0], first_seen=first_seen)
    run = runs.with_result(busy, proofs=(proof,))

    assert f"174,500.00 found, {told}" in shown(run, width=200)
    assert (f"since {first_seen}" in page(run).decode()) is ("since" in told)
