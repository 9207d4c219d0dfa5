"""``txmq worker``: runs the consumers, managers and relays of an application."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from txmq.cli import logs
from txmq.cli.common import exit_on_errors, fail, flag, has_terminal, host_and_port, option
from txmq.cli.output import note
from txmq.cli.serve import LogForm, LogLevel
from txmq.limits import WORKER_PROCESSES_MAX

__all__ = ["worker"]


def worker(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE:NAME",
            help="What to run: a Client, PushConsumer, ScheduledPull, TransactionManager or Relay, "
            "an object that holds some, or a function that returns them. A module alone means all "
            "that it has.",
        ),
    ],
    *,
    processes: int = option(
        "The number of processes; each is a member of the groups.",
        "--processes",
        "-p",
        default=1,
        min=1,
        max=WORKER_PROCESSES_MAX,
    ),
    reload: bool = flag("Restart the processes when a Python file changes.", "--reload"),
    reload_dir: list[Path] | None = option(
        "A folder to watch.",
        exists=True,
        file_okay=False,
        show_default="the folder of the application",
    ),
    app_dir: Path = option(
        "The folder of the application.", default=Path(), exists=True, file_okay=False
    ),
    drain_timeout: float = option(
        "How long handlers may finish the messages in hand, in seconds.",
        default=30.0,
        min=0,
        max=86_400,
    ),
    restarts: int = option(
        "How often in a row a process may die before the worker gives up; 0 for always.",
        default=5,
        min=0,
    ),
    http: str | None = option(
        "Where to serve /metrics, /info, /health/live and /health/ready over HTTP.",
        metavar="HOST:PORT",
    ),
    names: str | None = option(
        "Name servers for functions with a parameter `names`, separated by ';'.",
        envvar="TXMQ_NAMES",
    ),
    log_format: LogForm = "text",
    log_level: LogLevel = "info",
) -> None:
    """Run the consumers, transaction managers and relays of an application.

    It prints a line that begins with "ready" when all processes work. After SIGTERM or Ctrl-C it
    stops fetching, lets handlers finish, saves offsets and exits with 0; a second signal ends it at
    once. SIGHUP restarts the processes one after the other. The exit code is 1 if a process had to
    be killed or died repeatedly, and 2 if the application cannot be started.
    """
    if sys.platform == "win32":
        fail("a worker needs signals of Linux or macOS; on Windows run the client by itself")
    logs.configure(log_format, log_level)
    where = host_and_port(http)
    with exit_on_errors(http=http):
        from txmq.worker.command import WorkerCommand
        from txmq.worker.plan import WorkerPlan

        plan = WorkerPlan(
            targets=targets,
            app_dir=str(app_dir.resolve()),
            names=names,
            processes=processes,
            drain_s=drain_timeout,
            log_form=log_format,
            log_level=log_level,
            watches_lag=where is not None,
        )
        folders = [folder.resolve() for folder in reload_dir or [app_dir]] if reload else []
        command = WorkerCommand(plan, where, restarts, folders, ends_with_terminal=has_terminal())
        code, reason = command.run()
    if reason:
        note(f"txmq: {reason}")
    if code:
        raise typer.Exit(code)
