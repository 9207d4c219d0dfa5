"""``txmq config``: what can be set; prints the reference page of the documentation."""

import typer

from txmq.cli.output import say
from txmq.cli.serve import settings_shape
from txmq.config import Setting, describe, variable

__all__ = ["app", "reference"]

app = typer.Typer(no_args_is_help=True, help="What can be set.")

_HEAD = """\
# Configuration

<!-- Printed by `txmq config reference`; change the settings' own descriptions, not this page. -->

Every setting of `txmq serve`.
A value comes from the first of these that gives one:

1. an option of the command: `--data`, `--listen`, \
`--names-listen`, `--names`, `--flush`, `--name`, `--cluster`
2. `--set key=value`
3. the variable in the table
4. the TOML file that `--config` or `TXMQ_CONFIG` names
5. the default

In the file a group is a table: `[store]`, then `flush = "async"`.

Durations are written `"500ms"`, `"20s"`, `"3h"`, `"2d"`; a plain number is seconds.
Sizes are written `"64KiB"`, `"1GiB"`, `"4MB"`; a plain number is bytes.
"""


@app.callback()
def config() -> None:
    """What can be set."""


@app.command("reference")
def print_reference() -> None:
    """Print the reference of all settings as Markdown."""
    say(reference(describe(settings_shape())).rstrip("\n"))


def reference(settings: list[Setting]) -> str:
    """The reference page for some settings."""
    groups: dict[str, list[Setting]] = {}
    for each in settings:
        groups.setdefault(each.key.rpartition(".")[0], []).append(each)
    pages = [_HEAD]
    for group, rows in groups.items():
        lines = [f"## {group or 'The broker'}", ""]
        lines += ["| setting | default | what it takes | variable | |", "|---|---|---|---|---|"]
        lines += [_row(each) for each in rows]
        pages.append("\n".join(lines) + "\n")
    return "\n".join(pages)


def _row(setting: Setting) -> str:
    text = " ".join(setting.text.split()).replace("``", "`").replace("|", "\\|")
    default = f"`{setting.default}`" if setting.default else ""
    kind = setting.kind.replace("|", "\\|")
    return f"| `{setting.key}` | {default} | {kind} | `{variable(setting.key)}` | {text} |"
