"""Writes docs/reference/cli.md: each command of `txmq` with its arguments and options, read from
the commands themselves.
"""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from txmq.cli.root import app

HEAD = """\
# Commands

<!-- Written by `make docs`; change the commands in txmq/cli, not this page. -->

Every command of `txmq`, with its arguments and options.
`txmq COMMAND --help` prints the same on a terminal.
Options that have a variable read it if the option is not given.
Each command has `--help`, too; `txmq --version` prints the version.

"""


KINDS = {"STR": "TEXT", "INT": "NUMBER", "INT RANGE": "NUMBER", "FLOAT RANGE": "NUMBER"}
"""The words that stand for values, by typer's names of their types."""


def page() -> str:
    """The whole page."""
    rows, sections = [], []
    for path, command in commands(get_command(app), "txmq"):
        level = "##" if path.count(" ") == 1 else "###"
        rows.append(f"| [`{path}`](#{path.replace(' ', '-')}) | {summary(command)} |\n")
        sections.append(f"\n{level} {path}\n\n{section(path, command)}")
    return HEAD + "| command | |\n|---|---|\n" + "".join(rows) + "".join(sections)


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


def section(path: str, command: Any) -> str:
    """What a command does, how it is called, and its options."""
    text = "\n\n".join(paragraphs(command)) + "\n"
    shown = [param for param in command.params if not is_help(param)]
    if hasattr(command, "list_commands") and not command.invoke_without_command:
        return text
    text += f"\n```console\n$ {' '.join([path, *usage(shown)])}\n```\n"
    if not shown:
        return text
    rows = [f"| {names(param)} | {default(param)} | {effect(param)} |\n" for param in shown]
    return text + "\n| argument or option | default | |\n|---|---|---|\n" + "".join(rows)


def is_help(param: Any) -> bool:
    """Whether it is the option that every command has."""
    return param.name in {"help", "install_completion", "show_completion"}


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
