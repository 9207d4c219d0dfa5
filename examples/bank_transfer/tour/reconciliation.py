"""After the tour: both banks' books and the broker's log are reconciled, as every night at a bank.

``txmq reconcile`` does it in a process of its own, by the rules in ``recon.toml`` beside this
package.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rich.console import Console
from sqlalchemy import make_url

from examples.bank_transfer.tour.programs import die_with_us
from examples.bank_transfer.tour.world import World
from txmq.reconcile import read_rules

__all__ = ["reconcile"]

RULES: Final = Path(__file__).parents[1] / "recon.toml"
REPORT: Final = Path("bank-reconciliation.html")
"""Where the report is kept if the tour's directory is removed."""
SMALL: Final = (
    # A tour is so little work that thorough compilation would not pay off.
    "--memory", "1g",
    "--spark", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "--spark", "spark.sql.codegen.wholeStage=false",
    "--spark", "spark.sql.codegen.factoryMode=NO_CODEGEN",
)  # fmt: skip
STOP_S: Final = 10.0
AGREED: Final = 0
NOT_RUN: Final = 3


async def reconcile(
    world: World, seconds: float, console: Console, *, keeps_report: bool = False
) -> bool | None:
    """Reconcile what a tour has left, and print what it comes to; whether the ledgers agree.
    Without a Java it returns None, and a sentence says how to get one.

    Args:
        world: What the tour has left; its programs are stopped.
        seconds: How long ago it began.
        console: Where it prints.
        keeps_report: Whether to copy the report to the working directory.
    """
    if missing := await asyncio.to_thread(what_is_missing):
        say(console, f"the ledgers are not reconciled: {missing}")
        return None
    rules, variables = written(world)
    environ = {**os.environ, **variables}
    read = read_rules(rules, environ)
    now_ms = time.time_ns() // 1_000_000
    days = sorted({read.day.of(now_ms - round(seconds * 1000)), read.day.of(now_ms)})
    console.print()
    if len(days) > 1:
        say(console, "what was on its way at midnight is open on the first date, not on the second")
    code = NOT_RUN
    for day in days:  # Of two, only the last one's word counts.
        code = await run(["--date", day.isoformat(), "--config", str(rules), *SMALL], environ)
        if code == NOT_RUN:
            break
    if keeps_report:
        keep(Path(read.directory, "runs", days[-1].isoformat()), console)
    return code == AGREED


def keep(runs: Path, console: Console) -> None:
    """Copy the report of a date to a place that stays, and print the place."""
    for report in runs.glob("*/report.html"):
        try:
            shutil.copyfile(report, REPORT)
        except OSError as error:
            say(console, f"the report is removed with the tour: {error}")
        else:
            say(console, f"the report is kept: {REPORT.resolve()}")


def what_is_missing() -> str:
    """A sentence on what Spark needs and this machine lacks; "" if it lacks nothing."""
    if find_spec("pyspark") is None:
        return "this needs pyspark: pip install 'txmq[spark]'"
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        return "Spark needs Java 17 or later, and none was found: install it, or set JAVA_HOME"
    return ""


def written(world: World) -> tuple[Path, dict[str, str]]:
    """The rules, beside the ledgers they are for, and the variables that they still ask for: a URL
    that may hold a password is written nowhere.
    """
    text = RULES.read_text().replace("${BROKER_DATA}", "broker")
    variables = {}
    for name, url in (("ICBC_DATABASE", world.icbc_database), ("CCB_DATABASE", world.ccb_database)):
        given = make_url(url)
        if given.get_backend_name() == "sqlite":
            text = text.replace(f"${{{name}}}", f"sqlite:///{Path(given.database or '').name}")
        else:
            variables[name] = url
    path = world.directory / RULES.name
    path.write_text(text)
    return path, variables


async def run(arguments: list[str], environ: Mapping[str, str]) -> int:
    """Run ``txmq reconcile``, which prints its own progress; returns its exit code."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "txmq", "reconcile", *arguments,
        env=dict(environ), stdin=asyncio.subprocess.DEVNULL,
        start_new_session=True, preexec_fn=die_with_us,
    )  # fmt: skip
    try:
        return await process.wait()
    finally:
        if process.returncode is None:  # The tour was cancelled meanwhile.
            process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()


def say(console: Console, text: str) -> None:
    """A line as it is."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
