"""Transactions, messages, searches, outboxes and reports, as a visitor of a console sees them."""

import re
from urllib.parse import quote

import pytest
from sqlalchemy import select, update

from tests.console_stage import HOSTILE, PARKING, ConsoleProcess, Visitor, asked, park, text_of
from txmq.client.observe.trace_records import (
    HandlerEnd,
    HandlerOutcome,
    HandlerStart,
    SendRecord,
    encode,
)
from txmq.databases.engines import engine_of
from txmq.message import Message, Queue
from txmq.outbox.schema import create_outbox
from txmq.outbox.table import Outbox
from txmq.protocol.topics import TRACES
from txmq_broker.testing import BrokerThread

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def broker():
    with BrokerThread(PARKING) as running:
        yield running


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    """The database of a bank with rows in its outbox; its URL."""
    url = f"sqlite:///{tmp_path_factory.mktemp('bank')}/bank.db"
    engine = engine_of(url)
    create_outbox(engine, "txmq_outbox", None)
    outbox = Outbox()
    with engine.begin() as connection:
        for number in range(60):
            lane = "account-1" if number < 3 else None
            outbox.add(
                connection, Message(topic="Paid", body=b'{"n": 1}', keys=(f"p-{number}",)), lane
            )
        values = {"problem": f"no such topic {HOSTILE}"}
        connection.execute(update(outbox.rows).where(outbox.rows.c.id == 1).values(values))
    engine.dispose()
    return url


@pytest.fixture(scope="module")
def console(broker, bank):
    away = "postgresql://teller:hidden-word@127.0.0.1:9/away"
    options = ("--database", f"bank={bank}", "--database", f"away={away}")
    with ConsoleProcess(broker.names, *options) as running:
        yield running


@pytest.fixture
def visitor(console):
    with Visitor(console.url) as found:
        yield found


def send_all(names, topic, messages, queues=1):
    """Messages of a topic, one after the other around its queues; returns the receipts."""

    async def send(admin, _session):
        await admin.create_topic(topic, queues=queues)
        return [
            await admin.send(message, Queue(topic, "broker-a", number % queues))
            for number, message in enumerate(messages)
        ]

    return asked(names, send)


def leave_traces(names, message_id, at_ms, group="ccb"):
    """What a producer and a consumer, whose first attempt failed, report of a message."""
    failed = HandlerOutcome.RAISED
    own = {"region": "", "group": group, "id": message_id}
    records = [
        SendRecord(at_ms=at_ms, topic="Traced", cost_ms=3, body_bytes=2, **own),
        HandlerStart(at_ms=at_ms + 10, request_id="R1", **own),
        HandlerEnd(
            request_id="R1", id=message_id, cost_ms=40, is_success=False, outcome=failed,
            at_ms=at_ms + 50, group=group,
        ),
        HandlerStart(at_ms=at_ms + 900, request_id="R2", attempts=1, **own),
        HandlerEnd(
            request_id="R2", id=message_id, cost_ms=7, is_success=True, at_ms=at_ms + 907,
            group=group,
        ),
    ]  # fmt: skip

    async def send(admin, _session):
        await admin.send(Message(topic=TRACES, body=encode(records), keys=(message_id,)))

    asked(names, send)


# Transactions


def test_a_transaction_shows_its_steps_before_and_after_the_decision(broker, visitor):
    (name,) = park(broker.names, "n-1", group="steps", topic="Steps").values()
    leave_traces(broker.names, name, 1_700_000_000_000, group="payee")
    shown = text_of(visitor.get(f"/transaction?id={name}"))
    assert re.search(r"Step 3: broker-a stores it, invisible to consumers .* place \w{32}", shown)
    assert "Step 5: the local transaction runs not known" in shown
    assert "the broker parks the transaction: 1 check brought no decision" in shown
    assert "Step 8: a person must decide, or the producer sends a late END next" in shown

    to = f"/transaction/decision?id={name}&broker=broker-a&decision=commit"
    visitor.post(to, reason="in the books", repeated="n-1")
    page = visitor.get(f"/transaction?id={name}")
    assert "decides by hand: COMMIT" in text_of(page)
    assert "reason: in the books" in text_of(page)
    assert "attempt 2 of group payee handles the message" in text_of(page)
    assert 'method="post"' not in page.text
    place = re.search(r'/message\?place=(\w+)" ?>?', page.text)[1]
    message = visitor.get(f"/message?place={place}")
    back = re.search(r'id="transaction" href="([^"]+)"', message.text)[1].replace("&amp;", "&")
    assert f"{name} committed" in text_of(visitor.get(back))


def test_a_transaction_that_no_broker_knows_is_not_found(visitor):
    gone = visitor.get("/transaction?id=NO-SUCH")
    assert (gone.status_code, "no broker knows a transaction" in text_of(gone)) == (404, True)


# One message


def test_a_message_shows_a_bar_for_each_event(broker, visitor):
    (receipt,) = send_all(broker.names, "Traced", [Message(topic="Traced", body=b"{}")])
    before = visitor.get(f"/message?topic=Traced&id={receipt.id}")
    assert "No client left a trace" in text_of(before)
    stored_ms = asked(broker.names, lambda admin, _: admin.view(receipt.offset_id)).stored_ms
    leave_traces(broker.names, receipt.id, stored_ms - 3)
    page = visitor.get(f"/message?place={receipt.offset_id}")
    assert "handled by group ccb, attempt 1 40 ms" in text_of(page)
    assert "raised; it comes again" in text_of(page)
    bars = [
        (int(left), int(wide))
        for left, wide in re.findall(r'x="(\d+)" y="1" width="(\d+)', page.text)
    ]
    assert len(bars) == 4
    assert bars == sorted(bars)
    assert all(left >= 0 and left + wide <= 1000 for left, wide in bars)


def test_traces_with_strange_times_and_names_harm_nothing(broker, visitor):
    (receipt,) = send_all(broker.names, "Traced", [Message(topic="Traced", body=b"x")])
    leave_traces(broker.names, receipt.id, 10**18, group=HOSTILE.replace("\x1b", ""))
    page = visitor.get(f"/message?place={receipt.offset_id}")
    assert page.status_code == 200
    assert "<script>document" not in page.text
    assert "\u202e" not in page.text
    assert len(re.findall("<rect", page.text)) == 1  # Where it was stored.


# Lists of messages


def ids_in(page):
    return re.findall(r'id="row-\d+" href="/message\?place=(\w+)"', page.text)


def next_page(page, name="older"):
    found = re.search(rf'id="{name}" href="([^"]+)"', page.text)
    return found and found[1].replace("&amp;", "&")


def test_a_topic_is_listed_backwards_and_each_message_once(broker, visitor):
    messages = [
        Message(topic="Listed", body=f"body {number}".encode(), keys=(f"l-{number}",))
        for number in range(121)
    ]
    receipts = send_all(broker.names, "Listed", messages, queues=3)
    found, path = [], "/messages?topic=Listed&by=time"
    while path:
        page = visitor.get(path)
        found += ids_in(page)
        path = next_page(page)
    assert sorted(found) == sorted(receipt.offset_id for receipt in receipts)
    assert found[0] == receipts[-1].offset_id
    assert "the oldest message is shown" in text_of(page)

    one = visitor.get("/messages?topic=Listed&by=time&wanted=body+77")
    assert ids_in(one) == [receipts[77].offset_id]
    queue = visitor.get("/messages?topic=Listed&by=time&queue=broker-a:1")
    assert ids_in(queue)[-1] == receipts[1].offset_id
    assert len(ids_in(queue)) == 40
    assert ids_in(visitor.get("/messages?topic=Listed&by=time&until=1h")) == []
    stored_ms = asked(broker.names, lambda admin, _: admin.view(receipts[100].offset_id)).stored_ms
    window = visitor.get(f"/messages?topic=Listed&by=time&since={stored_ms}&until={stored_ms}")
    assert receipts[100].offset_id in ids_in(window)
    assert receipts[0].offset_id not in ids_in(window)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ("topic=Listed&by=time&cursor=1", "begin again with the newest messages"),
        ("topic=Listed&by=time&cursor=a.b.c", "begin again with the newest messages"),
        ("topic=Listed&by=time&since=soon", "'soon' is not a moment"),
        ("topic=Listed&by=time&queue=x", "'x' is not a queue"),
        ("topic=Listed&by=time&queue=broker-a:77", "has no queue broker-a:77"),
        ("by=time&topic=NoSuch", "NoSuch"),
        ("by=colour", "not by 'colour'"),
    ],
)
def test_a_wrong_list_says_what_is_wrong(broker, visitor, fields, reason):
    send_all(broker.names, "Listed", [], queues=3)
    page = visitor.get(f"/messages?{fields}")
    assert page.status_code in {400, 404}
    assert reason in text_of(page)


def test_a_cursor_from_nowhere_begins_at_the_newest_message(broker, visitor):
    (receipt,) = send_all(broker.names, "Cursor", [Message(topic="Cursor", body=b"x")])
    page = visitor.get(f"/messages?topic=Cursor&by=time&cursor={'9' * 19}")
    assert ids_in(page) == [receipt.offset_id]


def test_hostile_keys_and_bodies_are_rows_like_others(broker, visitor):
    body = HOSTILE.encode() * 10_000
    key = HOSTILE.replace(" ", "").replace("\x1b", "")
    sent = [
        Message(topic="Hostile-1", body=body, keys=(key,)),
        Message(topic="Hostile-1", body=b"\xff\x00"),
    ]
    send_all(broker.names, "Hostile-1", sent)
    page = visitor.get("/messages?topic=Hostile-1&by=time")
    assert "<script>document" not in page.text
    assert "\x1b" not in page.text
    assert len(page.text) < 50_000
    assert "ff 00" in page.text
    found = visitor.get(f"/messages?topic=Hostile-1&wanted={quote(key)}")
    assert len(ids_in(found)) == 1


# Search


def test_the_only_exact_hit_is_shown_itself(broker, visitor):
    (receipt,) = send_all(
        broker.names, "Found-7", [Message(topic="Found-7", body=b"x", keys=("only-here",))]
    )
    ids = park(broker.names, "f-1", group="finders", topic="Found-8")
    for wanted, path in {
        "Found-7": "/topic?name=Found-7",
        "only-here": f"/message?place={receipt.offset_id}",
        receipt.offset_id: f"/message?place={receipt.offset_id}",
        receipt.id: f"/message?place={receipt.offset_id}",
        ids["f-1"]: f"/transaction?id={ids['f-1']}&broker=broker-a",
        "f-1": f"/transaction?id={ids['f-1']}&broker=broker-a",
    }.items():
        page = visitor.get(f"/search?for={wanted}")
        assert str(page.url) == visitor.url + path


def test_parts_of_names_are_listed_by_kind_and_cut(broker, visitor):
    async def make(admin, _session):
        for number in range(25):
            await admin.create_topic(f"Many-{number:02}", queues=1)
        await admin.create_group("many-readers")

    asked(broker.names, make)
    page = visitor.get("/search?for=many")
    shown = text_of(page)
    assert "Topics 25" in shown
    assert "20 of 25 are shown" in shown
    assert "Consumer groups 1 many-readers" in shown
    assert 'href="/topics?search=many"' in page.text


def test_a_search_that_finds_nothing_or_is_hostile_says_so(visitor):
    assert "Nothing has this name" in text_of(visitor.get("/search?for=no-such-thing"))
    assert "Search for a part of a name" in text_of(visitor.get("/search"))
    page = visitor.get(f"/search?for={quote(HOSTILE)}")
    assert "<script>document" not in page.text
    assert visitor.get(f"/search?for={'x' * 1001}").status_code == 400


# Outboxes


def test_outboxes_show_their_lag_and_a_database_that_is_away_hides_no_other(visitor):
    page = visitor.get("/outbox")
    shown = text_of(page)
    assert "rows that wait 60" in shown
    assert "blocked rows 1 blocked lanes 1 put aside 0 relays alive 0" in shown
    assert "No relay was alive in the last minute" in shown
    assert "txmq_outbox cannot be used" in shown
    assert "hidden-word" not in page.text


def test_a_blocked_row_is_put_aside_and_tried_again(bank, visitor):
    listed = visitor.get("/outbox/rows?name=bank&failed=1")
    assert re.findall(r'id="row-\d+" href="([^"]+)"', listed.text) == [
        "/outbox/row?name=bank&amp;id=1"
    ]
    assert "<script>document" not in listed.text
    page = visitor.get("/outbox/row?name=bank&id=1")
    assert "account-1" in text_of(page)
    assert '"n": 1' in text_of(page)

    path = "/outbox/skip?name=bank&id=1"
    empty = visitor.post(path, "/outbox/row?name=bank&id=1", reason=" ")
    assert (empty.status_code, "the reason is missing" in text_of(empty)) == (400, True)
    done = visitor.post(path, "/outbox/row?name=bank&id=1", reason="paid by hand, T-1")
    assert "row 1 of bank is put aside" in text_of(done)
    assert re.search(r"problem \S+: paid by hand, T-1", text_of(done))
    again = visitor.post(path, "/outbox/row?name=bank&id=1", reason="twice")
    assert (again.status_code, "has no row 1 that waits" in text_of(again)) == (404, True)

    done = visitor.post("/outbox/retry?name=bank&id=1", "/outbox/row?name=bank&id=1")
    assert "relays try row 1 of bank again" in text_of(done)
    engine = engine_of(bank)
    with engine.connect() as connection:
        rows = Outbox().rows
        query = select(rows.c.failed_ms, rows.c.problem).where(rows.c.id == 1)
        assert connection.execute(query).one() == (None, None)
    engine.dispose()


def test_rows_are_paged_and_wrong_ids_are_refused(visitor):
    first = visitor.get("/outbox/rows?name=bank")
    second = visitor.get(next_page(first, "page-next"))
    assert len(re.findall(r'id="row-', first.text)) == 50
    assert len(re.findall(r'id="row-', second.text)) == 10
    assert (
        len(re.findall(r'id="row-', visitor.get("/outbox/rows?name=bank&lane=account-1").text)) == 3
    )
    assert visitor.get("/outbox/rows?name=none").status_code == 404
    assert visitor.get("/outbox/row?name=bank&id=77").status_code == 404
    for wrong in ("x", "-1", "9" * 19, "²"):
        assert visitor.get(f"/outbox/row?name=bank&id={wrong}").status_code == 400
