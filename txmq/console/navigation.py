"""The console's parts, in the order of its navigation: sections, and the lists of each."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["SECTIONS", "Listed", "Section", "section_of"]


class Listed(NamedTuple):
    """A page that the navigation names."""

    path: str
    name: str
    begins: str
    """What the paths of its details begin with; empty if it has none."""

    def holds(self, path: str) -> bool:
        """Whether a path is this page, or a detail of it."""
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


def section_of(path: str) -> Section | None:
    """The section of a page."""
    for section in SECTIONS:
        if any(page.holds(path) for page in section.pages):
            return section
    return None
