"""All commands joined into one."""

from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer._completion_classes import completion_init
from typer.core import TyperGroup
from typer.main import get_group

import txmq
from txmq.cli.mqadmin import help_line
from txmq.cli.output import say

__all__ = ["app"]

# In the order of the help. Each is a module beside this one, with a Typer called ``app`` or with a
# function of its own name.
_NAMES: Final = (
    "serve",
    "names",
    "topic",
    "group",
    "producer",
    "message",
    "trace",
    "stats",
    "find",
    "tx",
    "resolve",
    "xa",
    "relay",
    "outbox",
    "dlq",
    "log",
    "backup",
    "reconcile",
    "cluster",
    "console",
    "broker",
    "acl",
    "audit",
    "schema",
    "config",
    "completion",
)


class _Commands(TyperGroup):
    """Loads a command when somebody asks for it: a broker does not wait for fourteen others."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # The help and "did you mean" need the names, and have them without loading anything.
        commands: dict[str, Any] = dict.fromkeys(_NAMES)
        self.commands = commands

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.commands and self.commands[cmd_name] is None:
            self.commands[cmd_name] = _loaded(cmd_name)
        return super().get_command(ctx, cmd_name)


def _loaded(name: str) -> Any:
    module = import_module(f"txmq.cli.{name}")
    alone = typer.Typer()
    if hasattr(module, "app"):
        alone.add_typer(module.app, name=name)
    else:
        alone.command()(getattr(module, name))
    loaded = get_group(alone).commands[name]
    _name_equivalents(loaded, name)
    return loaded


def _name_equivalents(command: Any, path: str) -> None:
    """Let each command's help name mqadmin's command."""
    for name, inner in getattr(command, "commands", {}).items():
        _name_equivalents(inner, f"{path} {name}")
    if line := help_line(path):
        command.epilog = line


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,  # `txmq completion` prints the script, and changes no file.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

completion_init()  # Answers the shells that run a script of `txmq completion`.


def _version(is_wanted: bool) -> None:
    if is_wanted:
        say(f"txmq {txmq.__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A message broker that speaks Apache RocketMQ's protocol, and commands for clusters."""
