"""Whole runs: banks and a broker's log go in, a verdict comes out, and the next day goes on."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys

import msgspec
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.reconcile.whole_stage import (
    FRIDAY,
    PAYEE,
    PAYER,
    SATURDAY,
    THURSDAY,
    WEDNESDAY,
    Halted,
    HaltedAt,
    Posting,
    Stage,
    at,
)
from tests.servers import spark_session
from tests.servers.serving import CHECKOUT
from tests.soak import only_in_soak
from txmq.cli.root import app
from txmq.errors import ReconcileRefused
from txmq.reconcile import day as one_day
from txmq.reconcile import frames
from txmq.reconcile.day import check_all_was_read
from txmq.reconcile.explanations import Explanation, Explanations
from txmq.reconcile.extract.manifest import FILE, Manifest
from txmq.reconcile.ledgers import Role
from txmq.reconcile.storage import LocalFolder

pytestmark = pytest.mark.timeout(600)  # The first of them starts Spark.

FILES = ["metrics.prom", "report.html", "run.json", "summary.json"]


def counted(done):
    return {total.class_: total.transfers for total in done.result.totals}


def proofs_of(done, name):
    return [proof for proof in done.result.proofs if proof.proof == name]


def sign(stage, done):
    results = stage.results()
    why = done.result.unsolved and "known"
    results.sign("preparer", done, "Li Na", 1, despite=why)
    return results.sign("reviewer", done, "Wang Wei", 2, despite=why)


def told_of(stage, done):
    """The signatures in the JSON and the page: the state, the preparer, and the signed result."""
    summary = json.loads(stage.results().folder_of(done).read("summary.json"))
    page = stage.results().folder_of(done).read("report.html").decode()
    state, by = summary["figures"]["signature"], summary["sign_off"]["preparer"]
    section = page[page.index('<h2 id="signatures">') :]
    assert section.index(f">{state}<") < section.index(by)
    return state, by, summary["sign_off"]["result_digest"]


def explain(stage, item):
    people = Explanations(stage.directory)
    people.add([Explanation.of(item, "Li Na", "the payee's bank books it on Monday", 1)])


# An honest day


def test_an_honest_day_is_clean(wednesday):
    stage, done = wednesday

    assert (done.result.verdict, done.result.why) == ("clean", ())
    assert counted(done) == {"in-flight": 1, "rolled-back": 1, "matched": 8}
    assert all(proof.holds for proof in done.result.proofs)
    found = stage.results().current(WEDNESDAY)
    assert found == done
    told = {file: stage.results().folder_of(done).read(file) for file in FILES}
    assert stage.results().folder_of(done).files() == FILES
    assert told["summary.json"] == done.as_json()
    assert done.run_id in told["report.html"].decode()
    assert 'txmq_reconcile_info{name="icbc-ccb"' in told["metrics.prom"].decode()


def test_results_are_written_to_the_database_too(wednesday):
    stage, done = wednesday

    runs = "SELECT run_id, is_current, verdict, transfers, breaks FROM recon_runs"
    assert stage.recon(runs) == [(done.run_id, 1, "clean", 10, 0)]
    items = 'SELECT run_id, "key", "class", amount FROM recon_items'
    assert stage.recon(items) == [(done.run_id, "icbc/night", "in-flight", 88_00)]
    totals = 'SELECT "class", transfers FROM recon_totals ORDER BY number'
    assert dict(stage.recon(totals)) == counted(done)


def test_the_start_of_spark_counts_in_the_duration_of_the_first_date(wednesday, thursday):
    (_, first), (_, second) = wednesday, thursday

    assert first.stages[0].name == "start Spark"
    assert first.ended_ms - first.began_ms > 100_000
    assert second.stages[0].name == "extract"


@pytest.mark.fault("R7")
def test_rerunning_a_date_gives_the_same_rows(spark, wednesday, tmp_path):
    """Even if it is signed, one table was changed since, and all others are gone."""
    _, done = wednesday
    stage = wednesday[0].copy(tmp_path / "again")
    sign(stage, done)
    damage(stage, done, "items")
    with pytest.raises(ReconcileRefused, match="items of 2024-03-06 changed since run"):
        stage.results().verify(done)
    for table in (stage.directory / "results").iterdir():
        if table.name != "items":
            shutil.rmtree(table)

    again = stage.run(spark, WEDNESDAY)

    assert (again.run_id, again.extract_id) == (done.run_id, done.extract_id)
    assert again.result_digest == done.result_digest
    assert again.result == done.result
    assert again.sign_off.is_complete
    stage.results().verify(again)
    assert sorted(os.listdir(stage.extract_of(done).parent)) == sorted([done.extract_id, "lock"])
    assert stage.recon("SELECT run_id, is_current FROM recon_runs") == [(done.run_id, 1)]
    assert stage.recon('SELECT "key" FROM recon_items') == [("icbc/night",)]
    assert len(stage.recon("SELECT number FROM recon_totals")) == len(done.result.totals)


def damage(stage, done, name):
    """Remove a row of a table."""
    parts = stage.directory.glob(f"results/{name}/*/run={done.run_id}/*")
    path = max(parts, key=lambda part: pq.read_metadata(part).num_rows)
    pq.write_table(pq.read_table(path).slice(1), path)


# From one day to the next


@pytest.mark.fault("R1")
def test_a_transfer_across_the_cut_off_is_matched_on_the_next_day(spark, wednesday, thursday):
    stage, done = thursday
    before = stage.rows(wednesday[1])["night"]

    (closed,) = stage.rows(done, "closed").values()

    assert (before["class"], before["holder"], before["amount"]) == ("in-flight", "transit", 88_00)
    assert (closed["key"], closed["break_id"]) == ("icbc/night", before["break_id"])
    assert (closed["class"], closed["status"]) == ("matched", "closed")
    assert (closed["debited"], closed["credited"]) == (88_00, 88_00)
    arrived = at(WEDNESDAY, "17:03")
    assert closed["history"] == (f"{WEDNESDAY} in-flight new,{THURSDAY} matched closed {arrived}")
    assert counted(done) == {"delivered-uncredited": 1, "matched": 4}
    assert done.result.closed == 1
    assert all(proof.holds for proof in done.result.proofs)
    (way,), (still,) = proofs_of(wednesday[1], "clearing"), proofs_of(done, "clearing")
    assert (way.found, still.found) == (88_00, 300_00)
    whole = {item.currency: item for item in proofs_of(done, "conservation")}
    # Customers have less: 300.00 went on their way today, and 88.00 arrived.
    assert whole["CNY"].found == 88_00 - 300_00
    assert done.previous_run_id == wednesday[1].run_id
    assert [item.business_date for item in done.trend] == [WEDNESDAY.isoformat()]


@pytest.mark.soak  # Its steps are those of test_lifecycle.py.
def test_a_break_stays_until_somebody_explains_it(spark, thursday, tmp_path):
    stage, born = thursday[0].copy(tmp_path / "friday"), thursday[1]
    assert (born.result.verdict, born.result.why) == (
        "within limits",
        ("1 break is within the limits",),
    )
    young = stage.rows(born)["lost"]
    assert (young["status"], young["age_days"]) == ("new", 0)

    open_ = stage.run(spark, FRIDAY)
    old = stage.rows(open_)["lost"]
    explain(stage, old)
    told = stage.run(spark, FRIDAY)
    explained = stage.rows(told)["lost"]
    Explanations(stage.directory).withdraw(old["break_id"], "Li Na", "it did not", 2)
    rules = stage.rules_with(materiality=299_99)
    last = stage.run(spark, SATURDAY, rules=rules)
    again = stage.rows(last)["lost"]

    lives = (young, old, explained, again)
    assert len({live["break_id"] for live in lives}) == 1
    assert {live["first_seen"] for live in lives} == {THURSDAY.isoformat()}
    assert (old["class"], old["status"], old["age_days"], old["bucket"]) == (
        "delivered-uncredited",
        "open",
        1,
        "1",
    )
    assert open_.result.verdict == "within limits"

    assert told.run_id != open_.run_id
    assert told.extract_id == open_.extract_id
    assert (explained["class"], explained["group"]) == ("explained", "open")
    assert (explained["was"], explained["explained_by"]) == (old["class"], "Li Na")
    assert (told.result.verdict, told.result.breaks) == ("clean", 0)
    assert stage.results().current(FRIDAY) == told

    # Nobody works on Saturdays, and the rules forgive a cent less than before.
    assert (again["class"], again["status"], again["age_days"]) == (old["class"], "open", 1)
    assert again["explained_by"] is None
    assert last.result.verdict == "over limits"
    assert last.result.why == ("300.00 CNY at risk is more than the 299.99 that is material",)


@pytest.mark.soak
def test_a_rerun_with_the_same_result_is_signed_in_every_report(spark, wednesday, tmp_path):
    stage, done = wednesday[0].copy(tmp_path / "signed"), wednesday[1]
    sign(stage, done)
    some = stage.rows(done)["night"]
    explain(stage, some | {"break_id": "0" * 16})  # There is no such break.

    again = stage.run(spark, WEDNESDAY)

    assert (again.run_id != done.run_id, again.result_digest) == (True, done.result_digest)
    assert again.sign_off.is_complete
    assert told_of(stage, again) == ("signed", "Li Na", done.result_digest)


@pytest.mark.soak  # Its steps are those of test_lifecycle.py.
def test_a_closed_item_reopens_with_its_history_and_breaks_again_if_it_grows(
    spark, thursday, tmp_path
):
    stage, (was,) = (
        thursday[0].copy(tmp_path / "again"),
        thursday[0].rows(thursday[1], "closed").values(),
    )
    stage.credit("night", 88_00, at(FRIDAY, "09:00"))
    stage.credit("gone", 77_00, at(FRIDAY, "09:01"))
    taken = Posting(PAYER, -5), Posting("clearing", 5)
    stage.book("icbc", "fee", "fee", taken, at(FRIDAY, "09:02"))

    found = stage.run(spark, FRIDAY)
    rows = stage.rows(found)
    explain(stage, rows["night"])
    quiet = stage.run(spark, FRIDAY)
    explained = stage.rows(quiet)["night"]
    stage.credit("night", 1_000_000_00, at(SATURDAY, "09:00"))
    stage.credit("fee", 5, at(SATURDAY, "09:01"))
    last = stage.run(spark, SATURDAY)
    after = stage.rows(last)

    assert (was["break_id"], was["status"]) == (rows["night"]["break_id"], "closed")
    assert (rows["night"]["class"], rows["night"]["status"]) == ("double-credit", "reopened")
    assert rows["night"]["history"] == f"{was['history']},{FRIDAY} double-credit reopened"
    # It was agreed for a while, so nothing has been at risk for longer than a day.
    assert (rows["night"]["first_seen"], rows["night"]["age_days"]) == (FRIDAY.isoformat(), 0)
    assert (rows["gone"]["class"], rows["gone"]["status"]) == ("credit-without-message", "reopened")
    assert rows["gone"]["history"] == f"{FRIDAY} credit-without-message reopened"

    assert (explained["class"], explained["was"]) == ("explained", "double-credit")
    assert (after["night"]["class"], after["night"]["status"]) == ("double-credit", "changed")
    assert (after["night"]["group"], after["night"]["explained_by"]) == ("break", None)
    assert after["night"]["amount"] == 88_00 + 1_000_000_00
    assert last.result.verdict == "over limits"
    # A fee is not a transfer that was agreed before.
    assert (after["fee"]["class"], after["fee"]["status"]) == ("credit-without-message", "new")


# What somebody has changed


@pytest.mark.soak
def test_a_day_continues_only_from_a_result_in_force(spark, thursday, tmp_path):
    stage, second = thursday[0].copy(tmp_path / "chain"), thursday[1]
    results = stage.results()
    sign(stage, second)
    first = stage.results().current(WEDNESDAY)
    same = stage.run(spark, WEDNESDAY, extract_id=first.extract_id)
    assert (same.result_digest, results.signature_state(second)) == (
        first.result_digest,
        "signed",
    )
    which = "transfer = 'T3' AND account = ?"
    stage.sql("icbc", f"UPDATE journal SET amount = amount + 60000 WHERE {which}", PAYER)
    again = stage.run(spark, WEDNESDAY)
    assert stage.rows(again)["T3"]["class"] == "amount-mismatch"

    assert results.signature_state(second) == "invalidated"
    why = (
        f"{THURSDAY} was not made from the result of {WEDNESDAY} that is in force: run it again, "
        f"and all after it, with --from {THURSDAY} --to "
    )
    with pytest.raises(ReconcileRefused) as refused:
        stage.run(spark, FRIDAY)
    assert str(refused.value) == f"{why}{FRIDAY}"
    assert not (stage.directory / "extracts" / FRIDAY.isoformat()).exists()

    # In order, as --from and --to run them.
    mended = stage.run(spark, THURSDAY)
    friday = stage.run(spark, FRIDAY)
    assert mended.run_id != second.run_id
    assert (mended.previous_run_id, mended.previous_digest) == (again.run_id, again.result_digest)
    assert stage.rows(friday)["T3"]["class"] == "amount-mismatch"
    assert stage.rows(friday)["T3"]["age_days"] == 2


@pytest.mark.parametrize("name", ["items", "entries", "messages", "balances"])  # Nothing failed.
def test_a_day_does_not_continue_from_a_changed_table(spark, wednesday, tmp_path, name):
    stage, done = wednesday[0].copy(tmp_path / "changed"), wednesday[1]
    damage(stage, done, name)

    with pytest.raises(ReconcileRefused) as refused:
        stage.run(spark, THURSDAY)

    assert str(refused.value) == (
        f"{name} of {WEDNESDAY} changed since run {done.run_id} wrote them: run the day again"
    )
    assert not (stage.directory / "extracts" / THURSDAY.isoformat()).exists()


@pytest.mark.soak  # test_rerunning_a_date_gives_the_same_rows covers a signed one.
def test_changed_tables_of_an_unsigned_run_are_made_again(spark, wednesday, tmp_path):
    stage, done = wednesday[0].copy(tmp_path / "mended"), wednesday[1]
    damage(stage, done, "items")
    shutil.rmtree(stage.directory / "results" / "balances")

    again = stage.run(spark, WEDNESDAY)

    assert (again.run_id, again.result_digest) == (done.run_id, done.result_digest)
    stage.results().verify(again)
    assert stage.rows(again).keys() == {"night"}


@pytest.mark.fault("R3", "R4", "P22")
def test_changed_and_late_rows_are_found_and_the_signed_result_stays(spark, wednesday, tmp_path):
    stage, signed = wednesday[0].copy(tmp_path / "fraud"), wednesday[1]
    results = stage.results()
    sign(stage, signed)
    stage.second_day()
    noon, booked = at(THURSDAY, "12:00"), at(WEDNESDAY, "15:00")
    stage.order("late", 40_00, noon)
    stage.debit("late", 40_00, noon + 10, booked_ms=booked)
    stage.credit("late", 40_00, noon + 500, booked_ms=booked + 500)
    stage.credit("T0", 100_00, noon + 900)
    stage.poll()
    # Somebody gives himself 600.00 on the day before, and changes the table of accounts to match.
    which = "transfer = 'T3' AND account = ?"
    stage.sql("icbc", f"UPDATE journal SET amount = amount + 60000 WHERE {which}", PAYER)
    stage.sql("icbc", "UPDATE accounts SET balance = balance + 60000 WHERE number = ?", PAYER)
    # And somebody adds two rows to the day before that cancel each other out.
    slipped = Posting(PAYEE, 7_00), Posting(PAYEE, -7_00)
    stage.book("ccb", None, "fee", slipped, at(WEDNESDAY, "13:00"))

    next_ = stage.run(spark, THURSDAY)

    broken = [
        (proof.proof, proof.bank, proof.account, proof.found - proof.expected)
        for proof in next_.result.proofs
        if not proof.holds and proof.account
    ]
    assert broken == [
        ("roll-forward", "icbc", "62…0001", 600_00),
        ("roll-forward-rows", "ccb", "62…0002", 2),
    ]
    assert next_.result.broken_proofs == len(broken)
    assert next_.result.verdict == "over limits"
    assert next_.result.why == (
        "the proof roll-forward does not hold: it is off by 600.00 CNY",
        "the proof roll-forward-rows does not hold: it is off by 2",
    )
    late = stage.rows(next_)["late"]
    assert (late["class"], late["is_late"], late["amount"]) == ("prior-period", True, 40_00)
    twice = stage.rows(next_)["T0"]
    assert (twice["class"], twice["status"]) == ("double-credit", "reopened")
    assert (twice["debited"], twice["credited"]) == (100_00, 200_00)
    assert all(item.holds for item in proofs_of(next_, "conservation"))
    assert results.signature_state(stage.results().current(WEDNESDAY)) == "signed"
    sign(stage, next_)

    # The day is run again, and dies before it is published.
    with pytest.raises(Halted):
        stage.run(spark, WEDNESDAY, progress=HaltedAt("report"))
    kept = stage.results().current(WEDNESDAY)
    assert (kept.run_id, kept.sign_off.is_complete) == (signed.run_id, True)
    (died,) = {
        path.name.removeprefix("run=")
        for path in stage.directory.glob(f"results/items/business_date={WEDNESDAY}/run=*")
    } - {signed.run_id}
    left = stage.bytes_of(died)
    assert len({item.split("/")[1] for item in left}) == 10

    again = stage.run(spark, WEDNESDAY)

    assert (again.run_id, stage.bytes_of(died)) == (died, left)
    assert again.result_digest != signed.result_digest
    current = stage.results().current(WEDNESDAY)
    assert (current.run_id, current.sign_off) == (
        again.run_id,
        results.with_sign_off(signed).sign_off,
    )
    assert results.signature_state(current) == "invalidated"
    assert told_of(stage, again) == ("invalidated", "Li Na", signed.result_digest)
    assert stage.recon("SELECT run_id FROM recon_signoffs") == []
    assert results.signature_state(signed) == "signed"
    assert stage.rows(again)["T3"]["class"] == "amount-mismatch"

    # Thursday was made from the former result, and no day goes on from it.
    assert results.signature_state(next_) == "invalidated"
    with pytest.raises(ReconcileRefused, match="was not made from the result of"):
        stage.run(spark, FRIDAY)


# What cannot be run


def part_of(extract, source, table):
    (found,) = extract.glob(f"*/source={source}/table={table}/*.parquet")
    return found


def lost_row(extract):
    """Remove a row of a part, and describe the new file in the manifest."""
    path = part_of(extract, "icbc", "entries")
    name = str(path.relative_to(extract))
    rows = pq.ParquetFile(path).read()
    pq.write_table(rows.slice(1), extract / name)
    data = (extract / name).read_bytes()
    manifest = msgspec.json.decode((extract / FILE).read_bytes(), type=Manifest)
    text = msgspec.json.encode(manifest).decode()
    (part,) = (
        part for source in manifest.sources for table in source.tables for part in table.parts
        if part.path == name
    )  # fmt: skip
    now = msgspec.structs.replace(
        part, bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), rows=rows.num_rows - 1
    )
    encode = msgspec.json.encode
    (extract / FILE).write_text(text.replace(encode(part).decode(), encode(now).decode()))


def truncated(extract):
    path = part_of(extract, "ccb", "entries")
    os.truncate(path, path.stat().st_size - 100)


def removed(extract):
    part_of(extract, "log", "messages").unlink()


def doubled(extract):
    path = part_of(extract, "ccb", "entries")
    shutil.copy(path, path.with_name("another.parquet"))


@pytest.mark.fault("R5", "R6")
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            truncated,
            r"ccb/table=entries/part-.*parquet: \d+ bytes were extracted and \d+ are there",
        ),
        (
            removed,
            r"log/messages: 10 rows were extracted and 0 are there; .*parquet is missing",
        ),
        (
            doubled,
            r"ccb/entries: 16 rows were extracted and 32 are there; .*another.parquet was not extr",
        ),
        (lost_row, "icbc/entries: 18 rows were extracted and 17 are there"),
    ],
)
def test_a_damaged_extract_is_refused(spark, wednesday, tmp_path, damage, said):
    stage, done = wednesday[0].copy(tmp_path / "damaged"), wednesday[1]
    before = sorted(stage.directory.glob("results/**/*"))
    damage(stage.extract_of(done))

    with pytest.raises(ReconcileRefused, match=said):
        stage.run(spark, WEDNESDAY, extract_id=done.extract_id)

    assert stage.results().current(WEDNESDAY) == done
    assert sorted(stage.directory.glob("results/**/*")) == before
    assert stage.recon("SELECT run_id, is_current FROM recon_runs") == [(done.run_id, 1)]


def test_the_command_line_says_which_total_differs(spark, wednesday, tmp_path, monkeypatch):
    stage, done = wednesday[0].copy(tmp_path / "told"), wednesday[1]
    lost_row(stage.extract_of(done))
    spark_session.lend(monkeypatch, spark)
    how = ["--config", str(stage.home / "recon.toml"), "--reuse-extract", "--quiet"]

    asked = CliRunner().invoke(app, ["reconcile", "--date", str(WEDNESDAY), *how])

    assert (asked.exit_code, asked.stdout) == (3, "")
    assert asked.stderr == "txmq: icbc/entries: 18 rows were extracted and 17 are there\n"
    assert stage.results().current(WEDNESDAY) == done


@pytest.mark.soak  # test_spark_start.py stops a Spark in the same way.
def test_a_run_stopped_by_sigterm_ends_with_a_sentence_and_leaves_no_result(tmp_path):
    stage = Stage.set_up(tmp_path / "stopped")
    stage.first_day()
    program = [sys.executable, "-m", "txmq", "reconcile", "--date", str(WEDNESDAY)]
    how = ["--config", stage.home / "recon.toml", "--cores", "1", "--memory", "512m"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    with subprocess.Popen(
        [*program, *how], cwd=CHECKOUT, env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert any(line.startswith("txmq: extract: ") for line in running.stderr)
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=120)

    assert (running.returncode, out) == (143, "")
    assert err.splitlines()[-1].startswith("txmq: SIGTERM stopped this before it was finished; ")
    assert "Traceback" not in err
    assert stage.results().days() == []
    assert not (stage.home / "recon.db").exists(), "the first run that is whole makes it"
    assert list(temporary.iterdir()) == []
    files = [path for path in stage.directory.rglob("*") if path.is_file()]
    (manifest,) = (path for path in files if path.name == FILE)
    others = [path.name for path in files if manifest.parent not in path.parents]
    assert others == ["lock", "lock"], "the extract is whole, and of the run there is nothing"


def test_a_skipped_business_day_is_refused(spark, wednesday, tmp_path):
    stage = wednesday[0].copy(tmp_path / "gap")

    with pytest.raises(ReconcileRefused) as refused:
        stage.run(spark, FRIDAY)

    assert str(refused.value) == (
        f"{THURSDAY} was not reconciled, and its open items would be lost: run it first, or "
        f"all days with --from {THURSDAY} --to {FRIDAY}"
    )
    assert stage.results().days() == [WEDNESDAY]
    assert not (stage.directory / "extracts" / FRIDAY.isoformat()).exists()


ROWS_ARE_MISSING = "false", 0, r"icbc/entries: \d+ rows were extracted and 0 are there"
MONEY_IS_ADDED = "true", 1, r"icbc/entries: the sum of CNY was -?\d+ when it was extracted and is"


@pytest.mark.parametrize(
    ("where", "more", "told"), [ROWS_ARE_MISSING, *only_in_soak(MONEY_IS_ADDED)]
)
def test_a_run_stops_if_spark_reads_other_rows_than_were_extracted(
    spark, tmp_path, monkeypatch, where, more, told
):
    stage = Stage.set_up(tmp_path / "misread")
    stage.first_day()

    def read(*given):
        found = frames.read(*given)
        entries = found[Role.ENTRIES].where(where)
        entries = entries.withColumn("amount", entries["amount"] + more)
        return found | {Role.ENTRIES: entries}

    monkeypatch.setattr(one_day, "read", read)
    with pytest.raises(ReconcileRefused, match=told):
        stage.run(spark, WEDNESDAY)
    assert stage.results().current(WEDNESDAY) is None


def test_balances_are_compared_with_the_extracted_sums(spark, wednesday):
    stage, done = wednesday
    manifest = Manifest.read(LocalFolder(stage.extract_of(done)))
    icbc, *others = manifest.sources
    entries, *tables = icbc.tables
    read = entries.written.amounts["CNY"]
    replace = msgspec.structs.replace
    written = replace(entries.written, amounts={"CNY": read - 1})
    icbc = replace(icbc, tables=(replace(entries, written=written), *tables))
    table = stage.results().table("balances", WEDNESDAY, done.run_id)
    balances = spark.read.parquet(table.spark_path)

    check_all_was_read(balances, manifest)
    told = f"the sum of CNY was {read - 1} when it was extracted and is {read}"
    with pytest.raises(ReconcileRefused, match=told):
        check_all_was_read(balances, replace(manifest, sources=(icbc, *others)))
