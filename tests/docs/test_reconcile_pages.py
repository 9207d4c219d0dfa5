"""The rules that the pages show can be used, and what they say of commands and classes is so."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer

from txmq.cli.root import app
from txmq.reconcile import Class, read_rules
from txmq.reconcile.rules import TRANSFER_KINDS

DOCS = Path(__file__).resolve().parents[2] / "docs"
HOWTO = (DOCS / "howto/reconcile.md").read_text()
EXPLAINED = (DOCS / "explanation/reconciliation.md").read_text()
BLOCKS = re.findall(r"```toml\n(.*?)```", HOWTO, re.DOTALL)
WHOLE = [each for each in BLOCKS if "[[bank]]" in each]
HELD = {each: "secret" for text in BLOCKS for each in re.findall(r"\$\{(\w+)\}", text)}


def read(text, tmp_path):
    path = tmp_path / "recon.toml"
    path.write_text(text)
    return read_rules(path, HELD)


@pytest.mark.parametrize("text", WHOLE, ids=lambda each: tomllib.loads(each)["name"])
def test_the_rules_that_are_shown_can_be_read(text, tmp_path):
    rules = read(text, tmp_path)

    assert len(rules.bank) == 2
    spaces = {each.entries.namespace for each in rules.bank}
    assert spaces == {each.namespace for each in rules.log.flow}, "whose ids they are"


def test_a_bank_with_a_driver_fits_into_the_rules(tmp_path):
    (part,) = [block for block in BLOCKS if "jdbc:" in block]
    before, database, after = WHOLE[0].partition('database = "postgresql://recon:${CCB')

    rules = read(before + part + after.partition("\n")[2], tmp_path)

    assert database
    assert rules.bank[1].database.startswith("jdbc:")
    assert rules.bank[1].properties["password"] == "secret"


def test_other_outcomes_fit_into_the_rules(tmp_path):
    (part,) = [block for block in BLOCKS if "[outcomes]" in block]
    _, _, outcomes = part.partition("\n\n")

    rules = read(WHOLE[0] + "\n" + outcomes, tmp_path)

    assert (rules.outcomes.parts, rules.outcomes.charges) == (True, "payee")
    assert set(tomllib.loads(part)["bank"]["entries"]["kinds"]) <= set(TRANSFER_KINDS)


def test_the_morning_has_every_class_that_is_somebodys_work():
    morning = EXPLAINED.partition("## In the morning\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z-]+)`", morning))

    breaks = {name.value for name in Class if name.group == "break"}
    assert breaks - named == set()


def no_command(_context, _name):
    """A command without others below it."""


def test_the_commands_of_the_pages_exist():
    command = typer.main.get_command(app)
    shown = re.findall(r"^\$ txmq (.+)$", HOWTO + EXPLAINED, re.MULTILINE)

    assert len(shown) >= 6
    for line in shown:
        at, words = command, shlex.split(line)
        while words and (found := getattr(at, "get_command", no_command)(None, words[0])):
            at = found
            del words[0]
        known = {option for each in at.params for option in each.opts}
        unknown = {each for each in words if each.startswith("--")} - known
        assert unknown == set(), line
