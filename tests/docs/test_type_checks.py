"""What `make lint` finds in the programs of README and docs: see type_checks.py."""

import pytest

from tests.docs.pages import ROOT, read
from tests.docs.type_checks import findings

FAULTS = {
    "README.md": ("SQLResource(bank)", "SQLResource"),
    "docs/quickstart.md": ("result.offset", "result.offest"),
    "docs/howto/transaction.md": ("transaction.outcome.state", "transaction.outcome.stat"),
    "docs/tutorial/first-sitting.md": ("Message(topic=", "Message(tpoic="),
}
"""In each of these pages, a part of a program and what a mistake makes of it."""


@pytest.mark.timeout(300)
def test_pyright_and_mypy_name_the_line_of_a_mistake_on_a_page_and_no_other():
    wrong, planted = [], set()
    for name, (part, mistake) in FAULTS.items():
        page = read(ROOT / name)
        at = page.text.index(part)
        planted.add((name, page.text.count("\n", 0, at) + 1))
        wrong.append(page._replace(text=page.text.replace(part, mistake, 1)))

    found = findings(wrong)

    for checker in ("pyright", "mypy"):
        assert {(one.place, one.line) for one in found if one.checker == checker} == planted
