"""A console as operators use it: a separate process, a real broker, and real sockets."""

import contextlib
import re
import socket
import subprocess
import sys
from getpass import getuser
from html import unescape
from urllib.parse import parse_qs, urlsplit

import pytest

import txmq
from tests.integration.cli.test_cli_tx import two_brokers
from tests.integration.console.console_stage import (
    HOSTILE,
    ConsoleProcess,
    Visitor,
    asked,
    bury,
    consume,
    mark_of,
    park,
    text_of,
)
from tests.servers.serving import BrokerProcess, environment
from txmq.console.app import PAGES
from txmq.message import Message, Queue

pytestmark = pytest.mark.timeout(60)


def attention_in(overview):
    """What needs attention on an overview, except for the disk of this machine."""
    assert overview.status_code == 200
    items = re.findall(r'<li class="(?:bad|wait)">(.*?)</li>', overview.text)
    assert items or "Nothing needs attention" in overview.text
    return [item for item in items if "the disk of" not in item]


def keys_in(broker, topic):
    """The keys of the messages that consumers of a topic can see."""

    async def pull(admin, _session):
        return (await admin.pull(Queue(topic, "broker-a", 0), 0)).messages

    return sorted(key for message in asked(broker.names, pull) for key in message.keys)


@pytest.fixture
def said(visitor):
    """The text of a page."""
    return lambda path: text_of(visitor.get(path))


def test_a_console_prints_its_address_and_stops_on_a_signal(broker):
    with ConsoleProcess(broker.names) as console:
        assert re.fullmatch(
            rf"ready console http://localhost:\d+ {console.url} names {broker.names}\n",
            console.ready,
        )
        with Visitor(console.url) as visitor:
            assert not attention_in(visitor.get("/"))
            assert console.stop() == ""


def test_a_parked_transaction_is_committed_by_hand(broker, visitor, said):
    ids = park(broker.names, "t-1", "t-2", group="icbc", topic="Moved")
    listed = said("/transactions?state=parked&group=icbc")
    assert all(text in listed for text in (*ids.values(), "t-1", "icbc", "Moved"))
    assert "2 transactions are parked" in said("/")

    shown = said(f"/transaction?id={ids['t-1']}")
    for text in (
        "check 1: the broker asks",
        "it answered that it has no decision yet",
        "a person must decide",
        '"amount": 6000',
    ):
        assert text in shown

    to = f"/transaction/decision?id={ids['t-1']}&broker=broker-a&decision=commit"
    wrong = visitor.post(to, reason="in the books", repeated="t-2")
    assert wrong.status_code == 400
    assert "the key is not the same" in text_of(wrong)
    assert 'value="in the books"' in wrong.text  # It need not be typed again.
    without = visitor.post(to, reason="  ", repeated="t-1")
    assert "the reason is missing" in text_of(without)

    long = text_of(visitor.post(to, reason="账" * 400, repeated="t-1"))
    assert "the reason has 1200 bytes, and beside your name the broker keeps 10" in long

    done = text_of(visitor.post(to, reason="in the books", repeated="t-1"))
    assert f"transaction {ids['t-1']} is committed at broker-a by " in done
    back = to.replace(ids["t-1"], ids["t-2"]).replace("commit", "rollback")
    done = text_of(visitor.post(back, reason="never paid", repeated="t-2"))
    assert f"transaction {ids['t-2']} is rolled back" in done

    assert keys_in(broker, "Moved") == ["t-1"]
    decided = said(f"/transaction?id={ids['t-1']}")
    assert "decides by hand: COMMIT" in decided
    assert "reason: in the books" in decided
    assert "Ask the producers again" not in decided
    assert visitor.post(to, "/topics", reason="x", repeated="t-1").status_code == 404


def test_a_parked_transaction_is_checked_again(broker, visitor):
    (name,) = park(broker.names, "t-9", group="checked", topic="Checked").values()
    page = f"/transaction?id={name}"
    to = f"/transaction/recheck?id={name}&broker=broker-a"
    done = text_of(visitor.post(to, page, reason="<b>the bank</b> is back"))

    assert f"broker-a asks the producers of {name} now" in done
    assert f"{getuser()} has the broker ask the producers again" in done
    assert "reason: <b>the bank</b> is back" in done
    room = 256 - len(getuser())
    long = visitor.post(to, page, reason="é" * (room // 2 + 1))
    assert (long.status_code, f"beside your name the broker keeps {room}" in text_of(long)) == (
        400,
        True,
    )
    assert "the broker ask" in text_of(visitor.post(to, page, reason="x" * room))
    gone = visitor.post("/transaction/recheck?id=no-such&broker=broker-a", page)
    assert (gone.status_code, "no transaction no-such is open" in text_of(gone)) == (404, True)


def test_all_open_transactions_of_a_group_are_rechecked_at_once(broker, visitor):
    park(broker.names, "m-1", group="many", topic="Many")
    park(broker.names, "m-2", group="many", topic="Many")

    assert "group many state prepared and parked open now 2" in text_of(
        visitor.get("/transactions/recheck?group=many")
    )
    done = visitor.post("/transactions/recheck?group=many")
    assert "brokers ask the producers of 2 transactions" in text_of(done)
    page = "/transactions/recheck?group=many"
    refused = visitor.post("/transactions/recheck?state=lost", page)
    assert (refused.status_code, "prepared, parked or" in text_of(refused)) == (409, True)


def test_several_transactions_are_decided_together_after_a_preview(broker, visitor, said):
    ids = park(broker.names, "s-1", "s-2", "s-3", group="several", topic="Several")
    listed = visitor.get("/transactions?group=several")
    chosen = {key: f"broker-a:{ids[key]}" for key in ids}
    assert all(f'name="chosen" value="{name}"' in listed.text for name in chosen.values())

    def path(do, *keys):
        return f"/transactions/chosen?do={do}" + "".join(f"&chosen={chosen[key]}" for key in keys)

    first = path("commit", "s-1", "s-2")
    seen = said(first)
    assert "Commit 2 transactions" in seen
    assert re.search(rf"s-1 parked for .* topic Several, id {ids['s-1']} at broker-a", seen)
    assert "s-3" not in seen
    assert "the reason is missing" in text_of(visitor.post(first, reason=" ", repeated="2"))
    wrong = visitor.post(first, reason="in the books", repeated="3")
    assert "the number of transactions is not the same" in text_of(wrong)
    done = visitor.post(first, reason="in the books", repeated="2")
    assert "2 transactions committed" in text_of(done)
    assert keys_in(broker, "Several") == ["s-1", "s-2"]
    assert "reason: in the books" in said(f"/transaction?id={ids['s-2']}")

    late = path("recheck", "s-2", "s-3")
    assert "it is left out" in said(late)
    done = text_of(visitor.post(late))
    assert "1 transaction will be checked again" in done
    assert "1 of 2 failed, the first of them: no transaction" in done
    for wrong, status in {
        "/transactions/chosen?do=commit": 400,
        path("burn", "s-3"): 400,
        f"/transactions/chosen?do=commit{''.join(f'&chosen={n}' for n in range(101))}": 413,
    }.items():
        assert visitor.get(wrong).status_code == status, wrong


def test_messages_that_are_decided_together_are_shown_together():
    with (
        two_brokers() as names,
        ConsoleProcess(names) as console,
        Visitor(console.url) as visitor,
    ):
        page = visitor.get("/transaction?id=X.1")
        assert "One of 3 messages" in text_of(page)
        links = re.findall(r'<a id="of-transaction-\d+" href="([^"]+)">([^<]+)</a>', page.text)
        assert [(unescape(link), name) for link, name in links] == [
            (f"/transaction?id={name}&broker=broker-a", name) for name in ("X", "X.2")
        ]
        assert [visitor.get(unescape(link)).status_code for link, _ in links] == [200, 200]

        chosen = "".join(f"&chosen={name}" for name in ("broker-a:X", "broker-b:X.1"))
        preview = visitor.get(f"/transactions/chosen?do=commit{chosen}")
        assert "Commit 1 transaction" in text_of(preview)
        assert "one of 3 messages that are decided together" in text_of(preview)
        action = unescape(re.search(r'action="(/transactions/chosen[^"]+)"', preview.text)[1])
        assert parse_qs(urlsplit(action).query)["chosen"] == ["broker-a:X"]

        to = "/transaction/decision?id=X&broker=broker-a&decision=commit"
        assert "One decision is about all of them; 3 wait for it." in text_of(visitor.get(to))
        assert "X is committed" in text_of(visitor.post(to, reason="booked", repeated="t-17"))
        assert asked(names, lambda admin, _: admin.transactions()) == []
        decided = text_of(visitor.get("/transaction?id=X.1"))
        assert "One decision is about all of them; 0 wait for it." in decided


def test_a_decision_needs_a_reason_but_a_recheck_does_not(broker, visitor):
    (name,) = park(broker.names, "r-1", group="reasons", topic="Reasons").values()
    page = visitor.get(f"/transaction?id={name}").text
    ask, decide = page.index("<h2>Ask again"), page.index("<h2>Decide by hand")
    assert ask < page.index("Reason (optional)") < decide
    assert "A decision needs a reason" in page[decide:]
    form = visitor.get(f"/transaction/decision?id={name}&decision=rollback").text
    assert re.search(r'Reason \(required\).*\s+<input name="reason" required', form)


def test_a_transaction_is_titled_by_its_business_key(broker, visitor):
    ids = park(broker.names, "order-4711", "order-4712", group="titles", topic="Titles")
    page = visitor.get(f"/transaction?id={ids['order-4711']}").text
    assert "<title>order-4711 · txmq</title>" in page
    assert "<h1>order-4711</h1>" in page
    listed = visitor.get("/transactions?group=titles&sort=-transaction").text
    rows = re.findall(r'<a id="row-\d+"[^>]*>([^<]+)</a><small class="code">(\w+)</small>', listed)
    assert rows == [(key, ids[key]) for key in ("order-4712", "order-4711")]


def test_the_overview_shows_the_txmq_version_of_a_broker(visitor):
    assert f"txmq {txmq.__version__}, speaks V" in text_of(visitor.get("/"))


def test_topics_show_rates_and_lag_and_are_sorted_by_them(broker, visitor):
    for name, count in (("few", 2), ("most", 4), ("more", 3)):
        consume(broker.names, f"readers-{name}", f"Sorted-{name}", [b"x"] * count)
        group = f"readers-{name}"
        queue = Queue(f"Sorted-{name}", "broker-a", 0)
        asked(broker.names, lambda admin, _, at=(group, queue): admin.commit_offset(*at, 0))

    def topics(query):
        page = visitor.get(f"/topics?search=Sorted-{query}").text
        return re.findall(r'id="row-\d+"[^>]*>Sorted-(\w+)<', page)

    assert topics("") == ["few", "more", "most"]
    assert topics("&sort=-name") == ["most", "more", "few"]
    assert topics("&sort=-lag") == ["most", "more", "few"]
    assert topics("&sort=lag") == ["few", "more", "most"]
    page = visitor.get("/topics?search=Sorted-&sort=-lag")
    assert re.search(r"Sorted-most 4 readers-most \d+\.\d \d+\.\d 4 ", text_of(page))
    assert 'aria-sort="descending"><a id="sort-lag" href="/topics?search=Sorted-&amp;sort=lag"' in (
        page.text
    )
    groups = visitor.get("/groups?search=readers-&sort=-lag").text
    assert re.findall(r'id="row-\d+"[^>]*>readers-(\w+)<', groups) == ["most", "more", "few"]
    wrong = visitor.get("/topics?sort=colour")
    assert (wrong.status_code, "is sorted by name, lag, in_s" in text_of(wrong)) == (400, True)


def test_a_live_tail_shows_a_message_as_it_arrives_until_it_is_paused(visitor):
    visitor.post("/topics", name="Tailed", queues="2")
    page = visitor.get("/messages/tail?topic=Tailed")
    assert "The topic has no message yet" in text_of(page)
    visitor.post("/topic?name=Tailed", body="the first", key="tail-1")

    name, html, _ = visitor.event("/messages/tail?topic=Tailed", mark_of(page))
    assert name == "page"
    assert re.search(r"tail-1 \d+ the first", text_of(html))
    paused = visitor.get("/messages/tail?topic=Tailed&still=1")
    assert "tail-1" in text_of(paused)
    assert "data-page" not in paused.text


def test_a_topic_is_created_and_its_test_message_is_found(visitor):
    made = visitor.post("/topics", name="Orders", queues="2")
    assert "topic Orders has 2 queues at each of broker-a" in text_of(made)
    again = visitor.post("/topics", name="Orders", queues="4")
    assert "topic 'Orders' exists already" in text_of(again)
    assert visitor.post("/topics", name="a/b", queues="1").status_code == 400
    assert visitor.post("/topics", name="Wide", queues="99999999999").status_code == 400

    sent = visitor.post("/topic?name=Orders", body='{"order": 17}', key="o-17", tag="new")
    name = re.search(r"sent as (\w+)", text_of(sent))[1]
    for by, wanted in (("key", "o-17"), ("id", name)):
        listed = visitor.get(f"/messages?topic=Orders&by={by}&wanted={wanted}")
        place = re.search(r"/message\?place=(\w+)", listed.text)[1]
    shown = visitor.get(f"/message?place={place}")
    assert '"order": 17' in text_of(shown)
    assert "No client left a trace" in text_of(shown)
    assert "7b 22 6f" in text_of(visitor.get(f"/message?place={place}&as=hex"))
    assert visitor.post("/topic?name=Nothing", "/topics", body="x").status_code == 404
    assert "Orders" in text_of(visitor.get("/topics?search=rder"))
    assert "No topic has a name" in text_of(visitor.get("/topics?search=nothing-like-it"))


def test_a_group_that_falls_behind_without_a_consumer_needs_attention(broker, visitor):
    consume(broker.names, "abandoned", "Unread", [b"1", b"2", b"3"])
    consume(broker.names, "done", "Read", [b"1"])
    queue = Queue("Read", "broker-a", 0)
    asked(broker.names, lambda admin, _: admin.commit_offset("done", queue, 1))

    items = attention_in(visitor.get("/"))

    (abandoned,) = [item for item in items if "abandoned" in item]
    assert "group abandoned has no consumer and falls behind: 1 (oldest" in abandoned
    assert "/group?name=abandoned" in abandoned
    assert not any("group done" in item for item in items)


def test_a_group_is_moved_after_a_preview(broker, visitor, said):
    consume(broker.names, "billing", "Bills", [b"1", b"2", b"3"])
    assert "billing 1" in said("/groups?search=bill")
    assert "No consumer of this group is connected" in said("/group?name=billing")

    to = "/group/reset?name=billing&topic=Bills&to=earliest"
    preview = visitor.get(to)
    assert "2 messages delivered again" in text_of(preview)
    moment = re.search(r'name="moment" value="(-?\d+)"', preview.text)[1]
    wrong = visitor.post(to, moment=moment, repeated="bills")
    assert "the name of the group is not the same" in text_of(wrong)
    for number in ("9" * 5_000, "", "soon"):
        assert visitor.post(to, moment=number, repeated="billing").status_code == 400
    done = visitor.post(to, moment=moment, repeated="billing")
    assert "group billing is moved to earliest in 1 queue of Bills" in text_of(done)

    queue = Queue("Bills", "broker-a", 0)
    assert asked(broker.names, lambda admin, _: admin.committed_offset("billing", queue)) == 0
    assert visitor.get(to.replace("earliest", "yesterday")).status_code == 400


def test_dead_letters_are_resent_singly_and_all_at_once(broker, visitor):
    bury(broker.names, "A1", "A2", "A3", group="dunning", reason="no such account")
    assert "dunning 3" in text_of(visitor.get("/dead-letters"))
    listed = visitor.get("/dead-letters/group?group=dunning")
    assert text_of(listed).count("no such account") == 3
    place = re.search(r"/dead-letter\?group=dunning&amp;id=(\w+)", listed.text)[1]

    letter = f"/dead-letter?group=dunning&id={place}"
    assert "the reason is missing" in text_of(visitor.post(letter, reason=""))
    assert "A1 is resent to dunning" in text_of(visitor.post(letter, reason="it is open again"))
    assert "it was resent before" in text_of(visitor.post(letter, reason="once more"))
    assert "A1 is resent" in text_of(visitor.post(letter, reason="once more", again="yes"))

    all_letters = "/dead-letters/group?group=dunning"
    assert "is not the same" in text_of(visitor.post(all_letters, reason="fixed", repeated="dun"))
    done = text_of(visitor.post(all_letters, reason="fixed", repeated="dunning"))
    assert "dead letters of dunning: 1 resent before, 2 resent" in done
    assert "3 resent before" in text_of(
        visitor.post(all_letters, reason="fixed", repeated="dunning")
    )


def test_hostile_texts_are_shown_escaped(broker, visitor):
    ids = park(broker.names, HOSTILE, group="hostile", topic="Hostile", body=HOSTILE.encode())
    bury(broker.names, "H1", group="hostile", reason=HOSTILE, body=HOSTILE.encode())

    async def send(admin, _session):
        texts = {"topic": "Hostile", "body": HOSTILE.encode(), "tags": "t", "keys": ("h-1",)}
        return await admin.send(Message(**texts, properties={HOSTILE: HOSTILE}))

    receipt = asked(broker.names, send)
    (name,) = ids.values()
    listing = "/transactions?group=hostile"
    found = "/messages?topic=Hostile&wanted=h-1"
    showing = [
        f"/transaction?id={name}",
        f"/transaction/decision?id={name}&decision=commit",
        f"/message?place={receipt.offset_id}",
        "/dead-letters/group?group=hostile",
        "/dead-letter?group=hostile&id=H1",
    ]
    fields = (
        "name", "group", "id", "topic", "wanted", "search", "state", "to", "broker", "place",
        "member", "do", "key", "handle", "value", "person", "action", "since", "after", "before",
        "level", "from", "only", "chosen", "sort",
    )  # fmt: skip
    plain = [(path, None) for path in (listing, found, *showing)]
    with Visitor(visitor.url) as client:
        client.get("/")
        for path, more in plain + [(page.path, dict.fromkeys(fields, HOSTILE)) for page in PAGES]:
            answer = client.get(path, params=more)
            assert answer.status_code < 500, (path, answer.text)
            _, changes, _ = client.event(str(answer.url.raw_path, "ascii"), "other")
            for text in (answer.text, changes):
                for raw in ("<script>document", "\x1b", "\u202e"):
                    assert raw not in text, path
            if path in showing:
                assert "&lt;script&gt;" in answer.text, path


def test_a_key_of_thirty_thousand_characters_does_not_widen_a_list(broker, visitor):
    key = "k" * 30_000
    ids = park(broker.names, key, group="wide", topic="Wide")

    listed = visitor.get("/transactions?group=wide")
    assert len(listed.content) < 10_000
    to = f"/transaction/decision?id={ids[key]}&broker=broker-a&decision=rollback"
    assert f"Type the id {ids[key]} to confirm" in text_of(visitor.get(to))


def test_a_page_receives_only_what_has_changed(visitor):
    visitor.post("/topics", name="Quiet", queues="1")
    mark = mark_of(visitor.get("/topic?name=Quiet"))
    visitor.post("/topic?name=Quiet", body="x")

    name, html, other = visitor.event("/topic?name=Quiet", mark)
    assert (name, other != mark) == ("page", True)
    assert "1 message" in text_of(html)
    assert "<h1>" not in html
    assert "token" not in html


def test_a_console_survives_a_broker_restart(tmp_path):
    broker = BrokerProcess(tmp_path)
    broker.start()
    with contextlib.closing(broker), ConsoleProcess(broker.names) as console:
        with Visitor(console.url) as visitor, Visitor(console.url) as late:
            mark = mark_of(visitor.get("/topics"))
            broker.kill()

            name, html, away = visitor.event("/topics", mark)
            assert (name, "no server listens" in text_of(html)) == ("page", True)
            assert away.startswith("away-")
            first = late.get("/")
            assert (first.status_code, "tries again by itself" in text_of(first)) == (503, True)
            assert mark_of(first).startswith("problem-")

            broker.start()
            name, html, _ = visitor.event("/topics", away)
            assert (name, "No topic exists yet" in text_of(html)) == ("page", True)
            assert late.event("/", mark_of(first))[0] == "reload"
            assert not attention_in(late.get("/"))
        broker.stop()


def test_a_stop_closes_connections_with_an_unfinished_request(broker):
    with ConsoleProcess(broker.names) as console:
        host, port = console.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as idle:
            idle.sendall(b"GET / HTTP/1.1\r\n")
            console.stop()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("", "log in with accounts of their own"),
        ("--listen 0.0.0.0:0", "--origin https://"),
        ("--listen 0.0.0.0:0 --origin http://a.example", "without TLS"),
        ("--listen nothing", "write host:port"),
        ("--listen 192.0.2.1:8080 --origin https://a.example", "cannot listen on"),
        ("--names nothing", "is not an address"),
    ],
)
def test_a_console_does_not_start_with_unsafe_or_invalid_options(options, why):
    account = {"TXMQ_ACCESS_KEY": "operator", "TXMQ_SECRET_KEY": "operator-secret"}
    variables = environment() | ({} if options else account)
    result = subprocess.run(
        [sys.executable, "-m", "txmq", "console", "--listen", "127.0.0.1:0", *options.split()],
        capture_output=True, text=True, timeout=30, check=False, env=variables,
    )  # fmt: skip

    assert result.returncode in {1, 2}
    assert why in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
