"""The benchmarks run and print every figure that their readers need; no speed is tested."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak import IS_SOAK

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RUN = BENCHMARKS / "run.py"
sys.path.insert(0, str(BENCHMARKS))  # They import each other by their bare names.

from bench_against import ROWS, Compared, median_bounds  # noqa: E402
from bench_checks import checks  # noqa: E402

SEND_FIGURES = {
    "messages_per_s",
    "cpu_us_per_message",
    "latency_ms",
    "server_busy",
    "messages",
    "rss_mb_before",
    "rss_mb",
}


def test_median_bounds_leave_out_as_many_figures_as_chance_allows():
    assert median_bounds([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]) == (1.0, 6.0)
    # With 20 figures, 5 or fewer lie on one side of the true median with a chance of 4.1 %.
    assert median_bounds(list(range(20))) == (5, 14)


def test_a_ratio_counts_only_if_its_bounds_exclude_one():
    row = Compared("CPU of a send", 8.0, 7.2, 0.9, 0.88, 0.93)
    assert (row.verdict(is_cost=True), row.verdict(is_cost=False)) == ("better", "worse")
    assert row._replace(high=1.01).verdict(is_cost=True) == "as before"
    assert row._replace(low=1.02, high=1.1).verdict(is_cost=True) == "worse"


def test_sections_left_out_are_not_judged():
    assert checks({"floor": {}}) == {}


# One run of all sections, with sizes that show only that every step works.


SECTIONS = (
    *("floor", "sends", "ratios", "access", "scrape", "batches"),
    *(
        (
            "synced",
            "latency",
            "tls",
            "brokers",
            "transactions",
            "several",
            "pending",
            "decorated",
            "resolve",
            "delays",
        )
        if IS_SOAK
        else ()
    ),
)


def run(*sections):
    """The document that a run prints."""
    command = [sys.executable, str(RUN), "--smoke", "--only", *sections]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr  # It also fails if money was lost.
    return json.loads(done.stdout)


@pytest.mark.soak
def test_a_run_against_head_compares_every_row():
    command = [sys.executable, str(RUN), "--smoke", "--against", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if re.search(r" to \d", line)]
    assert len(rows) == len(ROWS), done.stdout


@pytest.fixture(scope="module")
def document():
    return run(*SECTIONS)


pytestmark = pytest.mark.timeout(600)


@pytest.mark.slow
def test_the_report_has_every_figure_of_floor_and_sends(document):
    assert document["settings"]["smoke"]
    for section in (document["floor"], *document["sends"].values()):
        assert list(section) == ["1", "64"]
        for figures in section.values():
            assert set(figures) == SEND_FIGURES
            assert figures["messages"] > 0
            assert figures["cpu_us_per_message"] > 0
            latency = figures["latency_ms"]
            assert 0 < latency["p50"] <= latency["p99"] <= latency["p99.9"]
    assert document["ratios"]["in_flight"] == 64
    assert document["scrape"]["scrape_ms"]["median"] > 0
    assert {"send_cost", "sync_throughput"} <= document["checks"].keys()


@pytest.mark.soak
def test_the_report_has_the_cost_of_syncs_and_the_message_latency(document):
    threads = document["synced"]["eight_threads"]
    assert threads["messages_per_s"].keys() == {"sync", "async"}
    assert threads["sync_over_async"]["median"] > 0
    latency = document["latency"]
    assert 0 < latency["p50_ms"] <= latency["p99_ms"]["median"] <= latency["max_ms"]
    assert {"synced_alone", "synced_few", "latency"} <= document["checks"].keys()


@pytest.mark.soak
def test_the_report_has_the_cost_of_tls(document):
    assert document["tls"]["plain_over_off"]["median"] > 0
    assert document["tls"]["medians"].keys() == {"off", "plain", "tls"}


@pytest.mark.soak
def test_the_report_has_the_gain_of_a_second_broker(document):
    for brokers in document["brokers"].values():
        assert brokers["brokers"].keys() == {"1", "2"}
        assert brokers["two_over_one_per_cpu_s"]["median"] > 0


@pytest.mark.soak
def test_the_report_has_the_cost_of_transactions(document):
    durable = document["transactions"]["sync"]
    assert list(durable) == ["1", "64"]
    assert all(figure["transactions_per_s"] > 0 for figure in durable.values())
    # Stored bytes do not depend on the machine, and memory hardly does.
    assert document["checks"]["transaction_bytes"]["passed"]
    assert 100 < document["pending"]["bytes_each"]["median"] < 300
    assert document["pending"]["restart"]["transactions_per_s"] > 0


@pytest.mark.soak
def test_the_report_has_the_cost_of_several_messages(document):
    measured = document["several"]
    for where, brokers in (("one_broker", 1), ("two_brokers", 2)):
        assert list(measured[where]) == ["1", "2", "8"]
        for messages, figures in measured[where].items():
            # Each broker that has halves receives one END; single messages go to both in turn.
            halves = int(messages) / brokers
            wanted = {"halves": halves, "ends": min(halves, 1)}
            assert list(figures["requests"].values()) == [wanted] * brokers
            assert figures["alone_ms_over_one_message"]["median"] > 0
            assert figures["transactions_per_s_over_one_message"]["median"] > 0


@pytest.mark.soak
def test_the_report_has_the_speed_of_resolving_for_dead_services(document):
    measured = document["resolve"]
    assert measured["sizes"] == [40, 400]
    assert measured["per_s"].keys() == measured["seconds"].keys() == {"40", "400"}
    assert measured["many_over_few"]["median"] > 0


@pytest.mark.soak
def test_the_report_has_the_cost_of_delayed_messages(document):
    measured = document["delays"]
    assert measured["waiting"] == 2_000
    assert measured["late_ms"]["earliest"] >= 0
    assert measured["burst"] == 400


@pytest.mark.soak
def test_the_report_has_the_cost_of_decorated_transactions(document):
    for colour in ("session", "psycopg", "blocking"):
        rows = document["decorated"][colour]
        assert list(rows) == ["16"]
        for figures in rows.values():
            for way in ("bare", "fenced", "decorated", "handwritten"):
                assert figures[way]["transactions_per_s"] > 0
            assert figures["bare"]["broker_us"] < figures["decorated"]["broker_us"]
            assert figures["decorated_over_bare"]["median"] > 0
    assert {"decorated_session", "handwritten_psycopg"} <= document["checks"].keys()


@pytest.mark.soak  # The benchmark of decorators runs the same processes.
def test_the_report_has_the_cost_of_a_guard():
    document = run("guards")
    for colour in ("session", "psycopg", "blocking"):
        rows = document["guards"][colour]
        assert list(rows) == ["1", "16"]
        for figures in rows.values():
            assert all(figures[way]["calls_per_s"] > 0 for way in ("bare", "guarded", "again"))
            assert figures["guarded_over_bare"]["median"] > 0
    assert "guarded_session" in document["checks"]


@pytest.mark.soak  # The resolve benchmark also runs a command next to a broker and a database.
def test_the_report_has_the_speed_of_an_outbox_relay():
    document = run("relay")
    measured = document["relay"]
    for kind in ("loose", "laned"):
        assert measured["relay"][kind]["rows_per_s"]["median"] > 0
        assert measured["relay"][kind]["rows_per_s_held"]["median"] > 0
    assert 0 < measured["relay"]["latency_ms"]["p50"] <= measured["relay"]["latency_ms"]["p99"]
    assert measured["polling"]["loose"]["rows_per_s"]["median"] > 0
    assert {"relay_latency", "relay_held", "relay_held_laned"} <= document["checks"].keys()


@pytest.mark.soak  # test_bank_tour.py has such transfers.
def test_the_report_has_the_cost_of_a_bank_transfer():
    measured = run("bank")["bank"]
    for way, parts in (("half", 4), ("outbox", 4), ("xa", 6)):
        rows = measured[way]
        assert list(rows) == ["1", "4"]
        for figures in rows.values():
            assert figures["credited_per_s"]["median"] > 0
            assert 0 < figures["credited_ms"]["p50"] <= figures["credited_ms"]["p99"]
            assert len(figures["shares"]) == parts
            assert sum(figures["shares"].values()) == pytest.approx(1, abs=0.01)
            assert all(figures["cpu_us"][who] > 0 for who in ("icbc", "ccb", "broker"))


@pytest.mark.soak
def test_the_report_has_the_cost_of_reconciliation():
    document = run("reconcile")
    sizes = document["reconcile"]["sizes"]
    assert list(sizes) == ["5000"]
    for size, figures in sizes.items():
        assert figures["made"]["log_records"] >= int(size) * 0.99
        assert figures["whole_over_bare"]["median"] > 0
        assert figures["whole_over_plain"]["median"] > 0
        # Both jobs wrote the same tables, or the run would have failed.
        assert figures["whole_cpu_over_by_hand"]["median"] > 0
        assert figures["jobs"]["whole"] <= 15
        assert 100 < figures["peak_mb"]["bare"] < 8000
        assert figures["items"] > 25 * 18
    checked = {"reconcile_cost", "reconcile_by_hand", "reconcile_growth"}
    assert document["checks"].keys() == checked
