"""Writes the state diagram into the page that explains half messages.

python -m tools.state_diagram PAGE
"""

import re
import sys
from pathlib import Path

from txmq_broker.core.transactions import diagram

BLOCK = re.compile(r"(?<=```mermaid\n).*?(?=```)", re.DOTALL)


def page_with_diagram(text: str) -> str:
    """The page with the diagram as the table gives it now."""
    return BLOCK.sub(lambda _: diagram(), text, count=1)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(page_with_diagram(page.read_text(encoding="utf-8")), encoding="utf-8")
