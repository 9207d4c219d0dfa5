"""The whole tour as its user runs it: transfers, with each program killed now and then. A soak
makes 2,000 transfers and kills each program five times.
"""

import os
import re
import select
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, text

from examples.bank_transfer.__main__ import main
from examples.bank_transfer.databases import driven
from examples.bank_transfer.tour.settings import TourSettings
from examples.bank_transfer.tour.world import databases
from tests.servers.serving import CHECKOUT, environment
from tests.soak import IS_SOAK, only_in_soak

TOUR = [sys.executable, "-m", "examples.bank_transfer"]
PATIENCE_S = 240
SEEDS = range(8, 18) if IS_SOAK else [8]
TRANSFERS, KILLS = (2000, 5) if IS_SOAK else (100, 1)
NINE = [str(number) for number in range(1, 10)]


def tour(*arguments, cwd=CHECKOUT):
    return subprocess.run(
        [*TOUR, *map(str, arguments)], cwd=cwd, env={**environment(), "COLUMNS": "200"},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


@contextmanager
def touring(*arguments):
    """A running tour, once it has told its first story."""
    with subprocess.Popen(
        [*TOUR, *map(str, arguments)], cwd=CHECKOUT, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as running:  # fmt: skip
        try:
            for line in running.stdout:
                if "TAGA: the transfer is sent" in line:
                    break
            yield running
        finally:
            running.kill()


@pytest.fixture(scope="module")
def short_tours(tmp_path_factory):
    """Tours that mostly wait, started together, and how each of them ended."""
    with ThreadPoolExecutor() as pool:
        yield {
            tale: pool.submit(tale, tmp_path_factory.mktemp("tour") / "kept")
            for tale in (put_money_into_the_books, take_the_broker_away)
        }


def put_money_into_the_books(kept):
    where = ["--directory", kept, "--no-reconcile"]
    with touring("--transfers", 60, "--chaos", 0, *where) as running:
        with closing(sqlite3.connect(kept / "ccb.db", timeout=20)) as books:
            books.execute("UPDATE accounts SET balance = balance + 1 WHERE number = 'CCB-7'")
            books.commit()
        output, _ = running.communicate(timeout=PATIENCE_S)
    return running.returncode, output


def take_the_broker_away(kept):
    """It is killed once, and finds no directory when it starts again.

    With this seed it is killed after 25 transfers, before either bank is.
    """
    chaos = ["--chaos", 1, "--seed", 7]
    with touring("--transfers", 100, *chaos, "--directory", kept) as running:
        (kept / "broker").rename(kept.with_name("elsewhere"))
        (kept / "broker").write_bytes(b"")
        output, _ = running.communicate(timeout=PATIENCE_S)
    return running.returncode, output


def figure(output, name):
    """A number of the last table."""
    return float(re.search(rf"{name} +│ +([\d.]+) │", output)[1])


def numbers_of(output, tag):
    """The numbers of the steps of a story, in their order."""
    story = output.partition(f"{tag}: customer A sends")[2].partition("└")[0]
    return [row.split("│")[1].strip() for row in story.splitlines() if row.startswith("│")]


def see_that_it_is_whole(done, transfers, kills):
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "money was conserved" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("verdict: passed: not a cent is lost")
    assert figure(done.stdout, "transfers asked for") == transfers + 3
    assert figure(done.stdout, "programs killed, and started again") == 3 * kills
    assert figure(done.stdout, "looks of the auditor") > (20 if IS_SOAK else 2)
    assert figure(done.stdout, "messages delivered once more than they were sent") > 0
    for tag in ("TAGA", "TAGB"):
        assert [number for number in numbers_of(done.stdout, tag) if number] == NINE
    checked = numbers_of(done.stdout, "TAGC")
    assert [number for number in checked if number] == NINE
    assert checked[-1] == "", "the answer to a check comes behind the nine"


@pytest.mark.soak  # test_bank_reconciled.py begins with a tour on SQLite.
@pytest.mark.timeout(PATIENCE_S + 20)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_full_tour_on_sqlite(seed):
    done = tour("--transfers", TRANSFERS, "--chaos", KILLS, "--seed", seed, "--no-reconcile")
    see_that_it_is_whole(done, TRANSFERS, KILLS)


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S + 20)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_full_tour_on_postgresql_and_redis(postgres, redis_server, short_tours, tmp_path, seed):
    """Redis loses all its data again and again, which costs only time. In a soak all three ledgers
    agree in the end, also about the XA transfers.
    """
    where = ["--postgres", postgres.url.render_as_string(hide_password=False)]
    where += ["--redis", redis_server.url, "--seed", seed]
    where += [] if IS_SOAK else ["--no-reconcile"]
    is_over = threading.Event()

    def forget():
        while not is_over.wait(1.0):
            redis_server.flush()

    with ThreadPoolExecutor() as pool:
        forgetting = pool.submit(forget)
        try:
            done = tour("--transfers", TRANSFERS, "--chaos", KILLS, *where, cwd=tmp_path)
        finally:
            is_over.set()
        forgetting.result()
    see_that_it_is_whole(done, TRANSFERS, KILLS)
    if IS_SOAK:
        see_that_ledgers_agree(done, tmp_path)


def see_that_ledgers_agree(done, tmp_path):
    assert "✔ Clean" in done.stdout
    assert "All balance proofs hold." in done.stdout
    assert "matched" in (tmp_path / "bank-reconciliation.html").read_text()


def children_of(process):
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in children.split()]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("told", [signal.SIGTERM, *only_in_soak(signal.SIGINT)])
def test_a_tour_ended_early_leaves_no_process_or_database_behind(postgres, told):
    before = databases_of(postgres)
    where = postgres.url.render_as_string(hide_password=False)
    with touring("--transfers", 5000, "--postgres", where, "--chaos", 0) as running:
        children = children_of(running)
        assert len(children) == 3
        assert len(databases_of(postgres)) == len(before) + 2
        running.send_signal(told)
        output, _ = running.communicate(timeout=PATIENCE_S)

    assert running.returncode == 130, output
    assert "Traceback" not in output
    assert not any(map(is_running, children))
    assert databases_of(postgres) == before


def databases_of(server):
    engine = create_engine(server.url, poolclass=NullPool)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT datname FROM pg_database"))
        return {name for (name,) in rows if name.startswith("txmq_tour")}


def test_the_programs_of_a_killed_tour_die_with_it(tmp_path):
    with touring("--transfers", 5000, "--directory", tmp_path / "kept") as running:
        children = children_of(running)
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
        for pid in children:
            wait_until_gone(pid)


def wait_until_gone(pid):
    """Wait for a process that dies a moment after its tour."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([watched], [], [], 10)[0], f"{pid} lives on"
    finally:
        os.close(watched)


def test_the_tour_fails_when_money_is_added_to_the_books(short_tours):
    code, output = short_tours[put_money_into_the_books].result()

    assert code == 1, output
    assert "0.01 CNY are there too many" in output
    assert re.search(r"CCB: CCB-7 has \d+, and \d+ by the journal", output)
    assert "money was conserved" not in output
    assert output.splitlines()[-1].startswith("verdict: failed: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--way", "xa"], "XA needs PostgreSQL for both banks: give --postgres URL"),
        (["--transfers", "0"], "transfers is at least 1, not 0"),
        (["--postgres", "postgresql://nobody@127.0.0.1:1/none"], "no database can be made at"),
        (["--postgres", "postgres://nobody@127.0.0.1:1/none"], "no database can be made at"),
        (["--postgres", "127.0.0.1"], "the URL is not one of a database"),
        (["--postgres", "postgresql://secret@host:port/none"], "the URL is not one of a database"),
        (["--directory", "tests"], "there is something in tests already"),
    ],
)
def test_a_tour_that_cannot_begin_says_why(arguments, words, capsys):
    assert main(arguments) == 2

    error = capsys.readouterr().err
    assert error.startswith("the tour cannot run: ")
    assert words in error
    assert "secret" not in error


def test_the_tour_ends_when_a_program_does_not_restart(short_tours):
    code, output = short_tours[take_the_broker_away].result()

    assert code == 2, output
    assert "the tour cannot run: the broker is not ready: " in output
    assert "Traceback" not in output


def test_a_database_with_a_prepared_transaction_is_still_dropped(postgres, tmp_path):
    before = databases_of(postgres)
    settings = TourSettings(postgres=postgres.url.render_as_string(hide_password=False))
    with databases(settings, tmp_path) as (icbc, _):
        engine = create_engine(driven(icbc), poolclass=NullPool)
        with engine.connect() as connection:
            connection.execute(text("CREATE TABLE t AS SELECT 1"))
            connection.exec_driver_sql("PREPARE TRANSACTION 'it''s open'")
            connection.detach()

    assert databases_of(postgres) == before
