"""What runs leave in their directory: whole, the same every time, in force once published."""

import shutil
import signal
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from tests.reconcile import breaks, dying_run
from tests.reconcile.dying_run import write_table
from txmq.errors import ReconcileRefused
from txmq.reconcile.day import earlier_days, reconcile
from txmq.reconcile.ledgers import CARRIED_ON, Role
from txmq.reconcile.results import Results, open_results, run_id
from txmq.reconcile.storage import LocalFolder
from txmq.reconcile.tables import BALANCES, BOOKED, FAILURES, ITEMS, MESSAGES

DAY = date(2026, 11, 20)
RUN = "a" * 16
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def results(tmp_path):
    with open_results(tmp_path) as opened:
        yield opened


def files(directory):
    """Each file below with its bytes."""
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(item.relative_to(directory)): item.read_bytes() for item in found}


def rows_of(table, *names):
    """The rows of each file."""
    return [
        pq.read_table(file.uri.removeprefix("file://"), columns=list(names) or None)
        for file in table
    ]


def items(count):
    return breaks.items({f"icbc/{index}": "parked" for index in range(count)}, DAY)


def with_contents(contents):
    """A run that has written these tables."""
    plain = breaks.run(DAY)
    result = replace(plain.result, contents=contents)
    return replace(plain, result=result, result_digest=result.digest)


def write(results, rows, name="items", parts=1):
    """Write a table of the run; a number means that many items."""
    rows = items(rows) if isinstance(rows, int) else rows
    return write_table(results, name, rows, DAY, RUN, parts)


def signed(results, run):
    results.publish(run, {"report.html": b"signed"})
    results.sign("preparer", run, "Ann", 5)
    return run


def test_the_run_id_depends_on_every_input():
    plain = [DAY, "rules", "extract", None, ""]
    others = [DAY + timedelta(days=1), "rule", "extracts", "x", "y"]
    named = {run_id(*plain)}
    for place, other in enumerate(others):
        named.add(run_id(*plain[:place], other, *plain[place + 1 :]))

    assert len(named) == 6
    assert run_id(*plain) == run_id(*plain[:4])
    assert all(len(id_) == 16 and int(id_, 16) for id_ in named)


def test_the_hash_of_a_table_does_not_depend_on_its_files(tmp_path):
    matches = dying_run.tables(DAY)["matches"]
    hashes = []
    for parts in (1, 3):
        with open_results(tmp_path / str(parts)) as results:
            hashes.append(write(results, matches, "matches", parts))
            other = write_table(results, "matches", matches.slice(1), DAY, "b" * 16)

    assert hashes[0] == hashes[1] != other
    assert len(list((tmp_path / "3").rglob(f"run={RUN}/*.parquet"))) == 3


def test_a_written_table_is_read_back_unchanged(results):
    table = items(30)
    write(results, table)
    nothing = write(results, table.slice(0, 0), "closed")
    run = breaks.run(DAY)

    (read,) = rows_of(results.files("items", run))
    assert read.to_pylist() == table.to_pylist()
    assert read["key"].to_pylist() == sorted(f"icbc/{index}" for index in range(30))
    (empty,) = results.files("closed", run)
    with pq.ParquetFile(empty.uri.removeprefix("file://")) as file:
        assert (file.metadata.num_rows, file.schema_arrow) == (0, read.schema)
    assert nothing.startswith("0-")


def test_changed_or_missing_tables_fail_the_verification(results, tmp_path):
    hashed = write(results, 3)
    write(results, 3, "closed")
    run = with_contents({"items": hashed})
    results.verify(run)
    (tmp_path / f"results/items/business_date={DAY}/run={RUN}/_SUCCESS").touch()
    results.verify(run)

    write(results, 2, "closed")
    results.verify(run)
    write(results, 2)
    told = f"items of 2026-11-20 changed since run {RUN} wrote them"
    with pytest.raises(ReconcileRefused, match=told):
        results.verify(run)
    write(results, 3)
    results.verify(run)
    (tmp_path / f"results/items/business_date={DAY}/run={RUN}/more.parquet").touch()
    with pytest.raises(ReconcileRefused, match=told):  # Spark would read it too.
        results.verify(run)
    for name in ("closed", "totals"):  # One is not listed in the run, and one does not exist.
        with pytest.raises(ReconcileRefused, match=f"{name} of 2026-11-20 changed since run"):
            results.verify(run, [name])


def test_an_older_table_with_fewer_columns_does_not_count_as_changed(results):
    older = items(3).drop_columns(["suggestion"])
    run = with_contents({"items": write(results, older)})
    results.verify(run)

    assert write(results, 3) != run.result.contents["items"]
    with pytest.raises(ReconcileRefused, match="items of 2026-11-20 changed since"):
        results.verify(run)


def test_a_run_is_in_force_once_it_is_published(results, tmp_path):
    assert results.current(DAY) is None
    first, second = breaks.run(DAY), breaks.run(DAY, "b" * 16, parked=1)

    results.publish(first, {"report.html": b"<p>fine</p>"})
    assert results.current(DAY) == first
    assert results.folder_of(first).read("report.html") == b"<p>fine</p>"
    results.publish(second, {})
    assert results.current(DAY) == second
    assert results.folder_of(first).exists("report.html")
    assert msgspec.json.decode((tmp_path / "runs/2026-11-20/current").read_bytes()) == {
        "run_id": second.run_id
    }


def test_a_run_is_read_with_its_signatures(results):
    run = signed(results, breaks.run(DAY))

    assert results.current(DAY).sign_off.preparer == "Ann"
    results.publish(breaks.run(DAY, "b" * 16, parked=1), {})
    assert results.current(DAY).signature == "invalidated"
    assert results.current(DAY).sign_off.result_digest == run.result_digest
    results.sign("preparer", results.current(DAY), "Bo", 6, despite="known")
    assert results.current(DAY).signature == "prepared"
    assert results.current(DAY).sign_off.preparer == "Bo"
    assert len(results.signatures("2026-11-20")) == 2


def test_the_previous_day_is_the_latest_with_a_result(results):
    for ago, parked in ((9, 2), (4, 1), (1, 0)):
        results.publish(breaks.run(DAY - timedelta(days=ago), parked=parked), {})

    assert results.previous(DAY).result.business_date == "2026-11-19"
    assert results.previous(DAY - timedelta(days=1)).result.business_date == "2026-11-16"
    assert results.previous(DAY - timedelta(days=9)) is None
    past = results.trend(DAY, 2)
    assert [(item.business_date, item.breaks) for item in past] == [
        ("2026-11-16", 1), ("2026-11-19", 0),
    ]  # fmt: skip
    assert (past[0].transfers, past[0].at_risk, past[0].verdict) == (
        11, {"CNY": 100}, "within limits",
    )  # fmt: skip
    assert results.trend(DAY, 0) == ()
    assert len(results.trend(DAY, 9)) == 3


def test_a_chain_follows_the_runs_that_each_day_continued(results):
    days = [DAY - timedelta(days=item) for item in (3, 2, 1)]
    runs, past = [], None
    for day, letter in zip(days, "abc", strict=True):
        run = replace(breaks.run(day, letter * 16), previous_run_id=past)
        (item,) = items(1).to_pylist()
        row = tuple((item | {"history": letter})[name] for name in ITEMS.names)
        closed = breaks.table(ITEMS, [row])
        write_table(results, "closed", closed, day, run.run_id)
        results.publish(run, {})
        runs, past = [*runs, run], run.run_id
    # One of the days is run again, and the days after it are not.
    results.publish(breaks.run(days[1], "d" * 16, parked=1), {})

    assert results.chain(runs[-1], days[0]) == runs
    assert results.chain(runs[-1], days[1]) == runs[1:]
    assert results.chain(runs[-1], DAY) == results.chain(None, days[0]) == []
    known = rows_of(results.files("closed", *runs[1:]), "key", "history")
    assert [rows.to_pylist() for rows in known] == [
        [{"key": "icbc/0", "history": history}] for history in ("b", "c")
    ]
    assert results.files("closed") == []

    results.folder_of(runs[1]).remove("run.json")
    assert results.chain(runs[-1], days[0]) == runs[2:]


def test_a_day_begins_with_the_tables_of_the_day_before(results):
    rules = breaks.rules()
    window = rules.day.window(DAY)
    first = earlier_days(rules, DAY, results, None)
    assert Role.BALANCES not in first
    assert [files for files in first.values() if files] == []

    before = DAY - timedelta(days=1)
    for name, table in dying_run.tables(before).items():
        write_table(results, name, table, before, RUN)
    entry = (1, "icbc/1", "debit", "customer", "alice", -1, "CNY", 1, 1, "icbc")
    message = ("icbc/1", "M", "alice", "bob", 1, "CNY", "sent", "t", 0, 0, 1, *[None] * 3, 9, None)
    failure = ("icbc/1", "M", "g", "dead", 3, 1, "no", 10)
    sums = {column.name: 1 for column in BALANCES.columns if column.type == "long"}
    balance = ("icbc", "alice", "customer", "CNY", *(sums | {"told": None}).values())
    left = {"entries": entry, "messages": message, "failures": failure, "balances": balance}
    schemas = {"entries": BOOKED, "messages": MESSAGES, "failures": FAILURES, "balances": BALANCES}
    for name, row in left.items():
        write_table(results, name, breaks.table(schemas[name], [row]), before, RUN)
    run = breaks.run(before)
    result = replace(run.result, end_ms=window.start_ms)
    run = replace(run, result=result, result_digest=result.digest)

    found = earlier_days(rules, DAY, results, run)
    assert [len(rows) for rows in rows_of(found[Role.ITEMS])] == [3]
    for name, row in left.items():
        (rows,) = rows_of(found[CARRIED_ON[name]])
        assert [tuple(row.values()) for row in rows.to_pylist()] == [row]
    late = replace(run, result=replace(result, end_ms=1))
    assert Role.BALANCES not in earlier_days(rules, DAY, results, late)


def test_a_second_run_at_the_same_time_is_refused(results, tmp_path):
    with pytest.raises(ReconcileRefused, match="another run works in"), open_results(tmp_path):
        raise AssertionError("it was let in")


def test_a_second_process_is_refused_until_the_first_dies(tmp_path):
    program = (
        "import sys; from txmq.reconcile.results import open_results\n"
        "with open_results(sys.argv[1]):\n    print('in', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as other:
        try:
            assert other.stdout.readline() == b"in\n"
            with pytest.raises(ReconcileRefused, match="wait until it has ended"):
                open_results(tmp_path).__enter__()
        finally:
            other.kill()
    with open_results(tmp_path) as results:
        assert results.days() == []


@pytest.mark.fault("P22")
def test_a_killed_run_leaves_the_former_result_in_force_and_can_be_run_again(tmp_path):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    former = breaks.run(DAY)
    with open_results(here) as results:
        write_table(results, "items", items(2), DAY, former.run_id)
        results.publish(former, {"report.html": b"former"})
    before = files(here)
    del before["lock"]  # It names the process that held it.

    command = [sys.executable, "-m", "tests.reconcile.dying_run", here, DAY.isoformat(), "2"]
    with (tmp_path / "said").open("wb") as said:
        died = subprocess.run(command, cwd=ROOT, stdout=said, stderr=said, check=False)

    assert died.returncode == -signal.SIGKILL, (tmp_path / "said").read_text()
    assert before.items() <= files(here).items()
    assert Results(here).current(DAY) == former
    done = here.glob(f"results/*/business_date=*/run={dying_run.RUN}")
    assert sorted(path.parent.parent.name for path in done) == ["items", "matches"]
    (draft,) = here.glob(f"results/.drafts/*/run={dying_run.RUN}")
    with open_results(here):
        assert not draft.exists()
    assert before.items() <= files(here).items()

    done = here.glob(f"results/*/business_date=*/run={dying_run.RUN}/*")
    written = {path: path.stat().st_ino for path in done}
    again = breaks.run(DAY, dying_run.RUN, parked=1)
    for directory in (here, elsewhere):
        with open_results(directory) as results:
            dying_run.write(results, DAY)
            results.publish(again, {"report.html": b"new"})
    for name in dying_run.NAMES:
        run = Path("results", name, f"business_date={DAY}", f"run={dying_run.RUN}")
        assert files(here / run) == files(elsewhere / run) != {}
    # The killed run had already written the same files.
    assert {item: item.stat().st_ino for item in written} == written != {}
    assert results.current(DAY) == again
    assert not list(here.rglob(".*drafts"))


def test_writing_the_same_run_again_changes_no_file(results, tmp_path):
    def seen():
        return {path: path.stat().st_ino for path in (tmp_path / "results").rglob("*.parquet")}

    dying_run.write(results, DAY)
    results.publish(breaks.run(DAY, dying_run.RUN), {})
    once = seen()
    dying_run.write(results, DAY)

    assert seen() == once


def test_a_run_whose_table_is_missing_is_not_in_force_until_it_is_whole(results, monkeypatch):
    run = breaks.run(DAY)
    write(results, 2)
    results.publish(run, {})
    shutil.rmtree(results.table("items", DAY, run.run_id).local)
    with monkeypatch.context() as halted:
        halted.setattr(LocalFolder, "take", Mock(side_effect=OSError("the disk is full")))
        with pytest.raises(OSError, match="full"):
            write(results, 2)

    assert results.current(DAY) is None

    write(results, 2)
    results.publish(run, {})
    assert results.current(DAY) == run


def test_a_signed_run_is_never_replaced(results, tmp_path):
    write(results, 3)
    run = signed(results, breaks.run(DAY))
    before = files(tmp_path / "results")

    with pytest.raises(ReconcileRefused, match="is signed, and items would change"):
        write(results, 2)
    assert results.current(DAY).run_id == run.run_id
    after = files(tmp_path / "results")
    assert {name: data for name, data in after.items() if "draft" not in name} == before
    write(results, 3)
    assert files(tmp_path / "results") == before


def test_a_damaged_table_of_a_signed_run_is_restored(results, tmp_path):
    hashed = write(results, 3)
    run = signed(results, with_contents({"items": hashed}))
    (path,) = (tmp_path / "results").rglob("part-*.parquet")
    before = path.read_bytes()
    path.write_bytes(b"no rows")

    with pytest.raises(ReconcileRefused, match="is signed, and items would change"):
        write(results, 2)
    assert write(results, 3) == hashed
    results.publish(replace(run, began_ms=7), {})

    assert path.read_bytes() == before
    assert results.current(DAY).began_ms == run.began_ms
    results.verify(results.current(DAY))


def test_a_signed_run_stays_signed_if_its_rows_are_in_other_files(results, tmp_path):
    matches = dying_run.tables(DAY)["matches"]
    hashed = write(results, matches, "matches")
    run = signed(results, with_contents({"matches": hashed}))
    shutil.rmtree(tmp_path / "results")

    write(results, matches, "matches", parts=7)
    results.publish(run, {})

    assert results.current(DAY).sign_off.preparer == "Ann"
    results.verify(results.current(DAY))


def test_a_rerun_with_more_parts_leaves_a_signed_run_unchanged(results, tmp_path):
    matches = dying_run.tables(DAY)["matches"]
    hashed = write(results, matches, "matches")
    signed(results, breaks.run(DAY))
    before = files(tmp_path / "results")

    again = write(results, matches, "matches", parts=7)

    assert (again, files(tmp_path / "results")) == (hashed, before)
    assert results.current(DAY).sign_off.preparer == "Ann"
    place = tmp_path / next(f"results/{item}" for item in before)
    place.write_bytes(b"no rows")
    with pytest.raises(ReconcileRefused, match="is signed, and matches would change"):
        write(results, matches, "matches", parts=7)


def test_a_rerun_with_another_result_is_not_in_force_until_it_is_published(results):
    run = breaks.run(DAY)
    write(results, 3)
    results.publish(run, {})

    write(results, 2)
    assert results.current(DAY) is None
    results.publish(run, {})
    assert len(list(results.table("items", DAY, run.run_id).rows())) == 2


def test_the_report_of_a_signed_run_stays_as_it_was_signed(results):
    run = signed(results, breaks.run(DAY))

    results.publish(breaks.run(DAY, "b" * 16), {})
    later = replace(run, began_ms=7)
    results.publish(later, {"report.html": b"made anew"})
    assert results.current(DAY).run_id == run.run_id
    assert results.current(DAY).began_ms == run.began_ms
    assert results.folder_of(run).read("report.html") == b"signed"

    with pytest.raises(ReconcileRefused, match="is signed, and its result would change"):
        results.publish(breaks.run(DAY, parked=1), {})
    assert results.current(DAY).result == run.result


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("current", "{}", "does not name a run"),
        ("current", "no", "does not name a run"),
        (f"{RUN}/run.json", "{}", "is not the file of a run"),
        (f"{RUN}/run.json", None, "run.json does not exist"),
    ],
)
def test_a_damaged_or_missing_file_of_a_run_is_refused(results, tmp_path, name, text, told):
    results.publish(breaks.run(DAY), {})
    path = tmp_path / "runs" / "2026-11-20" / name
    path.unlink()
    if text is not None:
        path.write_text(text)

    with pytest.raises(ReconcileRefused, match=told):
        results.current(DAY)


def test_a_day_is_refused_if_the_day_before_was_not_final(tmp_path):
    rules = replace(breaks.rules(), directory=str(tmp_path))
    with open_results(tmp_path) as results:
        results.publish(breaks.run(DAY, is_final=False), {})

    with pytest.raises(ReconcileRefused, match=f"{DAY} was reconciled before it was over"):
        reconcile(None, rules=rules, date=DAY + timedelta(days=1))
