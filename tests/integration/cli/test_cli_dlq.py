"""``txmq dlq`` against a real broker, and against a fake that fails on request."""

import base64
import json
from functools import partial

import pytest

from tests.integration.console import console_stage
from tests.integration.console.console_stage import asked
from txmq.client import Session
from txmq.message import Message
from txmq.protocol import command, headers
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import SendMessageV2
from txmq.protocol.properties import render

DEAD, RETRY = "%DLQ%g", "%RETRY%g"


bury = partial(console_stage.bury, reason="", body=b"pay %s", tags="pay")


def give_up(names, message_id, reason, *, sys_flag=0):
    """Make the broker bury a message, as when a consumer of the group gives it up."""

    async def run(admin, session):
        (queue,) = (await admin.create_topic("Transfers", queues=1)).writable
        address = await session.address_of(queue)
        text = render({"UNIQ_KEY": message_id})
        sent = SendMessageV2("p", "Transfers", "TBW102", 1, 0, sys_flag, 1, 0, text)
        await session.request(address, RequestCode.SEND_MESSAGE_V2, sent, body=b"pay")
        (message,) = (await admin.pull(queue, 0)).messages
        back = headers.SendBack(message.position, "g", -1, reason=reason)
        await session.request(address, RequestCode.CONSUMER_SEND_MSG_BACK, back)
        await admin.create_topic(RETRY, queues=1)

    asked(names, run)


def retried(names):
    """What consumers of the group would get."""

    async def pull(admin, session):
        (queue,) = (await session.route(RETRY)).readable
        return (await admin.pull(queue, 0)).messages

    return asked(names, pull)


@pytest.fixture
def dlq(txmq, txmq_broker):
    """Run ``txmq dlq ...`` and return what it printed."""

    def run(*arguments, code=0, **more):
        result = txmq("dlq", *arguments, "--names", txmq_broker.names, **more)
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stdout + result.stderr

    return run


# Looking


def test_dlq_list_shows_each_group_with_the_age_of_its_dead_letters(dlq, txmq_broker):
    assert dlq("list") == "no dead letters\n"
    bury(txmq_broker.names, "A1", "A2")

    lines = dlq("list").splitlines()
    (group,) = json.loads(dlq("list", "--group", "g", "--json"))

    rows = [line.split() for line in lines if "+00:00" in line]
    assert [row[:2] for row in rows] == [["g", "2"]]
    assert (group["group"], group["messages"], group["by_broker"]) == ("g", 2, {"broker-a": 2})
    assert group["oldest_ms"] <= group["newest_ms"]
    unknown = dlq("list", "--group", "gg", code=1)
    assert "group 'gg' does not exist; the nearest name is 'g';" in unknown


def test_dlq_show_lists_the_dead_letters_of_a_group(dlq, txmq_broker):
    bury(txmq_broker.names, "A1", "A2", "A3")

    table = dlq("show", "g")
    letters = json.loads(dlq("show", "g", "--json"))

    assert all(word in table for word in ("A1", "A2", "A3", "Transfers", "17", "k-A1"))
    assert [row["id"] for row in letters] == ["A1", "A2", "A3"]
    assert (letters[0]["attempts"], letters[0]["origin_topic"]) == (17, "Transfers")
    cut = dlq("show", "g", "--limit", 2)
    assert "k-A3" not in cut  # an id may contain any hexadecimal text
    assert "2 are shown; there are more" in cut
    assert "there are more" not in dlq("show", "g", "--limit", 3)


def test_dead_letters_are_filtered_by_time_and_topic(dlq, txmq_broker):
    bury(txmq_broker.names, "A1")
    bury(txmq_broker.names, "B1", topic="Refunds")

    def ids(*options):
        return [row["id"] for row in json.loads(dlq("show", "g", "--json", *options))]

    assert ids("--since", "1h") == ["A1", "B1"]
    assert ids("--until", "1h") == []
    assert ids("--topic", "Refunds") == ["B1"]
    assert "no dead letters of this kind" in dlq("show", "g", "--until", "1h")
    assert "--since" in dlq("show", "g", "--since", "soon", code=2)


def test_an_unknown_group_is_an_error_but_an_empty_group_is_not(dlq, txmq_broker):
    asked(txmq_broker.names, lambda admin, session: admin.create_group("h"))

    assert dlq("show", "h") == "group h has no dead letters of this kind\n"
    for words in (["show", "x"], ["resend", "x", "--all", "--reason", "r", "--yes"]):
        assert "group 'x' does not exist" in dlq(*words, code=1)


def test_one_dead_letter_is_shown_in_full(dlq, txmq_broker):
    bury(txmq_broker.names, "A1")
    (listed,) = json.loads(dlq("show", "g", "--json"))

    for name in ("A1", listed["offset_id"]):
        shown = dlq("show", "g", name)
        assert "pay A1" in shown
        assert "origin_topic Transfers" in shown
    assert json.loads(dlq("show", "g", "A1", "--json")) == listed | {"resent": None}
    assert "has no dead letter A2" in dlq("show", "g", "A2", code=1)

    dlq("resend", "g", "A1", "--reason", "paid in", "--operator", "ann")

    assert "by ann: paid in" in dlq("show", "g", "A1")
    resent = json.loads(dlq("show", "g", "A1", "--json"))["resent"]
    assert (resent["by"], resent["reason"]) == ("ann", "paid in")
    assert resent["at_ms"] >= listed["stored_ms"]


def test_unreadable_dead_letter_topics_are_named_with_the_permit_command(asking, cluster):
    cluster.add_topic(DEAD, queues=1, perm=2)
    cluster.replies[RequestCode.GET_EARLIEST_MSG_STORETIME] = lambda request: command.answer(
        request, 0, headers.TimestampAnswer(7)
    )

    listed = asking("dlq", "list").stdout
    shown = asking("dlq", "show", "g")

    assert "those of g at broker-a, broker-b cannot be read yet" in listed
    assert shown.exit_code == 1
    assert f"txmq topic permit '{DEAD}' rw" in shown.stderr


def test_the_reason_is_shown_exported_and_kept_by_a_resent_copy(dlq, txmq_broker, tmp_path):
    give_up(txmq_broker.names, "A1", "ValueError: no\x1b[31m account")
    why = "its consumer gave it up: ValueError: no [31m account"
    file = tmp_path / "dead.jsonl"

    assert why in dlq("show", "g")
    assert f"reason       {why}" in dlq("show", "g", "A1")
    (letter,) = json.loads(dlq("show", "g", "--json"))
    dlq("export", "g", "--to", str(file))
    dlq("resend", "g", "A1", "--reason", "paid in", "--operator", "ann")

    assert (letter["reason"], json.loads(file.read_text())["reason"]) == (why, why)
    (copy,) = retried(txmq_broker.names)
    named = copy.properties
    assert (named["DLQ_REASON"], named["TXMQ_RESENT_REASON"]) == (why, "paid in")


def test_a_dead_letter_that_does_not_decompress_is_shown_and_not_resent(dlq, txmq_broker):
    give_up(txmq_broker.names, "A1", "a body does not decompress", sys_flag=1)

    assert "does not decompress" in dlq("show", "g")
    assert "unreadable   a body does not decompress" in dlq("show", "g", "A1")
    refused = dlq("resend", "g", "--all", "--yes", "--reason", "r", code=1)
    assert "would only die again" in refused


# Writing to a file


def test_an_export_writes_each_dead_letter_in_full_on_one_line(dlq, txmq_broker, tmp_path):
    bury(txmq_broker.names, "A1", "A2", body=b"\xff%s")
    file = tmp_path / "dead.jsonl"

    printed = dlq("export", "g", "--to", str(file))

    assert printed == f"2 dead letters of g are in {file}\n"
    first, second = [json.loads(line) for line in file.read_text().splitlines()]
    assert base64.b64decode(first["body_base64"]) == b"\xffA1"
    assert "body" not in first
    assert (second["id"], second["attempts"], second["flag"]) == ("A2", 17, 0)
    assert second["properties"]["RETRY_TOPIC"] == "Transfers"
    assert (second["origin_id"], second["topic"]) == ("0A" * 16, DEAD)


def test_an_export_overwrites_no_file_and_leaves_none_half_written(dlq, txmq_broker, tmp_path):
    bury(txmq_broker.names, "A1")
    file = tmp_path / "dead.jsonl"
    file.write_text("mine")

    assert "exists already" in dlq("export", "g", "--to", str(file), code=2)
    assert file.read_text() == "mine"
    target = tmp_path / "other.jsonl"
    assert "group 'x' does not exist" in dlq("export", "x", "--to", str(target), code=1)
    assert not target.exists()
    assert "cannot be written" in dlq("export", "g", "--to", str(tmp_path / "no" / "f"), code=2)
    made = json.loads(dlq("export", "g", "--to", str(target), "--until", "1h", "--json"))
    assert made == {"group": "g", "file": str(target), "messages": 0}


def test_an_export_to_a_full_disk_leaves_no_file(dlq, txmq_broker, tmp_path, monkeypatch):
    bury(txmq_broker.names, "A1")
    file = tmp_path / "dead.jsonl"

    def full(value):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("txmq.cli.dlq._line", full)

    assert "No space left on device" in dlq("export", "g", "--to", str(file), code=1)
    assert not file.exists()


# Resending


def test_chosen_dead_letters_are_resent_with_a_reason(dlq, txmq_broker):
    bury(txmq_broker.names, "A1", "A2", "A3")

    printed = dlq("resend", "g", "A1", "A3", "--reason", "paid in", "--operator", "ann")

    assert "2 resent\n" in printed
    copies = retried(txmq_broker.names)
    assert [copy.id for copy in copies] == ["A1", "A3"]
    assert copies[0].body == b"pay A1"
    assert copies[0].attempts == 0
    assert copies[0].properties["TXMQ_RESENT_BY"] == "ann"
    assert copies[0].properties["TXMQ_RESENT_REASON"] == "paid in"


def test_resending_a_dead_letter_again_needs_force(dlq, txmq_broker):
    bury(txmq_broker.names, "A1")
    dlq("resend", "g", "A1", "--reason", "r", "--operator", "ann")

    refused = dlq("resend", "g", "A1", "--reason", "r", code=1)
    forced = json.loads(dlq("resend", "g", "A1", "--reason", "r", "--force", "--json"))

    assert "by ann: r; --force resends it once more" in refused
    assert forced[0]["outcome"] == "resent"
    assert len(retried(txmq_broker.names)) == 2


def test_resend_all_asks_first_and_resends_each_dead_letter_once(dlq, txmq_broker, terminal):
    bury(txmq_broker.names, "A1", "A2", "A3")
    dlq("resend", "g", "A2", "--reason", "first")

    asked_first = dlq("resend", "g", "--all", "--reason", "r", code=1, input="n\n")
    assert "resend the 3 dead letters to g?" in asked_first
    assert len(retried(txmq_broker.names)) == 1
    letters = json.loads(dlq("resend", "g", "--all", "--reason", "r", "--yes", "--json"))
    again = dlq("resend", "g", "--all", "--reason", "r", input="y\n")

    assert [row["outcome"] for row in letters] == ["resent", "resent before", "resent"]
    assert "3 resent before\n" in again
    assert len(retried(txmq_broker.names)) == 3


def test_resend_all_with_a_filter_resends_only_matching_dead_letters(dlq, txmq_broker, terminal):
    bury(txmq_broker.names, "A1")
    bury(txmq_broker.names, "B1", topic="Refunds")

    printed = dlq("resend", "g", "--all", "--topic", "Refunds", "--reason", "r", input="y\n")

    assert "1 resent\n" in printed
    assert [message.id for message in retried(txmq_broker.names)] == ["B1"]
    none = dlq("resend", "g", "--all", "--topic", "x", "--reason", "r", "--yes")
    assert none == "group g has no dead letters of this kind\n"


def test_failed_resends_are_reported_and_the_others_go_on(dlq, txmq_broker):
    bury(txmq_broker.names, "A1")
    bury(txmq_broker.names, "B1", topic="")

    letters = json.loads(
        dlq("resend", "g", "A1", "B1", "C1", "--reason", "r", "--json", code=1).splitlines()[0]
    )

    assert [row["outcome"] for row in letters] == ["resent", "failed", "failed"]
    assert "which topic it was for" in letters[1]["note"]
    assert "has no dead letter C1" in letters[2]["note"]


@pytest.mark.parametrize(
    "words",
    [
        ["--reason", "r"],
        ["A1", "--all", "--reason", "r"],
        ["A1"],
        ["A1", "--reason", " "],
        ["A1", "--reason", "r", "--since", "1h"],
    ],
)
def test_an_ambiguous_resend_is_refused(txmq, words):
    result = txmq("dlq", "resend", "g", *words, "--names", "127.0.0.1:1")

    assert result.exit_code == 2


def test_a_resend_stops_when_the_broker_no_longer_answers(asking, cluster, monkeypatch):
    monkeypatch.setitem(Session.__init__.__kwdefaults__, "answer_s", 0.5)
    (queue, *_) = cluster.add_topic(DEAD, queues=1)
    cluster.add_topic(RETRY, queues=1)

    async def put(admin, session):
        for body in ("A1", "A2", "A3"):
            named = {"RETRY_TOPIC": "T", "UNIQ_KEY": body}
            await admin.send(Message(topic=DEAD, body=b"x", properties=named), queue)

    asked(cluster.names, put)
    broker, sends = cluster.brokers[0], []

    def once(request):
        sends.append(request)
        if len(sends) == 1:
            return broker.on_send_message_v2(request)
        return None  # No answer: it is unknown whether it arrived.

    cluster.replies[RequestCode.SEND_MESSAGE_V2] = once

    for words in (["A1", "A2", "A3"], ["--all", "--yes"]):
        sends.clear()
        broker.queues.pop((RETRY, 0), None)
        result = asking("dlq", "resend", "g", *words, "--reason", "r", "--json")

        outcomes = [row["outcome"] for row in json.loads(result.stdout)]
        assert (result.exit_code, outcomes) == (1, ["resent", "in doubt", "not tried"])
    told = asking("dlq", "resend", "g", "A2", "--reason", "r").stdout
    assert "run it again for those in doubt" in told
