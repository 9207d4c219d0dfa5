"""What people do with a day in the morning: look at its breaks, explain them, and sign."""

import csv
import json
from datetime import date, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from tests.reconcile.dying_run import write_table
from tests.reconcile.test_reconcile_cli import RULES
from txmq.cli.reconcile import warn_of_later_days
from txmq.cli.root import app
from txmq.reconcile.archive import ItemFilter, ReportArchive
from txmq.reconcile.arrow import arrow_schema
from txmq.reconcile.differences import OF_ACCOUNTS, OF_TRANSFERS
from txmq.reconcile.explanations import Explanations
from txmq.reconcile.extract.manifest import ExtractedSource, ExtractedTable, Manifest, Part
from txmq.reconcile.results import Results
from txmq.reconcile.storage import LocalFolder
from txmq.reconcile.summary import FIGURES, Control, Result, Run
from txmq.reconcile.tables import ENTRIES, ITEMS, PROOFS

DAY = date(2026, 3, 31)
OLD = {"break_id": "b2e1", "class": "dead-letter", "group": "break", "age_days": 9}
WORTHY = {"break_id": "b1aa", "class": "double-credit", "group": "break", "amount": 5_000}
SMALL = {"break_id": "b1ab", "class": "parked", "group": "break", "status": "open"}
WAITING = {"break_id": "b3ff", "class": "in-flight", "group": "open"}
TOLD = ("report.html", "summary.json")
PROVED = [
    {
        "proof": proof, "bank": bank, "account": account, "currency": "CNY", "expected": 0,
        "found": found, "holds": not found, "about": "both are equal",
        "first_seen": None if proof in OF_ACCOUNTS + OF_TRANSFERS and not account else str(DAY),
    }
    for proof, bank, account, found in (
        ("account-table", "icbc", "6222020200011112222", 5_000),
        ("account-table", "icbc", None, 5_000),
        ("conservation", None, None, -7),
        ("double-entry", "icbc", "icbc/1", 100),
        ("double-entry", "icbc", None, 100),
    )
]  # fmt: skip
KNOWN = {"break_id": "b4cc", "class": "explained", "was": "parked", "group": "open"}


def item(**more):
    plain = {"string": "", "long": 0, "int": 0, "boolean": False}
    made = {
        column.name: None if column.is_optional else plain[column.type] for column in ITEMS.columns
    }
    made |= {"status": "new", "amount": 100, "currency": "CNY", "bucket": "0"}
    made |= {"debit_bank": "icbc"}
    return made | {"key": "icbc/1", "payer": "6222020200011112222", "payee": "p\x1b[2J"} | more


def result(verdict="within limits", **more):
    return Result(
        name="night",
        rules_version="1",
        rules_digest="r",
        start_ms=0,
        end_ms=1,
        as_of_ms=1,
        is_final=True,
        verdict=verdict,
        why=(),
        controls=(),
        totals=(),
        aging=(),
        proofs=(),
        broken_proofs=0,
        items=(),
        closed=0,
        decisions=(),
        decided_by_hand=0,
        digits={"CNY": 2},
        **{"business_date": DAY.isoformat(), "contents": {}} | more,
    )


def publish(directory, run_id, found, **more):
    run = Run(
        run_id=run_id,
        **{"extract_id": "e"} | more,
        result=found,
        result_digest=found.digest,
        trend=(),
        stages=(),
        began_ms=0,
        ended_ms=1,
        txmq_version="",
        spark_version="",
    )
    Results(directory).publish(run, {"summary.json": run.as_json()})
    return run


@pytest.fixture
def home(tmp_path):
    """A directory with the results of a day, and its rules beside it."""
    (tmp_path / "recon.toml").write_text(RULES)
    results = tmp_path / "results"
    rows = [item(**value) for value in (SMALL, WAITING, WORTHY, KNOWN, OLD)]
    items = pa.Table.from_pylist(rows, arrow_schema(ITEMS))
    contents = {"items": write_table(Results(results), "items", items, DAY, "one")}
    for name, schema, content in (
        ("closed", ITEMS, []), ("proofs", PROOFS, PROVED),
    ):  # fmt: skip
        place = results / "results" / name / f"business_date={DAY}" / "run=one"
        place.mkdir(parents=True)
        table = pa.Table.from_pylist(content, arrow_schema(schema))
        parquet.write_table(table, place / "part-0.parquet")
    publish(results, "one", result(contents=contents))
    return tmp_path


@pytest.fixture
def asking(home):
    def run(*arguments, dated=True):
        options = ["--config", str(home / "recon.toml"), *(["--date", f"{DAY}"] if dated else [])]
        return CliRunner().invoke(app, ["reconcile", *arguments, *options])

    return run


def told(found):
    assert (found.exit_code, found.stderr) == (0, ""), found.output
    return found.stdout


def ids(found):
    return [load["break_id"] for load in json.loads(told(found))]


def test_breaks_are_listed_oldest_first_and_then_by_amount(asking):
    assert ids(asking("breaks", "--json")) == ["b2e1", "b1aa", "b1ab"]
    assert ids(asking("breaks", "--json", "--all")) == ["b2e1", "b1aa", "b1ab", "b3ff", "b4cc"]


def test_a_suggestion_is_shown_in_the_list_and_in_the_export(home, asking):
    place = home / "results/results/items" / f"business_date={DAY}" / "run=one/part-0.parquet"
    rows = [item(**OLD, id_doubt="case", suggestion="icbc/t-1")]
    parquet.write_table(pa.Table.from_pylist(rows, arrow_schema(ITEMS)), place)

    assert "icbc/t-1" in told(asking("breaks"))
    assert json.loads(told(asking("breaks", "--json")))[0]["id_doubt"] == "case"
    told(asking("breaks", "--export", str(home / "breaks.csv")))
    assert "case,icbc/t-1" in (home / "breaks.csv").read_text()


def test_the_list_shows_doubtful_ids_and_both_ends_of_long_ones(home, asking):
    """In a pipe a table is as wide as its widest cell, and these ids differ only at their end."""
    place = home / "results/results/items" / f"business_date={DAY}" / "run=one/part-0.parquet"
    one, other = f"icbc/{'x' * 4_000}1", f"icbc/{'x' * 4_000}2"
    rows = [
        item(**OLD | {"key": key, "suggestion": of, "id_doubt": "blanks, length"})
        for key, of in ((one, other), (other, one))
    ]
    parquet.write_table(pa.Table.from_pylist(rows, arrow_schema(ITEMS)), place)

    text = told(asking("breaks", "--unmasked"))

    assert max(map(len, text.splitlines())) < 300
    assert text.count("blanks, length") == 2
    for key in (one, other):
        assert text.count(f"{key[:40]}…{key[-20:]}") == 2
    assert {one, other} < {row["key"] for row in json.loads(told(asking("breaks", "--json")))}


@pytest.mark.parametrize("source", ["postgresql://recon:${ICBC_PASSWORD}@icbc-db/icbc", "${ICBC}"])
def test_working_on_breaks_needs_no_database_password(home, asking, source):
    rules = home / "recon.toml"
    rules.write_text(RULES.replace("sqlite:///icbc.db", source))

    assert ids(asking("breaks", "--json")) == ["b2e1", "b1aa", "b1ab"]
    told(asking("breaks", "explain", "b2e1", "--by", "Li Na", "--reason", "voucher 771"))
    told(asking("signoff", "--show"))
    assert "which is not set" in asking("extract").stderr


def test_breaks_are_filtered_by_class_and_status(asking):
    assert ids(asking("breaks", "--json", "--class", "in-flight")) == ["b3ff"]
    assert ids(asking("breaks", "--json", "--status", "open")) == ["b1ab"]
    assert told(asking("breaks", "--status", "reopened")) == "no such breaks on 2026-03-31\n"


def test_account_numbers_are_masked_unless_unmasked_is_given(asking):
    assert "6222020200011112222" not in asking("breaks").stdout
    assert "6222020200011112222" not in asking("breaks", "--json").stdout
    assert "6222020200011112222" in asking("breaks", "--unmasked").stdout


def test_the_table_shows_major_units_and_no_terminal_escapes(asking):
    text = told(asking("breaks", "--unmasked"))

    assert "50.00" in text
    assert "\x1b" not in text


def test_missing_items_are_an_error_and_not_a_clean_day(asking, home):
    for path in (home / "results" / "results").rglob("*.parquet"):
        path.unlink()

    found = asking("breaks")

    assert (found.exit_code, found.stdout) == (3, "")
    assert "items/business_date=2026-03-31/run=one has no files: run the day again" in found.stderr


def test_breaks_are_filtered_by_bank_account_age_and_a_file(asking, tmp_path):
    (tmp_path / "ids.txt").write_text("b1ab\nb2\n")

    assert ids(asking("breaks", "--json", "--account", "6222020200011112222")) == [
        "b2e1", "b1aa", "b1ab",
    ]  # fmt: skip
    assert ids(asking("breaks", "--json", "--older-than", "8")) == ["b2e1"]
    assert ids(asking("breaks", "--json", "--bank", "icbc", "--class", "parked")) == ["b1ab"]
    assert ids(asking("breaks", "--json", "--file", str(tmp_path / "ids.txt"))) == ["b2e1", "b1ab"]
    wrong = asking("breaks", "--bank", "ccb", "--file", str(tmp_path / "ids.txt"))
    assert (wrong.exit_code, wrong.stdout) == (3, "")
    assert "'b1ab' matches no break" in wrong.stderr


def test_the_console_finds_a_break_by_each_bank_that_booked_a_side(home):
    place = home / "results/results/items" / f"business_date={DAY}" / "run=one/part-0.parquet"
    rows = [item(**OLD, credit_bank="boc / ccb")]
    parquet.write_table(pa.Table.from_pylist(rows, arrow_schema(ITEMS)), place)
    archive = ReportArchive(home / "results")

    found = {
        bank: len(archive.breaks(DAY, ItemFilter(bank=bank), 0, 10).rows)
        for bank in ("boc", "ccb", "cb")
    }

    assert found == {"boc": 1, "ccb": 1, "cb": 0}


def test_many_breaks_are_explained_together_or_not_at_all(asking, home):
    call = "breaks", "explain", "--account", "6222020200011112222", "--by", "Li", "--reason", "so"
    refused = asking(*call)
    assert (refused.exit_code, Explanations(home / "results").in_force()) == (3, [])
    assert "3 breaks: 52.00 CNY at risk" in refused.stderr
    assert "add --yes" in refused.stderr

    done = asking(*call, "--yes")

    assert (done.exit_code, done.stdout.count("\n")) == (0, 3)
    held = Explanations(home / "results").in_force()
    assert [explanation.break_id for explanation in held] == ["b1aa", "b1ab", "b2e1"]
    assert [list(explanation.proofs.values()) for explanation in held] == [[(100,)]] * 3, (
        "of their transfer"
    )


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("breaks",), "name breaks by their ids"),
        (("breaks", "--bank", "none"), "no such breaks on 2026-03-31; nothing was written"),
        (("breaks", "--class", "none"), "class 'none' does not exist; use one of duplicate-id, "),
        (("proofs",), "name differences by their ids"),
        (("proofs", "--bank", "none"), "no such differences on 2026-03-31; nothing was written"),
        (("proofs", "--proof", "none"), "proof 'none' does not exist; use one of roll-forward, "),
        (("proofs", "zz"), "'zz' matches no difference"),
    ],
)
def test_an_explanation_that_covers_nothing_is_refused_with_the_reason(asking, home, more, why):
    noun, *rest = more
    found = asking(noun, "explain", "--by", "Li", "--reason", "so", *rest)

    assert (found.exit_code, found.stdout) == (3, "")
    assert why in found.stderr
    assert Explanations(home / "results").in_force() == []


def test_a_break_has_an_owner_and_an_overdue_date(asking):
    told(asking("breaks", "assign", "b2", "--by", "Li", "--owner", "Wu", "--due", "2026-04-01",
                "--ticket", "https://tickets/7", "--comment", "asked ccb"))  # fmt: skip
    told(asking("breaks", "assign", "b2", "--by", "Wu", "--comment", "no answer"))

    row = json.loads(told(asking("breaks", "--json", "--class", "dead-letter")))[0]
    assert (row["owner"], row["ticket"], row["due"], row["overdue"]) == (
        "Wu", "https://tickets/7", "2026-04-01", "overdue",
    )  # fmt: skip
    assert [line.split(" ", 2)[2] for line in row["comments"].splitlines()] == [
        "Li: asked ccb", "Wu: no answer",
    ]  # fmt: skip
    assert "2026-04-01" in told(asking("breaks"))
    empty = asking("breaks", "assign", "b2", "--by", "Li")
    assert empty.exit_code == 3
    assert "give your name, and --owner" in empty.stderr


def test_breaks_are_exported_for_a_spreadsheet(asking, tmp_path):
    path = tmp_path / "out.csv"
    assert told(asking("breaks", "--export", str(path))) == f"3 breaks in {path}\n"

    rows = list(csv.DictReader(path.read_text("utf-8-sig").splitlines()))
    assert [(row["break_id"], row["amount"], row["payer"]) for row in rows] == [
        ("b2e1", "1.00", "62…2222"), ("b1aa", "50.00", "62…2222"), ("b1ab", "1.00", "62…2222"),
    ]  # fmt: skip
    wrong = asking("breaks", "--export", "out.pdf")
    assert (wrong.exit_code, "is not .csv" in wrong.stderr) == (3, True)


def test_the_differences_of_proofs_are_listed_with_a_hint(asking):
    rows = json.loads(told(asking("proofs", "--json")))

    assert [(row["proof"], row["account"], row["amounts"], row["hint"]) for row in rows] == [
        ("account-table", "62…2222", [5_000], "like b1aa"),
        ("conservation", None, [-7], None),
        ("double-entry", "icbc/1", [100], None),
    ]
    assert "6222020200011112222" not in told(asking("proofs"))
    assert "+50.00" in told(asking("proofs", "--unmasked", "--account", "6222020200011112222"))


def test_a_failed_roll_forward_names_the_transfer_whose_entry_it_may_lack(home, asking):
    """An operator has deleted a credit of yesterday, and its transfer was agreed then."""
    results, yesterday = home / "results", DAY - timedelta(days=1)
    extract = results / "extracts" / f"{yesterday}" / "e"
    name = "books/source=icbc/table=entries/part-0.parquet"
    (extract / name).parent.mkdir(parents=True)
    row = {"role": "customer", "kind": "credit", "booked_ms": 1, "recorded_ms": 1}
    row |= {"id": 1, "account": "bob", "currency": "CNY"}
    rows = [
        row | {"key": "icbc/gone", "amount": 50},
        row | {"key": "icbc/other-amount", "amount": 51},
        row | {"key": "icbc/other-account", "amount": 50, "account": "eve"},
        row | {"key": None, "id": 17, "amount": 50},
    ]
    parquet.write_table(pa.Table.from_pylist(rows, arrow_schema(ENTRIES)), extract / name)
    control, parts = Control("icbc", "entries", 4), (Part(name, 4, 1, ""),)
    table = ExtractedTable("entries", control, "", parts)
    source = ExtractedSource("icbc", "sqlite", "", 1, 1, (table,))
    manifest = Manifest("e", "night", "1", "r", f"{yesterday}", 0, 1, 1, (source,))
    msgspec.structs.replace(manifest, extract_id=manifest.own_id).write(LocalFolder(extract))
    extract.rename(extract.with_name(manifest.own_id))
    publish(results, "before", result(business_date=f"{yesterday}"), extract_id=manifest.own_id)
    publish(results, "one", result(), previous_run_id="before")
    place = results / "results/proofs" / f"business_date={DAY}" / "run=one/part-0.parquet"
    lost = PROVED[0] | {"proof": "roll-forward", "account": "bob", "expected": 50, "found": 0}
    parquet.write_table(pa.Table.from_pylist([lost], arrow_schema(PROOFS)), place)

    (found,) = json.loads(told(asking("proofs", "--json")))

    assert found["amounts"] == [-50]
    assert found["hint"] == f"like icbc/gone of {yesterday}, row 17 of {yesterday}"


def test_a_difference_is_explained_by_a_filter_and_withdrawn(asking, home):
    id_ = json.loads(told(asking("proofs", "--json", "--proof", "account-table")))[0]["id"]
    who = "--by", "Wu", "--reason", "edited"

    said = told(asking("proofs", "explain", "--bank", "icbc", "--proof", "account-table", *who,
                       "--until", "2026-06-30"))  # fmt: skip

    assert said.startswith(
        f"{id_} counts as explained from the next run on, for the dates 2026-03-31 to 2026-06-30"
    )
    assert [row["proof"] for row in json.loads(told(asking("proofs", "--json")))] == [
        "conservation", "double-entry",
    ]  # fmt: skip
    (row, *_) = json.loads(told(asking("proofs", "--json", "--all")))
    assert (row["explained_by"], row["until"]) == ("Wu", "2026-06-30")
    told(asking("proofs", "withdraw", id_, *who, dated=False))
    assert len(json.loads(told(asking("proofs", "--json")))) == 3
    assert asking("proofs", "explain", "--bank", "icbc", *who).exit_code == 3, "without --yes"


def test_differences_are_chosen_by_a_file_of_ids(asking, home, tmp_path):
    first, second, _ = (row["id"] for row in json.loads(told(asking("proofs", "--json"))))
    (tmp_path / "ids.txt").write_text(f"{first}\n{second[:8]}\n{first}\n")
    named = "--file", str(tmp_path / "ids.txt")
    who = "--by", "Wu", "--reason", "edited"

    rows = json.loads(told(asking("proofs", "--json", *named)))
    assert [row["id"] for row in rows] == [first, second]
    wrong = asking("proofs", *named, "--bank", "icbc")
    assert f"{second[:8]!r} matches no difference" in wrong.stderr

    asked = asking("proofs", "explain", *named, *who)
    assert (asked.exit_code, Explanations(home / "results").proofs_in_force()) == (3, [])
    assert f"{first} account-table: +50.00" in asked.stderr
    assert "Write this for all 2 differences? This cannot ask" in asked.stderr
    assert asking("proofs", "explain", *named, *who, "--yes").exit_code == 0
    assert len(json.loads(told(asking("proofs", "--json")))) == 1
    assert len(json.loads(told(asking("proofs", "--json", *named)))) == 2, "ids find explained ones"


def test_a_break_is_explained_by_the_beginning_of_its_id(asking, home):
    said = told(asking("breaks", "explain", "b2", "--by", "Li", "--reason", "paid by hand"))

    (held,) = Explanations(home / "results").in_force()
    assert (held.break_id, held.class_, held.by) == ("b2e1", "dead-letter", "Li")
    assert said == (
        "b2e1 counts as explained from the next run on, as long as it is dead-letter and its facts "
        "do not change\n"
    )
    known = item(**OLD)
    assert held.figures == {figure: known[figure] for figure in FIGURES}


def test_a_new_explanation_of_an_explained_break_has_its_original_class(asking, home):
    told(asking("breaks", "explain", "b4cc", "--by", "Li", "--reason", "still"))

    assert Explanations(home / "results").in_force()[0].class_ == "parked"


@pytest.mark.parametrize(
    ("named", "why"), [("b1", "matches several breaks"), ("x", "matches no break")]
)
def test_an_ambiguous_or_unknown_break_id_is_refused(asking, home, named, why):
    found = asking("breaks", "explain", named, "--by", "Li", "--reason", "so")

    assert found.exit_code == 3
    assert why in found.stderr
    assert Explanations(home / "results").in_force() == []


def test_an_explanation_can_be_withdrawn_once(asking, home):
    told(asking("breaks", "explain", "b2e1", "--by", "Li", "--reason", "paid by hand"))
    told(asking("breaks", "withdraw", "b2e1", "--by", "Wu", "--reason", "no", dated=False))

    assert Explanations(home / "results").in_force() == []
    again = asking("breaks", "withdraw", "b2e1", "--by", "Wu", "--reason", "no", dated=False)
    assert (again.exit_code, again.stderr.count("\n")) == (3, 1)


def test_a_day_is_signed_by_two_different_people(asking):
    first = told(asking("signoff", "--as", "preparer", "--by", "Li", "--note", "all seen"))
    same = asking("signoff", "--as", "reviewer", "--by", " li ")
    second = told(asking("signoff", "--as", "reviewer", "--by", "Wu"))
    shown = json.loads(told(asking("signoff", "--show", "--json")))

    assert first.startswith("2026-03-31: prepared, within limits, ")
    assert (same.exit_code, same.stdout) == (3, "")
    assert "another person must review it" in same.stderr
    assert second.startswith("2026-03-31: signed, ")
    assert (shown["state"], shown["outdated"]) == ("signed", None)
    assert [row["by"] for row in shown["signatures"]] == ["Li", "Wu"]


def test_the_page_and_the_summary_say_who_has_signed(asking, home):
    run = Results(home / "results").current(DAY)

    def said():
        files = Results(home / "results").folder_of(run)
        summary = json.loads(files.read("summary.json"))
        by = summary["sign_off"] and summary["sign_off"]["reviewer"]
        page = files.read("report.html").decode() if files.exists("report.html") else ""
        return summary["figures"]["signature"], by, "Two people have signed" in page

    assert said() == ("unsigned", None, False)
    told(asking("signoff", "--as", "preparer", "--by", "Li"))
    assert said() == ("prepared", "", False)
    told(asking("signoff", "--as", "reviewer", "--by", "Wu"))
    assert said() == ("signed", "Wu", True)


@pytest.mark.parametrize("role", ["preparer", "reviewer"])
def test_a_result_whose_tables_changed_cannot_be_signed(asking, home, role):
    if role == "reviewer":
        told(asking("signoff", "--as", "preparer", "--by", "Li"))
    (path,) = (home / "results" / "results" / "items").rglob("*.parquet")
    parquet.write_table(parquet.read_table(path).slice(1), path)

    found = asking("signoff", "--as", role, "--by", "Wu")

    assert (found.exit_code, found.stdout) == (3, "")
    assert found.stderr == (
        "txmq: items of 2026-03-31 changed since run one wrote them: run the day again\n"
    )
    assert "Wu" not in told(asking("signoff", "--show"))


def test_a_day_cannot_be_signed_if_the_day_before_has_a_new_result(asking, home):
    told(asking("signoff", "--as", "preparer", "--by", "Li"))
    before = result(business_date="2026-03-30")
    publish(home / "results", "zero", before)
    why = (
        "2026-03-31 was not made from the result of 2026-03-30 that is in force: run it again, "
        "and all after it, with --from 2026-03-31 --to 2026-03-31"
    )

    shown = told(asking("signoff", "--show")).splitlines()
    found = asking("signoff", "--as", "reviewer", "--by", "Wu")

    assert shown[0].startswith("2026-03-31: invalidated, ")
    assert shown[1] == why
    assert (found.exit_code, found.stdout, found.stderr) == (3, "", f"txmq: {why}\n")
    assert json.loads(told(asking("signoff", "--show", "--json")))["outdated"] == why


def test_a_rerun_warns_about_later_days_that_no_longer_hold(home, capsys):
    results = Results(home / "results")
    warn_of_later_days(results)
    assert capsys.readouterr() == ("", "")
    publish(home / "results", "zero", result(business_date="2026-03-30"))

    warn_of_later_days(results)

    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("txmq: 2026-03-31 was not made from the result of 2026-03-30 that")


def test_a_new_result_invalidates_the_signature(asking, home):
    told(asking("signoff", "--as", "preparer", "--by", "Li"))
    publish(Path(home, "results"), "two", msgspec.structs.replace(result(), closed=1))

    text = told(asking("signoff", "--show"))

    assert text.startswith("2026-03-31: invalidated, ")
    assert "another one" in text


def test_signing_requires_a_role(asking):
    found = asking("signoff", "--by", "Li")

    assert (found.exit_code, found.stdout) == (3, "")
    assert "--as preparer or --as reviewer" in found.stderr
