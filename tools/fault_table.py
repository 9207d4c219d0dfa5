"""Writes the fault catalogue with the tests that prove each fault.

python -m tools.fault_table > docs/internals/faults.md

The catalogue is tools/faults.toml. A test cites faults with `@pytest.mark.fault("P9", "M10")` as
its first decorator; the files are parsed, not imported.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeGuard

ROOT = Path(__file__).resolve().parents[1]
GROUPS = {
    "P": "A process dies",
    "M": "Messages",
    "S": "Disks and files",
    "N": "Networks and processes",
    "C": "Broker sets",
    "T": "Time",
    "D": "Databases and Redis",
    "R": "Reconciliation",
}
HEAD = """\
# Faults and their tests

Each fault below has at least one test that provokes it and fails if the promise is broken.
The tests cite the fault's id; a test of this page fails when a fault has none.
Written by `make docs` from `tools/faults.toml` and the marks `pytest.mark.fault` in `tests/`.
To run the tests of all faults: `python -m pytest -m fault`.

Seven promises hold whatever the fault; tests and checkers refer to them by these names.

- I1: all balances and the money on its way add up to what there was at the beginning.
- I2: a committed local transaction has exactly one visible message, a rolled-back one has none.
- I3: a half message or a decision that was acknowledged survives any crash.
- I4: a transfer is credited at most once.
- I5: every open transaction is decided in time, or parked where an operator sees it.
- I6: a consumer never goes back in a queue, except for messages that come again.
- I7: a decision never changes.
"""


class Fault(NamedTuple):
    """What happens, and what must hold then."""

    happens: str
    holds: str


class Citation(NamedTuple):
    """One fault that one test cites."""

    fault: str
    path: Path
    test: str


def catalogue() -> dict[str, Fault]:
    """All faults by their ids, in the order of the catalogue."""
    text = (ROOT / "tools/faults.toml").read_text(encoding="utf-8")
    return {name: Fault(**fault) for name, fault in tomllib.loads(text).items()}


def citations(tests: Path = ROOT / "tests") -> list[Citation]:
    """Every citation below the directory, by file and then by its place in the file."""
    return [
        citation for path in sorted(tests.rglob("*.py")) for citation in citations_of_file(path)
    ]


def citations_of_file(path: Path) -> Iterator[Citation]:
    """The citations in one file.

    Raises:
        ValueError: A mark is not the first line above a test, or its ids are not plain texts.
    """
    text = path.read_text(encoding="utf-8")
    if "mark.fault" not in text:
        return
    tree = ast.parse(text)
    marks = [node for node in ast.walk(tree) if _is_mark(node)]
    on_tests = 0
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not (function.name.startswith("test") and function.decorator_list):
            continue
        first = function.decorator_list[0]
        if _is_mark(first):
            on_tests += 1
            yield from (Citation(fault, path, function.name) for fault in _ids(first))
    if on_tests != len(marks):
        lines = ", ".join(str(mark.lineno) for mark in marks)
        raise ValueError(
            f"{path}, one of the lines {lines}: pytest.mark.fault must be the first decorator "
            "of a test, or pytest does not see it under the others"
        )


def page() -> str:
    """The whole page."""
    cited = citations()
    parts = [HEAD]
    for letter, title in GROUPS.items():
        parts.append(f"\n## {title}\n\n| id | what happens | what must hold | tests |\n")
        parts.append("|---|---|---|---|\n")
        for name, fault in catalogue().items():
            if name[0] == letter:
                tests = dict.fromkeys(_link(found) for found in cited if found.fault == name)
                row = [name, fault.happens, fault.holds, "<br>".join(tests)]
                parts.append(f"| {' | '.join(row)} |\n")
    return "".join(parts)


def _is_mark(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault"


def _ids(mark: ast.Call) -> list[str]:
    ids = [ast.literal_eval(argument) for argument in mark.args]
    if not ids or not all(isinstance(fault, str) for fault in ids):
        raise ValueError(f"{ast.unparse(mark)} cites no fault: write the ids as texts")
    return ids


def _link(citation: Citation) -> str:
    path = citation.path.relative_to(ROOT).as_posix()
    return f"[{citation.path.stem}::{citation.test}](../../{path})"


if __name__ == "__main__":
    sys.stdout.write(page())
