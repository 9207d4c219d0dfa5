"""The arguments of all commands come in one order: containers before their contents."""

import pytest
from typer.main import get_command

from tools.cli_reference import commands
from txmq.cli.root import app

ORDER = (
    ("group", "source"),
    ("target",),
    ("topic",),
    ("ID", "key", "handle", "setting"),
    # Stored things and settings.
    ("body", "value", "rw|r|w|none"),
)
"""The kinds of arguments, in the order in which they are written."""


def kinds_of(path, command):
    """The names of a command's arguments; NAME is the thing that its group of commands is about."""
    area = path.split()[1]
    names = [
        param.metavar or param.name
        for param in command.params
        if param.param_type_name == "argument"
    ]
    return [area if name == "name" else name for name in names]


SEVERAL = {
    path: kinds
    for path, command in commands(get_command(app), "txmq")
    if len(kinds := kinds_of(path, command)) > 1
}


@pytest.mark.parametrize("path", SEVERAL)
def test_a_group_comes_before_a_topic_and_both_before_an_id(path):
    kinds = SEVERAL[path]
    places = [next(at for at, same in enumerate(ORDER) if kind in same) for kind in kinds]

    assert places == sorted(places), f"{path} {' '.join(kinds).upper()}"


def test_all_commands_with_several_arguments_are_covered():
    assert {"txmq dlq show", "txmq message consume-directly", "txmq group reset"} <= SEVERAL.keys()
