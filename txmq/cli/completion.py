"""``txmq completion``: the script with which a shell completes commands and options."""

from enum import Enum
from typing import Annotated

import typer
from typer._completion_shared import get_completion_script

from txmq.cli.output import say_lines

__all__ = ["completion"]


class CompletedShell(Enum):
    """The shells that can complete txmq."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[CompletedShell, typer.Argument(help="The shell.", show_default=False)],
) -> None:
    """Print the script with which a shell completes commands and options.

    In bash: eval "$(txmq completion bash)"; the same line in ~/.bashrc keeps it. zsh takes the same
    with zsh, after compinit. In fish: txmq completion fish | source.
    """
    script = get_completion_script(
        prog_name="txmq", complete_var="_TXMQ_COMPLETE", shell=shell.value
    )
    say_lines(script)
