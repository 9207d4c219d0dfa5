"""What the documentation shows runs."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from txmq.cli.root import app

DOCS = Path(__file__).resolve().parents[2] / "docs"
SIMULATE = (DOCS / "howto/simulate.md").read_text()
README = (DOCS.parent / "README.md").read_text()


def snippets(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_fixture_offers_what_the_page_shows(txmq_broker):
    assert re.fullmatch(r"127\.0\.0\.1:\d+", txmq_broker.names)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", txmq_broker.address)


def test_the_embedded_broker_of_the_page_runs():
    found: dict[str, object] = {}
    exec(snippets(SIMULATE)[1], found)

    found["test_a_message_is_stored"]()


@pytest.mark.timeout(120)
def test_the_simulation_of_the_page_runs():
    exec(snippets(SIMULATE)[2], {})


def test_the_commands_of_the_readme_do_what_they_say(txmq_broker):
    section = README.partition("## Run a broker\n")[2].partition("\n## ")[0]
    commands = [shlex.split(each) for each in re.findall(r"^\$ txmq (.+)$", section, re.MULTILINE)]
    asking = [each for each in commands if each[0] != "serve"]
    assert len(asking) >= 4
    assert len(asking) < len(commands)

    said = ""
    for each in asking:
        result = CliRunner().invoke(app, each, env={"TXMQ_NAMES": txmq_broker.names})
        assert (result.exit_code, result.stderr) == (0, ""), each
        said += result.stdout

    assert "topic Orders has 4 queues" in said
    assert re.search(r"Paid +order-1 +hello", said)
    assert txmq_broker.address in said
