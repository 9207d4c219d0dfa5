"""The rules that the pages show can be used, and what they say of commands and classes is so."""

import json
import re
import shlex
import tomllib
from datetime import date
from pathlib import Path

import pytest
import typer

from txmq.cli.root import app
from txmq.reconcile import Class, read_rules
from txmq.reconcile.rules import Rules

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {
    path.stem: path.read_text()
    for folder in ("howto", "explanation")
    for path in sorted((DOCS / folder).glob("reconcil*.md"))
}
BLOCKS = [
    (page, tomllib.loads(block))
    for page, text in PAGES.items()
    for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
]
(WHOLE,) = [block for page, block in BLOCKS if page == "reconcile-rules" and "name" in block]
HELD = {name: "secret" for text in PAGES.values() for name in re.findall(r"\$\{(\w+)\}", text)}


def toml(value):
    """A value as TOML has it inside a line."""
    match value:
        case dict():
            pairs = (f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items())
            return f"{{{', '.join(pairs)}}}"
        case list():
            return f"[{', '.join(map(toml, value))}]"
        case date():
            return value.isoformat()
    return json.dumps(value)


def merged(base, part):
    """Tables are merged, and repeated tables are added to those before."""
    both = {name: (base[name], part[name]) for name in base.keys() & part.keys()}
    tables = {name: merged(*two) for name, two in both.items() if isinstance(two[0], dict)}
    return base | part | tables | {name: sum(both[name], []) for name in both.keys() & {"flow"}}


def with_part(part):
    """The whole rules with a part of them that a page shows; a part of a bank is one of CCB's."""
    icbc, ccb = WHOLE["bank"]
    of_rules = {name: value for name, value in part.items() if name in Rules.__struct_fields__}
    of_bank = {name: value for name, value in part.items() if name not in of_rules}
    bank = of_rules.pop("bank", {})
    if isinstance(bank, list):
        (ccb,), bank = bank, {}
    rules = merged(WHOLE, of_rules) | {"bank": [icbc, merged(merged(ccb, bank), of_bank)]}
    if len(part.get("log", {}).keys() & {"directories", "cluster"}):
        del rules["log"]["directory"]
    return rules


def read(tree, tmp_path):
    path = tmp_path / "recon.toml"
    path.write_text("\n".join(f"{name} = {toml(value)}" for name, value in tree.items()))
    return read_rules(path, HELD)


def test_the_rules_on_the_page_can_be_read(tmp_path):
    rules = read(WHOLE, tmp_path)

    assert len(rules.bank) == 2
    spaces = {bank.entries.namespace for bank in rules.bank}
    assert spaces == {flow.namespace for flow in rules.log.flow}, "whose ids they are"


PARTS = [(page, block) for page, block in BLOCKS if block is not WHOLE]


@pytest.mark.parametrize("part", [part for _, part in PARTS], ids=[page for page, _ in PARTS])
def test_each_shown_part_of_the_rules_can_be_read_and_changes_them(part, tmp_path):
    rules = read(with_part(part), tmp_path)

    assert rules != read(WHOLE, tmp_path), "it says something"


def test_the_morning_section_names_every_break_class():
    morning = PAGES["reconcile-report"].partition("## In the morning\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z-]+)`", morning))

    breaks = {name.value for name in Class if name.group == "break"}
    assert breaks - named == set()


def no_command(_context, _name):
    """A command without others below it."""


SHOWN = [(page, re.findall(r"^\$ txmq (.+)$", text, re.MULTILINE)) for page, text in PAGES.items()]


@pytest.mark.parametrize(("page", "lines"), [(page, lines) for page, lines in SHOWN if lines])
def test_the_commands_and_options_of_a_page_exist(page, lines):
    command = typer.main.get_command(app)
    for line in lines:
        at, words = command, shlex.split(line)
        while words and (found := getattr(at, "get_command", no_command)(None, words[0])):
            at = found
            del words[0]
        known = {option for parameter in at.params for option in parameter.opts}
        assert at is not command, line
        assert {word for word in words if word.startswith("--")} - known == set(), line
