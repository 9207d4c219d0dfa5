"""All commands joined into one."""

from collections.abc import Mapping
from enum import Enum
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

import txmq
from txmq.cli.mqadmin import help_line
from txmq.cli.output import say, say_lines

__all__ = ["PANELS", "SUMMARIES", "app", "load_command"]

# In the order of the help. Each is a module of this package, with a Typer called ``app`` or a
# function of its own name; `completion` is below. The help takes the summaries from here, because
# loading every module for its first sentence would take longer than everything else.
PANELS: Final[Mapping[str, Mapping[str, str]]] = {
    "Run and set up": {
        "serve": "Run a broker until it is stopped; SIGTERM drains it.",
        "names": "Run a name server until it is stopped.",
        "console": "Serve a web console, until it is stopped.",
        "worker": "Run the consumers, transaction managers and relays of an application.",
        "relay": "Publish the committed messages of an outbox; several relays share the work.",
        "resolve": (
            "Answer brokers that ask about transactions of services that are down, until it is "
            "stopped."
        ),
        "reconcile": (
            "Reconcile a business date, or several in their order: both banks' books and the "
            "broker's log."
        ),
        "schema": "Create and clean the tables that txmq needs in a database.",
        "config": "The settings of a broker.",
        "acl": "The accounts of a broker or a name server.",
        "completion": "Print the script with which a shell completes commands and options.",
    },
    "Look and operate": {
        "topic": "Create, change, show and delete topics.",
        "group": "Create, watch, move and delete consumer groups.",
        "producer": "Show the producers that are connected.",
        "message": "Send, recall, fetch and look up messages.",
        "stats": (
            "Show the rates of topics and groups over the last minute; with --watch, like top."
        ),
        "trace": "Follow the traces that clients leave.",
        "find": "Find topics, groups, producers, brokers, accounts, transactions and messages.",
        "cluster": "Show clusters and their brokers.",
        "broker": "Show brokers that run, and change their settings.",
        "audit": (
            "List what operators did: who, from where, when, what, and whether it was refused."
        ),
    },
    "Repair": {
        "tx": "Show open transactions, and decide them by hand.",
        "dlq": "Show messages that groups could not consume, and resend them.",
        "outbox": "Show rows that wait for relays; retry them or put them aside.",
        "xa": "List and end prepared transactions over several databases.",
        "log": "Verify, repair, show and export the log of a stopped broker.",
        "backup": "Back up a broker while it runs; verify and restore the backup.",
    },
}
"""The commands by the panel of the help that shows them."""
SUMMARIES: Final[Mapping[str, str]] = {
    name: summary for commands in PANELS.values() for name, summary in commands.items()
}


class _Commands(TyperGroup):
    """Loads a command when it runs: a broker does not wait for all the others."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # The help and "did you mean" need only the names, so nothing is loaded for them.
        commands: dict[str, Any] = dict.fromkeys(SUMMARIES)
        self.commands = commands
        self._is_help = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._is_help = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._is_help = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if self._is_help and cmd_name in self.commands:
            (panel,) = (panel for panel, commands in PANELS.items() if cmd_name in commands)
            return TyperCommand(cmd_name, help=SUMMARIES[cmd_name], rich_help_panel=panel)
        if cmd_name in self.commands and self.commands[cmd_name] is None:
            self.commands[cmd_name] = load_command(cmd_name)
        return super().get_command(ctx, cmd_name)


def load_command(name: str) -> Any:
    """Import a command of :data:`SUMMARIES` with its subcommands."""
    from txmq.cli.commands import Commands  # The help loads no client.

    alone = Commands()
    if name == "completion":
        alone.command()(completion)
    elif hasattr(module := import_module(f"txmq.cli.{name}"), "app"):
        alone.add_typer(module.app, name=name)
    else:
        alone.command()(getattr(module, name))
    loaded = get_group(alone).commands[name]
    _name_equivalents(loaded, name)
    return loaded


class CompletedShell(Enum):
    """The shells that can complete txmq."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[CompletedShell, typer.Argument(help="The shell.", show_default=False)],
) -> None:
    """Print the script with which a shell completes commands and options.

    In bash: eval "$(txmq completion bash)"; add this line to ~/.bashrc to keep it. In zsh: the
    same line with zsh instead of bash, after compinit. In fish: txmq completion fish | source.
    """
    script = get_completion_script(
        prog_name="txmq", complete_var="_TXMQ_COMPLETE", shell=shell.value
    )
    say_lines(script)


def _name_equivalents(command: Any, path: str) -> None:
    """Name the equivalent command of mqadmin in the help of each command."""
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
