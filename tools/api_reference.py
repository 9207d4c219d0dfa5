"""Writes the pages of the API reference: one for each public module, with all its public names.

python -m tools.api_reference docs/reference/api

The pages name the objects; the site fills in signatures and docstrings, read by mkdocstrings from
the sources.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from tools.plain_text import without_roles

MODULES = (
    "txmq",
    "txmq.errors",
    "txmq.blocking",
    "txmq.client",
    "txmq.client.allocation",
    "txmq.client.observe.trace_records",
    "txmq.transaction.resources",
    "txmq.transaction.resources.schema",
    "txmq.idempotent",
    "txmq.idempotent.unique_key",
    "txmq.outbox.table",
    "txmq.reconcile",
    "txmq.reconcile.log.source",
    "txmq.testing",
    "txmq.testing.deliveries",
    "txmq.testing.plugin",
    "txmq_broker.app",
    "txmq_broker.config",
    "txmq_broker.testing",
)
"""The modules that README and docs tell programs to import from; a test holds them together."""

GROUPS = {
    "txmq.message": "Messages",
    "txmq.client.send": "Send",
    "txmq.client.consume": "Consume",
    "txmq.transaction": "Transactions",
    "txmq.outbox": "Outbox",
    "txmq.client": "Client and administration",
    "txmq.errors": "Errors",
    "": "Other names",
}
"""The parts of the page of `txmq`, by the module that defines a name; the first match counts."""

NOTE = (
    "<!-- Written by `make docs` from {module}.__all__; change the docstrings, not this page. -->"
)
OWN_PAGES = ("txmq", "txmq.errors", "txmq.blocking")
"""The modules whose pages show all of their names, also those that `txmq` has."""
OPTIONS = {
    "txmq.blocking": "    options:\n      show_bases: false\n",
    # Its other methods are steps that only the manager takes.
    "txmq.Transaction": "    options:\n      members: [group, xid, session, message, outcome]\n",
}
"""Options of mkdocstrings for the names of a module, or for one name."""


def pages() -> dict[str, str]:
    """The text of each page, by its file's name."""
    return {"index.md": overview()} | {f"{module}.md": page(module) for module in MODULES}


def overview() -> str:
    """The list of all modules."""
    rows = [f"| [`{module}`]({module}.md) | {purpose(module)} |" for module in MODULES]
    return "\n".join(
        [
            "# Python API",
            "",
            NOTE.format(module="txmq"),
            "",
            "Import the names of an application from `txmq`; its errors are in `txmq.errors`.",
            "Each page below has all public names of one module, with their arguments and errors.",
            "Names that are on no page here may change in any version.",
            "",
            "| module | |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def page(module: str) -> str:
    """The page of one module."""
    parts = [f"# {module}", NOTE.format(module=module), purpose(module)]
    for title, names in grouped(module):
        parts.append(f"## {title}")
        parts += [entry(module, name) for name in names]
    return "\n\n".join(parts) + "\n"


def entry(module: str, name: str) -> str:
    """The line that shows an object, or a link if the page of `txmq` shows it."""
    application = import_module("txmq")
    if module not in OWN_PAGES and name in application.__all__:
        return f"[`{module}.{name}`][txmq.{name}]"
    whole = f"{module}.{name}"
    return f"::: {whole}\n{OPTIONS.get(whole, OPTIONS.get(module, ''))}".rstrip("\n")


def purpose(module: str) -> str:
    """The first sentence of a module's docstring."""
    text = inspect.getdoc(import_module(module)) or ""
    first = re.split(r"(?<=[.:])\s+(?=[A-Z:])|\n\n", text, maxsplit=1)[0]
    return without_roles(" ".join(first.split())).rstrip(":")


def grouped(module: str) -> Iterator[tuple[str, list[str]]]:
    """The public names of a module under the titles of their groups."""
    names = public_names(module)
    if module != "txmq":
        yield "Names", names
        return
    titles = {name: group_of(name) for name in names}
    for title in GROUPS.values():
        if found := [name for name in names if titles[name] == title]:
            yield title, found


def public_names(module: str) -> list[str]:
    """The names of a module in the order in which readers look for them; no modules among them."""
    found = import_module(module)
    names = [name for name in found.__all__ if not inspect.ismodule(getattr(found, name))]
    return [name for name in names if name != "__version__"]


def group_of(name: str) -> str:
    """The title under which the page of `txmq` shows a name."""
    found = import_module("txmq")
    home = getattr(getattr(found, name), "__module__", "txmq.message")
    return next(title for prefix, title in GROUPS.items() if home.startswith(prefix))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.md"):
        old.unlink()
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
