"""Writes the closed table of classes into their page.

python -m tools.class_table PAGE
"""

import re
import sys
from pathlib import Path

from txmq.reconcile.classes import Class

BLOCK = re.compile(
    r"(?<=written by `make docs` -->\n).*?(?=<!-- the end of the classes -->)", re.DOTALL
)
HEAD = """\
| class | group | what it means | the most likely cause | what to do |
|---|---|---|---|---|
"""


def table() -> str:
    """The classes in the order in which they are looked for."""
    rows = [
        f"| `{class_}` | {class_.group} | {class_.meaning} | {class_.cause} | {class_.action} |\n"
        for class_ in Class
    ]
    return HEAD + "".join(rows)


def page_with_table(text: str) -> str:
    """The page with the classes as the code has them now."""
    return BLOCK.sub(lambda _: table(), text, count=1)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(page_with_table(page.read_text(encoding="utf-8")), encoding="utf-8")
