"""``txmq reconcile signoff``: two people sign the result of a day."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from txmq.cli.common import AsJson
from txmq.cli.output import as_json, say, table
from txmq.cli.reconcile_options import Config, Day, report_failures, run_of
from txmq.errors import ConfigError
from txmq.reconcile import Rules, Run
from txmq.reconcile.report.words import moment
from txmq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from txmq.reconcile.results import Results, Role

__all__ = ["signoff"]

_ROLES: Final[dict[str | None, "Role"]] = {"preparer": "preparer", "reviewer": "reviewer"}


def signoff(
    *,
    day: Day = None,
    config: Config = None,
    role: Annotated[
        str | None,
        typer.Option("--as", metavar="preparer|reviewer", help="The role of the signer."),
    ] = None,
    by: Annotated[str, typer.Option("--by", help="The name of the signer.")] = "",
    note: Annotated[str, typer.Option("--note", help="A note to keep with the signature.")] = "",
    despite: Annotated[
        str,
        typer.Option(
            "--despite",
            metavar="REASON",
            help="Why you sign although there are breaks or failed proofs; needed if there are.",
        ),
    ] = "",
    show: Annotated[bool, typer.Option("--show", help="Show who has signed.")] = False,
    json: AsJson = False,
) -> None:
    """Sign a day's result: one person prepares it, another one reviews it."""
    with report_failures():
        rules, results, run = run_of(config, day)
        if not show:
            if role not in _ROLES:
                raise ConfigError("choose a role: --as preparer or --as reviewer, or only --show")
            results.verify(run)
            signed = results.sign(_ROLES[role], run, by, SystemClock().wall_ms(), note, despite)
            _publish(rules, results, msgspec.structs.replace(run, sign_off=signed))
        _show_signatures(run, results, json=json)


def _publish(rules: Rules, results: "Results", run: Run) -> None:
    """Add the names wherever the result is kept."""
    from txmq.reconcile.report.page import page

    results.write_files(run, {"report.html": page(run), "summary.json": run.as_json()})
    if rules.recon is not None:
        from txmq.reconcile.schema import ReconSchema

        with closing(ReconSchema(rules.recon)) as schema:
            schema.sign(run)


def _show_signatures(run: Run, results: "Results", *, json: bool) -> None:
    state, given = results.signature_state(run), results.signatures(run.result.business_date)
    outdated = results.why_outdated(run)
    if json:
        about = {"state": state, "outdated": outdated, "result_digest": run.result_digest}
        as_json({**about, "signatures": given})
        return
    say(f"{run.result.business_date}: {state}, {run.result.verdict}, {run.result_digest}")
    if outdated is not None:
        say(outdated)
    rows = []
    for one in given:
        which = "this one" if one.result_digest == run.result_digest else "another one"
        at = moment(one.at_ms, run.result.zone)
        rows.append([one.role, one.by, at, which, one.note, one.despite])
    if rows:
        table(("as", "by", "at", "result", "note", "despite"), rows)
