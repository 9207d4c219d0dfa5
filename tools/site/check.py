"""Checks the built site in Chromium: accessibility, narrow screens, clipped code, the search, and
diagrams.

Run it by `make sitecheck`. Each finding is one line with its page, and the exit code is 1 if there
are any.
"""

import contextlib
import re
import sys
import threading
import tomllib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Error, Page

from tests.servers import browser as chromium
from tools.packages import Unprepared

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / ".cache/site"
QUESTIONS = Path(__file__).parent / "questions.toml"

NARROW = {"width": 390, "height": 844}
WIDE = {"width": 1440, "height": 900}
SCHEMES = {"light": "default", "dark": "slate"}
"""The theme's names of what a browser prefers."""
KINDS = (
    "index.html",
    "quickstart.html",
    "glossary.html",
    "howto/send.html",
    "explanation/half-messages.html",
    "reference/api/txmq.client.html",
    "reference/errors.html",
    "reference/cli.html",
    "reference/configuration.html",
    "adr/index.html",
)
"""One page of each kind, and those with the widest tables."""
SERIOUS = {"serious", "critical"}
PATIENCE_MS = 5_000

OVERFLOW = """() => {
  const page = document.documentElement;
  return page.scrollWidth > page.clientWidth ? page.scrollWidth : 0;
}"""
CLIPPED = """() => [...document.querySelectorAll("pre > code")]
  .filter(code => code.getClientRects().length && code.scrollWidth > code.clientWidth)
  .map(code => code.innerText.slice(0, 40))"""
SHORTEN = """() => document.querySelectorAll(`.md-content__inner > :nth-child(n + 60),
  .doc-contents > :nth-child(n + 10) > :nth-child(n + 10), tr:nth-child(n + 20),
  .md-nav--secondary .md-nav__item:nth-child(n + 20)`).forEach(part => part.remove())"""
"""Long pages repeat what their beginnings have, and axe would take seconds for each of them."""
DIAGRAMS = """async scheme => {
  const images = [...document.querySelectorAll("img[src*='/diagram-']")];
  const shown = images.filter(image => image.getClientRects().length);
  for (const image of shown) { image.loading = "eager"; await image.decode().catch(() => 0); }
  const wrong = shown.filter(
    image => !image.src.endsWith(`.svg#only-${scheme}`) || !image.naturalWidth);
  const text = document.querySelectorAll("pre.mermaid, .language-mermaid").length;
  return {shown: shown.length, all: images.length, wrong: wrong.length, text};
}"""
RESULTS = """() => [...document.querySelectorAll(
  ".md-search-result__item > a.md-search-result__link")]
  .map(link => new URL(link.href).pathname.slice(1))"""
HAS_RESULTS = "document.querySelector('.md-search-result__item')"
RESULTS_MAX = 5
"""How many pages the first page of results has."""


def main() -> int:
    """Print what is wrong with the site; the exit code."""
    try:
        with served(SITE) as address, chromium.opened() as browser:
            tab = browser.new_page()
            findings = [*anchors(), *searches(tab, address), *looks(tab, address)]
    except Unprepared as error:
        print(error, file=sys.stderr)
        return 1
    for finding in findings:
        print(finding)
    print(f"{len(findings)} findings on the site" if findings else "the site has no findings")
    return int(bool(findings))


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """A web server on loopback; its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def looks(tab: Page, address: str) -> Iterator[str]:
    """What is wrong with the look of the pages; pages of source code are only listings."""
    # Without words to index, each page is ready a second sooner.
    index = {"config": {"lang": ["en"], "separator": r"\s+", "pipeline": []}, "docs": []}
    tab.route("**/search_index.json", lambda route: route.fulfill(json=index))
    for file in sorted(SITE.rglob("*.html")):
        page = file.relative_to(SITE).as_posix()
        if page.startswith("source/"):
            continue
        has_diagrams = "/diagram-" in file.read_text(encoding="utf-8")
        tab.set_viewport_size(NARROW)
        tab.goto(f"{address}/{page}")
        if wide := tab.evaluate(OVERFLOW):
            yield f"{page} at {NARROW['width']} px: it is {wide} px wide and scrolls sideways"
        tab.set_viewport_size(WIDE)
        for code in tab.evaluate(CLIPPED):
            yield f"{page} at {WIDE['width']} px: a line of code is wider than its column: {code!r}"
        if page in KINDS or has_diagrams:
            tab.evaluate(SHORTEN)
            tab.add_style_tag(content="* {transition: none !important}")
            for scheme, size in product(SCHEMES, (NARROW, WIDE)):
                tab.set_viewport_size(size)
                tab.emulate_media(color_scheme=scheme)
                tab.wait_for_selector(f"body[data-md-color-scheme={SCHEMES[scheme]}]")
                for text in [*(barriers(tab) if page in KINDS else ()), *pictures(tab, scheme)]:
                    yield f"{page} at {size['width']} px, {scheme}: {text}"


def anchors() -> Iterator[str]:
    """Links that the hooks made, which MkDocs does not check, to a heading that is not there."""
    known = {
        page: set(re.findall(r'\bid="([^"]+)"', (SITE / page).read_text(encoding="utf-8")))
        for page in ("glossary.html", "reference/errors.html")
    }
    made = re.compile(r'href="[./\w]*?(glossary\.html|reference/errors\.html)#([^"]+)"')
    for file in sorted(SITE.rglob("*.html")):
        for page, anchor in made.findall(file.read_text(encoding="utf-8")):
            if anchor not in known[page]:
                yield f"{file.relative_to(SITE)}: {page} has no heading #{anchor}"


def pictures(tab: Page, scheme: str) -> Iterator[str]:
    """Diagrams that are not shown as SVG in the colours of a scheme."""
    found = tab.evaluate(DIAGRAMS, scheme)
    if found["wrong"] or found["text"] or found["all"] != 2 * found["shown"]:
        yield f"its diagrams are not shown as SVG of this scheme: {found}"


def barriers(tab: Page) -> Iterator[str]:
    """The serious findings of axe-core on a page."""
    for found in Axe().run(tab, options={"resultTypes": ["violations"]}).response["violations"]:
        if found["impact"] in SERIOUS:
            places = [node["target"][0] for node in found["nodes"]]
            yield f"axe {found['id']}, {found['impact']}: {len(places)} times, first at {places[0]}"


def searches(tab: Page, address: str) -> Iterator[str]:
    """The questions whose page is not on the first page of results."""
    tab.set_viewport_size(WIDE)
    tab.goto(f"{address}/index.html?q=txmq")
    tab.wait_for_function(HAS_RESULTS)  # The index is loaded.
    for question, wanted in tomllib.loads(QUESTIONS.read_text(encoding="utf-8")).items():
        shown = answers(tab, question)
        if wanted not in shown:
            yield f"search {question!r}: {wanted} is not among {', '.join(shown) or 'nothing'}"


def answers(tab: Page, question: str) -> list[str]:
    """The pages on the first page of results for a question."""
    field = tab.locator(".md-search__input")
    field.fill("")
    field.press("End")  # The search listens to keys.
    tab.wait_for_function(f"!{HAS_RESULTS}")
    field.fill(question)
    field.press("End")
    with contextlib.suppress(Error):
        tab.wait_for_function(HAS_RESULTS, timeout=PATIENCE_MS)
    return list(dict.fromkeys(tab.evaluate(RESULTS)))[:RESULTS_MAX]


if __name__ == "__main__":
    sys.exit(main())
