"""The page of a run in a browser, as people and screen readers see it."""

import os
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import expect

from tests.reconcile import runs
from tests.servers.browser import CONTRAST_MIN, TEXTS
from txmq.reconcile.report.page import page

PICTURE = {"width": 1_300, "height": 1_350}


@pytest.fixture
def opened(browser, tmp_path):
    """Writes a run's page and opens the file; the browser may request nothing else."""
    contexts, asked, said = [], [], []

    def opens(run, width=1_400, height=900, **options):
        file = tmp_path / "report.html"
        file.write_bytes(page(run))
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        shown = context.new_page()
        shown.on("pageerror", lambda error: said.append(str(error)))
        shown.on("console", lambda told: said.append(told.text))
        shown.on("request", lambda request: asked.append(request.url))
        shown.goto(file.as_uri())
        assert asked == [file.as_uri()]
        return shown

    yield opens
    for context in contexts:
        context.close()
    assert said == []
    assert len(asked) == len(contexts)


@pytest.fixture
def busy():
    return runs.run(runs.busy())


@pytest.mark.parametrize("width", [320, 360, 768, 1_100, 1_400])
def test_nothing_but_tables_overflows_the_page(opened, busy, width):
    shown = opened(busy, width)

    assert shown.evaluate("document.documentElement.scrollWidth") == width
    over = shown.evaluate(
        """() => [...document.querySelectorAll("main *, header *")].filter(each =>
            !each.closest(".table, .hidden") && each.getBoundingClientRect().right > innerWidth
        ).map(each => each.outerHTML.slice(0, 90))"""
    )
    assert over == []


def test_no_amount_is_cut_at_1280_pixels(opened, busy):
    huge = 99_999_999_999_99
    amounts = dict.fromkeys(("amount", "debited", "returned", "credited", "ordered"), huge)
    replace = msgspec.structs.replace
    result = replace(
        busy.result,
        items=tuple(item | amounts for item in busy.result.items),
        proofs=tuple(replace(proof, found=-huge, by_items=huge) for proof in busy.result.proofs),
        totals=tuple(
            replace(total, debited=huge, returned=huge, credited=huge, ordered=huge, at_risk=huge)
            for total in busy.result.totals
        ),
    )

    shown = opened(replace(busy, result=result), 1_280)

    assert (
        shown.evaluate(
            """() => [...document.querySelectorAll(".table")].filter(
            each => each.scrollWidth > each.clientWidth
        ).map(each => [each.getAttribute("aria-label"), each.scrollWidth - each.clientWidth])"""
        )
        == []
    )


def test_each_item_has_an_anchor_and_the_footer_names_the_time_zone(opened, busy):
    shown = opened(busy)
    item = busy.result.items[0]

    shown.get_by_role("link", name=item["break_id"]).click()

    assert shown.url.endswith(f"#break-{item['break_id']}")
    expect(shown.locator(":target")).to_contain_text(item["key"])
    expect(shown.get_by_role("contentinfo")).to_contain_text("All moments are in the zone UTC")


def test_a_very_long_text_does_not_widen_the_page(opened):
    shown = opened(runs.with_texts("x" * 400), 360)

    assert shown.evaluate("document.documentElement.scrollWidth") == 360


def test_a_wide_table_can_be_scrolled_with_the_keyboard(opened, busy):
    shown = opened(busy, 360)
    region = shown.get_by_role("region", name="Classes", exact=True)

    region.focus()
    expect(region).to_be_focused()
    shown.keyboard.press("ArrowRight")
    expect(region).not_to_have_js_property("scrollLeft", 0)
    assert region.evaluate("each => each.scrollLeft") > 0


def test_a_screen_reader_finds_headings_tables_and_charts(opened, busy):
    shown = opened(busy)
    headings = shown.get_by_role("heading", level=2).all_inner_texts()

    assert shown.get_by_role("heading", level=1).all_inner_texts() == ["Friday, 20 November 2026"]
    assert headings == [
        "Over the limits", "In figures", "Day by day", "Every transfer in one class",
        "Ages", "Balance proofs", "Evidence", "Decided by hand", "Control totals",
        "Signatures", "Inputs and versions",
    ]  # fmt: skip
    for landmark in ("banner", "navigation", "main", "contentinfo"):
        expect(shown.get_by_role(landmark)).to_have_count(1)
    for chart in ("Match rate, day by day", "Breaks, day by day"):
        expect(shown.get_by_role("img", name=chart, exact=True)).to_have_count(1)
    described = shown.get_by_role("img", name="Breaks, day by day")
    expect(described).to_have_accessible_description("43 on 2026-11-20; the most is 43.")
    table = shown.get_by_role("table", name="The transfers and sums of each class")
    expect(table.get_by_role("columnheader")).to_have_count(8)
    row = table.get_by_role("row").filter(has=shown.get_by_role("rowheader", name="parked"))
    expect(row.get_by_role("cell")).to_have_text(
        ["CNY", "8", "18,400.00", "0.00", "0.00", "18,400.00", "18,400.00"]
    )


def test_the_first_tab_skips_to_the_content(opened, busy):
    shown = opened(busy)

    shown.keyboard.press("Tab")
    expect(shown.get_by_role("link", name="Skip to the content")).to_be_focused()
    shown.keyboard.press("Enter")
    assert shown.url.endswith("#main")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("day", ["busy", "clean", "within limits"])
def test_every_text_has_enough_contrast(opened, busy, scheme, day):
    made = busy if day == "busy" else runs.signed(runs.run(runs.clean(verdict=day)))
    shown = opened(made, color_scheme=scheme)
    found = shown.evaluate(TEXTS)

    assert len(found) > 150
    assert [row for row in found if row[0] < CONTRAST_MIN] == []


def test_dark_mode_is_dark_and_print_is_light(opened, busy):
    shown = opened(busy, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"

    assert shown.evaluate(ground) == "rgb(15, 20, 32)"
    shown.emulate_media(media="print", color_scheme="dark")
    assert shown.evaluate(ground) == "rgb(255, 255, 255)"
    assert [row for row in shown.evaluate(TEXTS) if row[0] < CONTRAST_MIN] == []


def test_print_has_signature_lines_and_no_navigation(opened, busy):
    shown = opened(busy, 1_030)
    lines = shown.locator(".paper")

    expect(lines).to_be_hidden()
    shown.emulate_media(media="print")
    expect(lines).to_be_visible()
    expect(lines).to_contain_text("Reviewed by")
    expect(shown.locator("nav")).to_be_hidden()
    assert shown.evaluate("document.documentElement.scrollWidth") <= 1_030
    assert shown.pdf(prefer_css_page_size=True).startswith(b"%PDF-")


def test_a_hostile_text_is_shown_and_not_executed(opened):
    hostile = '"><img src=x onerror="document.title=1"><style>*{display:none}</style>'
    made = runs.run(runs.busy(name=hostile))
    shown = opened(made)

    assert hostile in shown.title()
    assert hostile in shown.get_by_role("main").inner_text()
    expect(shown.locator("img")).to_have_count(0)


def test_the_screenshot_of_the_docs_shows_the_chart_table(opened, busy):
    """TXMQ_SCREENSHOTS=docs/images makes it anew."""
    shown = opened(busy, **PICTURE)

    expect(shown.get_by_role("table", name="What the charts show")).to_be_in_viewport()
    if folder := os.environ.get("TXMQ_SCREENSHOTS"):
        shown.screenshot(path=Path(folder) / "reconciliation-report.png")
