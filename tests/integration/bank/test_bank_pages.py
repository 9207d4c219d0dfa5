"""The banks' pages in a browser: what is ordered there, what is seen of it, and what is refused."""

import contextlib
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import expect

from examples.bank_transfer.steps import NINE

PATIENCE_S = 20
HEIGHT_MAX = 1_470
STATES = "SELECT state FROM transfers WHERE id = :id"
JOURNAL = "SELECT account, amount FROM journal WHERE transfer = :id ORDER BY id"
BALANCE = "SELECT balance FROM accounts WHERE number = :number"


@pytest.fixture
def complaints(browser_page):
    """What the browser's console says is wrong; there must be nothing, or a test takes it out."""
    found = []
    browser_page.on("pageerror", lambda problem: found.append(str(problem)))
    browser_page.on("console", lambda said: said.type == "error" and found.append(said.text))
    yield found
    assert found == []


@pytest.fixture
def customer(browser_page, stage, complaints):
    """Fills in the form and sends it; then the page is the transfer's."""

    def orders(payer, payee, amount="100.00", drill="", way="half"):
        browser_page.goto(stage.icbc.url)
        fill(browser_page, payer, payee, amount, drill, way)
        browser_page.click("button[type=submit]")
        return browser_page

    return orders


def fill(page, payer, payee, amount="100.00", drill="", way="half"):
    for name, typed in (("payer", payer), ("payee", payee), ("amount", amount)):
        page.fill(f"#{name}", typed)
    page.check(f"input[name=way][value='{way}']")
    page.check(f"input[name=drill][value='{drill}']")


def state(page):
    return page.locator("#state .outcome strong")


def taken(page):
    return page.locator("#steps li.taken")


def id_of(page):
    return page.url.rsplit("/", 1)[1]


def photograph(page, name):
    """The pictures of the docs: TXMQ_SCREENSHOTS=docs/images makes them again."""
    if folder := os.environ.get("TXMQ_SCREENSHOTS"):
        height = min(page.evaluate("document.documentElement.scrollHeight"), HEIGHT_MAX)
        page.set_viewport_size({"width": 1100, "height": height})
        page.screenshot(path=Path(folder) / f"{name}.png")


def form_of(stage, http, **typed):
    """A form as it was shown, filled in."""
    shown = re.search(r'name="id" value="([^"]+)"', http.get(stage.icbc.url).text)
    usual = {"payer": "ICBC-006", "payee": "CCB-006", "amount": "1", "currency": "CNY"}
    return {**usual, "way": "half", "drill": "", "id": shown[1], **typed}


def until(fact, what):
    deadline = time.monotonic() + PATIENCE_S
    while not fact():
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.02)


def test_the_page_shows_the_nine_steps_as_they_happen(customer, stage):
    page = customer("ICBC-001", "CCB-001", "10,000.00", drill="SLOW")

    expect(taken(page)).to_have_count(5)
    expect(state(page)).to_have_text("under way")
    expect(page.locator("#steps li.open")).to_have_count(4)

    expect(taken(page)).to_have_count(9)
    expect(state(page)).to_have_text("settled")
    expect(page.locator("#live")).to_contain_text("This transfer has ended")
    assert page.locator("#steps .story").all_inner_texts() == list(NINE)
    time_texts = page.locator("#steps .time").all_text_contents()
    times = [float(text.split()[-2].replace(",", "")) for text in time_texts]
    assert times == sorted(times)
    assert times[5] - times[4] > 2_000, "the debit is slow, and everything else is not"
    expect(taken(page).last).to_contain_text(
        "the transaction is committed, confirmed by the broker"
    )
    expect(page.locator("#books tbody tr")).to_have_count(2)
    photograph(page, "bank-steps")


def test_a_failed_transfer_is_rolled_back_at_both_banks(customer, stage):
    page = customer("ICBC-001", "CCB-001", drill="TAGB")

    expect(state(page)).to_have_text("refused")
    expect(page.locator("#state .reason")).to_contain_text("The drill says so")
    expect(taken(page).last).to_contain_text(
        "the transaction is rolled back, confirmed by the broker"
    )
    expect(page.locator("#books")).to_contain_text("no money was moved")
    assert stage.icbc.rows(JOURNAL, id=id_of(page)) == []
    assert stage.ccb.rows(STATES, id=id_of(page)) == []


def test_a_transfer_without_a_decision_is_settled_by_a_check(customer):
    page = customer("ICBC-002", "CCB-002", drill="TAGC")

    expect(taken(page).last).to_contain_text(
        "the transaction is unknown, not confirmed by the broker"
    )
    expect(page.locator("#steps .after code")).to_contain_text("was answered with COMMIT")
    expect(state(page)).to_have_text("settled")


def test_the_page_of_an_outbox_transfer_says_it_has_no_nine_steps(customer):
    page = customer("ICBC-002", "CCB-002", way="outbox")

    expect(state(page)).to_have_text("settled")
    expect(page.locator("#steps")).to_contain_text("no nine steps")


def test_a_double_click_and_a_resubmitted_form_make_one_transfer(customer, stage, browser_page):
    page = browser_page
    page.goto(stage.icbc.url)
    fill(page, "ICBC-003", "CCB-003", "7.00")
    page.dblclick("button[type=submit]")
    expect(state(page)).to_have_text("settled")
    once = page.url

    page.go_back()
    fill(page, "ICBC-003", "CCB-003", "7.00")
    page.click("button[type=submit]")

    expect(state(page)).to_have_text("settled")
    assert page.url == once
    expect(taken(page).last).to_contain_text("the transaction is committed")
    made = stage.icbc.rows("SELECT id FROM transfers WHERE payer = 'ICBC-003'")
    assert made == [(id_of(page),)]
    page.reload()
    expect(state(page)).to_have_text("settled")


def test_a_form_sent_eight_times_at_once_makes_one_transfer(stage, http):
    form = form_of(stage, http, amount="3")

    with ThreadPoolExecutor(8) as crowd:
        asked = [
            crowd.submit(http.post, f"{stage.icbc.url}/transfers", data=form) for _ in "12345678"
        ]
        answers = [answer.result() for answer in asked]

    where = f"/transfers/{form['id']}"
    assert {(answer.status_code, answer.headers["location"]) for answer in answers} == {
        (303, where)
    }
    until(lambda: stage.icbc.rows(STATES, id=form["id"]) == [("settled",)], "it is not settled")
    assert len(stage.icbc.rows(JOURNAL, id=form["id"])) == 2
    other = http.post(f"{stage.icbc.url}/transfers", data={**form, "amount": "4"})
    assert other.status_code == 409
    assert "this form has made another transfer already" in other.text.lower()
    assert form["id"] not in other.text, "sent again, it is a transfer of its own"


def test_a_form_with_a_mistake_comes_back_as_it_was_typed(customer, complaints):
    page = customer("ICBC-001", "<b>CCB</b>", "12.345")

    expect(page.locator("#why")).to_contain_text("CNY has 2 digits after the point, not 3")
    expect(page.locator("#amount")).to_have_value("12.345")
    expect(page.locator("#payee")).to_have_value("<b>CCB</b>")
    fill(page, "ICBC-001", "CCB-001", "1", way="outbox", drill="TAGA")
    page.click("button[type=submit]")
    expect(page.locator("#why")).to_contain_text("drills need the way half")
    expect(page.locator("input[name=drill][value=TAGA]")).to_be_checked()
    assert ["422" in complaint for complaint in complaints] == [True, True]
    complaints.clear()


def test_money_for_a_closed_account_comes_back(customer, stage, browser_page):
    page = browser_page
    page.goto(stage.ccb.url)
    page.get_by_role("button", name="Close account CCB-004").click()
    account = page.locator("tr", has_text="CCB-004")
    expect(account).to_contain_text("closed")
    before = stage.icbc.rows(BALANCE, number="ICBC-004")

    customer("ICBC-004", "CCB-004", "250.00")

    expect(state(page)).to_have_text("returned")
    expect(page.locator("#state .reason")).to_contain_text("The account is closed: CCB-004")
    expect(page.locator("#books tbody tr")).to_have_count(4)
    assert stage.icbc.rows(BALANCE, number="ICBC-004") == before
    page.goto(f"{stage.ccb.url}/teller?still")
    expect(page.locator("#latest")).to_contain_text("the account is closed")
    page.get_by_role("button", name="Open account CCB-004").click()
    expect(account.get_by_text("open", exact=True)).to_be_visible()


def test_the_tellers_totals_add_up(customer, stage, browser_page):
    customer("ICBC-005", "CCB-005", "12.34")
    expect(state(browser_page)).to_have_text("settled")

    for bank in (stage.icbc, stage.ccb):
        browser_page.goto(f"{bank.url}/teller")
        expect(browser_page.locator("#totals tbody th")).to_contain_text(
            ["customers", "clearing", "unclaimed", "capital"]
        )
        shown = browser_page.locator("#totals tbody .number").all_inner_texts()
        assert sum(int(re.sub(r"[^\d-]", "", amount)) for amount in shown) == 0
        expect(browser_page.locator("#totals tfoot .number")).to_have_text("0.00 CNY")
        expect(browser_page.locator("#states")).to_contain_text(
            "settled" if bank is stage.icbc else "credited"
        )


def test_the_page_works_without_javascript(stage, browser):
    with contextlib.closing(browser.new_context(java_script_enabled=False)) as context:
        page = context.new_page()
        page.goto(stage.icbc.url)
        fill(page, "ICBC-005", "CCB-005", "5", drill="TAGA")
        page.click("button[type=submit]")

        expect(page.locator("#live")).to_contain_text("Reload it for news")
        until(lambda: page.reload() and state(page).inner_text() == "settled", "it is not settled")
        expect(taken(page)).to_have_count(9)
        expect(page.locator("#books tbody tr")).to_have_count(2)


def test_a_restart_forgets_steps_but_no_transfer(customer, stage, browser_page, complaints):
    """In the middle of a debit, which is waited for, and under the eyes of the customer."""
    stage.ccb.stop()
    page = customer("ICBC-002", "CCB-001", "1,200", drill="SLOW")
    expect(taken(page)).to_have_count(5)

    stage.icbc.stop()

    assert stage.icbc.rows(STATES, id=id_of(page)) == [("sent",)]
    expect(page.locator("#live")).to_contain_text("trying again")
    stage.icbc.start()
    expect(page.locator("#live")).to_contain_text("Live")
    expect(page.locator("#steps")).to_contain_text("gone")
    expect(state(page)).to_have_text("sent")
    assert all("ERR_" in complaint for complaint in complaints), "it was away, and nothing else"
    complaints.clear()
    browser_page.goto(f"{stage.icbc.url}/teller?still")
    expect(page.locator("#in-flight")).to_contain_text("1,200.00 CNY")
    photograph(page, "bank-teller")
    page.go_back()
    stage.ccb.start()
    expect(state(page)).to_have_text("settled")


def test_a_transfer_without_a_broker_says_so_and_can_be_tried_again(customer, stage):
    stage.broker.stop()
    page = customer("ICBC-003", "CCB-001", "8")
    expect(state(page)).to_have_text("not made")
    expect(page.locator("#state .reason")).to_contain_text("Not made now, ask again")
    where = page.url

    stage.broker.start()
    page.get_by_role("button", name="Try again").click()

    expect(state(page)).to_have_text("settled")
    assert page.url == where


@pytest.mark.parametrize("where", ["icbc/", "icbc/teller", "icbc/transfers/nobody", "ccb/teller"])
def test_pages_fit_a_phone(stage, browser_page, where):
    bank, _, path = where.partition("/")
    browser_page.set_viewport_size({"width": 360, "height": 740})
    browser_page.goto(f"{getattr(stage, bank).url}/{path}")

    assert browser_page.evaluate("document.documentElement.scrollWidth") == 360
    assert browser_page.locator("h1").count() == 1
    assert browser_page.locator("th:not([scope])").count() == 0
    unnamed = "[...document.querySelectorAll('input:not([type=hidden]), select')]"
    assert browser_page.evaluate(f"{unnamed}.every(each => each.labels.length === 1)")


def test_the_form_offers_the_accounts_of_the_bank(stage, browser_page, complaints):
    browser_page.goto(f"{stage.icbc.url}/?payer=ICBC-001&payee=CCB-001&amount=10,000.00&drill=SLOW")

    offered = browser_page.locator("#accounts option").evaluate_all("all => all.map(e => e.value)")
    assert offered == [f"ICBC-{number:03}" for number in range(1, 7)]
    expect(browser_page.locator("#amount")).to_have_value("10,000.00")
    photograph(browser_page, "bank-customer")


@pytest.mark.parametrize("path", ["/", "/teller", "/transfers/nobody", "/static/live.js"])
def test_every_response_has_a_content_security_policy(stage, http, path):
    answer = http.get(f"{stage.icbc.url}{path}")

    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self';")
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_an_unknown_transfer_has_a_not_found_page(stage, http):
    answer = http.get(f"{stage.icbc.url}/transfers/<i>nobody")

    assert answer.status_code == 404
    assert "This transfer does not exist" in answer.text
    assert "<i>" not in answer.text
    assert http.get(f"{stage.icbc.url}/transfers/nobody/events").status_code == 404


def test_oversized_empty_and_unknown_forms_are_refused(stage, http):
    large = form_of(stage, http, payer="A" * 9_000)
    many = {f"field{number}": "1" for number in range(20)}

    for form in (large, many):
        for url in (f"{stage.icbc.url}/transfers", f"{stage.ccb.url}/teller/accounts"):
            assert http.post(url, data=form).status_code == 413
    assert http.post(f"{stage.icbc.url}/transfers", data={}).status_code == 422
    unknown = {"number": "CCB-999", "wanted": "closed"}
    assert http.post(f"{stage.ccb.url}/teller/accounts", data=unknown).status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site", "origin": "https://evil.example"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ],
    ids=["another site", "another port", "an old browser", "a page without a name"],
)
def test_forms_sent_from_foreign_pages_are_refused(stage, http, headers):
    form = form_of(stage, http)
    closing = {"number": "CCB-001", "wanted": "closed"}

    for url, data in (
        (f"{stage.icbc.url}/transfers", form),
        (f"{stage.icbc.url}/api/transfers", form),
        (f"{stage.ccb.url}/teller/accounts", closing),
    ):
        assert http.post(url, data=data, headers=headers).status_code == 403
    assert stage.icbc.rows(STATES, id=form["id"]) == []
    assert stage.ccb.rows("SELECT is_open FROM accounts WHERE number = 'CCB-001'") == [(1,)]


def test_our_own_pages_can_send_forms_in_an_old_browser(stage, http):
    own = {"origin": stage.icbc.url}
    form = form_of(stage, http)

    assert http.post(f"{stage.icbc.url}/transfers", data=form, headers=own).status_code == 303
    until(lambda: stage.icbc.rows(STATES, id=form["id"]) == [("settled",)], "it is not settled")
