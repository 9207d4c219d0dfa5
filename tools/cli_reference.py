"""Writes docs/reference/cli.md: each command of `txmq` with its arguments and options, read from
the commands themselves, with the examples of tools/cli_examples.toml.
"""

import tomllib
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from txmq.cli.root import app

HEAD = """\
# Commands

<!-- Written by `make docs`; change the commands in txmq/cli, not this page. -->

Every command of `txmq`: what it does, an example, and its arguments and options.
`txmq COMMAND --help` prints the same on a terminal, and `txmq --version` prints the version.
If an option has a variable, the command reads the variable when the option is not given.
Tables are as wide as the terminal, or as `COLUMNS` says.
Where a table would cut words into pieces, each row is printed as lines of its own.

"""
COMMON_HEAD = """
## Options of many commands

The sections below name these options, and explain only the others.

"""
TABLE_HEAD = "| argument or option | default | |\n|---|---|---|\n"
COMMON_MIN = 10
"""An option that so many commands have is explained once."""
EXAMPLES = Path(__file__).with_name("cli_examples.toml")


KINDS = {"STR": "TEXT", "INT": "NUMBER", "INT RANGE": "NUMBER", "FLOAT RANGE": "NUMBER"}
"""The words that stand for values, by typer's names of their types."""


def page() -> str:
    """The whole page."""
    every = list(commands(get_command(app), "txmq"))
    counts = Counter(row(param) for _, command in every for param in options(command))
    common = sorted(text for text, count in counts.items() if count >= COMMON_MIN)
    examples = tomllib.loads(EXAMPLES.read_text(encoding="utf-8"))
    rows, sections = [], []
    for path, command in every:
        level = "##" if path.count(" ") == 1 else "###"
        rows.append(f"| [`{path}`](#{path.replace(' ', '-')}) | {summary(command)} |\n")
        text = section(path, command, examples.get(path, ""), common)
        sections.append(f"\n{level} {path}\n\n{text}")
    index = HEAD + "| command | |\n|---|---|\n" + "".join(rows)
    return index + COMMON_HEAD + TABLE_HEAD + "".join(common) + "".join(sections)


def commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The commands below a group, each with its full name, in the order of the help."""
    context = group.context_class(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command.hidden:
            continue
        yield f"{path} {name}", command
        if hasattr(command, "list_commands"):
            yield from commands(command, f"{path} {name}")


def summary(command: Any) -> str:
    """The first paragraph of a command's help."""
    return paragraphs(command)[0].replace("|", "\\|")


def paragraphs(command: Any) -> list[str]:
    """A command's help, a paragraph a line."""
    parts = (command.help or "").replace("\b\n", "").split("\n\n")
    return [" ".join(part.split()) for part in parts]


def section(path: str, command: Any, example: str, common: Collection[str]) -> str:
    """What a command does, an example, how it is called, and its options."""
    text = "\n\n".join(paragraphs(command)) + "\n"
    if command.epilog:
        text += f"\n{command.epilog.replace('mqadmin', '[mqadmin](mqadmin.md)', 1)}\n"
    shown = options(command)
    if is_only_a_group(command):
        return text
    text += f"\n```console\n$ {example}\n```\n"
    if not shown:
        return text
    call = " ".join([path, *usage(shown)]).replace("\\|", "|")
    text += f"\nThe whole form: `{call}`\n"
    rows = [row(param) for param in shown if row(param) not in common]
    text += f"\n{TABLE_HEAD}{''.join(rows)}" if rows else ""
    others = [f"`{param.opts[0]}`" for param in shown if row(param) in common]
    link = "[options of many commands](#options-of-many-commands)"
    return text + (f"\nAnd of the {link}: {', '.join(others)}.\n" if others else "")


def options(command: Any) -> list[Any]:
    """The parameters of a command, without those that every command has."""
    return [param for param in command.params if not is_help(param)]


def is_only_a_group(command: Any) -> bool:
    """Whether a command does nothing but hold others."""
    return hasattr(command, "list_commands") and not command.invoke_without_command


def row(param: Any) -> str:
    """A parameter as a row of a table."""
    return f"| {names(param)} | {default(param)} | {effect(param)} |\n"


def is_help(param: Any) -> bool:
    """Whether it is the option that every command has."""
    return bool(param.name == "help")


def usage(params: list[Any]) -> Iterator[str]:
    """The words behind a command's name: what it must have, and `[OPTIONS]` for the rest."""
    if any(is_option(param) and not param.required for param in params):
        yield "[OPTIONS]"
    for param in params:
        if is_option(param) and param.required:
            yield f"{param.opts[0]} {metavar(param)}"
        elif not is_option(param):
            word = metavar(param) + ("..." if param.nargs == -1 else "")
            yield word if param.required else f"[{word}]"


def is_option(param: Any) -> bool:
    """Whether it is an option; else it is an argument."""
    return bool(param.param_type_name == "option")


def names(param: Any) -> str:
    """How a parameter is written on the command line."""
    if not is_option(param):
        return f"`{metavar(param)}`"
    written = ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
    return written if param.is_flag else f"{written} `{metavar(param)}`"


def metavar(param: Any) -> str:
    """The word that stands for a value."""
    if param.metavar:
        return str(param.metavar).replace("|", "\\|")
    if not is_option(param):
        return str(param.name).upper()
    choices = getattr(param.type, "choices", None)
    if choices:
        return "\\|".join(str(getattr(choice, "value", choice)) for choice in choices)
    kind = str(param.type.name).upper()
    return KINDS.get(kind, kind)


def default(param: Any) -> str:
    """The value that is taken if none is given."""
    if param.required:
        return "required"
    value = param.default
    if callable(value) or value in (None, False, (), [], ""):
        return ""
    value = getattr(value, "value", value)
    if value is True:
        return "on"
    return f"`{value}`"


def effect(param: Any) -> str:
    """What a parameter does, and its variable."""
    text = " ".join((getattr(param, "help", None) or "").split()).replace("|", "\\|")
    return f"{text} Variable: `{param.envvar}`.".strip() if param.envvar else text


if __name__ == "__main__":
    print(page(), end="")
