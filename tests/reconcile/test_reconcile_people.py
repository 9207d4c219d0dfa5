"""What people do with a day in the morning: look at its breaks, explain them, and sign."""

import csv
import json
from datetime import date, timedelta

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from tests.reconcile import breaks
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
from txmq.reconcile.summary import FIGURES, Control
from txmq.reconcile.tables import ENTRIES, ITEMS, PROOFS

DAY = date(2026, 3, 31)
OLD = {"break_id": "b2e1", "class": "dead-letter", "group": "break", "age_days": 9}
WORTHY = {"break_id": "b1aa", "class": "double-credit", "group": "break", "amount": 5_000}
SMALL = {"break_id": "b1ab", "class": "parked", "group": "break", "status": "open"}
WAITING = {"break_id": "b3ff", "class": "in-flight", "group": "open"}
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


def result(**more):
    told = {"name": "night", "rules_digest": "r", "verdict": "within limits", "totals": ()}
    return msgspec.structs.replace(breaks.run(DAY).result, **told | more)


def publish(home, run_id, found, **more):
    run = msgspec.structs.replace(
        breaks.run(DAY, run_id), result=found, result_digest=found.digest, **more
    )
    Results(home / "results").publish(run, {"summary.json": run.as_json()})


def rewrite(home, name, schema, rows):
    """Replace the rows of a table of the run that is in force."""
    place = home / "results/results" / name / f"business_date={DAY}" / "run=one/part-0.parquet"
    place.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows, arrow_schema(schema)), place)


@pytest.fixture
def home(tmp_path):
    """A directory with the results of a day, and its rules beside it."""
    (tmp_path / "recon.toml").write_text(RULES)
    results = Results(tmp_path / "results")
    rows = [item(**value) for value in (SMALL, WAITING, WORTHY, KNOWN, OLD)]
    items = pa.Table.from_pylist(rows, arrow_schema(ITEMS))
    contents = {"items": write_table(results, "items", items, DAY, "one")}
    rewrite(tmp_path, "closed", ITEMS, [])
    rewrite(tmp_path, "proofs", PROOFS, PROVED)
    publish(tmp_path, "one", result(contents=contents))
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


def refusal(found):
    assert (found.exit_code, found.stdout) == (3, ""), found.output
    return found.stderr


@pytest.fixture
def listed(asking):
    """The rows that a command lists."""
    return lambda noun, *more: json.loads(told(asking(noun, "--json", *more)))


@pytest.fixture
def explanations(home):
    return Explanations(home / "results")


def ids(rows):
    return [row["break_id"] for row in rows]


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ("", ["b2e1", "b1aa", "b1ab"]),
        ("--all", ["b2e1", "b1aa", "b1ab", "b3ff", "b4cc"]),
        ("--class in-flight", ["b3ff"]),
        ("--status open", ["b1ab"]),
        ("--account 6222020200011112222", ["b2e1", "b1aa", "b1ab"]),
        ("--older-than 8", ["b2e1"]),
        ("--bank icbc --class parked", ["b1ab"]),
    ],
)
def test_breaks_are_filtered_and_listed_oldest_first_and_then_by_amount(listed, more, found):
    assert ids(listed("breaks", *more.split())) == found


def test_a_list_without_breaks_says_so(asking):
    assert told(asking("breaks", "--status", "reopened")) == "no such breaks on 2026-03-31\n"


def test_a_suggestion_is_shown_in_the_list_and_in_the_export(home, asking, listed):
    rewrite(home, "items", ITEMS, [item(**OLD, id_doubt="case", suggestion="icbc/t-1")])

    assert "icbc/t-1" in told(asking("breaks"))
    assert listed("breaks")[0]["id_doubt"] == "case"
    told(asking("breaks", "--export", str(home / "breaks.csv")))
    assert "case,icbc/t-1" in (home / "breaks.csv").read_text()


def test_the_list_shows_doubtful_ids_and_both_ends_of_long_ones(home, asking, listed):
    """In a pipe a table is as wide as its widest cell, and these ids differ only at their end."""
    one, other = f"icbc/{'x' * 4_000}1", f"icbc/{'x' * 4_000}2"
    doubtful = OLD | {"id_doubt": "blanks, length"}
    pairs = (one, other), (other, one)
    rows = [item(**doubtful, suggestion=of) | {"key": key} for key, of in pairs]
    rewrite(home, "items", ITEMS, rows)

    text = told(asking("breaks", "--unmasked"))

    assert max(map(len, text.splitlines())) < 300
    assert text.count("blanks, length") == 2
    for key in (one, other):
        assert text.count(f"{key[:40]}…{key[-20:]}") == 2
    assert {one, other} < {row["key"] for row in listed("breaks")}


@pytest.mark.parametrize("source", ["postgresql://recon:${ICBC_PASSWORD}@icbc-db/icbc", "${ICBC}"])
def test_working_on_breaks_needs_no_database_password(home, asking, listed, source):
    (home / "recon.toml").write_text(RULES.replace("sqlite:///icbc.db", source))

    assert ids(listed("breaks")) == ["b2e1", "b1aa", "b1ab"]
    told(asking("breaks", "explain", "b2e1", "--by", "Li Na", "--reason", "voucher 771"))
    told(asking("signoff", "--show"))
    assert "which is not set" in asking("extract").stderr


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

    told_why = refusal(asking("breaks"))
    assert "items/business_date=2026-03-31/run=one has no files: run the day again" in told_why


def test_breaks_are_chosen_by_a_file_of_ids(asking, listed, tmp_path):
    named = "--file", str(tmp_path / "ids.txt")
    (tmp_path / "ids.txt").write_text("b1ab\nb2\n")

    assert ids(listed("breaks", *named)) == ["b2e1", "b1ab"]
    assert "'b1ab' matches no break" in refusal(asking("breaks", "--bank", "ccb", *named))


def test_the_console_finds_a_break_by_each_bank_that_booked_a_side(home):
    rewrite(home, "items", ITEMS, [item(**OLD, credit_bank="boc / ccb")])
    archive = ReportArchive(home / "results")

    found = {
        bank: len(archive.breaks(DAY, ItemFilter(bank=bank), 0, 10).rows)
        for bank in ("boc", "ccb", "cb")
    }

    assert found == {"boc": 1, "ccb": 1, "cb": 0}


def test_many_breaks_are_explained_together_or_not_at_all(asking, explanations):
    call = "breaks", "explain", "--account", "6222020200011112222", "--by", "Li", "--reason", "so"
    refused = asking(*call)
    assert (refused.exit_code, explanations.in_force()) == (3, [])
    assert "3 breaks: 52.00 CNY at risk" in refused.stderr
    assert "add --yes" in refused.stderr

    done = asking(*call, "--yes")

    assert (done.exit_code, done.stdout.count("\n")) == (0, 3)
    held = explanations.in_force()
    assert [explanation.break_id for explanation in held] == ["b1aa", "b1ab", "b2e1"]
    proofs = [list(explanation.proofs.values()) for explanation in held]
    assert proofs == [[(100,)]] * 3, "of their transfer"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("breaks", "b1"), "matches several breaks"),
        (("breaks", "x"), "matches no break"),
        (("breaks",), "name breaks by their ids"),
        (("breaks", "--bank", "none"), "no such breaks on 2026-03-31; nothing was written"),
        (("breaks", "--class", "none"), "class 'none' does not exist; use one of duplicate-id, "),
        (("proofs",), "name differences by their ids"),
        (("proofs", "--bank", "none"), "no such differences on 2026-03-31; nothing was written"),
        (("proofs", "--proof", "none"), "proof 'none' does not exist; use one of roll-forward, "),
        (("proofs", "zz"), "'zz' matches no difference"),
    ],
)
def test_an_explanation_that_covers_nothing_certain_is_refused_with_the_reason(
    asking, explanations, more, why
):
    noun, *rest = more

    assert why in refusal(asking(noun, "explain", "--by", "Li", "--reason", "so", *rest))
    assert explanations.in_force() == []


def test_a_break_has_an_owner_and_an_overdue_date(asking, listed):
    told(asking("breaks", "assign", "b2", "--by", "Li", "--owner", "Wu", "--due", "2026-04-01",
                "--ticket", "https://tickets/7", "--comment", "asked ccb"))  # fmt: skip
    told(asking("breaks", "assign", "b2", "--by", "Wu", "--comment", "no answer"))

    row = listed("breaks", "--class", "dead-letter")[0]
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
    assert "is not .csv" in refusal(asking("breaks", "--export", "out.pdf"))


def test_the_differences_of_proofs_are_listed_with_a_hint(asking, listed):
    assert [
        (row["proof"], row["account"], row["amounts"], row["hint"]) for row in listed("proofs")
    ] == [
        ("account-table", "62…2222", [5_000], "like b1aa"),
        ("conservation", None, [-7], None),
        ("double-entry", "icbc/1", [100], None),
    ]
    assert "6222020200011112222" not in told(asking("proofs"))
    assert "+50.00" in told(asking("proofs", "--unmasked", "--account", "6222020200011112222"))


def test_a_failed_roll_forward_names_the_transfer_whose_entry_it_may_lack(home, listed):
    """An operator has deleted a credit of yesterday, and its transfer was agreed then."""
    yesterday = DAY - timedelta(days=1)
    extract = home / "results/extracts" / f"{yesterday}" / "e"
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
    publish(home, "before", result(business_date=f"{yesterday}"), extract_id=manifest.own_id)
    publish(home, "one", result(), previous_run_id="before")
    lost = PROVED[0] | {"proof": "roll-forward", "account": "bob", "expected": 50, "found": 0}
    rewrite(home, "proofs", PROOFS, [lost])

    (found,) = listed("proofs")

    assert found["amounts"] == [-50]
    assert found["hint"] == f"like icbc/gone of {yesterday}, row 17 of {yesterday}"


def test_a_difference_is_explained_by_a_filter_and_withdrawn(asking, listed):
    id_ = listed("proofs", "--proof", "account-table")[0]["id"]
    who = "--by", "Wu", "--reason", "edited"

    said = told(asking("proofs", "explain", "--bank", "icbc", "--proof", "account-table", *who,
                       "--until", "2026-06-30"))  # fmt: skip

    assert said.startswith(
        f"{id_} counts as explained from the next run on, for the dates 2026-03-31 to 2026-06-30"
    )
    assert [row["proof"] for row in listed("proofs")] == ["conservation", "double-entry"]
    (row, *_) = listed("proofs", "--all")
    assert (row["explained_by"], row["until"]) == ("Wu", "2026-06-30")
    told(asking("proofs", "withdraw", id_, *who, dated=False))
    assert len(listed("proofs")) == 3
    assert asking("proofs", "explain", "--bank", "icbc", *who).exit_code == 3, "without --yes"


def test_differences_are_chosen_by_a_file_of_ids(asking, listed, explanations, tmp_path):
    first, second, _ = (row["id"] for row in listed("proofs"))
    (tmp_path / "ids.txt").write_text(f"{first}\n{second[:8]}\n{first}\n")
    named = "--file", str(tmp_path / "ids.txt")
    who = "--by", "Wu", "--reason", "edited"

    assert [row["id"] for row in listed("proofs", *named)] == [first, second]
    wrong = asking("proofs", *named, "--bank", "icbc")
    assert f"{second[:8]!r} matches no difference" in wrong.stderr

    asked = asking("proofs", "explain", *named, *who)
    assert (asked.exit_code, explanations.proofs_in_force()) == (3, [])
    assert f"{first} account-table: +50.00" in asked.stderr
    assert "Write this for all 2 differences? This cannot ask" in asked.stderr
    assert asking("proofs", "explain", *named, *who, "--yes").exit_code == 0
    assert len(listed("proofs")) == 1
    assert len(listed("proofs", *named)) == 2, "ids find explained ones"


def test_a_break_is_explained_by_the_beginning_of_its_id(asking, explanations):
    said = told(asking("breaks", "explain", "b2", "--by", "Li", "--reason", "paid by hand"))

    (held,) = explanations.in_force()
    assert (held.break_id, held.class_, held.by) == ("b2e1", "dead-letter", "Li")
    assert said == (
        "b2e1 counts as explained from the next run on, as long as it is dead-letter and its facts "
        "do not change\n"
    )
    known = item(**OLD)
    assert held.figures == {figure: known[figure] for figure in FIGURES}


def test_a_new_explanation_of_an_explained_break_has_its_original_class(asking, explanations):
    told(asking("breaks", "explain", "b4cc", "--by", "Li", "--reason", "still"))

    assert explanations.in_force()[0].class_ == "parked"


def test_an_explanation_can_be_withdrawn_once(asking, explanations):
    told(asking("breaks", "explain", "b2e1", "--by", "Li", "--reason", "paid by hand"))
    withdrawing = "breaks", "withdraw", "b2e1", "--by", "Wu", "--reason", "no"
    told(asking(*withdrawing, dated=False))

    assert explanations.in_force() == []
    again = asking(*withdrawing, dated=False)
    assert (again.exit_code, again.stderr.count("\n")) == (3, 1)


def test_a_day_is_signed_by_two_different_people(asking):
    first = told(asking("signoff", "--as", "preparer", "--by", "Li", "--note", "all seen"))
    same = asking("signoff", "--as", "reviewer", "--by", " li ")
    second = told(asking("signoff", "--as", "reviewer", "--by", "Wu"))
    shown = json.loads(told(asking("signoff", "--show", "--json")))

    assert first.startswith("2026-03-31: prepared, within limits, ")
    assert "another person must review it" in refusal(same)
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

    assert refusal(asking("signoff", "--as", role, "--by", "Wu")) == (
        "txmq: items of 2026-03-31 changed since run one wrote them: run the day again\n"
    )
    assert "Wu" not in told(asking("signoff", "--show"))


def test_a_day_cannot_be_signed_if_the_day_before_has_a_new_result(asking, home):
    told(asking("signoff", "--as", "preparer", "--by", "Li"))
    publish(home, "zero", result(business_date="2026-03-30"))
    why = (
        "2026-03-31 was not made from the result of 2026-03-30 that is in force: run it again, "
        "and all after it, with --from 2026-03-31 --to 2026-03-31"
    )

    shown = told(asking("signoff", "--show")).splitlines()
    found = asking("signoff", "--as", "reviewer", "--by", "Wu")

    assert shown[0].startswith("2026-03-31: invalidated, ")
    assert shown[1] == why
    assert refusal(found) == f"txmq: {why}\n"
    assert json.loads(told(asking("signoff", "--show", "--json")))["outdated"] == why


def test_a_rerun_warns_about_later_days_that_no_longer_hold(home, capsys):
    results = Results(home / "results")
    warn_of_later_days(results)
    assert capsys.readouterr() == ("", "")
    publish(home, "zero", result(business_date="2026-03-30"))

    warn_of_later_days(results)

    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("txmq: 2026-03-31 was not made from the result of 2026-03-30 that")


def test_a_new_result_invalidates_the_signature(asking, home):
    told(asking("signoff", "--as", "preparer", "--by", "Li"))
    publish(home, "two", result(closed=1))

    text = told(asking("signoff", "--show"))

    assert text.startswith("2026-03-31: invalidated, ")
    assert "another one" in text


def test_signing_requires_a_role(asking):
    assert "--as preparer or --as reviewer" in refusal(asking("signoff", "--by", "Li"))
