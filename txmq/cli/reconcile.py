"""``txmq reconcile``: a day's reconciliation, and what people do with it in the morning."""

import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, NoReturn

import typer
from typer.core import TyperGroup

from txmq.cli.asking import AsJson, fail
from txmq.cli.output import as_json, say, table
from txmq.errors import ConfigError, ReconcileRefused, ResourceError, StoreError, UsageError
from txmq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from txmq.reconcile.rules import Rules
    from txmq.reconcile.summary import Run

__all__ = ["app"]

NOT_RUN: Final = 3
INTERRUPTED: Final = 130
TERMINATED: Final = 143
_CODES: Final = {"clean": 0, "within limits": 1, "over limits": 2}
_EXTRA: Final = {"pyspark", "py4j", "pyarrow", "adbc_driver_postgresql"}


class Group(TyperGroup):
    """Commands of which 2 says that breaks are over the limits, so that it says nothing else."""

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        """See typer; options of the group itself are read here."""
        with _wrong_use_is_no_verdict():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: Any) -> Any:
        """See typer; options of the commands in it are read here."""
        with _wrong_use_is_no_verdict():
            return super().invoke(ctx)


@contextmanager
def _wrong_use_is_no_verdict() -> Iterator[None]:
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except Exception as problem:
        # Whose class it is depends on typer's version; what it says to the shell does not.
        if getattr(problem, "exit_code", None) == 2:
            problem.exit_code = NOT_RUN  # type: ignore[attr-defined]  # it was there
        raise


app = typer.Typer(cls=Group, invoke_without_command=True)
breaks = typer.Typer(cls=Group, invoke_without_command=True)
app.add_typer(breaks, name="breaks")


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no date; write one such as 2026-03-31") from None


Day = Annotated[
    date | None,
    typer.Option(
        "--date",
        parser=_date,
        metavar="DATE",
        help="The business date; the last one that is over where it is left out.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", envvar="TXMQ_RECONCILE_CONFIG", help="The rules, a TOML file."),
]
By = Annotated[str, typer.Option("--by", help="Whose word it is.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


class Asked(NamedTuple):
    """Which days, by which rules."""

    rules: "Rules"
    days: list[date]


class Started(NamedTuple):
    """How Spark is started."""

    master: str | None
    memory: str
    cores: int | None
    jars: list[Path]
    settings: list[str]
    ui: bool


@app.callback()
def reconcile(
    ctx: typer.Context,
    *,
    day: Day = None,
    config: Config = None,
    first: Annotated[
        date | None,
        typer.Option("--from", parser=_date, metavar="DATE", help="Every date from this one on…"),
    ] = None,
    last: Annotated[
        date | None, typer.Option("--to", parser=_date, metavar="DATE", help="…up to this one.")
    ] = None,
    extract: Annotated[
        str | None, typer.Option("--extract", metavar="ID", help="Take nothing, and use this one.")
    ] = None,
    reuse: Annotated[
        bool, typer.Option("--reuse-extract", help="Take nothing, and use the last extract.")
    ] = False,
    master: Annotated[
        str | None,
        typer.Option(
            "--master", help="Spark's cluster, such as spark://host:7077; or this machine."
        ),
    ] = None,
    memory: Annotated[
        str, typer.Option("--memory", help="For Spark here, or for each executor of a cluster.")
    ] = "4g",
    cores: Annotated[int | None, typer.Option("--cores", min=1, help="All where left out.")] = None,
    jar: Annotated[
        list[Path] | None, typer.Option("--jar", help="A driver for JDBC; may be repeated.")
    ] = None,
    spark: Annotated[
        list[str] | None,
        typer.Option("--spark", metavar="KEY=VALUE", help="A setting of Spark's; may be repeated."),
    ] = None,
    ui: Annotated[bool, typer.Option("--ui", help="Let Spark show its pages meanwhile.")] = False,
    quiet: Quiet = False,
    json: AsJson = False,
) -> None:
    """Reconcile a business date, or several in their order: both banks' books and the broker's log.

    Exit codes: 0 all agree; 1 there are breaks, within the limits; 2 there are breaks over the
    limits; 3 it could not be run, or was wrongly called. Of several dates the worst one counts, and
    the first that cannot be run ends the run.
    """
    if ctx.invoked_subcommand is not None:
        return
    with _told():
        asked = _asked(config, day, first, last)
        if extract is not None and (reuse or len(asked.days) > 1):
            raise ConfigError("--extract names the one extract of one date")
        started = Started(master, memory, cores, jar or [], spark or [], ui)
        verdicts = _run_all(asked, started, extract, reuse=reuse, quiet=quiet, json=json)
    raise typer.Exit(max(_CODES[each] for each in verdicts))


@app.command(name="extract")
def extract_(
    *, day: Day = None, config: Config = None, quiet: Quiet = False, json: AsJson = False
) -> None:
    """Take the extract of a business date and nothing more, and print its control totals."""
    with _told():
        asked = _asked(config, day)
        from txmq.reconcile.job import extract
        from txmq.reconcile.progress import shown

        with shown(quiet=quiet) as progress, _stopping():
            manifest = extract(asked.rules, asked.days[0], progress)
        if json:
            as_json(manifest)
            return
        say(f"extract {manifest.extract_id} of {manifest.business_date}")
        table(
            ("source", "table", "rows", "amounts", "least id", "most", "hash total"),
            (
                (
                    each.source,
                    each.table,
                    each.rows,
                    ", ".join(f"{sum_} {name}" for name, sum_ in sorted(each.amounts.items())),
                    "" if each.least is None else each.least,
                    "" if each.most is None else each.most,
                    each.hash_total,
                )
                for each in manifest.controls
            ),
        )


@breaks.callback()
def breaks_(
    ctx: typer.Context,
    *,
    day: Day = None,
    config: Config = None,
    class_: Annotated[
        str | None, typer.Option("--class", help="Only this class, such as double-credit.")
    ] = None,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="new|open|changed|reopened|explained", help="Only these."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what is in flight, or explained.")
    ] = False,
    unmasked: Annotated[
        bool, typer.Option("--unmasked", help="Show account numbers as they are.")
    ] = False,
    json: AsJson = False,
) -> None:
    """The breaks of a business date, oldest first; explain them, or take that back."""
    if ctx.invoked_subcommand is not None:
        return
    with _told():
        from txmq.reconcile.classes import Class
        from txmq.reconcile.listing import items_of

        asked = _asked(config, day)
        if class_ is not None and class_ not in {each.value for each in Class}:
            raise ConfigError(f"there is no class {class_!r}; they are {', '.join(Class)}")
        run = _run_of(asked)
        found = items_of(
            asked.rules.directory,
            run,
            class_=None if class_ is None else Class(class_),
            status=status,
            is_complete=everything,
            is_masked=not unmasked,
        )
        if json:
            as_json(found)
            return
        if not found:
            say(f"no such breaks on {run.result.business_date}")
            return
        _list(found, run)


def _list(items: list[dict[str, Any]], run: "Run") -> None:
    from txmq.reconcile.report.words import amount, plain

    table(
        ("break", "class", "status", "days", "amount", "", "transfer", "payer", "payee"),
        (
            (
                each["break_id"],
                each["class"],
                each["status"],
                each["age_days"],
                amount(each["amount"], run.result.digits.get(each["currency"], 2)),
                each["currency"],
                *(plain(each[name] or "") for name in ("key", "payer", "payee")),
            )
            for each in items
        ),
    )


@breaks.command()
def explain(
    break_id: Annotated[str, typer.Argument(help="The break, or the beginning of its id.")],
    *,
    by: By,
    reason: Annotated[str, typer.Option("--reason", help="What it is, in words.")],
    day: Day = None,
    config: Config = None,
) -> None:
    """Say what a break is; from the next run on it is none, as long as nothing about it changes."""
    with _told():
        from txmq.reconcile.explaining import Explanations
        from txmq.reconcile.listing import items_of, one_of

        asked = _asked(config, day)
        directory = asked.rules.directory
        item = one_of(items_of(directory, _run_of(asked), is_complete=True), break_id)
        class_ = item["was"] or item["class"] if item["class"] == "explained" else item["class"]
        now_ms = SystemClock().wall_ms()
        done = Explanations(directory).explain(item["break_id"], class_, by, reason, now_ms)
        say(f"{done.break_id} is explained from the next run on, as long as it is {done.class_}")


@breaks.command()
def withdraw(
    break_id: Annotated[str, typer.Argument(help="The break, with its whole id.")],
    *,
    by: By,
    reason: Annotated[str, typer.Option("--reason", help="Why it does not hold.")],
    config: Config = None,
) -> None:
    """Take back what was said about a break."""
    with _told():
        from txmq.reconcile.explaining import Explanations

        directory = _rules(config).directory
        done = Explanations(directory).withdraw(break_id, by, reason, SystemClock().wall_ms())
        say(f"{done.break_id} is not explained any more, from the next run on")


@app.command()
def signoff(
    *,
    day: Day = None,
    config: Config = None,
    role: Annotated[
        str | None, typer.Option("--as", metavar="preparer|reviewer", help="In which part.")
    ] = None,
    by: Annotated[str, typer.Option("--by", help="Whose name it is.")] = "",
    note: Annotated[str, typer.Option("--note", help="What is to be said with it.")] = "",
    show: Annotated[bool, typer.Option("--show", help="Show who has signed.")] = False,
    json: AsJson = False,
) -> None:
    """Sign a day's result: one person prepares it, somebody else reviews it."""
    with _told():
        from txmq.reconcile.signing import Signatures

        asked = _asked(config, day)
        run, signatures = _run_of(asked), Signatures(asked.rules.directory)
        if not show:
            if role not in {"preparer", "reviewer"}:
                raise ConfigError("say who signs: --as preparer or --as reviewer, or only --show")
            sign = signatures.prepare if role == "preparer" else signatures.review
            sign(run, by, SystemClock().wall_ms(), note)
        _show_signatures(run, signatures, json=json)


def _show_signatures(run: "Run", signatures: Any, *, json: bool) -> None:
    state, given = signatures.state(run), signatures.all(run.result.business_date)
    if json:
        as_json({"state": state, "result_digest": run.result_digest, "signatures": given})
        return
    say(f"{run.result.business_date}: {state}, {run.result.verdict}, {run.result_digest}")
    if not given:
        return
    from txmq.reconcile.report.words import moment, plain

    table(
        ("as", "by", "at", "result", "note"),
        (
            (
                each.role,
                plain(each.by),
                moment(each.at_ms),
                "this one" if each.result_digest == run.result_digest else "another one",
                plain(each.note),
            )
            for each in given
        ),
    )


def _run_all(
    asked: Asked, started: Started, extract: str | None, *, reuse: bool, quiet: bool, json: bool
) -> list[str]:
    """Run the days in their order; the verdict of each."""
    settings = dict(_setting(each) for each in started.settings)
    from txmq.reconcile.job import run
    from txmq.reconcile.listing import latest_extract
    from txmq.reconcile.progress import shown
    from txmq.reconcile.results import open_results
    from txmq.reconcile.spark import opened

    rules, verdicts = asked.rules, []
    with _stopping(), ExitStack() as stack:
        progress = stack.enter_context(shown(quiet=quiet))
        results = stack.enter_context(open_results(rules.directory))
        with progress.stage("start Spark"):
            session = stack.enter_context(
                opened(
                    started.master,
                    memory=started.memory,
                    cores=started.cores,
                    jars=started.jars,
                    settings=settings,
                    log=Path(rules.directory, "logs", f"spark-{asked.days[0]}.log"),
                    ui=started.ui,
                )
            )
        if started.ui and not quiet:
            typer.echo(f"txmq: Spark's pages: {session.sparkContext.uiWebUrl}", err=True)
        stack.enter_context(progress.watching(session))
        for day in asked.days:
            extract_id = latest_extract(rules.directory, day) if reuse else extract
            done = run(rules, day, session, results, progress, extract_id=extract_id)
            _show_run(done, results.file(done, "report.html"), json=json)
            verdicts.append(done.result.verdict)
    return verdicts


def _show_run(run: "Run", report: Path, *, json: bool) -> None:
    from rich.console import Console

    from txmq.reconcile.report.summary_json import as_json as run_as_json
    from txmq.reconcile.report.terminal import show

    if json:
        sys.stdout.write(run_as_json(run).decode().rstrip("\n") + "\n")
    else:
        show(run, Console(markup=False, highlight=False, emoji=False), str(report))
    sys.stdout.flush()  # Of several days each is told when it is done.


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise ConfigError(f"{text!r} is no setting of Spark's; write spark.some.key=value")
    return key, value


def _asked(
    config: Path | None, day: date | None, first: date | None = None, last: date | None = None
) -> Asked:
    if (first is None) != (last is None) or (first is not None and day is not None):
        raise ConfigError("write --date for one day, or --from and --to for several")
    rules = _rules(config)
    if first is not None and last is not None:
        if last < first:
            raise ConfigError(f"--to {last} is before --from {first}")
        return Asked(
            rules, [first + timedelta(days=each) for each in range((last - first).days + 1)]
        )
    return Asked(rules, [day or rules.day.of(SystemClock().wall_ms()) - timedelta(days=1)])


def _rules(config: Path | None) -> "Rules":
    if config is None:
        raise ConfigError("where are the rules? write --config recon.toml, or set the variable")
    from txmq.reconcile.rules import read_rules

    return read_rules(config)


def _run_of(asked: Asked) -> "Run":
    from txmq.reconcile.results import Results

    run = Results(asked.rules.directory).current(asked.days[0])
    if run is None:
        day = asked.days[0]
        raise ReconcileRefused(f"{day} was not reconciled yet: txmq reconcile --date {day}")
    return run


@contextmanager
def _stopping() -> Iterator[None]:
    """While inside, SIGTERM ends the work as Ctrl-C does: jobs are cancelled, and Java is ended."""

    def terminate(number: int, frame: object) -> NoReturn:
        del number, frame
        raise _Terminated

    before: Callable[..., Any] | int | None = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except _Terminated:
        raise typer.Exit(TERMINATED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


class _Terminated(BaseException):
    """Not an error: nobody is to handle it on the way."""


@contextmanager
def _told() -> Iterator[None]:
    """Say in one line why nothing was run.

    Raises:
        typer.Exit: With 3.
    """
    try:
        yield
    except (ConfigError, UsageError, ReconcileRefused, ResourceError, StoreError) as problem:
        fail(str(problem), NOT_RUN)
    except ModuleNotFoundError as problem:
        if problem.name is None or problem.name.partition(".")[0] not in _EXTRA:
            raise
        fail(f"this command needs {problem.name}: pip install 'txmq[spark]'", NOT_RUN)
    except (typer.Exit, typer.Abort):
        raise
    except Exception:  # noqa: BLE001  # Python would exit with 1, and that is a verdict.
        traceback.print_exc()
        raise typer.Exit(NOT_RUN) from None
