"""The benchmarks run and print what their readers count on; how fast anything is, is not asked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench_checks import CHECKS, checks

RUN = Path(__file__).with_name("run.py")
SEND_FIGURES = {
    "messages_per_s",
    "cpu_us_per_message",
    "latency_ms",
    "server_busy",
    "messages",
    "rss_mb_before",
    "rss_mb",
}


def test_a_check_passes_at_its_limit_and_fails_beyond_it():
    document = {
        "ratios": {"broker_cpu_over_floor": {"median": 2.0}, "sync_over_async": {"median": 0.59}},
        "drain": {"drain_over_sends": {"median": 5.0}},
        "filters": {"dearest_us": {"median": 3.01}},
        "producer": {"over_cpp": {"median": 3.0}, "batched_over_cpp": {"median": 9.9}},
        "resolve": {"many_over_few": {"median": 0.79}},
        "relay": {
            "latency_ms": {"median": 20},
            "held_over_free": {"median": 0.8},
            "held_over_free_laned": {"median": 0.79},
        },
        "reconcile_extract": {"jdbc_over_extract": {"median": 1.0}},
        "reconcile": {"whole_over_bare": {"median": 2.5}, "growth": {"median": 1.21}},
        "restart": {"large_over_small": {"median": 1.51}},
        "transactions": {
            "cpu_over_send": {"median": 2.2},
            "bytes_per_transaction": {"median": 1434.0},
        },
        "decorated": {
            "session_over_bare": {"median": 0.55},
            "psycopg_over_bare": {"median": 0.549},
        },
        "guards": {"session_over_bare": {"median": 0.59}},
        "pending": {
            "bytes_each": {"median": 200},
            "round_among_many_over_few": {"median": 1.26},
        },
        "delays": {
            "grown_mb": {"median": 150},
            "ready_s": {"median": 10.1},
            "burst_s": {"median": 5.0},
            "late_ms": {"median": 101},
        },
        "consumer": {"per_cpu_s": {"median": 50_000}},
        "soak": {"grown_mb": {"median": 5.1}},
    }

    found = checks(document)

    passed = {name for name, each in found.items() if each["passed"]}
    assert passed == {
        "send_cost",
        "drain_cost",
        "transaction_cost",
        "decorated_session",
        "pending_memory",
        "delays_memory",
        "delays_burst",
        "producer_rate",
        "consumer_rate",
        "relay_latency",
        "relay_held",
        "reconcile_extract",
        "reconcile_cost",
    }
    assert found.keys() == CHECKS.keys()


def test_sections_left_out_are_not_judged():
    assert checks({"floor": {}}) == {}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_quick_run_prints_one_document_with_every_figure_of_floor_and_sends():
    command = [sys.executable, str(RUN), "--quick", "--seconds", "0.1"]

    done = subprocess.run(
        [*command, "--only", "floor", "sends", "ratios"],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["settings"]["quick"]
    for each in (document["floor"], *document["sends"].values()):
        assert list(each) == ["1", "8", "64", "512"]
        for figures in each.values():
            assert set(figures) == SEND_FIGURES
            assert figures["messages"] > 0
            assert figures["cpu_us_per_message"] > 0
            latency = figures["latency_ms"]
            assert 0 < latency["p50"] <= latency["p99"] <= latency["p99.9"]
    assert document["ratios"]["in_flight"] == 64
    assert document["checks"].keys() == {"send_cost", "sync_throughput"}


@pytest.mark.timeout(60)
def test_a_quick_run_tells_what_filters_cost():
    command = [sys.executable, str(RUN), "--quick", "--only", "filters"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["filters"]["conditions_us"].keys() == {"numbers", "texts", "mixed"}
    assert all(each["median"] > 0 for each in document["filters"]["fetch_us"].values())
    assert document["checks"].keys() == {"filter_cost"}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_quick_run_tells_what_transactions_cost():
    command = [sys.executable, str(RUN), "--quick", "--seconds", "0.1"]

    done = subprocess.run(
        [*command, "--only", "transactions", "pending"],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    durable = document["transactions"]["sync"]
    assert list(durable) == ["1", "8", "64", "512"]
    assert all(each["transactions_per_s"] > 0 for each in durable.values())
    # What is stored does not hang on the machine; memory hardly does.
    assert document["checks"]["transaction_bytes"]["passed"]
    assert 100 < document["pending"]["bytes_each"]["median"] < 300
    assert document["pending"]["restart"]["transactions_per_s"] > 0


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_quick_run_tells_how_fast_dead_services_are_answered_for():
    command = [sys.executable, str(RUN), "--quick", "--only", "resolve"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    measured = json.loads(done.stdout)["resolve"]
    assert measured["sizes"] == [200, 2_000]
    assert measured["per_s"].keys() == measured["seconds"].keys() == {"200", "2000"}
    assert measured["many_over_few"]["median"] > 0


@pytest.mark.slow
def test_a_quick_run_tells_what_waiting_messages_cost():
    command = [sys.executable, str(RUN), "--quick", "--only", "delays"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    measured = json.loads(done.stdout)["delays"]
    assert measured["waiting"] == 20_000
    assert measured["late_ms"]["earliest"] >= 0
    assert measured["burst"] == 2_000


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_quick_run_tells_what_decorating_costs():
    command = [sys.executable, str(RUN), "--quick", "--seconds", "0.05", "--only", "decorated"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    for colour in ("session", "psycopg", "blocking"):
        rows = document["decorated"][colour]
        assert list(rows) == ["1", "16", "64"]
        for figures in rows.values():
            for way in ("bare", "fenced", "decorated"):
                assert figures[way]["transactions_per_s"] > 0
            assert figures["bare"]["broker_us"] < figures["decorated"]["broker_us"]
            assert figures["decorated_over_bare"]["median"] > 0
    assert document["checks"].keys() == {"decorated_session"}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_quick_run_tells_what_a_guard_costs():
    command = [sys.executable, str(RUN), "--quick", "--seconds", "0.05", "--only", "guards"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    for colour in ("session", "psycopg", "blocking"):
        rows = document["guards"][colour]
        assert list(rows) == ["1", "16"]
        for figures in rows.values():
            assert all(figures[way]["calls_per_s"] > 0 for way in ("bare", "guarded", "again"))
            assert figures["guarded_over_bare"]["median"] > 0
    assert document["checks"].keys() == {"guarded_session"}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_quick_run_tells_how_fast_an_outbox_is_emptied():
    command = [sys.executable, str(RUN), "--quick", "--only", "relay"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    document = json.loads(done.stdout)
    measured = document["relay"]
    for kind in ("loose", "laned"):
        assert measured["relay"][kind]["rows_per_s"]["median"] > 0
        assert measured["relay"][kind]["rows_per_s_held"]["median"] > 0
    assert 0 < measured["relay"]["latency_ms"]["p50"] <= measured["relay"]["latency_ms"]["p99"]
    assert measured["polling"]["loose"]["rows_per_s"]["median"] > 0
    assert document["checks"].keys() == {"relay_latency", "relay_held", "relay_held_laned"}


@pytest.mark.slow
def test_a_quick_run_tells_what_a_transfer_between_two_banks_costs():
    command = [sys.executable, str(RUN), "--quick", "--only", "bank"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr  # Where money was lost, among other reasons.
    measured = json.loads(done.stdout)["bank"]
    for way, parts in (("half", 4), ("outbox", 4), ("xa", 6)):
        rows = measured[way]
        assert list(rows) == ["1", "4"]
        for figures in rows.values():
            assert figures["credited_per_s"]["median"] > 0
            assert 0 < figures["credited_ms"]["p50"] <= figures["credited_ms"]["p99"]
            assert len(figures["shares"]) == parts
            assert sum(figures["shares"].values()) == pytest.approx(1, abs=0.01)
            assert all(figures["cpu_us"][who] > 0 for who in ("icbc", "ccb", "broker"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_run_tells_how_fast_books_are_extracted():
    command = [sys.executable, str(RUN), "--quick", "--only", "reconcile_extract"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    measured = document["reconcile_extract"]
    assert measured["rows"] == 200_000
    assert measured["extract_s"]["median"] > 0
    assert measured["jdbc_s"]["median"] > 0
    assert document["checks"].keys() == {"reconcile_extract"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_quick_run_tells_what_reconciliation_costs():
    command = [sys.executable, str(RUN), "--quick", "--only", "reconcile"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    sizes = document["reconcile"]["sizes"]
    assert list(sizes) == ["5000"]
    for size, figures in sizes.items():
        assert figures["made"]["log_records"] >= int(size) * 0.99
        assert figures["whole_over_bare"]["median"] > 0
        assert figures["whole_over_plain"]["median"] > 0
        assert 100 < figures["peak_mb"]["bare"] < 8000
        assert figures["items"] > 25 * 18
    assert document["checks"].keys() == {"reconcile_cost", "reconcile_growth"}
