"""The pages of a console in Chromium: what they show, without any error."""

import pytest
from playwright.sync_api import expect

from tests.integration.console.console_look import check_page, examined, keep_picture, opened
from tests.integration.console.console_stage import (
    HOSTILE,
    PARKING,
    ConsoleProcess,
    asked,
    bury,
    connected,
    consume,
    delay,
    park,
)
from tests.servers import axe
from tests.servers.serving import free_port
from txmq_broker.config import BrokerSettings, StoreSettings
from txmq_broker.testing import BrokerThread

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def stage():
    """A console with something on every page, and the address of each page."""
    with BrokerThread(PARKING) as broker:
        ids = park(broker.names, "t-1", "t-2", group="icbc", topic="Transfers")
        (hostile,) = park(broker.names, HOSTILE, group="hostile", topic="Hostile").values()
        bury(broker.names, "A1", "A2", group="billing", reason=f"no such account {HOSTILE}")
        (*_, receipt) = consume(broker.names, "dunning", "Bills", [b'{"bill": 1}', b"2", b"3"])
        handle = delay(broker.names, "Bills", HOSTILE)
        with ConsoleProcess(broker.names) as console, connected(broker.names, "shop", "Bills"):
            pages = [
                "/",
                "/transactions",
                f"/transaction?id={ids['t-1']}",
                f"/transaction?id={hostile}",
                f"/transaction/decision?id={ids['t-1']}&decision=commit",
                f"/transactions/chosen?do=commit&chosen=broker-a:{ids['t-1']}",
                "/groups",
                "/group?name=dunning",
                "/group/reset?name=dunning&topic=Bills&to=earliest",
                "/topics",
                "/topic?name=Bills",
                "/messages?topic=Bills&wanted=k-1",
                f"/message?place={receipt.offset_id}",
                "/messages/tail?topic=Bills",
                "/dead-letters",
                "/dead-letters/group?group=billing",
                "/dead-letter?group=billing&id=A1",
                "/delayed",
                f"/delayed/recall?handle={handle}",
                "/producers",
                "/producers?group=shop",
                "/topic/change?name=Bills",
                "/topic/change?name=Bills&queues=4",
                "/topic/deletion?name=Bills",
                "/group/change?name=dunning",
                "/group/change?name=dunning&enabled=no",
                "/group/deletion?name=dunning",
                "/cluster",
                "/cluster/change?do=drain&broker=broker-a",
                "/cluster/change?do=promote&broker=broker-a&member=m2",
                "/settings",
                "/settings/change?name=deleteWhen",
                "/settings/change?name=deleteWhen&value=05",
                "/access",
                "/audit",
                "/login",
            ]
            yield console.url, pages, ids


def test_every_page_fits_the_screen_and_is_accessible(browser, stage):
    url, pages, _ = stage
    with examined(browser) as shown:
        for path in pages:
            check_page(shown, url + path)


def test_the_accessibility_check_finds_barriers(browser, stage):
    url, *_ = stage
    bad = "<h1>x</h1><input><img src=/static/icon.svg>"
    insert = "bad => document.querySelector('main').insertAdjacentHTML('beforeend', bad)"
    with examined(browser) as shown:
        shown.goto(f"{url}/topics")
        shown.evaluate(insert, bad)
        assert {rule for _, rule, _ in axe.barriers(shown)} >= {"image-alt", "label"}


def test_a_transaction_is_decided_by_keyboard_alone(browser, stage):
    url, _, ids = stage
    with opened(browser) as shown, opened(browser) as other:
        other.goto(f"{url}/transactions")
        other.get_by_label("t-1", exact=True).check()
        kept = other.get_by_label("document.title")
        kept.check()
        shown.goto(f"{url}/transaction?id={ids['t-2']}")
        shown.keyboard.press("Tab")
        expect(shown.get_by_role("link", name="Skip to the content")).to_be_focused()

        shown.get_by_role("link", name="Commit…").focus()
        shown.keyboard.press("Enter")
        reason = shown.get_by_label("Reason")
        reason.fill("账" * 400)
        expect(reason).to_have_js_property("validity.customError", True)
        reason.fill("")
        reason.focus()
        shown.keyboard.type("in the books")
        shown.keyboard.press("Tab")
        shown.keyboard.type("t-2")
        shown.keyboard.press("Enter")

        expect(shown.get_by_role("status").filter(has_text="committed")).to_contain_text(ids["t-2"])
        expect(shown.locator("#live")).not_to_contain_text(ids["t-2"])

        # Another row has moved into its place; the ticks have moved with their rows.
        expect(other.locator("#live")).not_to_contain_text(ids["t-2"])
        assert other.locator("[name=chosen]:checked").count() == 2
        expect(kept).to_be_checked()
        other.get_by_label("t-1", exact=True).uncheck()
        other.get_by_role("button", name="Roll back…").click()
        expect(other.get_by_role("heading", level=1)).to_have_text("Roll back 1 transaction")
        expect(other.locator("main")).to_contain_text("document.title")


def test_a_group_is_moved_and_dead_letters_are_resent(browser, stage):
    url, *_ = stage
    with opened(browser) as shown:
        shown.goto(f"{url}/group?name=dunning")
        shown.get_by_label("To the messages stored at").fill("earliest")
        shown.get_by_role("button", name="Preview").click()
        expect(shown.locator("main")).to_contain_text("delivered again")
        shown.get_by_label("Type the name").fill("dunning")
        shown.get_by_role("button", name="Move the group").click()
        status = shown.get_by_role("status").filter(has_text="moved to earliest")
        expect(status).to_contain_text("group dunning is moved to earliest")

        shown.goto(f"{url}/dead-letters")
        shown.get_by_role("link", name="billing").first.click()
        shown.get_by_role("link", name="A1", exact=True).click()
        shown.get_by_label("Reason").fill("the account is open again")
        shown.get_by_role("button", name="Resend").click()
        expect(shown.get_by_role("status").first).to_contain_text("A1 is resent to billing")

        shown.goto(f"{url}/dead-letters/group?group=billing")
        shown.get_by_label("Reason").fill("fixed")
        shown.get_by_label("Type the name").fill("billing")
        shown.get_by_role("button", name="Resend all").click()
        done = shown.get_by_role("status").filter(has_text="dead letters of billing")
        expect(done).to_contain_text("1 resent before, 1 resent")


def create_topic(shown, url, name):
    shown.goto(f"{url}/topics")
    shown.get_by_label("Name").fill(name)
    shown.get_by_role("button", name="Create").click()


def test_a_list_refreshes_itself_and_keeps_the_focus(browser, stage):
    url, *_ = stage
    with opened(browser) as shown, opened(browser) as other:
        shown.goto(f"{url}/topics?search=Fresh")
        expect(shown.locator("#live")).to_contain_text("No topic has a name with this text")
        shown.locator("#all").focus()
        create_topic(other, url, "Fresh-1")
        expect(other.get_by_role("status").first).to_contain_text("topic Fresh-1 has 4 queues")

        expect(shown.locator("#live")).to_contain_text("Fresh-1")
        shown.locator("#row-1").focus()
        create_topic(other, url, "Fresh-2")
        expect(shown.locator("#live")).to_contain_text("Fresh-2")
        expect(shown.locator("#row-1")).to_be_focused()


def test_a_refresh_keeps_the_selection_scroll_position_and_typed_text(browser, stage):
    url, *_ = stage
    with opened(browser, height=400) as shown, opened(browser) as other:
        shown.goto(f"{url}/topic?name=Bills")
        shown.get_by_label("Body").fill("half of a sen")
        shown.evaluate(
            """() => { const cell = document.querySelector("#live tbody th").firstChild;
            getSelection().setBaseAndExtent(cell, 1, cell, 4); scrollTo(0, 90); }"""
        )
        other.goto(f"{url}/topic?name=Bills")
        other.get_by_label("Body").fill("one more")
        other.get_by_role("button", name="Send").click()

        expect(shown.locator("#live")).to_contain_text("4 messages")
        assert shown.evaluate("[getSelection().toString(), scrollY]") == ["rok", 90]
        expect(shown.get_by_label("Body")).to_have_value("half of a sen")


def test_more_windows_than_a_browser_has_connections_all_load(browser_page, stage):
    """A stream holds one of six connections; the oldest windows pause until they are used again."""
    url, *_ = stage
    windows = [browser_page, *(browser_page.context.new_page() for _ in range(8))]
    for window in windows:
        window.goto(f"{url}/topics?search=Many")
    expect(windows[-1].locator("#live")).to_contain_text("No topic has a name with this text")
    create_topic(windows[-1], url, "Many-1")
    expect(windows[-2].locator("#live")).to_contain_text("Many-1")
    expect(windows[0].locator("#live")).not_to_contain_text("Many-1")
    windows[0].evaluate("dispatchEvent(new Event('focus'))")
    expect(windows[0].locator("#live")).to_contain_text("Many-1")


def test_a_page_reconnects_after_the_console_was_killed(browser_page):
    port, shown = free_port(), browser_page
    with BrokerThread() as broker:
        with ConsoleProcess(broker.names, port=port) as console:
            shown.goto(f"{console.url}/topics")
            console.process.kill()
            console.process.wait()
            expect(shown.locator("#offline")).to_be_visible()
        asked(broker.names, lambda admin, _: admin.create_topic("Back", queues=1))
        with ConsoleProcess(broker.names, port=port) as console:
            expect(shown.locator("#live")).to_contain_text("Back")
            expect(shown.locator("#offline")).to_be_hidden()
            assert console.stop() == "", "an open page does not delay the end"


def test_a_page_says_when_the_console_is_unreachable(browser_page, stage):
    url, *_ = stage
    offline = browser_page.locator("#offline")
    browser_page.goto(f"{url}/topics")
    expect(offline).to_be_hidden()
    browser_page.context.set_offline(True)
    expect(offline).to_be_visible()
    expect(browser_page.locator("#live")).to_contain_text("Bills")
    browser_page.context.set_offline(False)
    expect(offline).to_be_hidden()


def test_a_visitor_logs_in_and_out(browser, tmp_path):
    acl = tmp_path / "plain_acl.yml"
    acl.write_text("accounts:\n- {accessKey: operator, secretKey: operator-secret, admin: true}\n")
    acl.chmod(0o600)
    settings = BrokerSettings(acl=str(acl), store=StoreSettings(flush="async"))
    with (
        BrokerThread(settings) as broker,
        ConsoleProcess(broker.names) as console,
        examined(browser) as shown,
    ):
        shown.goto(f"{console.url}/topics?search=a")
        expect(shown.get_by_label("Access key")).to_be_focused()
        shown.keyboard.type("operator")
        shown.keyboard.press("Tab")
        shown.keyboard.type("operator-secret")
        shown.keyboard.press("Enter")

        expect(shown.get_by_role("heading", name="Topics")).to_be_visible()
        assert shown.url == f"{console.url}/topics?search=a"
        (cookie,) = shown.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert shown.evaluate("document.cookie") == ""
        for path in ("access", "access/account?key=operator", "access/removal?key=operator"):
            check_page(shown, f"{console.url}/{path}")
        shown.set_viewport_size({"width": 1_440, "height": 900})
        shown.get_by_role("button", name="Log out").click()
        expect(shown.get_by_label("Access key")).to_be_visible()
        shown.goto(f"{console.url}/topics")
        expect(shown.get_by_label("Access key")).to_be_visible()


def test_the_pages_pictured_in_the_docs_show_their_content(browser, stage):
    """TXMQ_SCREENSHOTS=docs/images renews the pictures."""
    url, _, ids = stage
    with opened(browser, 1_100, 2_200) as shown:
        shown.goto(f"{url}/transaction?id={ids['t-1']}")
        expect(shown.get_by_role("link", name="Roll back…")).to_be_in_viewport()
        keep_picture(shown, "console-transaction")
    with opened(browser, 1_100, 640) as shown:
        shown.goto(url)
        expect(shown.get_by_role("heading", name="Brokers")).to_be_in_viewport()
        keep_picture(shown, "console-overview")
        shown.goto(f"{url}/transactions?group=icbc")
        expect(shown.get_by_role("link", name="t-1")).to_be_in_viewport()
        keep_picture(shown, "console-transactions")
