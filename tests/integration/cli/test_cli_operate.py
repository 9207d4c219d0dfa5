"""Operator commands against one real broker."""

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from tests.integration.cli.test_cli_tx import prepare
from txmq import (
    ConsumerSettings,
    Message,
    Producer,
    ProducerSettings,
    PushConsumer,
    StartFrom,
    blocking,
)
from txmq.cli.output import progress_bar
from txmq.client import Session
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import SendBack
from txmq_broker.testing import BrokerThread


@pytest.fixture(scope="module")
def broker():
    with BrokerThread() as running:
        yield running


@pytest.fixture
def run(txmq, broker):
    """Run a command at the broker; returns its output, or its error message."""

    def ask(*words, code=0, shown=None):
        result = txmq(*words, "--names", broker.names)
        assert result.exit_code == code, result.output
        return getattr(result, shown or ("stderr" if code else "stdout"))

    ask.names = broker.names
    return ask


@pytest.fixture
def rows(run):
    return lambda *words: json.loads(run(*words, "--json"))


@pytest.fixture
def topic(run):
    """Create a topic of one queue with some messages; with a group that has consumed none."""

    def create(name, messages=0, *, unread_by=None):
        run("topic", "create", name, "--queues", 1)
        for _ in range(messages):
            run("message", "send", name, "x")
        if unread_by:
            run("group", "create", unread_by)
            run("group", "reset", unread_by, name, "--to", "earliest", "--yes")

    return create


@pytest.fixture
def rounds(monkeypatch):
    """End each --watch with Ctrl-C after this number of rounds, without pauses."""

    def end_after(count):
        pauses = []

        def pause(seconds):
            pauses.append(seconds)
            if len(pauses) == count:
                raise KeyboardInterrupt

        monkeypatch.setattr("time.sleep", pause)
        return pauses

    return end_after


@pytest.fixture(scope="module")
def shop(broker):
    """A service that consumes Orders as billing and sends as shop; fails while the event is set."""
    with blocking.Client(broker.names) as client:
        client.admin.create_topic("Orders", queues=1)
    started, stop, failing = threading.Event(), threading.Event(), threading.Event()
    handled = []

    async def serve():
        consumer = PushConsumer("billing", broker.names, ConsumerSettings(start=StartFrom.FIRST))

        @consumer.on("Orders")
        async def handle(message):
            handled.append(message.body)
            if failing.is_set():
                raise ValueError("it is broken")

        async with Producer("shop", broker.names) as producer, consumer:
            await producer.send(Message(topic="Orders", body=b"tea", keys=("17",)))
            while not handled:
                await asyncio.sleep(0.01)
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(20)
    yield failing
    stop.set()
    thread.join()


# Brokers


def test_broker_status_shows_its_figures(run, rows, topic):
    topic("Figures", 1)

    shown = run("broker", "status")
    (status,) = rows("broker", "status")

    assert "messages in today" in shown
    assert "open transactions" in shown
    assert status["broker"] == "broker-a"
    assert int(status["figures"]["msgPutTotalTodayNow"]) > 0
    assert "putMessageTimesTotal" in run("broker", "status", "--all")
    assert "broker 'broker-b' is unknown" in run("broker", "status", "--broker", "broker-b", code=2)


def test_a_watch_repeats_until_ctrl_c(run, rounds):
    pauses = rounds(3)
    lines = run("broker", "status", "--watch", "--every", "5s", "--json").splitlines()

    assert [json.loads(line)[0]["broker"] for line in lines] == ["broker-a"] * 3
    assert pauses == [5.0] * 3
    assert "not 'soon'" in run("broker", "status", "--watch", "--every", "soon", code=2)
    assert "50ms or more" in run("broker", "status", "--watch", "--every", "0", code=2)


@pytest.mark.parametrize("words", ["cluster status", "cluster list", "topic list", "tx list"])
def test_status_and_list_commands_can_be_watched(run, rounds, words):
    rounds(2)

    assert run(*words.split(), "--watch", "--json").count("\n") == 2


def test_a_watch_continues_while_the_broker_is_unreachable(txmq, rounds):
    rounds(2)
    result = txmq("broker", "status", "--watch", "--names", "127.0.0.1:1")

    assert result.exit_code == 0
    assert result.stderr.count("start a broker with: txmq serve") == 2


def test_settings_are_read_and_changed(run, rows):
    row = {"broker": "broker-a", "setting": "deleteWhen", "key": "retention.delete_at"}
    row |= {"value": "04", "default": "04", "source": "default", "can_change": True}
    assert rows("broker", "config", "get", "deleteWhen") == [row]
    assert run("broker", "config", "set", "deleteWhen", "05") == "deleteWhen is 05 at broker-a\n"
    changed = row | {"value": "05", "source": "change"}
    assert rows("broker", "config", "get", "deleteWhen") == [changed]
    assert "changed since the start" in run("broker", "config", "get", "deleteWhen")

    refused = run("broker", "config", "set", "brokerIP1", "10.0.0.5", code=1)
    assert "brokerIP1 cannot be changed while this broker runs" in refused
    assert "change the others in the broker's file, and restart it" in refused
    assert "cannot be 'soon'" in run("broker", "config", "set", "deleteWhen", "soon", code=1)
    unknown = run("broker", "config", "get", "deleteWen", code=1)
    assert "the nearest name is 'deleteWhen'" in unknown
    assert "or write --all" in run("broker", "config", "get", code=2)


def test_a_list_can_be_filtered_sorted_and_paged(run, rows):
    every = ("broker", "config", "get", "--all")
    page = (*every, "--limit", 4, "--page", 2)
    hours = rows(*every, "--match", "reservedtime")
    sizes = [row["value"] for row in rows(*every, "--match", "DISK", "--sort", "-value")]

    assert [row["setting"] for row in hours] == ["fileReservedTime"]
    assert [int(size) for size in sizes if size.isdecimal()] == [90, 85, 75]
    assert len(rows(*page)) == 4
    assert rows(*every)[4:8] == rows(*page)
    assert "page 2 of" in run(*page)
    assert run(*every, "--match", "no such text") == "no row matches\n"
    wrong = run(*every, "--sort", "valve", code=2)
    assert "no column 'valve'; the nearest name is 'value'" in wrong


# Producers and consumers


def test_producers_are_listed(run, rows, shop):
    (producer,) = rows("producer", "list")

    assert (producer["group"], producer["language"]) == ("shop", "JAVA")
    assert rows("producer", "list", "--group", "shop") == [producer]
    assert rows("producer", "list", "--match", "nosuch") == []
    unknown = run("producer", "list", "--group", "nosuch", code=1)
    assert "'nosuch' has no open transactions and no connected producers" in unknown


def test_the_clients_of_a_topic_are_shown(run, rows, shop):
    (client,) = rows("topic", "clients", "Orders")

    assert (client["group"], client["expression"]) == ("billing", "*")
    assert client["client"] in run("topic", "clients", "Orders")
    run("topic", "create", "Unread")
    assert run("topic", "clients", "Unread") == "no group consumes this topic\n"
    assert "'Ordrs' does not exist; the nearest name is" in run("topic", "clients", "Ordrs", code=1)


def test_topic_permissions_are_changed_and_enforced(run, rows):
    run("topic", "create", "Archive", "--queues", 1)

    assert run("topic", "permit", "Archive", "r") == "topic Archive at broker-a: 1 queue, r\n"
    assert "no queue that can be written to" in run("message", "send", "Archive", "x", code=1)
    assert rows("topic", "permit", "Archive", "none")[0]["permission"] == "none"
    assert rows("topic", "permit", "Archive", "rw")[0]["permission"] == "rw"
    assert "not one of rw, r, w, none" in run("topic", "permit", "Archive", "x", code=2)


def test_a_topic_gets_the_same_number_of_queues_from_the_command_and_from_a_send(run, rows, broker):
    run("topic", "create", "ByHand")
    with blocking.Producer("maker", broker.names) as producer:
        producer.send(Message(topic="ByMessage", body=b"x"))

    by_hand, by_message = (len(rows("topic", "status", name)) for name in ("ByHand", "ByMessage"))
    assert by_hand == by_message


def test_consumers_report_their_state(run, rows, shop):
    status = rows("group", "status", "billing")
    (consumer,) = status["consumers"]

    assert status["group"] == "billing"
    assert consumer["subscriptions"]["Orders"] == "*"
    queues = [held["queue"] for held in consumer["queues"] if held["queue"]["topic"] == "Orders"]
    assert queues == [{"topic": "Orders", "broker": "broker-a", "number": 0}]
    assert consumer["client"] in run("group", "status", "billing")
    assert "group 'biling' does not exist" in run("group", "status", "biling", code=1)


def test_group_monitor_finds_groups_that_are_behind(run, rows, topic, shop):
    topic("Backlog", 3, unread_by="slow")

    groups = {row["group"]: row for row in rows("group", "monitor")}
    assert (groups["slow"]["lag"], groups["slow"]["consumers"]) == (3, 0)
    assert (groups["billing"]["consumers"], groups["slow"]["topics"]) == (1, ["Backlog"])
    assert rows("group", "monitor", "--sort", "-behind")[0]["group"] == "slow"
    assert "slow" in run("group", "monitor", "--match", "slow")
    assert groups["slow"]["delay_ms"] < 60_000
    nobody = run("group", "monitor", "--lag-max", 3)
    assert "no group has more than 3 messages behind or waiting" in nobody
    run("group", "monitor", "--lag-max", 2, code=1)


def test_group_clone_copies_offsets_and_group_skip_skips_the_backlog(run, rows, topic, shop):
    topic("Copied", 2, unread_by="first")
    run("group", "reset", "first", "Copied", "--to", "latest", "--yes")

    (cloned,) = rows("group", "clone", "first", "second", "Copied", "--yes")
    assert (cloned["before"], cloned["offset"]) == (None, 2)
    run("message", "send", "Copied", "x")
    assert rows("group", "progress", "second")["lag"] == 1
    skipped = run("group", "skip", "second", "Copied", "--yes")
    assert skipped.endswith("group second is moved in 1 queue of Copied\n")
    assert rows("group", "progress", "second")["lag"] == 0

    topic("SkippedA", 1, unread_by="second")
    topic("SkippedB", 1, unread_by="second")
    assert rows("group", "progress", "second")["lag"] == 2
    skipped = run("group", "skip", "second", "--all", "--yes")
    assert skipped.endswith("group second is moved in 3 queues of 3 topics\n")
    assert rows("group", "progress", "second")["lag"] == 0
    assert "name a topic, or add --all" in run("group", "skip", "second", "--yes", code=2)

    refused = run("group", "clone", "first", "billing", "Copied", "--yes", code=1)
    assert "group 'billing' has 1 connected consumer" in refused
    empty = run("group", "clone", "second", "third", "Orders", "--yes", code=1)
    assert "group 'second' has no offset in topic 'Orders'" in empty
    assert "name two groups" in run("group", "clone", "first", "first", "Copied", code=2)


def test_consume_directly_has_a_consumer_handle_one_message(run, rows, shop):
    (sent,) = [row for row in rows("message", "pull", "Orders") if row["keys"] == ["17"]]
    by_id = ("message", "consume-directly", "billing", sent["id"], "--topic", "Orders")

    assert "consumed it" in run("message", "consume-directly", "billing", sent["offset_id"])
    assert rows(*by_id)["result"] == "CR_SUCCESS"
    shop.set()
    assert "did not consume it: CR_THROW_EXCEPTION" in run(*by_id, code=1, shown="stdout")
    shop.clear()
    refused = run(*by_id, "--client", "nosuch", code=1)
    assert "no consumer nosuch of group billing is connected" in refused


def test_rates_are_shown_by_topic_and_group(run, rows, shop):
    (rates,) = rows("stats", "--topic", "Orders")

    assert (rates["topic"], rates["group"]) == ("Orders", "billing")
    assert rates["lag"] in (0, 1)  # Consumers commit their offsets once a second.
    assert (rates["in_of_day"], rates["out_of_day"]) == (1, 1)
    assert "billing" in run("stats", "--active", "--sort", "-out/s")
    assert "'Ordrs' does not exist" in run("stats", "--topic", "Ordrs", code=1)


def test_queue_message_and_client_lists_can_be_filtered_sorted_and_paged(run, rows, shop):
    run("topic", "create", "Sorted", "--queues", 2)
    for number, key in enumerate("cab"):
        queue = f"broker-a:{number % 2}"
        run("message", "send", "Sorted", f"body {key}", "--key", key, "--queue", queue)
    run("group", "create", "sorter")
    run("group", "reset", "sorter", "Sorted", "--to", "earliest", "--yes")
    pull, lag = ("message", "pull", "Sorted"), ("group", "progress", "sorter")

    assert [row["keys"] for row in rows(*pull, "--sort", "keys")] == [["a"], ["b"], ["c"]]
    assert [row["body"] for row in rows(*pull, "--match", "body b")] == ["body b"]
    assert "page 2 of 2, 3 rows" in run(*pull, "--limit", 2, "--page", 2)
    columns = "the columns are broker, queue, offset, id, tag, keys, body"
    assert columns in run(*pull, "--sort", "size", code=2)
    assert len(rows("message", "query", "Sorted", "a", "--match", "nothing")) == 0
    progress = rows(*lag, "--sort", "-behind", "--limit", 1)
    assert (progress["lag"], [row["queue"]["number"] for row in progress["queues"]]) == (2, [0])
    assert "3 messages behind" in run(*lag, "--match", "Sorted")
    assert rows("topic", "route", "Sorted", "--match", "broker-a")[0]["addresses"].keys() == {"0"}
    clients = rows("group", "clients", "billing", "--match", "no such client")
    assert (clients["clients"], clients["subscriptions"]["Orders"]) == ([], "*")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_progress_bar_is_shown_only_on_a_terminal(monkeypatch, is_terminal):
    screen = io.StringIO()
    screen.isatty = lambda: is_terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", screen)

    with progress_bar("dead letters", 4) as advance:
        advance(3)

    assert ("dead letters" in screen.getvalue()) is is_terminal


# Shells


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(txmq, shell):
    assert "_TXMQ_COMPLETE" in txmq("completion", shell).stdout


def test_a_shell_completes_commands():
    asked = {"COMP_WORDS": "txmq topic per", "COMP_CWORD": "2", "_TXMQ_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-m", "txmq"],
        env=os.environ | asked, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip

    assert (done.stdout, done.returncode) == ("permit\n", 0), done.stderr


# Clusters


def test_a_broker_is_drained_and_takes_messages_again(run, rows, topic):
    topic("Drained")

    def state():
        (route,) = rows("topic", "route", "Drained")
        return rows("cluster", "list")[0]["drained"], route["writable"], route["readable"]

    assert "for reading only" in run("cluster", "drain", "broker-a")
    assert state() == (True, 0, 1)
    assert rows("cluster", "undrain", "broker-a", "--yes")["writable"] is True
    assert state() == (False, 1, 1)
    assert "'broker-b' is unknown" in run("cluster", "drain", "broker-b", code=2)


# Traces


def test_trace_tail_follows_traces(run):
    with blocking.Client(run.names) as client:
        producer = blocking.Producer("tracing", client, ProducerSettings(is_traced=True))
        with producer:
            for key in ("a", "b", "c"):
                producer.send(Message(topic="Traced", body=b"x", keys=(key,)))
    follow = ("trace", "tail", "--since", "earliest", "--group", "tracing")

    lines = run(*follow, "--count", "3", "--json").splitlines()
    assert [json.loads(line)["keys"] for line in lines] == ["a", "b", "c"]
    assert "sent" in run(*follow, "--key", "b", "--topic", "Traced", "--count", 1)


# Transactions


def test_open_transactions_are_rechecked_together(run, rows):
    prepare(run.names, "A1", "A2")
    prepare(run.names, "B1", group="ccb")

    assert rows("tx", "recheck", "--all", "--group", "icbc")["rechecks_requested"] == 2
    assert run("tx", "recheck", "--all") == "brokers ask the producers of 3 transactions\n"
    assert "no open transactions" in run("tx", "recheck", "--all", "--group", "abc", code=1)
    assert "or write --all" in run("tx", "recheck", code=2)
    assert "or write --all" in run("tx", "recheck", "A1", "--group", "icbc", code=2)


def test_open_transactions_are_sorted_and_filtered(run, rows):
    prepare(run.names, "S1", group="sorted")
    prepare(run.names, "S2", group="sorted")
    listed = ("tx", "list", "--group", "sorted")

    def ids(*options):
        return [row["id"] for row in rows(*listed, *options)]

    assert ids("--sort", "-id") == ["S2", "S1"]
    assert ids("--sort", "-age") == ["S1", "S2"]
    assert ids("--match", "s2") == ["S2"]
    assert "which --limit shows" in run(*listed, "--limit", 1)


def test_tx_watch_reports_opened_and_closed_transactions(run, monkeypatch):
    prepare(run.names, "W1")
    sleep, ours = time.sleep, threading.current_thread()

    def decide_then_open(seconds):
        if threading.current_thread() is not ours:
            sleep(seconds)  # A library thread of an earlier test.
            return
        if run("tx", "list", "--json").count('"W2"'):
            raise KeyboardInterrupt
        run("tx", "commit", "W1", "--reason", "paid", "--yes")
        prepare(run.names, "W2")

    monkeypatch.setattr("time.sleep", decide_then_open)
    changes = [json.loads(line) for line in run("tx", "watch", "--json").splitlines()]

    assert [(change["change"], change["transaction"]["id"]) for change in changes] == [
        ("opened", "W2"),
        ("closed", "W1"),
    ]


def test_delayed_messages_are_listed_and_recalled_with_a_reason_that_the_audit_keeps(run, rows):
    run("topic", "create", "Later", "--queues", 1)
    run("message", "send", "Later", "soon", "--delay-level", 9, "--key", "k-1")
    run("message", "send", "Later", "late", "--after", "2h")

    first, second = rows("message", "delayed")
    assert (first["level"], first["topic"], first["keys"]) == (9, "Later", "k-1")
    assert (second["level"], second["size"]) == (0, 4)
    assert [row["id"] for row in rows("message", "delayed", "--level", 0)] == [second["id"]]
    assert rows("message", "delayed", "--most", 1) == [first]
    late = ("message", "delayed", "--from", "2090-01-01")
    assert run(*late) == "no message waits for its time\n"

    recall = ("message", "recall", "Later", second["recall_handle"], "--reason", "a wrong amount")
    assert run(*recall) == f"recalled {second['id']}\n"
    assert [row["id"] for row in rows("message", "delayed")] == [first["id"]]
    lines = run("audit", "--action", "RECALL", "--json").splitlines()
    entry = json.loads(lines[-1])
    assert (entry["broker"], entry["fields"]["reason"]) == ("broker-a", "a wrong amount")


def test_the_audit_reads_the_same_from_a_broker_and_from_its_directory(run, rows, txmq):
    for name in ("Audited-1", "Audited-2"):
        run("topic", "create", name, "--queues", 1)
    run("broker", "config", "set", "brokerIP1", "10.0.0.5", code=1)

    topics = run("audit", "--action", "CREATE_TOPIC", "--limit", 2).splitlines()
    assert [f"topic={name} " in line for name, line in
            zip(("Audited-1", "Audited-2"), topics, strict=True)] == [True, True]  # fmt: skip
    assert topics[0].startswith("broker-a ")
    assert "brokerIP1" in run("audit", "--refused", "--since", "1h")
    assert run("audit", "--by", "no such person") == ""
    assert run("audit", "--until", "2020-01-01") == ""
    assert "leaves out everything" in run("audit", "--until", "earliest", code=2)

    (folder,) = rows("broker", "config", "get", "storePathRootDir")
    stored = txmq("audit", "--data", folder["value"], "--action", "CREATE_TOPIC", "--limit", 2)
    assert stored.stdout.splitlines() == [line.removeprefix("broker-a ") for line in topics]


def test_a_group_is_not_done_while_messages_wait_for_a_retry(run, rows, topic):
    topic("Failing", 1, unread_by="dunning")
    run("group", "reset", "dunning", "Failing", "--to", "latest", "--yes")
    (sent,) = rows("message", "pull", "Failing")

    async def fail():
        async with Session(run.names) as session:
            address = (await session.route("Failing")).master("broker-a")
            # The last level: it still waits when the test is over.
            failed = SendBack(int(sent["offset_id"][16:], 16), "dunning", 18, "", "Failing")
            await session.request(address, RequestCode.CONSUMER_SEND_MSG_BACK, failed)

    asyncio.run(fail())

    progress = ("group", "progress", "dunning")
    assert "retr" in run(*progress, "--json")
    assert run(*progress).splitlines()[-1] == "0 messages behind, 1 waits for retry 1 of 16"
    (row,) = rows("group", "monitor", "--match", "dunning")
    assert (row["lag"], row["delay_ms"], row["retries"]["by_number"]) == (0, None, {"1": 1})
    assert "1 for retry 1 of 16" in run("group", "monitor", "--match", "dunning")
    assert "1 for retry 1 of 16" in run("stats", "--topic", "Failing")
    assert "dunning" in run("group", "monitor", "--lag-max", 0, code=1, shown="stdout")
