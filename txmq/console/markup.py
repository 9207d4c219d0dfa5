"""Renders templates: text from the wire is escaped, made visible, and cut."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

import txmq
from txmq.console.streams import LiveView
from txmq.limits import REASON_CHARS_MAX
from txmq.ops.moments import age_of, time_text
from txmq.text import printable, quantity

__all__ = ["PageMarkup", "link", "url_of"]

CHARS_SHOWN: Final = 300
"""How many characters of a text are shown. Names are shorter; keys and reasons have no limit."""
_TEMPLATES: Final = Path(__file__).parent / "templates"


def url_of(path: str, **fields: object) -> str:
    """The address of a page with fields. Empty fields are left out; a list repeats its field."""
    pairs = [
        f"{name}={quote(str(value), safe='', errors='replace')}"
        for name, given in fields.items()
        for value in (given if isinstance(given, list) else [given])
        if value not in (None, "")
    ]
    return f"{path}?{'&'.join(pairs)}" if pairs else path


def link(path: str, **fields: object) -> Markup:
    """An address for a template; templates cut long texts, but not links."""
    return escape(url_of(path, **fields))


class Listed(NamedTuple):
    """A page in the navigation."""

    path: str
    name: str
    begins: str
    """The prefix of the paths of its detail pages; empty if it has none."""

    def holds(self, path: str) -> bool:
        """Whether a path is this page or one of its detail pages."""
        return path == self.path or bool(self.begins and path.startswith(self.begins))


class Section(NamedTuple):
    """Pages that belong together. The name of the section leads to the first of them."""

    name: str
    pages: tuple[Listed, ...]


SECTIONS: Final[tuple[Section, ...]] = (
    Section("Overview", (Listed("/", "Overview", ""),)),
    Section("Transactions", (Listed("/transactions", "Open and decided", "/transaction"),)),
    Section(
        "Messages",
        (
            Listed("/topics", "Topics", "/topic"),
            Listed("/messages", "Find a message", "/message"),
            Listed("/dead-letters", "Dead letters", "/dead-letter"),
            Listed("/delayed", "Delayed", "/delayed"),
        ),
    ),
    Section(
        "Clients",
        (
            Listed("/groups", "Consumer groups", "/group"),
            Listed("/producers", "Producers", ""),
        ),
    ),
    Section(
        "Cluster",
        (
            Listed("/cluster", "Brokers and members", "/cluster"),
            Listed("/settings", "Settings", "/settings"),
            Listed("/access", "Access", "/access"),
            Listed("/audit", "Audit", ""),
        ),
    ),
    Section(
        "Databases",
        (
            Listed("/outbox", "Outboxes", "/outbox"),
            Listed("/reconciliation", "Reconciliation", "/reconciliation"),
        ),
    ),
)
"""The console's parts, in the order of its navigation."""


def section_of(path: str) -> Section | None:
    """The section of a page."""
    for section in SECTIONS:
        if any(page.holds(path) for page in section.pages):
            return section
    return None


class PageMarkup:
    """The templates of all pages."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(_TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_shown,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "age": age_of,
            "exact": escape,
            "lines": _lines,
            "query": lambda text: escape(quote(text, safe="", errors="replace")),
            "time": time_text,
        }
        self._environment.globals |= {
            "link": link,
            "quantity": quantity,
            "reason_max": REASON_CHARS_MAX,
            "section_of": section_of,
            "sections": SECTIONS,
            "version": txmq.__version__,
        }
        # A block that is rendered alone does not see its template's imports.
        self._environment.globals["ui"] = self._environment.get_template("parts.html").module

    def live(self, template: str, values: Mapping[str, Any]) -> LiveView:
        """The part of a page that refreshes itself."""
        found = self._environment.get_template(template)
        block = found.blocks.get("live")
        text = "" if block is None else "".join(block(found.new_context(dict(values))))
        mark = hashlib.sha256(text.encode()).hexdigest()[:16]
        html = Markup(text)  # noqa: S704 - a template has escaped it
        return LiveView(html, mark, template == "problem.html")

    def page(self, template: str, values: Mapping[str, Any]) -> str:
        """A whole page."""
        return self._environment.get_template(template).render(values)


def _shown(value: object) -> object:
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    if len(value) <= CHARS_SHOWN:
        return printable(value)
    return f"{printable(value[:CHARS_SHOWN])}… ({quantity(len(value), 'character')})"


def _lines(lines: Iterable[str]) -> Markup:
    """Lines for ``<pre>``, in their full length."""
    return Markup("\n").join(escape(printable(line)) for line in lines)
