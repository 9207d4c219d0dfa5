"""Invalid rules are refused before anything is read, and each moment belongs to one day."""

import os
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.servers.serving import CHECKOUT
from txmq.errors import ConfigError
from txmq.reconcile.rules import Bank, Day, EntryColumns, Flow, LogRules, Rules
from txmq.reconcile.rules_file import read_rules

RULES = """
name = "icbc-ccb"
directory = "recon"

[day]
zone = "Asia/Shanghai"
cut_off = "17:00"

[money.CNY]
materiality = 1_000_00

[[bank]]
name = "icbc"
database = "sqlite:///icbc.db"
[bank.entries]
table = "journal"
key = "transfer"
account = "account"
amount = "amount"
currency = { is = "CNY" }
kind = "kind"
booked = "booked_ms"
namespace = "icbc"
kinds = { debit = ["debit"], credit = ["credit"], return = ["return"] }

[log]
directory = "data"
"""
FLOW = """[[log.flow]]
topic = "transfers"
namespace = "icbc"
"""
RULES += FLOW


def read(tmp_path, text, **environ):
    path = tmp_path / "recon.toml"
    path.write_text(text)
    return read_rules(path, environ)


def test_relative_paths_start_at_the_rules_file(tmp_path):
    rules = read(tmp_path, RULES)

    assert rules.directory == str(tmp_path / "recon")
    assert rules.log.directory == str(tmp_path / "data")
    assert rules.bank[0].database == f"sqlite:///{tmp_path / 'icbc.db'}"


def test_a_uri_with_the_scheme_file_is_a_path(tmp_path):
    text = RULES.replace('"recon"', '"file:///mnt/recon"').replace('"data"', '"file:/mnt/data"')

    rules = read(tmp_path, text)

    assert (rules.directory, rules.log.directory) == ("/mnt/recon", "/mnt/data")


@pytest.mark.parametrize(
    "uri", ["hdfs://nn/recon", "viewfs:/recon", "s3a://b/r", "gs://b/r", "abfss://c@a.dfs/r"]
)
def test_results_may_be_on_another_file_system(tmp_path, uri):
    assert read(tmp_path, RULES.replace('"recon"', f'"{uri}"')).directory == uri


def test_the_log_may_be_of_several_brokers_or_of_a_cluster(tmp_path):
    several = read(tmp_path, RULES.replace('directory = "data"', 'directories = ["a", "/b"]'))
    cluster = read(tmp_path, RULES.replace('directory = "data"', 'cluster = "mq1:9876; mq2:9876"'))

    assert several.log.places == (str(tmp_path / "a"), "/b")
    assert (cluster.log.places, cluster.log.cluster) == ((), "mq1:9876; mq2:9876")
    assert several.digest == cluster.digest == read(tmp_path, RULES).digest


def test_the_digest_depends_on_the_rules_and_not_on_paths(tmp_path):
    here = read(tmp_path, RULES)
    elsewhere = read(tmp_path, RULES.replace('"data"', '"other"').replace("icbc.db", "copy.db"))
    stricter = read(tmp_path, RULES.replace("1_000_00", "1_00"))

    assert here.digest == elsewhere.digest
    assert here.digest != stricter.digest


@pytest.mark.parametrize(
    ("old", "new", "reads_alike"),
    [
        ("1_000_00", "1_00", True),
        ("[day]", 'version = "2"\n[limits]\nbreaks = 0\n[day]\ngrace = "9h"\nhistory = 3', True),
        ("[day]", "[outcomes]\nparts = true\n[day]", True),
        (FLOW, f'{FLOW}payee_bank = "icbc"', True),
        ("17:00", "18:00", False),
        ("materiality", "digits = 0\nmateriality", False),
        ('"debit"', '"D"', False),
    ],
)
def test_an_extract_stays_valid_under_rules_that_read_the_same(tmp_path, old, new, reads_alike):
    one, other = read(tmp_path, RULES), read(tmp_path, RULES.replace(old, new))

    assert one.digest != other.digest
    assert (one.reading_digest == other.reading_digest) == reads_alike


def test_the_digest_is_the_same_in_every_process(tmp_path):
    holidays = "holidays = [2026-01-01, 2026-05-01, 2026-10-01]"
    rules = read(tmp_path, RULES.replace("[day]", f"[day]\n{holidays}"))
    program = (
        "import sys, pathlib; from txmq.reconcile.rules_file import read_rules\n"
        "print(read_rules(pathlib.Path(sys.argv[1])).digest)"
    )

    told = {
        subprocess.run(
            [sys.executable, "-c", program, tmp_path / "recon.toml"],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in range(4)
    }

    assert told == {rules.digest}


def test_an_environment_variable_replaces_a_secret(tmp_path):
    text = RULES.replace("sqlite:///icbc.db", "${ICBC}")

    assert read(tmp_path, text, ICBC="postgresql://bank").bank[0].database == "postgresql://bank"
    with pytest.raises(ConfigError, match="ICBC, which is not set"):
        read(tmp_path, text)


def banks_of(banks, *flows, topics=()):
    """The payer's and the payee's banks of the transfers of icbc."""
    bank = Bank("", EntryColumns(namespace="icbc"))
    rules = Rules("r", "d", tuple(replace(bank, name=name) for name in banks), LogRules("b", flows))
    found = rules.banks_of_transfer("icbc", topics)
    return found and tuple(" ".join(sorted(some)) for some in found)


@pytest.mark.parametrize(
    ("banks", "named", "payer", "payee"),
    [
        (["icbc", "ccb"], {}, "icbc", "ccb"),
        (["icbc", "ccb", "boc"], {}, "icbc", "boc ccb"),
        (["icbc", "ccb", "boc"], {"payee_bank": "boc"}, "icbc", "boc"),
        (["icbc", "ccb", "boc"], {"payer_bank": "ccb", "payee_bank": "icbc"}, "ccb", "icbc"),
        (["icbc"], {}, "icbc", "icbc"),
        (["x", "y"], {}, "x y", "x y"),
        (["x", "y"], {"payer_bank": "x"}, "x", "y"),
        (["x", "y"], {"payee_bank": "x"}, "x y", "x"),
    ],
)
def test_the_namespace_names_the_payers_bank_unless_the_flow_does(banks, named, payer, payee):
    assert banks_of(banks, Flow("t", "icbc", **named)) == (payer, payee)


def test_the_topic_of_an_order_decides_between_the_flows_of_a_namespace():
    banks = ["icbc", "ccb", "boc"]
    flows = [Flow(name, "icbc", payee_bank=name) for name in ("ccb", "boc")]

    assert banks_of(banks, *flows, topics={"boc"}) == ("icbc", "boc")
    assert banks_of(banks, *flows, topics={"ccb", "boc"}) == ("icbc", "boc ccb")
    assert banks_of(banks, *flows) == ("icbc", "boc ccb")
    assert banks_of(banks, Flow("ccb", "ccb")) is None


def test_a_day_with_an_afternoon_cut_off_begins_the_afternoon_before():
    start, end = Day(zone="Asia/Shanghai", cut_off="17:00").window(date(2026, 11, 20))

    assert datetime.fromtimestamp(start / 1000, UTC).isoformat() == "2026-11-19T09:00:00+00:00"
    assert end - start == 86_400_000


@pytest.mark.fault("T3")
def test_a_calendar_day_has_25_hours_when_summer_ends():
    start, end = Day(zone="Europe/Berlin").window(date(2026, 10, 25))

    assert end - start == 25 * 3_600_000


@pytest.mark.fault("T3")
@given(
    st.integers(0, 4_102_444_800_000),
    st.sampled_from(["UTC", "Asia/Shanghai", "America/New_York", "Australia/Lord_Howe"]),
    st.sampled_from(["00:00", "02:30", "17:00", "23:59"]),
)
def test_every_moment_belongs_to_one_day(ms, zone, cut_off):
    day = Day(zone=zone, cut_off=cut_off)
    found = day.of(ms)

    assert day.window(found).start_ms <= ms < day.window(found).end_ms
    assert day.window(found).end_ms == day.window(found + timedelta(days=1)).start_ms


def test_weekends_and_holidays_do_not_count_in_an_age():
    day, friday = Day(holidays=frozenset({date(2026, 11, 24)})), date(2026, 11, 20)
    ages = [day.age(friday, friday + timedelta(days=days)) for days in (0, 2, 5)]

    assert ages == [0, 0, 2]
