"""Who may see and change something in a console, with and without accounts at the broker."""

import asyncio
import re
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.integration.cli.test_cli_tx import send_halves
from tests.integration.console.console_stage import TOKEN, text_of, visitor
from tests.running import in_loop, run_by
from tests.unit.client.fake_cluster import FakeCluster
from txmq.client import Admin, Session
from txmq.console.app import CHANGES, PAGES
from txmq.console.request_checks import HEADERS
from txmq.console.sessions import FAILURES_MAX, SESSION_S
from txmq.console.settings import OutboxAddress
from txmq.limits import CONSOLE_FORM_BYTES_MAX
from txmq.protocol.recall import RecallHandle, encode
from txmq.runtime.clock import SystemClock
from txmq.runtime.network import SystemNetwork
from txmq.security.signatures import Credentials
from txmq_broker.config import BrokerSettings, StoreSettings
from txmq_broker.testing import embedded

SECRET = "operator-secret"
OPERATOR = Credentials(access_key="operator", secret_key=SECRET)
ACCOUNTS = """
globalWhiteRemoteAddresses: []
accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
- {accessKey: the-shop, secretKey: the-shop-secret, topicPerms: [Orders=PUB]}
"""
TRUSTING = f"""{ACCOUNTS}
- accessKey: trusted
  secretKey: trusted-secret
  whiteRemoteAddress: 127.0.0.1
"""
FORMS = [change.path for change in CHANGES]
HANDLE = encode(RecallHandle("Orders", "broker-a", 1, "x"))
FIELDS = (
    "name=Orders&topic=Orders&to=latest&id=x&broker=broker-a&group=g&decision=commit&do=drain"
    f"&member=m2&key=the-shop&queues=2&enabled=no&value=74&handle={HANDLE}"
)


@pytest.fixture(autouse=True)
def no_settings_of_the_developer(monkeypatch):
    import os

    for name in list(os.environ):
        if name.startswith("TXMQ_"):
            monkeypatch.delenv(name)


class MovedClock(SystemClock):
    """The machine's clock, moved by a test."""

    moved_s = 0.0

    def monotonic(self):
        return SystemClock.monotonic() + self.moved_s


@asynccontextmanager
async def stage(accounts="", **settings):
    """A visitor of a console, who knows its clock, and the names and the data of its broker."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "plain_acl.yml")
        file.touch(0o600)
        file.write_text(accounts)
        wanted = BrokerSettings(
            acl=str(file) if accounts else "", store=StoreSettings(flush="async")
        )
        clock = MovedClock()
        async with embedded(wanted) as broker, visitor(broker.names, clock, **settings) as client:
            client.names, client.data = broker.names, Path(broker.settings.data)
            client.clock = clock
            yield client


def on_stage(test, *arguments, **settings):
    async def main():
        async with stage(*arguments, **settings) as client:
            await test(client)

    asyncio.run(main())


async def token_of(client, path="/"):
    return TOKEN.search((await client.get(path)).text)[1]


async def log_in(client, access_key="operator", secret_key=SECRET, to="/"):
    fields = {"access_key": access_key, "secret_key": secret_key}
    fields["token"] = await token_of(client, "/login")
    return await client.post(f"/login?next={to}", data=fields)


async def topics(client, credentials=None):
    async with Session(client.names, credentials=credentials) as session:
        return [name for name in await Admin(session).topics() if name == "Orders"]


# Without accounts


@run_by(on_stage, operator="ann")
async def test_a_form_needs_the_token_of_its_visitor(client, /):
    page = await client.get("/topics")
    token = TOKEN.search(page.text)[1]
    fields = {"name": "Orders", "queues": "1"}
    for wrong in ({}, {"token": ""}, {"token": token[:-1]}, {"token": "0" * 64}):
        refused = await client.post("/topics", data=fields | wrong)
        assert refused.status_code == 403
        assert "out of date" in text_of(refused)
    assert await topics(client) == []

    made = await client.post("/topics", data=fields | {"token": token})
    assert (made.status_code, made.headers["location"]) == (303, "/topic?name=Orders")
    assert await topics(client) == ["Orders"]
    # Without accounts, the audit has only the operator's name that the console gives.
    assert any('"operator":"ann"' in line for line in audit_of(client))


@run_by(on_stage)
async def test_a_form_without_a_token_or_from_another_site_is_refused(client, /):
    await client.get("/")
    for path in FORMS:
        address = f"{path}?{FIELDS}"
        without = await client.post(address, data={"reason": "x"})
        stranger = await client.post(address, headers={"origin": "http://evil.example"})
        elsewhere = await client.post(address, headers={"host": "evil.example"})

        codes = [answer.status_code for answer in (without, stranger, elsewhere)]
        assert codes == [403, 403, 421], path


@run_by(on_stage, is_read_only=True)
async def test_a_read_only_console_changes_nothing(client, /):
    fields = {"token": (await visited(client)).token, "reason": "x"}
    for path in FORMS:
        refused = await client.post(f"{path}?{FIELDS}", data=fields)

        assert refused.status_code == 403, path
        assert "this console is read-only; nothing was changed" in text_of(refused), path


async def visited(client):
    """The session of a visitor, from inside the console."""
    await client.get("/")
    routes = client._transport.app._app._app.routes
    (page,) = [route for route in routes if getattr(route, "path", "") == "/"]
    console = page.endpoint.func.__self__
    (session,) = console._sessions._by_id.values()
    return session


@run_by(on_stage, is_read_only=True)
async def test_a_read_only_console_has_only_search_forms(client, /):
    for page in PAGES:
        shown = await client.get(f"{page.path}?{FIELDS}")
        assert 'method="post"' not in shown.text, page.path


@run_by(on_stage)
async def test_only_the_listed_routes_accept_forms(client, /):
    routes = client._transport.app._app._app.routes
    paths = {route.path for route in routes if "POST" in getattr(route, "methods", ())}
    assert paths == {*FORMS, "/login", "/logout"}


@run_by(on_stage)
async def test_every_response_has_the_security_headers(client, /):
    paths = ["/", "/nothing", "/login", "/static/console.css", "/static/nothing"]
    for path in [*paths, *(page.path for page in PAGES)]:
        answer = await client.get(path)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, path
    refused = await client.get("/", headers={"host": "evil.example"})
    assert refused.headers["content-security-policy"].startswith("default-src 'none'")


@run_by(on_stage)
async def test_no_page_has_inline_scripts_or_styles(client, /):
    for page in PAGES:
        text = (await client.get(f"{page.path}?{FIELDS}")).text
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text), page.path
        assert re.findall(r"<script(?! src=\"/static/)", text) == [], page.path


@run_by(on_stage)
async def test_an_oversized_or_malformed_form_is_refused(client, /):
    token = (await visited(client)).token
    large = {"token": token, "name": "x" * CONSOLE_FORM_BYTES_MAX}
    assert (await client.post("/topics", data=large)).status_code == 413
    assert (await client.post("/topics", json={"token": token})).status_code == 400
    many = {f"f{at}": "x" for at in range(100)} | {"token": token}
    assert (await client.post("/topics", data=many)).status_code == 400


@run_by(in_loop)
async def test_the_session_cookie_is_same_site_and_hidden_from_scripts():
    async with stage() as client:
        cookie = (await client.get("/")).headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    async with stage(origins=frozenset({"https://ops.example.com"})) as client:
        answer = await client.get("https://ops.example.com/")
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-txmq_console=")
        assert "Secure" in cookie.split("; ")


@run_by(on_stage, needs_login=True)
async def test_a_console_that_needs_a_log_in_shows_nothing_without_accounts(client, /):
    for page in PAGES:
        answer = await client.get(page.path)
        assert answer.headers["location"].startswith("/login?next=%2F")
    refused = await log_in(client)
    assert refused.status_code == 400
    assert "accepts any secret" in text_of(refused)
    assert "txmq_console" not in client.cookies


@run_by(on_stage)
async def test_a_message_place_at_a_foreign_server_is_never_contacted(client, /):
    asked = []
    foreign = await asyncio.start_server(lambda *_: asked.append(1), "127.0.0.1", 0)
    port = foreign.sockets[0].getsockname()[1]
    place = f"7F000001{port:08X}{0:016X}"
    for path in (f"/message?place={place}", f"/messages?by=place&wanted={place}"):
        answer = await client.get(path)
        assert answer.status_code == 400
        assert "is not a broker of this cluster" in text_of(answer)
    foreign.close()
    assert asked == []


# With accounts


@run_by(on_stage, ACCOUNTS)
async def test_nothing_is_shown_before_a_log_in(client, /):
    for page in PAGES:
        answer = await client.get(f"{page.path}?a=b")
        assert answer.status_code == 303, page.path
        assert answer.headers["location"].startswith("/login?next=%2F")
    for path in FORMS:
        answer = await client.post(path, data={"token": "0" * 64})
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")


@run_by(on_stage, ACCOUNTS)
async def test_a_log_in_leads_to_the_requested_page(client, /):
    done = await log_in(client, to="/topics?search=a")
    assert done.headers["location"] == "/topics?search=a"
    page = await client.get("/topics")
    assert "operator" in text_of(page)
    assert SECRET not in page.text


@run_by(on_stage, ACCOUNTS)
async def test_a_log_in_never_redirects_to_another_site(client, /):
    for to in ("//evil.example", "https://evil.example", "/\\evil.example", "x", ""):
        client.cookies.clear()
        assert (await log_in(client, to=to)).headers["location"] == "/", to


@pytest.mark.parametrize(
    ("access_key", "secret_key"),
    [("operator", "operator-wrong"), ("nobody", SECRET), ("operator", "x"), ("the-shop", SECRET)],
)
@run_by(on_stage, ACCOUNTS)
async def test_a_failed_log_in_does_not_reveal_which_key_is_wrong(
    client, /, access_key, secret_key
):
    refused = await log_in(client, access_key, secret_key)
    assert "do not belong together" in text_of(refused)
    assert secret_key not in refused.text or secret_key == "x"
    assert (await client.get("/")).status_code == 303


@run_by(on_stage, TRUSTING)
async def test_a_secret_that_the_broker_does_not_check_is_refused(client, /):
    """The broker trusts the console's address: the name alone would let anybody in."""
    refused = await log_in(client, "trusted", "a-guessed-secret")
    assert refused.status_code == 400
    assert "accepts any secret" in text_of(refused)
    assert (await log_in(client)).status_code == 303


@run_by(on_stage, ACCOUNTS)
async def test_too_many_failed_log_ins_block_an_address_for_a_minute(client, /):
    for _ in range(FAILURES_MAX):
        assert (await log_in(client, secret_key="wrong-secret")).status_code in {400, 403}
    assert (await log_in(client)).status_code == 429
    client.clock.moved_s = 61
    assert (await log_in(client)).status_code == 303


@run_by(on_stage, ACCOUNTS)
async def test_a_log_in_needs_the_token_of_its_page(client, /):
    fields = {"access_key": "operator", "secret_key": SECRET, "token": "0" * 64}
    assert (await client.post("/login", data=fields)).status_code == 403
    await client.get("/login")
    assert (await client.post("/login", data=fields)).status_code == 403


@run_by(on_stage, ACCOUNTS)
async def test_an_expired_session_asks_for_a_log_in(client, /):
    await log_in(client)
    assert (await client.get("/")).status_code == 200
    client.clock.moved_s = SESSION_S
    stream = await client.get("/live", params={"page": "/", "shown": "0"})
    assert (stream.status_code, "event: reload" in stream.text) == (200, True)
    assert (await client.get("/")).headers["location"] == "/login?next=%2F"


@run_by(on_stage, ACCOUNTS)
async def test_a_log_out_needs_the_token_and_ends_the_session(client, /):
    await log_in(client)
    token = await token_of(client)
    cookies = dict(client.cookies)
    assert (await client.post("/logout", data={"token": "x"})).status_code == 403
    assert (await client.get("/")).status_code == 200
    await client.post("/logout", data={"token": token})
    client.cookies.update(cookies)
    assert (await client.get("/")).status_code == 303


@run_by(on_stage, ACCOUNTS)
async def test_an_account_without_rights_sees_why_and_changes_nothing(client, /):
    await log_in(client, "the-shop", "the-shop-secret")
    overview = await client.get("/")
    assert "account the-shop needs an administrator" in text_of(overview)
    token = TOKEN.search(overview.text)[1]
    for path in FORMS:
        fields = {"token": token, "reason": "x", "name": "Orders", "queues": "1"}
        fields |= {"repeated": "x", "moment": "0"}
        answer = await client.post(f"{path}?{FIELDS}", data=fields)
        assert answer.status_code in {400, 403, 404}, path
    assert await topics(client, OPERATOR) == []


@run_by(on_stage, ACCOUNTS)
async def test_the_broker_records_the_person_who_logged_in(client, /):
    await log_in(client)
    fields = {"token": await token_of(client, "/topics"), "name": "Orders", "queues": "1"}
    assert (await client.post("/topics", data=fields)).status_code == 303
    lines = audit_of(client)
    assert any("operator" in line and "Orders" in line for line in lines), lines


@run_by(on_stage, ACCOUNTS)
async def test_a_decision_is_recorded_with_the_account_and_the_reason(client, /):
    await send_halves(client.names, "A1", credentials=OPERATOR)
    await log_in(client)
    address = "/transaction/decision?id=A1&broker=broker-a&decision=rollback"
    fields = {"token": await token_of(client, address)}
    fields |= {"reason": "never paid, T-4711", "repeated": "t-17"}
    done = await client.post(address, data=fields)
    assert done.headers["location"] == "/transactions"
    assert "rolled back at broker-a by operator" in text_of(await client.get("/"))
    (line,) = [line for line in audit_of(client) if "DECIDE_TRANSACTION" in line]
    assert "operator" in line
    assert "never paid, T-4711" in line


def audit_of(client):
    files = [file for file in (client.data / "audit").rglob("*") if file.is_file()]
    return [line for file in files for line in file.read_text().splitlines()]


@run_by(on_stage, ACCOUNTS)
async def test_only_administrators_find_accounts_by_search(client, /):
    await log_in(client)
    redirect = await client.get("/search?for=the-shop")
    assert redirect.headers["location"] == "/access/account?key=the-shop"
    client.cookies.clear()
    await log_in(client, "the-shop", "the-shop-secret")
    refused = await client.get("/search?for=operator")
    assert refused.status_code == 403
    assert "/access/account" not in refused.text


OPERATORS_ONLY = (
    "/outbox",
    "/outbox/rows?name=bank",
    "/outbox/row?name=bank&id=1",
    "/reconciliation",
    "/reconciliation/day?date=2026-03-31",
    "/reconciliation/break?date=2026-03-31&id=x",
)


@run_by(in_loop)
async def test_outboxes_and_reports_are_shown_only_to_administrators(tmp_path):
    bank = OutboxAddress("bank", f"sqlite:///{tmp_path}/bank.db")
    async with stage(ACCOUNTS, outboxes=(bank,)) as client:
        await log_in(client, "the-shop", "the-shop-secret")
        for path in OPERATORS_ONLY:
            refused = await client.get(path)
            assert refused.status_code == 403, path
            assert "for administrators" in text_of(refused)
        fields = {"token": await token_of(client), "reason": "x"}
        skipped = await client.post("/outbox/skip?name=bank&id=1", data=fields)
        assert skipped.status_code == 403

        client.cookies.clear()
        await log_in(client)
        assert "txmq_outbox does not exist" in text_of(await client.get("/outbox"))
        assert "start it with --reports" in text_of(await client.get("/reconciliation")).lower()


# Brokers of another make


@run_by(in_loop)
async def test_a_console_works_with_brokers_that_cannot_list_transactions():
    async with (
        FakeCluster(SystemNetwork(), SystemClock(), brokers=2) as cluster,
        visitor(cluster.names) as client,
    ):
        overview = text_of(await client.get("/"))
        assert "open transactions unknown" in overview
        transactions = text_of(await client.get("/transactions"))
        assert "only those of txmq can" in transactions
        for page in PAGES:
            assert (await client.get(f"{page.path}?{FIELDS}")).status_code < 500, page.path
