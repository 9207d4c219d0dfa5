"""What a contributor meets first agrees with the Makefile, and names no machine."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tools.commit_subject import fault

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.search(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)[1].split())
PAGES = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
HOOKS = ROOT / ".pre-commit-config.yaml"
CONTAINER = sorted((ROOT / ".devcontainer").iterdir())
TEMPLATES = sorted((ROOT / ".github").rglob("*.md"))


def test_make_help_shows_every_target_with_what_it_does():
    printed = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    ).stdout

    shown = dict(re.findall(r"^make (\w+) +(\S.*)$", printed, re.MULTILINE))
    assert set(shown) == TARGETS


@pytest.mark.parametrize(
    "file", [*PAGES, *WORKFLOWS, *CONTAINER, *TEMPLATES], ids=lambda path: path.name
)
def test_every_target_that_a_file_names_is_in_the_makefile(file):
    text = file.read_text()
    named = set(re.findall(r"\bmake ([a-z]+)(?=[`\"\n]| +#| [A-Z])", text))

    assert named - TARGETS == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_path_that_a_page_names_exists(page):
    named = re.findall(
        r"[` ]((?:tests|tools|docs|examples|txmq|broker)/[\w/.-]*\w)", page.read_text()
    )

    assert [path for path in named if not (ROOT / path).exists()] == []


def test_ci_calls_only_the_makefile_and_its_own_script():
    texts = [file.read_text() for file in WORKFLOWS]
    calls = [call for text in texts for call in re.findall(r"\brun: (.+)$", text, re.MULTILINE)]

    assert calls
    assert [
        call for call in calls if not re.fullmatch(r"make \w+ PYTHON=python|\.ci/run", call)
    ] == []


def test_ci_has_every_supported_python_and_pins_its_actions():
    text = "".join(file.read_text() for file in WORKFLOWS)
    project = (ROOT / "pyproject.toml").read_text()
    versions = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)

    assert set(versions) <= set(re.findall(r'"(3\.\d+)"', text))
    actions = re.findall(r"uses: (\S+)", text)
    assert actions
    assert [
        action
        for action in actions
        if not re.fullmatch(r"(?:actions|pypa)/[\w-]+@[0-9a-f]{40}", action)
    ] == []


def test_the_dev_container_and_issue_templates_are_complete():
    json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())

    kinds = {path.stem for path in (ROOT / ".github/ISSUE_TEMPLATE").iterdir()}
    assert kinds == {"bug", "question", "idea"}


def test_hooks_are_local_and_call_existing_tools():
    text = HOOKS.read_text()

    assert set(re.findall(r"repo: (\S+)", text)) == {"local"}
    entries = re.findall(r"entry: (.+)$", text, re.MULTILINE)
    assert entries
    assert [entry for entry in entries if not entry.startswith(".venv/bin/")] == []
    for path in re.findall(r"\btests/\S+", text):
        assert (ROOT / path).exists()


@pytest.mark.parametrize("file", [HOOKS, *WORKFLOWS, *CONTAINER], ids=lambda path: path.name)
def test_no_hook_workflow_or_container_file_contains_a_url(file):
    assert re.findall(r"https?://\S+", file.read_text()) == []


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Outbox: a relay keeps the order of a lane\n\nWhy it did not.\n", ""),
        ("x" * 71, ""),
        ("x" * 72, "the subject has 72 characters and may have 71"),
        ("# Please enter the commit message\n", "no subject"),
        ("A subject\nand more of it\n", "the second line must be empty"),
    ],
)
def test_a_commit_subject_is_short_and_followed_by_an_empty_line(message, reason):
    problem = fault(message)

    assert (reason in problem) if reason else (problem == "")
