"""Changes one operator or number of the product at a time, and reports which tests notice.

    python -m tools.mutants [--seed N] [--count 40] [--area core ...] [--also TREE] [--list]

The seed chooses the mutants, so a run can be repeated. Each mutant is written into its file, the
tests of its area run until one fails, and the file is restored. Then the failed test runs again: it
counts only if it passes without the mutant. Exit code 1 means that a mutant survived. Files with
uncommitted changes are refused.

With --also, each mutant that survives is tried in another tree, too, such as a worktree of an
earlier commit with a .venv of its own, which shows whether its tests noticed more. Only mutants
whose line both trees have exactly once are chosen, and each tree's tests run on its own mutant.
"""

import argparse
import ast
import random
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
BROKER = "broker/txmq_broker"
PRODUCT = ("txmq", "broker")
AREAS = {
    "core": (f"{BROKER}/core", "unit/core unit/handlers property"),
    "store": (f"{BROKER}/store", "unit/store property simulation"),
    "transaction": (
        "txmq/transaction",
        "unit/transaction property"
        + "".join(f" integration/{part}" for part in ("manager", "transaction", "resources", "xa")),
    ),
    "idempotent": ("txmq/idempotent", "unit/idempotent integration/idempotent"),
    "outbox": (
        "txmq/outbox",
        "unit/outbox integration/outbox integration/cli/test_cli_outbox.py",
    ),
    "handlers": (f"{BROKER}/handlers", "unit/handlers"),
    "services": (f"{BROKER}/services", "unit/services unit/handlers unit"),
    "replication": (f"{BROKER}/replication", "unit/replication unit property simulation"),
    "offline": (f"{BROKER}/offline", "unit/offline integration/cli/test_cli_backup.py unit"),
    "names": (f"{BROKER}/names", "unit/names"),
    "access": (f"{BROKER}/access", "unit/access unit/handlers"),
    "client": ("txmq/client", "unit/client unit/transaction"),
    "protocol": ("txmq/protocol", "unit/protocol property"),
    "remoting": ("txmq/remoting", "unit/remoting unit/client"),
    "testing": ("txmq/testing", "unit/testing"),
    "worker": ("txmq/worker", "unit/worker integration/worker"),
    "databases": ("txmq/databases", "unit/databases integration/resources"),
    "settings": ("txmq/settings", "unit/settings unit"),
    "cli": ("txmq/cli", "unit/cli integration/cli"),
    "console": ("txmq/console", "unit/console integration/console"),
    "reconcile": ("txmq/reconcile", "reconcile"),
}
"""The folder of each area, and those of its tests."""
TEST_SECONDS = 1800
NO_TESTS = 5
"""pytest's exit code for a folder whose tests all belong to the soak."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)
HUNG = "a test that hangs"
DRAWN = 4
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
"""Texts and annotations: a change there does not change what the program does."""


class Mutant(NamedTuple):
    """One changed expression of one file."""

    area: str
    root: Path
    path: Path
    line: int
    start: int
    end: int
    """The bytes of the expression."""
    before: str
    after: str
    text: str
    """The line it begins on."""

    def __str__(self) -> str:
        return f"{self.path.relative_to(self.root)}:{self.line}  {self.before}  ->  {self.after}"


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


def mutants_of(area: str, root: Path, path: Path) -> Iterator[Mutant]:
    """Every mutant of a file."""
    source = path.read_bytes()
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    for node in expressions(ast.parse(source)):
        other = changed(node)
        if other is None or node.end_lineno is None or node.end_col_offset is None:
            continue
        yield Mutant(
            area,
            root,
            path,
            node.lineno,
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
            ast.unparse(node),
            f"({ast.unparse(other)})",
            lines[node.lineno - 1].decode().strip(),
        )


def choose(areas: list[str], count: int, seed: int) -> Iterator[Mutant]:
    """Mutants of all areas in turn, in the order of the seed, until each area has its share."""
    chance = random.Random(seed)
    found = defaultdict(list)
    for area in areas:
        for path in sorted((ROOT / AREAS[area][0]).rglob("*.py")):
            found[area] += mutants_of(area, ROOT, path)
        chance.shuffle(found[area])
    for number in range(count):
        yield found[areas[number % len(areas)]].pop()


def counterparts(mutants: list[Mutant], other: Path) -> dict[Mutant, Mutant]:
    """Each mutant, and the same change in another tree; without those whose line is not unique."""
    here, there = lines_of(ROOT), lines_of(other)
    pairs = {}
    for mutant in mutants:
        if len(here[mutant.text]) != 1 or len(there[mutant.text]) != 1:
            continue
        [path] = there[mutant.text]
        same = [
            candidate
            for candidate in mutants_of(mutant.area, other, path)
            if (candidate.text, candidate.before) == (mutant.text, mutant.before)
        ]
        if len(same) == 1:
            pairs[mutant] = same[0]
    return pairs


def lines_of(root: Path) -> dict[str, list[Path]]:
    """The files of each line of a tree's product, once for each time that it is there."""
    places = defaultdict(list)
    for folder in PRODUCT:
        for path in sorted((root / folder).rglob("*.py")):
            for line in path.read_text().splitlines():
                places[line.strip()].append(path)
    return places


def first_failure(root: Path, arguments: list[Path | str]) -> str:
    """The first test of these that fails or hangs; "" if all pass.

    Raises:
        SystemExit: The tests could not be run at all.
    """
    python = root / ".venv/bin/python" if root != ROOT else sys.executable
    command = [python, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", *arguments]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=TEST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return HUNG
    if done.returncode in {0, NO_TESTS}:
        return ""
    if failed := FAILED.search(done.stdout):
        return failed[1]
    raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def killer(mutant: Mutant) -> str:
    """The test that fails because of the mutant; "" if all tests of its area pass.

    Tests that carry the module's name run first, as they are the likeliest to notice, then folder
    by folder. A test counts only if it passes again without the mutant; else it is left out, and
    the others run again.
    """
    folders = [mutant.root / "tests" / folder for folder in AREAS[mutant.area][1].split()]
    folders = [folder for folder in folders if folder.exists()]
    named = [path for folder in folders for path in folder.rglob(f"test_*{mutant.path.stem}*.py")]
    waiting = list(filter(None, (named, *([folder] for folder in folders))))
    left_out: list[str] = []
    source = mutant.path.read_bytes()
    while waiting:
        try:
            mutated = source[: mutant.start] + mutant.after.encode() + source[mutant.end :]
            mutant.path.write_bytes(mutated)
            failed = first_failure(mutant.root, [*waiting[0], *left_out])
        finally:
            mutant.path.write_bytes(source)
        if not failed:
            waiting.pop(0)
        elif failed == HUNG or not first_failure(mutant.root, [failed]):
            return failed
        else:
            print(f"left out, as it fails without any mutant, too: {failed}", flush=True)
            left_out.append(f"--deselect={failed}")
    return ""


def refuse_uncommitted(mutants: list[Mutant]) -> None:
    """Refuse files with uncommitted changes: git could not show that each was restored.

    Raises:
        SystemExit: A file has uncommitted changes.
    """
    for root in {mutant.root for mutant in mutants}:
        paths = sorted({str(mutant.path) for mutant in mutants if mutant.root == root})
        command = ["git", "status", "--porcelain", "--", *paths]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        if done.stdout:
            raise SystemExit(f"commit these first:\n{done.stdout}")


def report(trees: Sequence[tuple[Mutant, ...]]) -> int:
    """Try each mutant, print its fate, and return how many survive; these are tried in the other
    tree, too.
    """
    survived = lost = 0
    for here, *there in trees:
        is_killed = tried(here)
        survived += not is_killed
        lost += not is_killed and any(tried(mutant, "  there:  ") for mutant in there)
    print(f"{len(trees) - survived} of {len(trees)} were killed")
    if lost:
        print(f"{lost} of the others are killed in the other tree")
    return survived


def tried(mutant: Mutant, before: str = "") -> bool:
    """Whether the tests notice a mutant; prints its fate."""
    test = killer(mutant)
    fate = f"killed    {mutant}  by {test}" if test else f"survived  {mutant}"
    print(f"{before}{fate}", flush=True)
    return bool(test)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--area", choices=AREAS, nargs="+", default=list(AREAS))
    parser.add_argument(
        "--also", type=Path, metavar="TREE", help="compare with another tree's tests"
    )
    parser.add_argument("--list", action="store_true", help="show the mutants, and run nothing")
    options = parser.parse_args()
    trees: Sequence[tuple[Mutant, ...]]
    if options.also is None:
        trees = [(mutant,) for mutant in choose(options.area, options.count, options.seed)]
    else:
        # More than wanted are drawn, since the other tree lacks some.
        drawn = list(choose(options.area, DRAWN * options.count, options.seed))
        trees = list(counterparts(drawn, options.also.resolve()).items())[: options.count]
    if options.list:
        for pair in trees:
            print(*pair, sep="\n")
        return 0
    refuse_uncommitted([mutant for pair in trees for mutant in pair])
    return 1 if report(trees) else 0


if __name__ == "__main__":
    sys.exit(main())
