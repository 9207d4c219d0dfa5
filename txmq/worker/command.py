"""The supervisor of ``txmq worker``: its lines, signals, pages and reloads."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

import txmq
from txmq.cli.output import note, say_now
from txmq.errors import ConfigError
from txmq.limits import WATCHED_FILES_MAX
from txmq.metrics.http import HttpServer
from txmq.runtime.background import fast_loop
from txmq.runtime.child_process import ChildCommand, ChildEnd
from txmq.runtime.clock import SystemClock
from txmq.runtime.entropy import SystemEntropy
from txmq.runtime.supervisor import Supervisor, SupervisorEnd, SupervisorSettings
from txmq.runtime.tasks import Tasks
from txmq.settings.extras import named_extra
from txmq.text import quantity
from txmq.worker.figures import WorkerFigures
from txmq.worker.plan import WorkerPlan

__all__ = ["SourceFiles", "WorkerCommand"]

log = logging.getLogger(__name__)

REPORT_S: Final = 1.0
"""The time between two reports of a process. What a killed process did since its last report is
lost."""

NAMES_SHOWN: Final = 5
"""The maximum number of changed files that a line names."""

_CODES: Final = {
    SupervisorEnd.DRAINED: 0,
    SupervisorEnd.CUT: 1,
    SupervisorEnd.GAVE_UP: 1,
    SupervisorEnd.REFUSED: 2,
}


class WorkerCommand:
    """One run of the command.

    Args:
        plan: What the processes need to know.
        http: The host and port to serve the pages at; ``None`` for no pages.
        deaths_max: How often in a row a process may die; 0 for no limit.
        folders: Folders whose changes restart the processes; empty for none.
        ends_with_terminal: Whether SIGHUP means that the terminal was closed.

    Raises:
        ConfigError: A folder has too many files.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        http: tuple[str, int] | None,
        deaths_max: int,
        folders: list[Path],
        *,
        ends_with_terminal: bool,
    ) -> None:
        self._plan = plan
        self._http = http
        self._ends_with_terminal = ends_with_terminal
        self._files = SourceFiles(folders) if folders else None
        self._clock = SystemClock()
        self._figures = WorkerFigures()
        self._address = ""
        self._supervisor = Supervisor(
            self._command,
            SupervisorSettings(
                processes=plan.processes,
                drain_s=plan.drain_s,
                deaths_max=deaths_max,
                waits_for_change=bool(folders),
            ),
            self,
            self._clock,
            SystemEntropy(),
        )

    def run(self) -> tuple[int, str]:
        """Run until the end; returns the exit code, and the reason if it is not 0.

        Raises:
            ConfigError: The pages need a package that is not installed.
            OSError: The pages cannot be served.
        """
        _print(
            f"txmq worker {txmq.__version__}: {' '.join(self._plan.targets)}, "
            f"{quantity(self._plan.processes, 'process', 'processes')}"
        )
        with asyncio.Runner(loop_factory=fast_loop()) as runner:
            end = runner.run(self._run())
        reason = ""
        if end is not SupervisorEnd.DRAINED:
            reason = self._supervisor.reason or end.value
        return _CODES[end], reason

    async def _run(self) -> SupervisorEnd:
        supervisor, tasks = self._supervisor, Tasks()
        async with AsyncExitStack() as stack:
            if self._http is not None:
                with named_extra():
                    from txmq.worker.pages import WorkerPages
                pages = WorkerPages(supervisor, self._figures, self._plan.targets, self._clock)
                server = HttpServer(pages.pages(), *self._http)
                await stack.enter_async_context(server)
                self._address = "{}:{}".format(*server.address)
                tasks.start(self._collect_reports(), "reports of processes")
            stack.push_async_callback(tasks.stop)
            if self._files is not None:
                tasks.start(self._reload_on_changes(self._files), "changed files")
            stack.enter_context(self._signals())
            return await supervisor.run()

    def _command(self, number: int) -> ChildCommand:
        name = f"{number}/{self._plan.processes}"
        words = [sys.executable, "-m", "txmq.worker.child", *self._plan.targets, name]
        # If a file is edited twice in a second, the bytecode cache may keep the first version.
        variables = {} if self._files is None else {"PYTHONDONTWRITEBYTECODE": "1"}
        return ChildCommand(words, msgspec.json.encode(self._plan), variables)

    async def _collect_reports(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            await self._supervisor.reports()

    async def _reload_on_changes(self, files: SourceFiles) -> None:
        while True:
            try:
                names = await files.change()
            except ConfigError:
                log.exception("changes are not noticed any more")
                return
            _print(f"changed: {_names_text(names)}; restarting")
            self._supervisor.replace_all()

    # Signals

    @contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop, signal.SIGTERM)
        loop.add_signal_handler(signal.SIGINT, self._stop, signal.SIGINT)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _stop(self, number: signal.Signals) -> None:
        if self._supervisor.is_stopping:
            note("ending at once")
            self._supervisor.kill()
            return
        hint = "; press Ctrl-C again to end at once" if number is signal.SIGINT else ""
        note(f"stopping: handlers finish the messages in hand{hint}")
        self._supervisor.stop()

    def _hang_up(self) -> None:
        if self._ends_with_terminal:
            self._stop(signal.SIGHUP)
        else:
            note("restarting the processes one after the other")
            self._supervisor.roll()

    # Called by the supervisor

    def loaded(self, description: str) -> None:
        """Print what the application runs."""
        _print(f"runs {description}" if description else "runs an application")

    def all_ready(self) -> None:
        """Print the line that programs wait for."""
        http = f" http http://{self._address}" if self._address else ""
        _print(
            f"ready worker {' '.join(self._plan.targets)} processes {self._plan.processes} "
            f"pid {os.getpid()}{http}"
        )

    def died(self, number: int, end: ChildEnd, pause_s: float | None) -> None:
        """Log how a process ended, and when another one starts."""
        after = (
            "waiting for a change"
            if pause_s is None and self._files is not None
            else "no other takes its place"
            if pause_s is None
            else f"another starts in {pause_s:.1f} s"
        )
        what = "cannot start" if end.failure is not None else "ended"
        log.error("process %d %s: %s; %s", number, what, end, after)

    def ended(self, end: ChildEnd) -> None:
        """Keep the figures of a process."""
        self._figures.keep(end.report)


def _names_text(names: list[str]) -> str:
    """Some of the changed files, as seen from the working directory."""
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(map(os.path.relpath, names[:NAMES_SHOWN])) + more


def _print(text: str) -> None:
    """Print a line now; a worker continues even if its output is closed."""
    with suppress(OSError):
        say_now(text)


LOOK_S: Final = 0.3
"""How often the files are looked at; a change is complete once two looks agree."""

_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})

_Stamps = dict[str, tuple[int, int]]


class SourceFiles:
    """The Python files in some folders.

    Args:
        folders: The folders; hidden folders, virtual environments and caches in them are skipped.

    Raises:
        ConfigError: There are too many files.
    """

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders
        self._stamps = self._look()

    async def change(self) -> list[str]:
        """Wait until files change; returns the changed, new and removed ones."""
        while True:
            await asyncio.sleep(LOOK_S)
            found = self._look()
            if found == self._stamps:
                continue
            # An editor may write several files.
            while True:
                await asyncio.sleep(LOOK_S)
                again = self._look()
                if again == found:
                    break
                found = again
            before, self._stamps = self._stamps, found
            names = {name for name in before.keys() | found if before.get(name) != found.get(name)}
            if names:
                return sorted(names)

    def _look(self) -> _Stamps:
        found: _Stamps = {}
        for folder in self._folders:
            self._read(str(folder), found)
        return found

    def _read(self, folder: str, found: _Stamps) -> None:
        try:
            entries = list(os.scandir(folder))
        except OSError:
            return  # The folder was removed.
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    is_skipped = entry.name.startswith(".") or entry.name in _SKIPPED
                    if not is_skipped and not Path(entry.path, "pyvenv.cfg").exists():
                        self._read(entry.path, found)
                elif entry.name.endswith(".py"):
                    status = entry.stat()
                    found[entry.path] = status.st_mtime_ns, status.st_size
            except OSError:
                continue
        if len(found) > WATCHED_FILES_MAX:
            raise ConfigError(
                f"{folder} and the folders beside it have more than {WATCHED_FILES_MAX} Python "
                "files; name the folders of the application with --reload-dir"
            )
