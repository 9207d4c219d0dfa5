"""``txmq config``: prints the reference page of a broker's settings."""

from collections.abc import Mapping

from txmq.cli.commands import Commands
from txmq.cli.output import say_lines
from txmq.cli.serve import foreign_names, settings_shape
from txmq.settings.description import Setting, describe
from txmq.settings.loading import Alias, Derived, ForeignName, OneValue, Unused, variable

__all__ = ["app", "reference"]

app = Commands("The settings of a broker.")

_HEAD = """\
# Settings: file, environment variables and options

<!-- Printed by `txmq config reference`; change the settings' own descriptions, not this page. -->

Every setting of `txmq serve`.
A value comes from the first of these that gives one:

1. an option of the command: `--data`, `--listen`, \
`--names-listen`, `--names`, `--flush`, `--name`, `--cluster`
2. `--set key=value`
3. the variable in the table
4. the file that `--config`, `-c` or `TXMQ_CONFIG` names
5. the default

A file whose name ends with `.toml` is TOML: a group is a table there, \
`[store]`, then `flush = "async"`.
A file whose name ends with `.conf` or `.properties` is in the format of Java's properties, like \
RocketMQ's `broker.conf`: `store.flush=async`, or [RocketMQ's names](#rocketmqs-names).
With any other ending, a table or a value in quotes makes it TOML.

Durations are written `"500ms"`, `"20s"`, `"3h"`, `"2d"`; a plain number is seconds.
Sizes are written `"64KiB"`, `"1GiB"`, `"4MB"`; a plain number is bytes.
"""

_FOREIGN_HEAD = """\
## RocketMQ's names

The broker reads a `broker.conf` of Apache RocketMQ 4 or 5: \
[how to start with yours](../howto/from-rocketmq-broker.md).
Its names also work in TOML files and with `--set`; \
a plain number has the unit that RocketMQ gives it.
"""
_ONE_VALUE_HEAD = """
These accept one value only.
With any other value the broker does not start, because it cannot do what the value promises.
"""
_UNUSED_HEAD = """
These have no effect here.
The broker accepts them with any value, and names them in one line when it starts.
"""


@app.command("reference")
def print_reference() -> None:
    """Print the reference of all settings as Markdown."""
    say_lines(reference(describe(settings_shape()), foreign_names()).rstrip("\n"))


def reference(settings: list[Setting], foreign: Mapping[str, ForeignName]) -> str:
    """The reference page of some settings, with their names in RocketMQ."""
    groups: dict[str, list[Setting]] = {}
    for setting in settings:
        groups.setdefault(setting.key.rpartition(".")[0], []).append(setting)
    pages = [_HEAD]
    for group, rows in groups.items():
        lines = [f"## {group or 'The broker'}", ""]
        lines += ["| setting | default | values | variable | |", "|---|---|---|---|---|"]
        lines += [_row(row) for row in rows]
        pages.append("\n".join(lines) + "\n")
    return "\n".join([*pages, _foreign_section(foreign)])


def _foreign_section(foreign: Mapping[str, ForeignName]) -> str:
    lines = [_FOREIGN_HEAD, "| RocketMQ's name | our setting | |", "|---|---|---|"]
    for name, meaning in foreign.items():
        if isinstance(meaning, Alias):
            lines.append(f"| `{name}` | `{meaning.key}` | {meaning.text} |")
        elif isinstance(meaning, Derived):
            keys = ", ".join(f"`{key}`" for key in meaning.keys)
            lines.append(f"| `{name}` | {keys} | {meaning.text} |")
    lines += [_ONE_VALUE_HEAD, "| RocketMQ's name | accepted value | why |", "|---|---|---|"]
    lines += [
        f"| `{name}` | {f'`{meaning.value}`' if meaning.value else 'nothing'} | {meaning.why} |"
        for name, meaning in foreign.items()
        if isinstance(meaning, OneValue)
    ]
    reasons: dict[str, list[str]] = {}
    for name, meaning in foreign.items():
        if isinstance(meaning, Unused):
            reasons.setdefault(meaning.why, []).append(f"`{name}`")
    lines += [_UNUSED_HEAD, "| RocketMQ's names | why |", "|---|---|"]
    lines += [f"| {', '.join(names)} | {why} |" for why, names in reasons.items()]
    return "\n".join(lines) + "\n"


def _row(setting: Setting) -> str:
    text = " ".join(setting.text.split()).replace("``", "`").replace("|", "\\|")
    default = f"`{setting.default}`" if setting.default else ""
    kind = setting.kind.replace("|", "\\|")
    return f"| `{setting.key}` | {default} | {kind} | `{variable(setting.key)}` | {text} |"
