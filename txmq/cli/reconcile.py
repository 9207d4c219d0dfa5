"""``txmq reconcile``: a day's reconciliation, and what people do with it in the morning."""

import sys
from contextlib import AbstractContextManager, ExitStack
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
import typer
from rich.console import Console

from txmq.cli.clearing import breaks_app, proofs_app, signoff
from txmq.cli.common import AsJson, flag, option
from txmq.cli.output import as_json, flush, note, say, table
from txmq.cli.reconcile_options import (
    Config,
    Day,
    ReconcileCommands,
    date_of,
    last_finished,
    report_failures,
    rules_of,
    stop_on_signals,
)
from txmq.errors import ConfigError
from txmq.reconcile import Rules, Run

if TYPE_CHECKING:
    from txmq.reconcile.results import Results

__all__ = ["app", "requested_days", "warn_of_later_days"]

_CODES: Final = {"clean": 0, "within limits": 1, "over limits": 2}


app = ReconcileCommands()
app.add_typer(breaks_app, name="breaks")
app.add_typer(proofs_app, name="proofs")
app.command()(signoff)


Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


class SparkOptions(NamedTuple):
    """How to start Spark."""

    master: str | None = option(
        "Spark's cluster, such as spark://host:7077; this machine if left out.", "--master"
    )
    remote: str | None = option(
        "A Spark Connect server that runs already, such as sc://host:15002.",
        "--remote",
        envvar="SPARK_REMOTE",
    )
    memory: Annotated[
        str,
        typer.Option(
            "--memory", help="Java's heap on this machine, or the memory of each executor."
        ),
    ] = "4g"
    cores: int | None = option("The number of cores; all if left out.", "--cores", min=1)
    jar: list[Path] | None = option("The library of a JDBC driver; may be repeated.", "--jar")
    spark: list[str] | None = option(
        "A setting of Spark's; may be repeated.", "--spark", metavar="KEY=VALUE"
    )

    def session(self, rules: Rules, day: date, *, ui: bool = False) -> AbstractContextManager[Any]:
        """What starts Spark; its log is beside the results if these are on this machine.

        Raises:
            ConfigError: An option is invalid.
        """
        from txmq.reconcile.spark import open_spark
        from txmq.reconcile.storage import open_folder

        home = open_folder(rules.directory).local
        return open_spark(
            self.master,
            remote=self.remote,
            memory=self.memory,
            cores=self.cores,
            jars=self.jar or [],
            settings=dict(map(_setting, self.spark or [])),
            log=home and home / "logs" / f"spark-{day}.log",
            ui=ui,
        )


_TO_EXTRACT: Final = SparkOptions(memory="1g")


@app.callback()
def reconcile(
    ctx: typer.Context,
    *,
    day: Day = None,
    config: Config = None,
    first: date | None = option(
        "The first of several dates.", "--from", parser=date_of, metavar="DATE"
    ),
    last: date | None = option(
        "The last of several dates.", "--to", parser=date_of, metavar="DATE"
    ),
    extract: str | None = option(
        "Read no ledger, and use this extract.", "--extract", metavar="ID"
    ),
    reuse: bool = flag("Read no ledger, and use the latest extract.", "--reuse-extract"),
    so_far: bool = flag("The running business date, up to now. It cannot be signed.", "--so-far"),
    spark: SparkOptions,
    ui: bool | None = option(
        "Serve Spark's web pages during the run; only on a terminal if left out.",
        "--ui/--no-ui",
        show_default=False,
    ),
    quiet: Quiet = False,
    json: AsJson = False,
) -> None:
    """Reconcile a business date, or several in their order: both banks' books and the broker's log.

    Exit codes: 0 all agree; 1 there are breaks, within the limits; 2 there are breaks over the
    limits; 3 the run failed, or an option is invalid. With several dates the worst code counts, and
    the first date that fails ends the command.
    """
    if ctx.invoked_subcommand is not None:
        return
    with report_failures(), stop_on_signals():
        rules, days = requested_days(config, day, first, last, so_far=so_far)
        if extract is not None and (reuse or len(days) > 1):
            raise ConfigError("--extract names the one extract of one date")
        wants_ui = sys.stderr.isatty() and not (quiet or spark.remote) if ui is None else ui
        session = spark.session(rules, days[0], ui=wants_ui)
        code = _run_all(rules, days, session, extract, reuse=reuse, quiet=quiet, json=json)
    raise typer.Exit(code)


@app.command(name="extract")
def extract_(
    *,
    day: Day = None,
    config: Config = None,
    spark: SparkOptions = _TO_EXTRACT,
    quiet: Quiet = False,
    json: AsJson = False,
) -> None:
    """Only read the ledgers of a business date into an extract, and print its control totals."""
    with report_failures(), stop_on_signals():
        from txmq.reconcile.extract.extraction import extract_day
        from txmq.reconcile.progress import show_progress
        from txmq.reconcile.storage import open_folder

        rules, (wanted,) = requested_days(config, day)
        session = spark.session(rules, wanted)
        with ExitStack() as stack:
            progress = stack.enter_context(show_progress(quiet=quiet))
            with progress.stage("start Spark"):
                opened = stack.enter_context(session)
            with progress.stage("extract") as stage:
                manifest = extract_day(opened, rules, wanted, open_folder(rules.directory))
                stage.rows = manifest.rows
        if json:
            as_json(manifest)
            return
        say(f"extract {manifest.extract_id} of {manifest.business_date}")
        for line in manifest.notes:
            say(f"note: {line}")
        rows = []
        for one in manifest.controls:
            amounts = ", ".join(f"{sum_} {name}" for name, sum_ in sorted(one.amounts.items()))
            ends = ("" if end is None else end for end in (one.least, one.most))
            rows.append([one.source, one.table, one.rows, amounts, *ends, one.hash_total])
        table(("source", "table", "rows", "amounts", "least id", "most", "hash total"), rows)


def requested_days(
    config: Path | None,
    day: date | None,
    first: date | None = None,
    last: date | None = None,
    *,
    so_far: bool = False,
) -> tuple[Rules, list[date]]:
    """The rules, and the days to run; if none is named, the last finished day, or the running one.

    Raises:
        ConfigError: The options contradict each other.
    """
    if (first is None) != (last is None) or (first is not None and day is not None):
        raise ConfigError("write --date for one day, or --from and --to for several")
    if so_far and (day is not None or first is not None):
        raise ConfigError("--so-far names the running date: leave out --date, --from and --to")
    rules = rules_of(config, reads_banks=True)
    if first is not None and last is not None:
        if last < first:
            raise ConfigError(f"--to {last} is before --from {first}")
        return rules, [first + timedelta(days=index) for index in range((last - first).days + 1)]
    running = last_finished(rules) + timedelta(days=1)
    return rules, [running if so_far else day or last_finished(rules)]


def _run_all(
    rules: Rules,
    days: list[date],
    session: AbstractContextManager[Any],
    extract: str | None,
    *,
    reuse: bool,
    quiet: bool,
    json: bool,
) -> int:
    """Run the days in their order; the exit code of the worst."""
    from txmq.reconcile.day import reconcile as reconcile_day
    from txmq.reconcile.progress import pages_of, show_progress
    from txmq.reconcile.results import Results, open_results

    codes = []
    with ExitStack() as stack:
        progress = stack.enter_context(show_progress(quiet=quiet))
        with open_results(rules.directory):
            pass  # Another run, or a directory that cannot be written, shows before Spark starts.
        results = Results(rules.directory)
        with progress.stage("start Spark"):
            spark = stack.enter_context(session)
        if not quiet and (pages := pages_of(spark)):
            note(f"txmq: Spark's pages: {pages}")
        stack.enter_context(progress.tracking(spark))
        for day in days:
            extract_id = results.latest_extract(day) if reuse else extract
            reconciled = reconcile_day(
                spark, rules=rules, date=day, extract_id=extract_id, progress=progress
            )
            done = reconciled.write()
            reconciled.release()
            _show_run(done, f"{results.folder_of(done)}/report.html", json=json)
            codes.append(_CODES[done.result.verdict])
        warn_of_later_days(results)
    return max(codes)


def warn_of_later_days(results: "Results") -> None:
    """After a rerun, name the later days that are outdated: the next night would be refused for
    them.
    """
    newest = results.current(results.days()[-1])
    if newest is not None and (why := results.why_outdated(newest)) is not None:
        note(f"txmq: {why}")


def _show_run(run: Run, report: str, *, json: bool) -> None:
    from txmq.reconcile.report.terminal import show

    if json:
        as_json(msgspec.Raw(msgspec.json.format(run.as_json(), indent=-1)))
    else:
        show(run, _VerdictConsole(markup=False, highlight=False, emoji=False), report)
    flush()  # Of several days each appears when it is done.


class _VerdictConsole(Console):
    """If nobody reads the output any more, rich exits with 1, and that is a verdict."""

    def on_broken_pipe(self) -> None:
        """See rich."""
        raise BrokenPipeError


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise ConfigError(f"{text!r} is not a setting of Spark's; write spark.some.key=value")
    return key, value
