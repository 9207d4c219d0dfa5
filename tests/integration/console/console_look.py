"""How a page of the console must look: in both schemes and at both widths, for everybody."""

import contextlib
import os
from pathlib import Path

from playwright.sync_api import expect

from tests.servers import axe
from tests.servers.browser import CONTRAST_MIN, TEXTS

WIDTHS = (1_440, 390)
SCHEMES = ("light", "dark")
UNNAMED = """() => [...document.querySelectorAll("input, select, textarea")]
  .filter(field => field.type != "hidden")
  .filter(field => !field.labels.length && !field.ariaLabel).map(field => field.outerHTML)"""

BROKEN_NAMES = """() => {
  const broken = [];
  const names = /(?<![^\\s-])[^\\s-]{2,30}(?![^\\s-])/g;
  const range = document.createRange();
  for (const cell of document.querySelectorAll("#live :is(td, th):not(.code)")) {
    const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
      if (walk.currentNode.parentElement.closest(".code, dl")) continue;
      for (const { 0: word, index } of walk.currentNode.data.matchAll(names)) {
        range.setStart(walk.currentNode, index);
        range.setEnd(walk.currentNode, index + word.length);
        const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
        if (tops.size > 1) broken.push(word);
      }
    }
  }
  return broken;
}"""
"""Words of tables that stand on two lines."""
CROOKED_BARS = """() => [...document.querySelectorAll("form.search")].map(bar => {
  const fields = "input:not([type=checkbox], [type=hidden]), select, button";
  const boxes = [...bar.querySelectorAll(fields)].map(field => field.getBoundingClientRect());
  return boxes.map(box => `${box.top} to ${box.bottom}`);
}).filter(places => new Set(places).size > 1)"""
"""Bars of filters whose fields and buttons do not stand on one line."""
LOST_KEYS = """() => [...document.querySelectorAll(".table")].filter(box => {
  box.scrollLeft = box.scrollWidth;
  const isLong = box.scrollWidth > box.clientWidth + 1;
  const key = box.querySelector("tbody th");
  const isLost = key && key.getBoundingClientRect().left < box.getBoundingClientRect().left - 1;
  const hasHint = getComputedStyle(box).backgroundImage.includes("gradient");
  box.scrollLeft = 0;
  return isLong && (isLost || !hasHint);
}).map(box => box.ariaLabel)"""
"""Tables that lose their keys when they are scrolled to the end, or do not hint at it."""


@contextlib.contextmanager
def opened(browser, width=1_440, height=900, **options):
    """A page; any error or console message fails the test."""
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
        for fault in (BROKEN_NAMES, CROOKED_BARS if width == WIDTHS[0] else LOST_KEYS):
            found = shown.evaluate(fault)
            assert not found, (address, width, found)
    for scheme in SCHEMES:
        shown.emulate_media(color_scheme=scheme)
        found = shown.evaluate(TEXTS)
        assert [row for row in found if row[0] < CONTRAST_MIN] == [], (address, scheme)
    assert axe.barriers(shown, axe.CONTRAST) == [], address
    shown.emulate_media(color_scheme="light")


def keep_picture(shown, name):
    """Save a picture for the docs if TXMQ_SCREENSHOTS names their folder; without the empty end
    of the page.
    """
    if folder := os.environ.get("TXMQ_SCREENSHOTS"):
        size = shown.viewport_size
        end = shown.evaluate("document.querySelector('main').lastElementChild.offsetTop")
        end += shown.evaluate("document.querySelector('main').lastElementChild.offsetHeight")
        height = min(size["height"], end + 16)
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height}
        shown.screenshot(path=Path(folder) / f"{name}.png", clip=clip)
