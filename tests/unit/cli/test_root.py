"""The root of the command line: the help's lines are those of the commands."""

import pytest

from txmq.cli.root import SUMMARIES, load_command


@pytest.mark.parametrize("name", SUMMARIES)
def test_the_help_shows_the_first_sentences_of_each_command(name):
    first, _, _ = load_command(name).help.partition("\n\n")
    assert SUMMARIES[name] == first.replace("\n", " ")
