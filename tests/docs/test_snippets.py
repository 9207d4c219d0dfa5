"""What the documentation shows runs."""

import asyncio
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
SIMULATE = (DOCS / "howto/simulate.md").read_text()


def snippets(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_fixture_offers_what_the_page_shows(txmq_broker):
    assert re.fullmatch(r"127\.0\.0\.1:\d+", txmq_broker.names)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", txmq_broker.address)


def test_the_embedded_broker_of_the_page_runs():
    found: dict[str, object] = {}
    exec(snippets(SIMULATE)[1], found)

    asyncio.run(found["test_a_message_is_stored"]())


@pytest.mark.timeout(120)
def test_the_simulation_of_the_page_runs():
    exec(snippets(SIMULATE)[2], {})
