import json
import re
from types import SimpleNamespace

import pytest
import typer

from txmq.cli.common import Ask
from txmq.errors import ConnectFailed, ConnectionLost, InternalError, RequestTimeout
from txmq.ops.moments import time_text
from txmq.protocol import command
from txmq.protocol.bodies import (
    ClientConnection,
    ConsumerConnections,
    GroupConfig,
    SubscriptionData,
)
from txmq.protocol.copies import CopiesView, FollowerEntry, RemovedMember, SetChange, SetChanged
from txmq.protocol.headers import RecallAnswer, SendAnswer
from txmq.protocol.recall import RecallHandle, encode

IN_DOUBT = "(it may have taken effect all the same)"


def told(result):
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def as_json(result):
    text = told(result)
    assert text.count("\n") == 1
    return json.loads(text)


def failed(result, code, text):
    assert (result.exit_code, result.stdout) == (code, "")
    assert text in result.stderr
    assert "Traceback" not in result.stderr


@pytest.fixture
def tell(asking):
    """Run a command at the cluster; returns what it printed."""
    return lambda *words, **more: told(asking(*words, **more))


@pytest.fixture
def rows(asking):
    """The same, of the JSON that it printed."""
    return lambda *words: as_json(asking(*words, "--json"))


@pytest.fixture
def topics(rows):
    return lambda: [row["topic"] for row in rows("topic", "list")]


@pytest.fixture
def send(tell, cluster):
    """Send a message to one of the queues of topic T, of which each broker has one."""
    cluster.add_topic("T", queues=1)

    def run(body="x", *options, queue="broker-a:0", **more):
        return tell("message", "send", "T", body, "--queue", queue, *options, **more)

    return run


# Topics


def test_a_topic_is_created_and_shown(tell, topics):
    assert tell("topic", "create", "T", "--queues", 3) == (
        "topic T has 3 queues at each of broker-a, broker-b\n"
    )
    assert topics() == ["T"]
    assert "broker-a" in tell("topic", "status", "T")


def test_a_read_only_topic_can_be_created_at_one_broker(rows, cluster):
    created = rows("topic", "create", "T", "--broker", "broker-b", "--perm", "r", "--order")

    assert created == {"topic": "T", "queues": 4, "brokers": ["broker-b"]}
    assert cluster.brokers[1].topics["T"].perm == 4


def test_system_topics_are_listed_only_with_all(rows, topics, cluster):
    for name in ("T", "TBW102", "%RETRY%g", "RMQ_SYS_TRACE_TOPIC", "broker-a", "c1"):
        cluster.add_topic(name)

    assert topics() == ["T"]
    assert len(rows("topic", "list", "--all")) == 6


def test_topic_status_and_route_print_json(tell, rows, cluster):
    cluster.add_topic("T", queues=1)

    assert rows("topic", "status", "T")[0] == {
        "queue": {"topic": "T", "broker": "broker-a", "number": 0},
        "min_offset": 0, "max_offset": 0, "updated_ms": 5,
    }  # fmt: skip
    assert rows("topic", "route", "T")[1] == {
        "broker": "broker-b", "addresses": {"0": cluster.brokers[1].address},
        "readable": 1, "writable": 1,
    }  # fmt: skip
    assert cluster.brokers[0].address in tell("topic", "route", "T")


def test_topic_delete_asks_unless_yes_is_given(asking, tell, rows, topics, cluster, terminal):
    cluster.add_topic("T")

    refused = asking("topic", "delete", "T", input="n\n")

    assert refused.exit_code == 1
    assert topics() == ["T"]
    assert tell("topic", "delete", "T", "--yes") == "topic T is deleted\n"
    assert tell("topic", "list") == "no topics\n"
    assert rows("topic", "list") == []


# Groups


def test_a_group_is_created_listed_and_deleted(tell, rows):
    tell("group", "create", "g", "--retries", 3, "--no-enabled")

    assert rows("group", "list") == [{"group": "g", "enabled": False, "retries": 3}]
    assert "g" in tell("group", "list")
    assert rows("group", "delete", "g", "--yes") == {"group": "g", "deleted": True}
    assert rows("group", "list") == []


def test_system_groups_are_listed_only_with_all(tell, rows, cluster):
    assert tell("group", "list") == "no groups\n"
    for name in ("g", "TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS"):
        cluster.brokers[0].groups[name] = GroupConfig(name)

    assert [row["group"] for row in rows("group", "list")] == ["g"]
    assert len(rows("group", "list", "--all")) == 3


def test_the_progress_of_an_unknown_group_is_an_error(asking, tell):
    unknown = "txmq: group 'nosuch' does not exist; list all groups with: txmq group list\n"
    failed(asking("group", "progress", "nosuch"), 1, unknown)
    tell("group", "create", "g")

    assert tell("group", "progress", "g").endswith("0 messages behind\n")


def test_group_progress_totals_the_lag_of_its_queues(tell, rows, send, cluster):
    for _ in range(3):
        send()
    cluster.brokers[0].offsets["g", "T", 0] = 1

    progress = rows("group", "progress", "g")

    assert (progress["group"], progress["lag"], progress["queues"][0]["lag"]) == ("g", 2, 2)
    total = tell("group", "progress", "g").splitlines()[-1]
    assert re.fullmatch(r"2 messages behind \(oldest \d+ s\)", total)


@pytest.mark.parametrize(("moment", "offset"), [("earliest", 0), ("latest", 2), ("1h", 0)])
def test_a_group_is_reset_to_a_point_in_time(tell, rows, send, moment, offset):
    tell("group", "create", "g")
    for _ in range(2):
        send(queue="broker-b:0")
    reset = ("group", "reset", "g", "T", "--to", moment, "--yes")

    assert [row["offset"] for row in rows(*reset)] == [0, offset]
    assert "broker-b" in tell(*reset)


def test_a_group_reset_with_only_back_skips_nothing(rows, send, cluster):
    cluster.brokers[0].offsets["g", "T", 0] = 0
    send()

    moves = rows("group", "reset", "g", "T", "--to", "latest", "--only-back", "--yes")

    assert moves[0]["offset"] == 0


def test_the_clients_of_a_group_are_shown(tell, rows, cluster):
    clients = [ClientConnection("10.0.0.1:5", "c1", "GO", 317)]
    cluster.brokers[0].consumers["g"] = ConsumerConnections(
        clients, "X", "CONSUME_PASSIVELY", "CLUSTERING", {"T": SubscriptionData("T", "A || B")}
    )

    text = tell("group", "clients", "g")

    assert "c1" in text
    assert "subscribed to T: A || B" in text
    assert rows("group", "clients", "g")["clients"][0]["language"] == "GO"


# Messages


def test_a_message_is_sent_fetched_and_looked_up(rows, cluster):
    cluster.add_topic("T")
    named = ("--tag", "A", "--key", "k1", "--key", "k2", "--property", "p=a=b")
    sent = rows("message", "send", "T", "hello", *named, "--queue", "broker-b:1")

    (pulled,) = rows("message", "pull", "T")

    assert rows("message", "query", "T", "k2") == [pulled]
    assert rows("message", "view", sent["offset_id"]) == pulled
    assert rows("message", "view", sent["id"], "--topic", "T") == pulled
    assert (pulled["body"], pulled["tags"], pulled["keys"]) == ("hello", "A", ["k1", "k2"])
    assert pulled["properties"] == {"p": "a=b"}
    assert pulled["queue"] == {"topic": "T", "broker": "broker-b", "number": 1}
    assert pulled["id"] == sent["id"]


def test_messages_are_printed_as_text(tell, send):
    sent = send("[bold]hello")

    assert sent.startswith("stored in broker-a:0 at offset 0; id ")
    assert "[bold]hello" in tell("message", "pull", "T")
    assert "body         [bold]hello\n" in tell("message", "view", sent.split()[-1])


@pytest.mark.parametrize(
    ("body", "typed", "encoded"),
    [("\udcff\udcfe", b"", "//4="), ("-", b"\xff\x00\n", "/wAK")],
    ids=["an argument", "standard input"],
)
def test_a_binary_body_is_sent_byte_for_byte(tell, rows, send, body, typed, encoded):
    send(body, input=typed)

    (message,) = rows("message", "pull", "T")

    assert message["body_base64"] == encoded
    assert "body" not in message
    assert r"\xff" in tell("message", "pull", "T")


def test_a_table_truncates_a_large_body(tell, send):
    send("-", input=b"x" * 5000)

    shown = tell("message", "pull", "T")

    assert shown.count("x") == 500
    assert "(5000 bytes)" in " ".join(shown.split())


def test_a_pull_fetches_batches_until_the_count_is_reached(rows, cluster):
    cluster.add_topic("T", queues=1)
    request = SimpleNamespace(born_timestamp=cluster.clock.wall_ms())
    for n in range(40):
        cluster.brokers[0].store("T", 0, request, b"%d" % n, "", 0)

    part = ("--queue", "broker-a:0", "--count", 35, "--offset", 2)
    messages = rows("message", "pull", "T", *part)

    assert [row["body"] for row in messages] == [str(n) for n in range(2, 37)]


def test_a_pull_can_filter_by_tag(rows, send):
    for tag in ("A", "B", "A"):
        send(tag, "--tag", tag)

    assert [row["offset"] for row in rows("message", "pull", "T", "--tags", "A")] == [0, 2]


@pytest.mark.parametrize(
    ("options", "properties"),
    [
        (("--delay-level", 3), {"DELAY": "3"}),
        (("--after", "90s"), {"TIMER_DELAY_SEC": "90"}),
        (("--after", "1500ms"), {"TIMER_DELAY_MS": "1500"}),
    ],
)
def test_a_message_can_be_sent_with_a_delay(rows, send, options, properties):
    send("x", *options)

    (message,) = rows("message", "pull", "T")

    assert message["properties"] == properties


def test_a_delayed_message_is_recalled_with_the_printed_command(asking, tell, rows, cluster):
    cluster.add_topic("T", queues=1)
    handle = encode(RecallHandle("T", "broker-b", 1_735_689_600_001, "AC11"))
    answer = SendAnswer("0A00000100002A9F0000000000000400", 0, 7, recall_handle=handle)
    cluster.replies[310] = lambda request: command.answer(request, 0, answer)
    cluster.replies[370] = lambda request: command.answer(request, 0, RecallAnswer("AC11"))

    sent = tell("message", "send", "T", "x", "--after", "2h")
    assert sent.startswith("waits at broker-")
    assert " for its time; id " in sent
    arguments = sent.splitlines()[-1].removeprefix("to recall it: txmq ").split()

    assert tell(*arguments) == "recalled AC11\n"
    assert rows(*arguments) == {"id": "AC11"}
    failed(asking("message", "recall", "T", "nonsense"), 1, "is not a recall handle")


def test_delay_level_and_after_cannot_be_combined(asking, cluster):
    cluster.add_topic("T")
    twice = asking("message", "send", "T", "x", "--delay-level", 1, "--after", "1s")
    failed(twice, 2, "--delay-level and --after exclude each other")
    assert not [code for _, code, _ in cluster.asked if code == 310]


def test_an_empty_pull_prints_no_messages_or_an_empty_json_list(tell, rows, cluster):
    cluster.add_topic("T")

    assert tell("message", "pull", "T") == "no messages\n"
    assert rows("message", "pull", "T") == []


# The cluster


def test_brokers_are_listed(tell, rows, cluster):
    names = [(name, name) for name in ("broker-a", "broker-b")]
    assert [(row["broker"], row["version"]) for row in rows("cluster", "list")] == names
    assert cluster.brokers[0].address in tell("cluster", "list")


def test_a_broker_that_is_down_does_not_hide_the_others(rows, cluster):
    cluster.listeners[0].close()

    brokers = rows("cluster", "list")

    assert "cannot connect" in brokers[0]["version"]
    assert brokers[1]["version"] == "broker-b"


# Failures


def test_a_refusal_prints_one_sentence_and_exits_1(asking):
    result = asking("topic", "status", "T")

    failed(result, 1, "txmq: topic 'T' does not exist; create it with: txmq topic create T\n")


@pytest.mark.parametrize(
    ("error", "changes", "told"),
    [
        (RequestTimeout("late"), True, f"txmq: late {IN_DOUBT}\n"),
        (ConnectionLost("gone"), True, f"txmq: gone {IN_DOUBT}\n"),
        (ConnectionLost("gone"), False, "txmq: gone\n"),
        (ConnectFailed("no way"), True, "txmq: no way\n"),
        (InternalError("bad"), True, "txmq: bad\n"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_only_an_unanswered_change_is_reported_as_in_doubt(capsys, error, changes, told):
    async def failing(admin):
        raise error

    with pytest.raises(typer.Exit):
        Ask("127.0.0.1:1")(failing, changes=changes)

    assert capsys.readouterr().err == told


def test_an_unanswered_send_says_that_it_may_have_taken_effect(asking, cluster):
    cluster.add_topic("T")
    cluster.replies[310] = lambda request: cluster.listeners[0].close()
    assert [listener.connections for listener in cluster.listeners] == [0, 0]

    failed(asking("message", "send", "T", "x", "--queue", "broker-a:0"), 1, IN_DOUBT)


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "create", "T", "--perm", "x"),
        ("topic", "create", "T", "--queues", "0"),
        ("topic", "create", "a b"),
        ("topic", "create"),
        ("group", "reset", "g", "T", "--to", "someday"),
        ("group", "reset", "g", "T"),
        ("message", "send", "T", "x", "--property", "p"),
        ("message", "send", "T", "x", "--queue", "broker-a"),
        ("message", "send", "T", "x", "--after", "someday"),
        ("message", "send", "T", "x", "--delay-level", "-1"),
        ("message", "send", "T", ""),
        ("message", "view", "no id"),
        ("message", "pull", "T", "--count", "0"),
        ("message", "pull", "T", "--offset", "-1"),
        ("message", "view", "AC110001001A355DA2541234ABCD0001"),
        ("nonsense",),
        ("topic", "list", "--names", "nowhere"),
    ],
)
def test_an_invalid_command_line_exits_2(txmq, cluster, arguments):
    if "--names" not in arguments and len(arguments) > 1:
        arguments = (*arguments, "--names", cluster.names)

    result = txmq(*arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr


def test_name_servers_can_come_from_the_environment(txmq, cluster):
    cluster.add_topic("T")

    (topic,) = as_json(txmq("topic", "list", "--json", env={"TXMQ_NAMES": cluster.names}))
    assert topic["topic"] == "T"


def test_the_version_is_printed(txmq):
    assert told(txmq("--version")) == "txmq 0.1.0\n"


@pytest.mark.parametrize("group", ["topic", "group", "message", "cluster", "config"])
def test_every_command_group_has_help(txmq, group):
    assert "Usage" in told(txmq(group, "--help"))


# Copies


FOLLOWERS = (
    FollowerEntry("m2.11223344", "127.0.0.1:4711", True, 5000, 0, 0.0),
    FollowerEntry(
        "m3.55667788", "127.0.0.1:4712", False, 100, 4900, 10.02, True, 2, 1_700_000_000_000
    ),
    FollowerEntry("m4.99aabbcc", "", True),
)


@pytest.fixture
def copies(cluster):
    """Brokers answer that they have these followers and removed members."""

    def answer(followers=(), removed=()):
        view = CopiesView("m1.0a1b2c3d", 3, "sync", 2, 5000, list(followers), list(removed))
        cluster.replies[7707] = lambda request: command.answer(request, body=view.write())

    return answer


def test_cluster_status_shows_the_copies_of_each_broker(tell, cluster, copies):
    copies(FOLLOWERS)

    lines = [line.split() for line in tell("cluster", "status").splitlines()]

    address = cluster.brokers[0].address
    leader = ["m1", address, "3", "sync", "3,", "at", "least", "2", "5000"]
    assert ["c1", "broker-a", *leader] in lines
    assert ["broker-b", "m2", "127.0.0.1:4711", "yes", "5000", "0", "0.0"] in lines
    late = ["m3", "127.0.0.1:4712", "no", "100", "4900", "more", "than", "10.0"]
    assert ["broker-b", *late] in lines
    assert ["broker-b", "m4", "not", "connected", "yes", *["unknown"] * 3] in lines
    assert ["broker-b", "m3", "2", *time_text(1_700_000_000_000).split()] in lines


def test_removed_members_are_shown_with_the_reason(tell, copies):
    copies(removed=[RemovedMember("m5", "Li Na", "its disk is slow", 0)])

    words = tell("cluster", "status").split()

    at = words.index("m5")
    assert words[at + 3 : at + 9] == ["Li", "Na", "its", "disk", "is", "slow"]


def test_a_member_is_removed_and_allowed_to_rejoin(asking, tell, cluster):
    wanted = []

    def change(request):
        wanted.append(request.read(SetChange))
        return command.answer(request, header=SetChanged("m3", 3))

    cluster.replies[7708] = change
    words = ["m3", "--broker", "broker-b", "--reason", "a slow disk", "--operator", "Li Na"]
    assert tell("cluster", "remove", *words) == "removed m3 from broker-b, by Li Na\n"
    assert tell("cluster", "rejoin", *words) == "m3 may follow broker-b again, by Li Na\n"
    assert wanted == [
        SetChange("remove", "m3", "Li Na", "a slow disk"),
        SetChange("rejoin", "m3", "Li Na", "a slow disk"),
    ]
    assert asking("cluster", "remove", "m3", "--reason", " ").exit_code == 2


def test_cluster_status_json_has_full_member_names(rows, cluster, copies):
    copies(FOLLOWERS[1:2])

    first, _ = rows("cluster", "status")

    assert first.pop("followers") == [
        {
            "name": "m3", "member": "m3.55667788", "address": "127.0.0.1:4712",
            "in_sync": False, "position": 100, "bytes_behind": 4900, "seconds_behind": 10.02,
            "is_longer": True, "damaged_parts": 2, "verified_ms": 1_700_000_000_000,
        }
    ]  # fmt: skip
    assert first == {
        "cluster": "c1", "broker": "broker-a", "address": cluster.brokers[0].address,
        "name": "m1", "member": "m1.0a1b2c3d", "epoch": 3, "mode": "sync",
        "in_sync": 1, "min_in_sync": 2, "log_end": 5000, "damaged_parts": 0, "verified_ms": 0,
        "removed": [],
    }  # fmt: skip


def test_cluster_status_notes_brokers_without_followers_or_copies(tell, rows, cluster, copies):
    copies()
    text = tell("cluster", "status")
    assert text.endswith("broker-b has no followers: its log has one copy\n")

    # Apache RocketMQ knows no such request.
    del cluster.replies[7707]
    assert "broker-a gave no answer: " in tell("cluster", "status")
    first, _ = rows("cluster", "status")
    assert set(first) == {"cluster", "broker", "address", "problem"}
