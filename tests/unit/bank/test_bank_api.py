"""The API over a bank with set answers: statuses, texts, and bodies of all sizes."""

import asyncio
import json

import httpx
import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.applications import Starlette

from examples.bank_transfer.books import State
from examples.bank_transfer.icbc import Booked
from examples.bank_transfer.orders import AMOUNT_MAX, Drill, Order, Reason, Refused, see_order
from examples.bank_transfer.ways import Way
from examples.bank_transfer.web.api import BODY_BYTES_MAX, STATUS, api_of, paying_api_of
from txmq.errors import (
    BrokerBusy,
    CommittedBefore,
    ConnectFailed,
    DatabaseFailed,
    OutcomeUnknown,
    ReplicaTimeout,
    RequestTimeout,
    TransactionConflict,
    TransactionOverdue,
    UsageError,
)

ASKED = {"id": "t-1", "payer": "A-1", "payee": "B-1", "amount": "10,000.00"}
ORDER = Order("t-1", "A-1", "B-1", 10_000_00)
DEAD = OperationalError("SELECT secret", {}, ConnectionError("the server is gone\nline 2"))


class Bank:
    """Answers as the test says."""

    def __init__(self, said=None):
        self.said = said
        self.asked = []

    async def transfer(self, order, way, drill):
        see_order(order)
        self.asked.append((order, way, drill))
        if isinstance(self.said, Exception):
            raise self.said
        return self.said or Booked(order, State.SENT, "X")


def call(routes, method, path, **how):
    async def ask():
        transport = httpx.ASGITransport(Starlette(routes=routes))
        async with httpx.AsyncClient(transport=transport, base_url="http://bank") as client:
            return await client.request(method, path, **how)

    return asyncio.run(ask())


def post(bank, body):
    how = {"content": body} if isinstance(body, bytes | str) else {"json": body}
    return call(paying_api_of(bank), "POST", "/api/transfers", **how)


def test_a_posted_transfer_reaches_the_bank_unchanged():
    bank = Bank()

    answer = post(bank, {**ASKED, "way": "outbox", "drill": "TAGA"})

    assert answer.status_code == 201
    assert answer.json() == {"id": "t-1", "state": "sent", "xid": "X", "reason": ""}
    assert bank.asked == [(ORDER, Way.OUTBOX, Drill.TAGA)]
    assert post(bank, ASKED).status_code == 201
    assert bank.asked[1] == (ORDER, Way.HALF, Drill.NONE)


@pytest.mark.parametrize(
    "state", [*(state for state in State if state is not State.CREDITED), None]
)
def test_each_transfer_state_has_its_http_status(state):
    answer = post(Bank(Booked(ORDER, state, "X", "why")), ASKED)

    assert answer.status_code == STATUS[state]
    assert answer.json()["state"] == (state or "unknown")
    assert answer.json()["reason"] == "why"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Refused(Reason.SAME_ID, "t-1"), 409),
        (Refused(Reason.BAD_ORDER, "no such way"), 422),
        (OutcomeUnknown("the answer to the COMMIT is lost"), 202),
        (TransactionConflict("X", "COMMIT", "rolled back"), 500),
        (ConnectFailed("nobody listens"), 503),
        (RequestTimeout("no answer"), 503),
        (BrokerBusy(), 503),
        (ReplicaTimeout(), 503),
        (CommittedBefore("X"), 503),
        (DatabaseFailed("no"), 503),
        (TransactionOverdue("60 s"), 503),
        (UsageError("this producer is closing, and begins no more transactions"), 503),
        (DEAD, 503),
        (PoolTimeout("QueuePool limit"), 503),
    ],
    ids=lambda answer: type(answer).__name__ if isinstance(answer, Exception) else str(answer),
)
def test_each_error_has_its_http_status_and_a_plain_text(error, status):
    answer = post(Bank(error), ASKED)

    assert answer.status_code == status
    assert ("retry-after" in answer.headers) is (status == 503)
    words = answer.json()["problem"]
    assert words
    # An earlier attempt may be booked: a user told "nothing is booked" might pay twice.
    assert "nothing is booked" not in words
    assert ("with the same id" in words) is (status == 503)
    assert "secret" not in words
    assert "\n" not in words


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"1", b'"t"', b"\xff\xfe", b"{}", b'{"id":"\\ud800"}',
        b"[" * BODY_BYTES_MAX, b'{"id":' + b"[" * (BODY_BYTES_MAX - 6),
        b'{"a":' * (BODY_BYTES_MAX // 5),
        json.dumps({**ASKED, "amount": 10_000}), json.dumps({**ASKED, "amount": 1e5}),
        json.dumps({**ASKED, "amount": None}), json.dumps({**ASKED, "way": "pigeon"}),
        json.dumps({**ASKED, "drill": "TAGD"}), json.dumps({**ASKED, "state": "sent"}),
        json.dumps({**ASKED, "currency": None}), json.dumps({**ASKED, "id": 1}),
    ],
    ids=range(20),
)  # fmt: skip
def test_a_body_that_is_not_an_order_is_refused(body):
    bank = Bank()

    answer = post(bank, body)

    assert answer.status_code == 422
    assert answer.json()["problem"].startswith("the order makes no sense: ")
    assert bank.asked == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"amount": "NaN"}, "no such amount can be sent: 'NaN' is not an amount"),
        ({"amount": "1e5"}, "is not an amount"),
        ({"amount": "-5"}, "is not an amount"),
        ({"amount": "0.00"}, "0 is not more than 0"),
        ({"amount": "0.001"}, "CNY has 2 digits after the point, not 3"),
        ({"amount": "1.5", "currency": "JPY"}, "JPY has 0 digits after the point, not 1"),
        ({"amount": "9" * 10_000}, "has more than 15 digits"),
        ({"amount": str(AMOUNT_MAX)}, "one transfer moves 5,000,000.00 CNY at most"),
        ({"currency": "GBP"}, "'GBP' is not a currency of these banks"),
        ({"currency": ""}, "is not a currency"),
        ({"id": ""}, "is not an id"),
        ({"id": "a\x00"}, "is not an id"),
        ({"id": "a" * 65}, "is not an id: it has up to 64 letters"),
        ({"payer": "a-1"}, "'a-1' is not an account number: it has up to 34 capital letters"),
        ({"payee": "B 1"}, "is not an account number"),
        ({"payee": "clearing"}, "is not an account number"),
    ],
)
def test_an_invalid_order_is_refused_with_a_reason(change, words):
    bank = Bank()

    answer = post(bank, {**ASKED, **change})

    assert answer.status_code == 422
    assert words in answer.json()["problem"]
    assert bank.asked == []


PARTS = 10_000


def drive(parts, headers=()):
    """Send a body in parts; return the status and the number of parts read."""
    taken, said = 0, []

    async def receive():
        nonlocal taken
        part, taken = parts[taken], taken + 1
        return part

    async def send(message):
        said.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/api/transfers", "query_string": b"",
        "headers": [*headers], "http_version": "1.1", "scheme": "http", "root_path": "",
    }  # fmt: skip
    asyncio.run(Starlette(routes=paying_api_of(Bank()))(scope, receive, send))
    return said[0]["status"], taken


def part(body, *, more=True):
    return {"type": "http.request", "body": body, "more_body": more}


def test_an_oversized_body_is_refused_before_it_is_read_to_its_end():
    status, taken = drive([part(b" " * 1024)] * PARTS)

    assert status == 413
    assert taken == BODY_BYTES_MAX // 1024 + 1


@pytest.mark.parametrize("told", [b"1", b"0", b"-1", b"99999999", b"many", "١".encode()])
def test_a_false_content_length_is_ignored(told):
    body = json.dumps(ASKED).encode()
    headers = [(b"content-length", told)]

    good, _ = drive([part(body, more=False)], headers)
    large, taken = drive([part(b" " * 1024)] * PARTS, headers)

    assert (good, large) == (201, 413)
    assert taken < PARTS


def test_a_body_sent_byte_by_byte_is_accepted():
    body = json.dumps(ASKED).encode()
    parts = [part(body[n : n + 1]) for n in range(len(body))]

    assert drive([*parts, part(b"", more=False)])[0] == 201


def test_a_request_cut_in_the_middle_of_its_body_is_refused():
    status, _ = drive([part(b'{"id":'), {"type": "http.disconnect"}])

    assert status == 400


@pytest.mark.parametrize("path", ["accounts/A-1", "transfers/t-1", "health"])
def test_an_unreachable_database_is_answered_with_503(path):
    class Closed:
        async def fail(self, *about):
            raise DEAD

        account = transfer = well = fail

    answer = call(api_of(Closed()), "GET", f"/api/{path}")

    assert answer.status_code == 503
    assert answer.json() == {"problem": "the database does not answer: the server is gone"}
