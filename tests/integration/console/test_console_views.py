"""Transactions, messages, searches, outboxes and reports, as a visitor of a console sees them."""

import re
import subprocess
import sys
from urllib.parse import quote

import pytest
from playwright.sync_api import expect
from sqlalchemy import select, update

from tests.integration.console.console_look import check_page, examined, keep_picture, opened
from tests.integration.console.console_stage import (
    HOSTILE,
    ConsoleProcess,
    Visitor,
    asked,
    park,
    text_of,
)
from tests.integration.console.reports_stage import BEFORE, DAY, write_reports
from txmq.client.observe.trace_records import (
    HandlerEnd,
    HandlerOutcome,
    HandlerStart,
    MessageKind,
    SendRecord,
    encode,
)
from txmq.databases.engines import engine_of
from txmq.message import Message, Queue
from txmq.outbox.table import Outbox, create_outbox
from txmq.protocol.topics import TRACES

pytestmark = pytest.mark.timeout(60)


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
def reports(tmp_path_factory):
    """A directory of results with a break; the directory, and the break."""
    directory = tmp_path_factory.mktemp("recon")
    return directory, write_reports(directory, HOSTILE)


@pytest.fixture(scope="module")
def console(broker, bank, reports):
    away = "postgresql://teller:hidden-word@127.0.0.1:9/away"
    databases = ("--database", f"bank={bank}", "--database", f"away={away}")
    with ConsoleProcess(broker.names, *databases, "--reports", str(reports[0])) as running:
        yield running


def send_all(names, topic, messages, queues=1):
    """Send messages to the queues of a topic in turn; returns the receipts."""

    async def send(admin, _session):
        await admin.create_topic(topic, queues=queues)
        return [
            await admin.send(message, Queue(topic, "broker-a", number % queues))
            for number, message in enumerate(messages)
        ]

    return asked(names, send)


def stored_ms(names, receipt):
    return asked(names, lambda admin, _: admin.view(receipt.offset_id)).stored_ms


def leave_traces(names, message_id, at_ms, group="ccb", sent_ms=0, topic="Traced"):
    """Send the traces of a producer and of a consumer whose first attempt failed."""
    failed = HandlerOutcome.RAISED
    own = {"region": "", "group": group, "id": message_id}
    sent = own | {"group": "icbc", "at_ms": sent_ms or at_ms, "topic": topic}
    records = [
        SendRecord(cost_ms=3, body_bytes=57, kind=MessageKind.HALF, **sent),
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


def test_decisions_are_listed_newest_first_with_who_and_why(broker, visitor):
    ids = park(broker.names, "d-1", "d-2", group="deciders", topic="Decided")
    for key, decision in (("d-1", "commit"), ("d-2", "rollback")):
        to = f"/transaction/decision?id={ids[key]}&broker=broker-a&decision={decision}"
        visitor.post(to, reason=f"because of {key} {HOSTILE[:8]}", repeated=key)
    page = visitor.get("/transactions?state=decided&group=deciders")
    shown = text_of(page)
    assert re.search(r"d-2 \w+ rolled back .* d-1 \w+ committed", shown)
    assert "rolled back" in shown
    assert "an operator" in shown
    assert "because of d-2" in shown
    (path, _) = re.findall(r'id="row-\d+" href="([^"]+)"', page.text)
    decided = text_of(visitor.get(path.replace("&amp;", "&")))
    assert f"{ids['d-2']} rolled back" in decided
    none = text_of(visitor.get("/transactions?state=decided&group=nobody"))
    assert "The logs have no such decision" in none


# One message


def test_a_message_shows_a_bar_for_each_event(broker, visitor):
    (receipt,) = send_all(broker.names, "Traced", [Message(topic="Traced", body=b"{}")])
    before = visitor.get(f"/message?topic=Traced&id={receipt.id}")
    assert "No client left a trace" in text_of(before)
    leave_traces(broker.names, receipt.id, stored_ms(broker.names, receipt) - 3)
    page = visitor.get(f"/message?place={receipt.offset_id}")
    assert "handled by group ccb, attempt 1 40 ms" in text_of(page)
    assert "raised; it comes again" in text_of(page)
    found = re.findall(r'x="(\d+)" y="1" width="(\d+)', page.text)
    bars = [(int(left), int(wide)) for left, wide in found]
    assert len(bars) == 4
    assert bars == sorted(bars)
    assert all(left >= 0 and left + wide <= 1000 for left, wide in bars)


def test_traces_with_strange_times_and_names_do_not_break_a_page(broker, visitor):
    (receipt,) = send_all(broker.names, "Traced", [Message(topic="Traced", body=b"x")])
    leave_traces(broker.names, receipt.id, 10**18, group=HOSTILE.replace("\x1b", ""))
    page = visitor.get(f"/message?place={receipt.offset_id}")
    assert page.status_code == 200
    assert "<script>document" not in page.text
    assert "\u202e" not in page.text
    assert len(re.findall("<rect", page.text)) == 1  # The bar of the store.


# Lists of messages


def ids_in(page):
    return re.findall(r'id="row-\d+" href="/message\?place=(\w+)"', page.text)


def next_page(page, name="older"):
    match = re.search(rf'id="{name}" href="([^"]+)"', page.text)
    return match and match[1].replace("&amp;", "&")


def test_messages_of_a_topic_are_listed_newest_first_and_only_once(broker, visitor):
    messages = [
        Message(topic="Listed", body=f"body {number}".encode(), keys=(f"l-{number}",))
        for number in range(121)
    ]
    receipts = send_all(broker.names, "Listed", messages, queues=3)
    listed, path = [], "/messages?topic=Listed&by=time"
    while path:
        page = visitor.get(path)
        listed += ids_in(page)
        path = next_page(page)
    assert sorted(listed) == sorted(receipt.offset_id for receipt in receipts)
    assert listed[0] == receipts[-1].offset_id
    assert "the oldest message is shown" in text_of(page)

    matching = visitor.get("/messages?topic=Listed&by=time&wanted=body+77")
    assert ids_in(matching) == [receipts[77].offset_id]
    queue = visitor.get("/messages?topic=Listed&by=time&queue=broker-a:1")
    assert ids_in(queue)[-1] == receipts[1].offset_id
    assert len(ids_in(queue)) == 40
    assert ids_in(visitor.get("/messages?topic=Listed&by=time&until=1h")) == []
    at = stored_ms(broker.names, receipts[100])
    window = visitor.get(f"/messages?topic=Listed&by=time&since={at}&until={at}")
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
def test_an_invalid_message_list_says_what_is_wrong(broker, visitor, fields, reason):
    send_all(broker.names, "Listed", [], queues=3)
    page = visitor.get(f"/messages?{fields}")
    assert page.status_code in {400, 404}
    assert reason in text_of(page)


def test_an_out_of_range_cursor_starts_at_the_newest_message(broker, visitor):
    (receipt,) = send_all(broker.names, "Cursor", [Message(topic="Cursor", body=b"x")])
    page = visitor.get(f"/messages?topic=Cursor&by=time&cursor={'9' * 19}")
    assert ids_in(page) == [receipt.offset_id]


def test_hostile_keys_and_bodies_are_listed_escaped(broker, visitor):
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
    matching = visitor.get(f"/messages?topic=Hostile-1&wanted={quote(key)}")
    assert len(ids_in(matching)) == 1


# Search


def test_a_search_with_one_exact_match_opens_it(broker, visitor):
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


def test_a_search_lists_partial_matches_by_kind_up_to_a_limit(broker, visitor):
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


def test_a_search_without_matches_says_so_and_hostile_text_is_escaped(visitor):
    assert "Nothing has this name" in text_of(visitor.get("/search?for=no-such-thing"))
    assert "Search for a part of a name" in text_of(visitor.get("/search"))
    page = visitor.get(f"/search?for={quote(HOSTILE)}")
    assert "<script>document" not in page.text
    assert visitor.get(f"/search?for={'x' * 1001}").status_code == 400


# Outboxes


def test_outboxes_show_their_lag_although_another_database_is_unreachable(visitor):
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


def test_outbox_rows_are_paged_and_invalid_ids_are_refused(visitor):
    def rows_in(page):
        return len(re.findall(r'id="row-', page.text))

    first = visitor.get("/outbox/rows?name=bank")
    assert rows_in(first) == 50
    assert rows_in(visitor.get(next_page(first, "page-next"))) == 10
    assert rows_in(visitor.get("/outbox/rows?name=bank&lane=account-1")) == 3
    assert visitor.get("/outbox/rows?name=none").status_code == 404
    assert visitor.get("/outbox/row?name=bank&id=77").status_code == 404
    for wrong in ("x", "-1", "9" * 19, "²"):
        assert visitor.get(f"/outbox/row?name=bank&id={wrong}").status_code == 400


# Reconciliation


def test_the_days_of_a_reconciliation_show_verdicts_and_signatures(visitor):
    page = visitor.get("/reconciliation")
    shown = text_of(page)
    assert re.search(rf"{DAY} Over the limits unsigned .*{BEFORE} Clean signed", shown)
    assert "99." in shown
    assert str(page.url).endswith("/reconciliation")


def test_a_day_shows_who_signed_and_its_breaks_by_class(reports, visitor):
    signed = text_of(visitor.get(f"/reconciliation/day?date={BEFORE}"))
    assert "Signatures signed" in signed
    assert "reviewer Zhao Lei" in signed

    page = visitor.get(f"/reconciliation/day?date={DAY}")
    assert "Nobody has signed this result" in text_of(page)
    assert "<script>document" not in page.text
    assert "6222020200011112222" not in page.text
    assert "62…2222" in page.text
    every = ids_of_breaks(page)
    some = visitor.get(f"/reconciliation/day?date={DAY}&class=double-credit")
    assert 0 < len(ids_of_breaks(some)) < len(every)
    cleared = visitor.get(f"/reconciliation/day?date={DAY}&status=explained")
    assert "Wang Min: credited by hand on 12 November" in text_of(cleared)
    assert ids_of_breaks(visitor.get(f"/reconciliation/day?date={DAY}&older=9000")) == []


def ids_of_breaks(page):
    return re.findall(r'id="break-\d+" href="[^"]+id=(\w+)"', page.text)


def test_a_break_shows_its_facts_and_what_people_noted(reports, visitor):
    _, item = reports
    page = visitor.get(f"/reconciliation/break?date={DAY}&id={item['break_id']}")
    shown = text_of(page)
    assert item["key"] in shown
    assert "owner Li Na" in shown
    assert "Wang Min: <script>" in shown
    assert "<script>document" not in page.text
    assert "What to do:" in shown


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/reconciliation/day?date=yesterday", 404),
        ("/reconciliation/day?date=1999-01-01", 404),
        (f"/reconciliation/day?date={DAY}&class=none", 400),
        (f"/reconciliation/day?date={DAY}&status=none", 400),
        (f"/reconciliation/day?date={DAY}&older=x", 400),
        (f"/reconciliation/day?date={DAY}&page=101", 400),
        (f"/reconciliation/break?date={DAY}&id=none", 404),
        ("/reconciliation?page=99", 200),
    ],
)
def test_unusual_report_addresses_answer_with_the_right_status(visitor, path, status):
    assert visitor.get(path).status_code == status


def test_a_damaged_reports_directory_is_explained(broker, tmp_path):
    write_reports(tmp_path)
    (tmp_path / "runs" / str(DAY) / "current").write_text("{")
    with (
        ConsoleProcess(broker.names, "--reports", str(tmp_path)) as console,
        Visitor(console.url) as visitor,
    ):
        broken = visitor.get(f"/reconciliation/day?date={DAY}")
        assert (broken.status_code, "does not name a run" in text_of(broken)) == (503, True)
        assert "This console shows no outbox" in text_of(visitor.get("/outbox"))
        assert console.stop() == ""


# In Chromium


@pytest.fixture(scope="module")
def pages(broker, reports):
    """The addresses of pages with something on them."""
    (receipt,) = send_all(
        broker.names, "Seen", [Message(topic="Seen", body=HOSTILE.encode() * 20, keys=("s-1",))]
    )
    began_ms = stored_ms(broker.names, receipt) - 3
    leave_traces(broker.names, receipt.id, began_ms, group="g" * 200)
    name = park(broker.names, "seen", group="seen", topic="Seen-2")["seen"]
    return [
        f"/transaction?id={name}",
        "/transactions?state=decided",
        f"/message?place={receipt.offset_id}",
        "/messages?topic=Seen&by=time",
        "/search",
        "/search?for=een",
        "/outbox",
        "/outbox/rows?name=bank",
        "/outbox/row?name=bank&id=1",
        "/reconciliation",
        f"/reconciliation/day?date={DAY}",
        f"/reconciliation/day?date={BEFORE}",
        f"/reconciliation/break?date={DAY}&id={reports[1]['break_id']}",
    ]


def test_every_view_fits_the_screen_and_is_accessible(browser, console, pages):
    with examined(browser) as shown:
        for path in pages:
            check_page(shown, console.url + path)


def test_the_slash_key_opens_the_search_unless_text_is_being_typed(browser, console, broker):
    send_all(broker.names, "Keyboard", [])
    with opened(browser) as shown:
        shown.goto(console.url + "/topics")
        shown.keyboard.press("/")
        expect(shown.get_by_label("Search everything")).to_be_focused()
        shown.keyboard.type("a/b")
        expect(shown.get_by_label("Search everything")).to_have_value("a/b")
        shown.get_by_label("Search everything").fill("Keyboard")
        shown.keyboard.press("Enter")
        expect(shown.get_by_role("heading", level=1)).to_have_text("Keyboard")


@pytest.mark.parametrize(
    ("name", "topic", "height"), [("steps", "Transfers", 1_400), ("message", "Payments", 1_270)]
)
def test_the_pages_pictured_in_the_docs_show_all_attempts(
    browser, console, broker, visitor, name, topic, height
):
    """TXMQ_SCREENSHOTS=docs/images renews the pictures."""
    body = b'{"payer": "ICBC-001", "payee": "CCB-001", "amount": 6000}'
    xid = park(broker.names, "transfer-4711", group="icbc", topic=topic, body=body)["transfer-4711"]
    to = f"/transaction/decision?id={xid}&broker=broker-a&decision=commit"
    visitor.post(to, reason="the ledger has the booking, T-4711", repeated="transfer-4711")
    message = asked(broker.names, lambda admin, _: admin.find(topic, xid))
    leave_traces(
        broker.names, xid, message.stored_ms, sent_ms=message.born_ms, topic=topic, group="ccb"
    )
    paths = {"steps": f"/transaction?id={xid}", "message": f"/message?place={message.offset_id}"}
    with opened(browser, 1_100, height) as shown:
        shown.goto(console.url + paths[name])
        expect(shown.locator("#live").get_by_text("attempt 2").first).to_be_in_viewport()
        keep_picture(shown, f"console-{name}")


# Extras


def test_a_console_needs_extras_only_for_outboxes_and_reports():
    program = """
import sys
from txmq.console.app import console_app
from txmq.console.settings import ConsoleSettings, OutboxAddress
from txmq.errors import ConfigError

heavy = ("sqlalchemy", "pyarrow", "pyspark")
plain = {"names": "127.0.0.1:9876", "origins": frozenset()}
console_app(ConsoleSettings(**plain))
print([name for name in heavy if name in sys.modules])
sys.modules |= dict.fromkeys(heavy)
bank = OutboxAddress("bank", "sqlite:///bank.db")
for more in ({"outboxes": (bank,)}, {"reports": "."}):
    try:
        console_app(ConsoleSettings(**plain, **more))
    except ConfigError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "[]",
        "sqlalchemy is missing: pip install 'txmq[sql]'",
        "pyarrow is missing: pip install 'txmq[spark]'",
    ], done.stderr
