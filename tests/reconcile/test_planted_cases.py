"""Cases planted on three dates: each date says of each case what its author expects, and no more.

The cases and their expectations are in :mod:`tests.reconcile.planted_cases`.
"""

import json
from collections import Counter
from functools import partial

import pytest
from typer.testing import CliRunner

from tests.reconcile.planted_cases import BY_RULES
from tests.reconcile.planted_ledgers import DATES, Ledgers, full_key, moment, steps_of
from tests.servers import spark_session
from tests.soak import IS_SOAK, some_of
from txmq.cli.root import app
from txmq.reconcile.results import Results

pytestmark = pytest.mark.timeout(600)  # The first run starts Spark.

SUMMED = "clearing-total", "conservation", "gapless"
AGREED = "matched", "returned", "rolled-back"
SAID = "--by", "Li Na", "--reason", "voucher 771"


# The richest rules. test_whole_runs covers more of the strict ones, and who bears a fee changes
# only the classes: test_classification.
@pytest.mark.parametrize("outcomes", some_of(BY_RULES, [*BY_RULES][1:2]))
def test_each_date_reports_exactly_what_was_planted(outcomes, spark, tmp_path, monkeypatch):
    spark_session.lend(monkeypatch, spark)
    cases = BY_RULES[outcomes]
    ledgers = Ledgers(tmp_path, outcomes)
    steps = [step for case in cases for step in steps_of(case.key, case.currency, case.steps)]
    run = partial(call, tmp_path)
    for number, day in enumerate(DATES):
        start, end = moment(number, "17:00"), moment(number + 1, "17:00")
        ledgers.write([step for step in steps if start <= step.at_ms < end])
        names = {case.key: ledgers.names.get(case.key, full_key(case.key)) for case in cases}
        code, _ = run(day, "--quiet")
        found = Tables(tmp_path, day)
        assert found.said() == said_of(cases, names, number)
        assert found.totals() == totals_of(cases, number)
        assert found.off() == off_of(cases, names, number)
        assert code == 2
        if number == 0:
            keys = {names[case.key] for case in cases if case.is_explained}
            explain_breaks(run, day, found, tmp_path / "ids.txt", lambda key: key in keys)  # noqa: B023

    explain_breaks(run, day, found, tmp_path / "ids.txt", lambda key: True)
    run(day, "--reuse-extract", "--quiet")
    left = [difference["id"] for difference in json.loads(run(day, "proofs", "--json")[1])]
    if left:
        code, text = run(day, "proofs", "explain", *left, *SAID, "--yes")
        assert code == 0, text
    for _ in range(2 if IS_SOAK else 1):
        code, text = run(day, "--reuse-extract", "--quiet")
        assert code == 0, text


class Tables:
    """The tables of a date's run in force."""

    def __init__(self, home, day):
        results = Results(home / "recon")
        done = results.current(day)

        def rows(table):
            return list(results.table(table, day, done.run_id).rows())

        self.result = done.result
        self.items, self.closed, self.matches, self.proofs = map(
            rows, ("items", "closed", "matches", "proofs")
        )

    def said(self):
        """What the date says of each transfer."""
        said = {row["key"]: row["class"] for row in self.matches}
        said |= {row["key"]: f"{row['class']} {row['status']}" for row in self.closed}
        for row in self.items:
            assert row["key"] not in said
            said[row["key"]] = " ".join(
                str(row[name]) for name in ("class", "status", "amount", "holder")
            )
        return said

    def totals(self):
        """The number of transfers of each class, and the money at risk in each currency."""
        found = Counter()
        for total in self.result.totals:
            found[total.class_, "transfers"] += total.transfers
            found[total.class_, total.currency] += total.at_risk
        return +found

    def off(self):
        """By how much proofs are off."""
        found = Counter()
        for row in self.proofs:
            if not row["holds"] and (row["account"] or row["proof"] in SUMMED):
                place = tuple(row[name] for name in ("proof", "bank", "account", "currency"))
                found[place] += row["found"] - row["expected"]
        return found


def said_of(cases, names, number):
    return {names[case.key]: case.dates[number] for case in cases if case.dates[number]}


def totals_of(cases, number):
    found = Counter()
    for case in cases:
        if words := case.dates[number].split():
            found[words[0], "transfers"] += 1
            if words[0] not in AGREED:
                found[words[0], case.currency] += int(words[2])
    return found


def off_of(cases, names, number):
    found = Counter()
    for case in cases:
        for text in filter(None, case.off[number].split(", ")):
            proof, *place, amount = text.split()
            bank, account = [*place, None, None][:2]
            if account == "payee":
                account = f"payee-{case.key}"
            elif account is None and proof not in SUMMED:
                account = names[case.key]
            has_currency = proof not in {"gapless", "roll-forward-rows"}
            found[proof, bank, account, case.currency if has_currency else None] += int(amount)
    return found


def call(home, day, *arguments):
    command = ["reconcile", *arguments, "--date", str(day), "--config", str(home / "recon.toml")]
    done = CliRunner().invoke(app, command)
    return done.exit_code, done.stdout or done.output


def explain_breaks(run, day, found, file, is_meant):
    """Explain breaks by their ids, as a person does."""
    ids = [row["break_id"] for row in found.items
           if row["group"] == "break" and is_meant(row["key"])]  # fmt: skip
    if ids:
        file.write_text("\n".join(ids))
        code, text = run(day, "breaks", "explain", "--file", str(file), "--yes", *SAID)
        assert code == 0, text
