"""Translates the docstrings' reST into Markdown: roles become links, `::` begins a block of code.

Griffe loads this as an extension; see ``extensions`` in mkdocs.yml.
"""

import re
import textwrap
from typing import Any

from griffe import Attribute, Docstring, Extension, Object

ROLE = re.compile(r":(?:mod|class|meth|func|attr|data|exc):`~?(?P<path>[\w.]+)`", re.ASCII)
BLOCK = re.compile(r"(?P<before>.?):: *\n(?P<code>(?:[ \t]*\n|[ ]{4,}.*(?:\n|$))+)")
BLOCKING = re.compile(r"_(?:waits|in_loop|iterates)\((?P<path>txmq\.[\w.]+)\)")


class PlainMarkdown(Extension):
    """Translates each docstring once, when its object is loaded."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Translate an object's docstring, and give blocking methods one that names their twin."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
        elif isinstance(obj, Attribute) and (found := BLOCKING.fullmatch(str(obj.value))):
            text = f"The blocking form of {reference(found['path'])}, with its errors."
            obj.docstring = Docstring(text, parent=obj)


def markdown(text: str) -> str:
    """A docstring in Markdown."""
    return ROLE.sub(lambda role: reference(role["path"]), BLOCK.sub(fenced, text))


def fenced(block: re.Match[str]) -> str:
    """A block of code behind `::`, as a fence."""
    before = f"{block['before']}:" if block["before"].strip() else ""
    code = textwrap.dedent(block["code"]).strip("\n")
    return f"{before}\n\n```python\n{code}\n```\n\n"


def reference(path: str) -> str:
    """A name as code, and as a link if the site has a page with it."""
    if not path.startswith("txmq"):
        return f"`{path}`"
    name = path if path.count(".") < 2 else path.rpartition(".")[2]
    return f'<autoref optional identifier="{path}"><code>{name}</code></autoref>'
