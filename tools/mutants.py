"""Changes one operator or number of the product at a time, and reports which tests notice.

    python -m tools.mutants [--seed N] [--count 40] [--area core ...] [--list]

The seed chooses the mutants, so a run can be repeated. The tests of each area must pass first. Then
each mutant is written into its file, the tests of its area run with -x, and the file is restored.
Exit code 1 means that a mutant survived. Files with uncommitted changes are refused.
"""

import argparse
import ast
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
BROKER = "broker/txmq_broker"
AREAS = {
    "core": (f"{BROKER}/core", ["tests/unit/core", "tests/unit/handlers", "tests/property"]),
    "store": (f"{BROKER}/store", ["tests/unit/store", "tests/property", "tests/simulation"]),
    "transaction": ("txmq/transaction", ["tests/unit/transaction", "tests/property"]),
    "idempotent": ("txmq/idempotent", ["tests/unit/idempotent", "tests/integration/idempotent"]),
    "outbox": ("txmq/outbox", ["tests/unit/outbox", "tests/integration/outbox"]),
    "reconcile": ("txmq/reconcile", ["tests/reconcile"]),
}
TEST_SECONDS = 1800
SWAPS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}
UNTOUCHED = (ast.JoinedStr, ast.AnnAssign, ast.arg)
"""Texts, and annotations: a change in there is no change of what the program does."""


class Mutant(NamedTuple):
    """One changed expression of one file."""

    area: str
    path: Path
    line: int
    start: int
    end: int
    """The bytes of the expression."""
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}  {self.before}  ->  {self.after}"


def changed(node: ast.AST) -> ast.expr | None:
    """The expression with one operator or constant changed; None if there is nothing to change."""
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in SWAPS:
            return ast.Compare(left, [SWAPS[type(op)]()], [right])
        case ast.BoolOp(op, values):
            return ast.BoolOp(SWAPS[type(op)](), values)
        case ast.BinOp(left, op, right) if type(op) in SWAPS:
            return ast.BinOp(left, SWAPS[type(op)](), right)
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.Constant(bool() as value):
            return ast.Constant(not value)
        case ast.Constant(int() as value):
            return ast.Constant(value + 1)
    return None


def expressions(node: ast.AST) -> Iterator[ast.expr]:
    """All expressions that run, from the outside in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, UNTOUCHED):
            continue
        if isinstance(child, ast.expr):
            yield child
        yield from expressions(child)


def mutants_of(area: str, path: Path) -> Iterator[Mutant]:
    """Every mutant of a file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in expressions(ast.parse(source)):
        other = changed(node)
        if other is None or node.end_lineno is None or node.end_col_offset is None:
            continue
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        yield Mutant(
            area, path, node.lineno, start, end, ast.unparse(node), f"({ast.unparse(other)})"
        )


def chosen(areas: list[str], count: int, seed: int) -> list[Mutant]:
    """So many of all areas, each area as often as any other."""
    chance = random.Random(seed)
    found = defaultdict(list)
    for area in areas:
        for path in sorted((ROOT / AREAS[area][0]).rglob("*.py")):
            found[area] += mutants_of(area, path)
        chance.shuffle(found[area])
    return [found[areas[number % len(areas)]].pop() for number in range(count)]


def passes(area: str) -> bool:
    """Whether all tests of an area pass; those that hang do not."""
    tests = AREAS[area][1]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TEST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def survives(mutant: Mutant) -> bool:
    """Whether all tests of its area pass with the mutant in place."""
    source = mutant.path.read_bytes()
    try:
        mutated = source[: mutant.start] + mutant.after.encode() + source[mutant.end :]
        mutant.path.write_bytes(mutated)
        return passes(mutant.area)
    finally:
        mutant.path.write_bytes(source)


def see_that_all_is_committed(mutants: list[Mutant]) -> None:
    """A file is restored to what it was; with changes of its own nobody could check that.

    Raises:
        SystemExit: A file has uncommitted changes.
    """
    paths = sorted({str(mutant.path) for mutant in mutants})
    asked = ["git", "status", "--porcelain", "--", *paths]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    if done.stdout:
        raise SystemExit(f"commit these first:\n{done.stdout}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--area", choices=AREAS, nargs="+", default=list(AREAS))
    parser.add_argument("--list", action="store_true", help="show the mutants, and run nothing")
    options = parser.parse_args()
    mutants = chosen(options.area, options.count, options.seed)
    if options.list:
        print(*mutants, sep="\n")
        return 0
    see_that_all_is_committed(mutants)
    if broken := [area for area in options.area if not passes(area)]:
        raise SystemExit(f"without any mutant these tests fail already: {', '.join(broken)}")
    survivors = 0
    for mutant in mutants:
        is_alive = survives(mutant)
        survivors += is_alive
        print("survived" if is_alive else "killed  ", mutant, flush=True)
    print(f"{len(mutants) - survivors} of {len(mutants)} were killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
