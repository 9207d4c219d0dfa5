"""``txmq xa`` on two real banks: what it lists, what it ends, and what it leaves alone."""

import asyncio
import json
import os
import queue
import signal
import subprocess
import sys
import threading

import pytest
from typer.testing import CliRunner

from tests.integration.xa.xa_stage import MOVED, STILL, booked
from tests.integration.xa.xa_wire import Line, spelled
from tests.running import in_loop, run_by
from tests.servers.serving import environment
from txmq.cli.root import app
from txmq.transaction.resources.two_phase import gid_of

LINE_SECONDS = 30


def txmq(command, banks, *words, urls=None):
    urls = {name: spelled(bank.url) for name, bank in banks.banks.items()} | (urls or {})
    named = [part for name, url in urls.items() for part in ("--database", f"{name}={url}")]
    return CliRunner().invoke(app, ["xa", command, *named, *words])


async def decided(banks, xid):
    """Decide a commit that neither bank has carried out yet."""
    async with banks.service() as resource:
        await booked(resource, xid)


async def undecided(banks, xid):
    """Both banks have prepared, and the process that decides is gone; their rows are locked."""
    async with banks.service() as resource:
        gids = {name: gid_of(xid, name, resource.identity) for name in banks.banks}
    for name, gid in gids.items():
        leave(banks[name], gid)
    return gids


def leave(bank, gid):
    with bank.engine.connect() as connection:
        connection.exec_driver_sql("UPDATE account SET balance = balance + 1")
        connection.connection.driver_connection.execute(f"PREPARE TRANSACTION '{gid}'")


def test_list_shows_what_a_recovery_would_do_and_recover_does_it(banks):
    asyncio.run(decided(banks, "x-1"))

    shown = txmq("list", banks)
    rows = json.loads(txmq("list", banks, "--json").stdout)
    done = txmq("recover", banks)

    assert shown.exit_code == 0, shown.output
    assert [row["database"] for row in rows] == ["icbc", "ccb"]
    assert {(row["id"], row["fence"], row["recovery"]) for row in rows} == {
        ("x-1", "committed", "commit")
    }
    for word in ("icbc", "ccb", "x-1", "committed", "commit"):
        assert word in shown.stdout
    assert (done.exit_code, done.stdout) == (0, "2 committed, 0 rolled back\n")
    assert banks.balances == MOVED
    assert txmq("list", banks).stdout == "nothing is prepared\n"
    banks.see_nothing_left()


def test_undecided_transactions_are_left_alone_until_the_horizon(banks):
    asyncio.run(undecided(banks, "x-1"))

    young = txmq("recover", banks)
    listed = json.loads(txmq("list", banks, "--json").stdout)
    old = txmq("recover", banks, "--horizon", "0s", "--json")

    assert (young.exit_code, young.stdout) == (
        0,
        "0 committed, 0 rolled back; 2 left to the programs that run them\n",
    )
    assert {(row["fence"], row["recovery"]) for row in listed} == {("undecided", "wait")}
    assert json.loads(old.stdout)["rolled_back"] == 2
    assert banks.fence == {"x-1": 2}
    assert banks.balances == STILL
    banks.see_nothing_left()


def test_foreign_transactions_are_listed_as_not_ours_and_never_touched(banks):
    gids = asyncio.run(undecided(banks, "x-1"))
    for bank in banks.banks.values():
        bank.alone("CREATE TABLE other (x INT)")
    theirs = ["somebody", "txmq:x-1:icbc:another-fence", "txmq:x-2:icbc:" + gids["ccb"][-36:]]
    for gid in theirs:
        with banks["ccb"].engine.connect() as connection:
            connection.exec_driver_sql("INSERT INTO other VALUES (1)")
            connection.connection.driver_connection.execute(f"PREPARE TRANSACTION '{gid}'")

    done = txmq("recover", banks, "--horizon", "0s")
    rows = json.loads(txmq("list", banks, "--all", "--json").stdout)

    assert done.exit_code == 0, done.output
    assert banks.prepared == sorted(theirs)
    assert [(row["gid"], row["recovery"]) for row in rows] == [(gid, "not ours") for gid in theirs]
    assert "not ours" in txmq("list", banks, "--all").stdout
    assert txmq("list", banks).stdout == "nothing is prepared\n"


def test_without_a_fence_the_commands_say_how_to_create_one(banks):
    banks["icbc"].order("DROP TABLE txmq_fence_mark")

    for command in ("list", "recover"):
        result = txmq(command, banks)
        assert result.exit_code == 1
        assert "txmq schema create" in result.stderr


def test_a_database_that_is_down_does_not_stop_recovery_of_the_others(banks):
    asyncio.run(decided(banks, "x-1"))
    gone = {"ccb": "postgresql://nobody@127.0.0.1:1/none"}

    listed = txmq("list", banks, "--json", urls=gone)
    done = txmq("recover", banks, urls=gone)

    assert (listed.exit_code, len(json.loads(listed.stdout))) == (1, 1)
    assert "ccb did not answer" in listed.stderr
    assert (done.exit_code, done.stdout) == (1, "1 committed, 0 rolled back\n")
    assert "ccb did not answer" in done.stderr
    assert banks["icbc"].prepared == []
    assert txmq("recover", banks).exit_code == 0
    assert banks.balances == MOVED


class Watching:
    """``txmq xa recover --watch`` as a process."""

    def __init__(self, named):
        words = [part for database in named for part in ("--database", database)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "txmq", "xa", "recover", "--watch", "--every", "0.1s"]
            + ["--horizon", "0s", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(),
            text=True,
        )
        self.lines = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        with self.process.stdout:
            for line in self.process.stdout:
                self.lines.put(line)

    async def until(self, words):
        async with asyncio.timeout(LINE_SECONDS):
            while words not in await asyncio.to_thread(self.lines.get, timeout=LINE_SECONDS):
                pass

    def stop(self, number):
        self.process.send_signal(number)
        return self.process.wait(LINE_SECONDS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@run_by(in_loop)
async def test_recover_watch_survives_a_database_that_goes_down_and_comes_back(banks, number):
    async with Line(banks["ccb"].url) as line:
        urls = {"icbc": banks["icbc"].url, "ccb": banks["ccb"].url.set(port=line.port)}
        watching = Watching([f"{name}={spelled(url)}" for name, url in urls.items()])
        try:
            await undecided(banks, "x-1")
            await watching.until("2 rolled back")
            await line.down()
            await watching.until("ccb did not answer")
            await undecided(banks, "x-2")
            await watching.until("1 rolled back")
            await line.up()
            await watching.until("1 rolled back")
            assert await asyncio.to_thread(watching.stop, number) == 0
        finally:
            if watching.process.poll() is None:
                os.kill(watching.process.pid, signal.SIGKILL)
                watching.process.wait()
    banks.see_nothing_left()


@pytest.mark.fault("D5")
def test_a_server_that_allows_no_prepared_transactions_is_reported(banks, monkeypatch):
    from txmq.transaction.resources import two_phase

    # The setting needs a restart of the server, so the query for it is replaced.
    monkeypatch.setattr(two_phase, "_ROOM", "SELECT 0")
    result = txmq("list", banks)

    assert result.exit_code == 1
    assert "max_prepared_transactions is 0" in result.stderr
