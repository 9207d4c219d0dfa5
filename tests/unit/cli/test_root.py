"""The root of the command line: the help's lines are those of the commands."""

import re

import pytest
from typer.testing import CliRunner

from txmq.cli.root import PANELS, SUMMARIES, app, load_command


@pytest.mark.parametrize("name", SUMMARIES)
def test_the_help_shows_the_first_sentences_of_each_command(name):
    first, _, _ = load_command(name).help.partition("\n\n")
    assert SUMMARIES[name] == first.replace("\n", " ")


def test_the_help_shows_the_commands_in_three_groups():
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout
    _, *panels = re.findall(r"╭─ (.+?) ─+╮\n(.*?)╰", shown, re.DOTALL)

    assert [name for name, _ in panels] == ["Run and set up", "Look and operate", "Repair"]
    listed = [re.findall(r"^│ (\w\S*)", lines, re.MULTILINE) for _, lines in panels]
    assert listed == [list(commands) for commands in PANELS.values()]
    assert sorted(sum(listed, [])) == sorted(SUMMARIES)
