"""How a page of the console must look: in both schemes and at both widths, for everybody."""

import contextlib
import os
from pathlib import Path

from playwright.sync_api import expect

from tests import axe
from tests.browser import CONTRAST_MIN, TEXTS

WIDTHS = (1_440, 390)
SCHEMES = ("light", "dark")
UNNAMED = """() => [...document.querySelectorAll("input, select, textarea")]
  .filter(field => field.type != "hidden")
  .filter(field => !field.labels.length).map(field => field.outerHTML)"""


@contextlib.contextmanager
def opened(browser, width=1_440, height=900, **options):
    """A page that must not complain."""
    complaints = []
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    try:
        shown = context.new_page()
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.on("console", lambda message: complaints.append(message.text))
        yield shown
    finally:
        context.close()
    assert complaints == [], complaints


@contextlib.contextmanager
def examined(browser):
    """A page that :func:`check_page` can look at."""
    with opened(browser) as shown:
        shown.add_init_script(path=axe.script())
        yield shown


def check_page(shown, address):
    """Open a page once, and show it in both schemes and at both widths."""
    shown.goto(address)
    expect(shown.get_by_role("heading", level=1)).to_have_count(1)
    assert shown.title() != "owned", address
    assert shown.evaluate(UNNAMED) == [], address
    for width in WIDTHS:
        shown.set_viewport_size({"width": width, "height": 900})
        assert shown.evaluate("document.documentElement.scrollWidth") <= width, address
        without = [axe.CONTRAST] if width != WIDTHS[0] else ()
        assert axe.barriers(shown, without=without) == [], (address, width)
    for scheme in SCHEMES:
        shown.emulate_media(color_scheme=scheme)
        found = shown.evaluate(TEXTS)
        assert [row for row in found if row[0] < CONTRAST_MIN] == [], (address, scheme)
    assert axe.barriers(shown, axe.CONTRAST) == [], address
    shown.emulate_media(color_scheme="light")


def keep_picture(shown, name):
    """Make a picture of the docs again, if TXMQ_SCREENSHOTS names their folder; without the empty
    end of the page.
    """
    if folder := os.environ.get("TXMQ_SCREENSHOTS"):
        size = shown.viewport_size
        end = shown.evaluate("document.querySelector('main').lastElementChild.offsetTop")
        end += shown.evaluate("document.querySelector('main').lastElementChild.offsetHeight")
        height = min(size["height"], end + 16)
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height}
        shown.screenshot(path=Path(folder) / f"{name}.png", clip=clip)
