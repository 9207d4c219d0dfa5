"""Each public name has a page of the reference, a docstring, and its errors in the docstring."""

import ast
import inspect
import re
import textwrap
from importlib import import_module
from itertools import pairwise
from pathlib import Path, PurePosixPath

import pytest

from tools.api_reference import MODULES, public_names
from txmq import errors

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/reference/api"
TEXTS = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.py")]
INTERNAL = {"txmq.cli": "the entry point of the command, in a program for Airflow"}
"""Modules that a program of the docs imports although they are not public."""
ERRORS = {name: getattr(errors, name) for name in errors.__all__ if name[0].isupper()}


@pytest.mark.parametrize("module", MODULES)
def test_each_public_name_is_on_the_page_of_its_module(module):
    shown = re.findall(r"^::: (\S+)$", (PAGES / f"{module}.md").read_text(), re.MULTILINE)
    linked = re.findall(r"^\[`(\S+)`\]\[\S+\]$", (PAGES / f"{module}.md").read_text(), re.MULTILINE)

    assert sorted([*shown, *linked]) == sorted(f"{module}.{name}" for name in public_names(module))


def test_each_module_that_the_docs_import_has_a_page():
    imported = set()
    for text in TEXTS:
        imported |= set(re.findall(r"^\s*from (txmq[\w.]*) import", text.read_text(), re.MULTILINE))

    assert imported - set(MODULES) - set(INTERNAL) == set()


def test_the_site_has_each_page_in_its_navigation():
    """`make site` fails without it, too; this needs no tools of the site.

    The index of decisions links to each page that is left out.
    """
    settings = (ROOT / "mkdocs.yml").read_text()
    left_out, navigation = settings.split("\nnav:\n")
    left_out = re.search(r"^not_in_nav: \|\n((?: +.*\n)+)", left_out, re.MULTILINE)[1].split()
    navigation = set(re.findall(r"(\S+\.md)$", navigation, re.MULTILINE))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    outside = {
        page
        for page in pages
        if any(PurePosixPath("/", page).match(pattern) for pattern in left_out)
    }

    assert (navigation - {"changelog.md"}) | outside == pages
    assert navigation & outside == set()
    assert [page for page in outside if not is_linked(page, ROOT / "docs/adr/README.md")] == []


def is_linked(page, index):
    """Whether an index links to this page of docs/."""
    links = re.findall(r"\]\(([^)#]+)", index.read_text())
    return ROOT / "docs" / page in {(index.parent / link).resolve() for link in links}


def public_objects(module):
    """The public names of a module, and the public methods of its classes."""
    found = import_module(module)
    for name in public_names(module):
        value = getattr(found, name)
        yield f"{module}.{name}", value
        if inspect.isclass(value) and value.__module__.startswith("txmq"):
            for part, method in inspect.getmembers(value):
                is_ours = getattr(method, "__module__", "") or ""
                if not part.startswith("_") and callable(method) and is_ours.startswith("txmq"):
                    yield f"{module}.{name}.{part}", method


def raised(function):
    """The errors of txmq that a function raises in its own body."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    names = {
        ast.unparse(node.exc.func).rpartition(".")[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
    }
    return {ERRORS[name] for name in names if name in ERRORS}


@pytest.mark.parametrize("module", MODULES)
def test_each_public_name_has_a_docstring_with_its_errors(module):
    wrong = []
    for name, value in public_objects(module):
        is_code = inspect.isclass(value) or callable(value)
        if is_code and not (inspect.getdoc(value) or "").strip():
            wrong.append(f"{name} has no docstring")
        said = inspect.getdoc(value) or ""
        named = [error for text, error in ERRORS.items() if re.search(rf"\b{text}\b", said)]
        wrong += [
            f"{name} raises {error.__name__}, which its docstring does not name"
            for function in functions(value)
            for error in raised(function)
            if not any(issubclass(error, known) for known in named)
        ]

    assert wrong == []


def functions(value):
    """The function itself, or those that build an object of a class; only those with a source."""
    found = [inspect.unwrap(value)] if inspect.isroutine(value) else []
    if inspect.isclass(value):
        found = [vars(value).get(name) for name in ("__init__", "__post_init__")]
    return [
        function
        for function in found
        if inspect.isfunction(function) and Path(function.__code__.co_filename).exists()
    ]


def test_each_public_constant_has_a_docstring():
    constants = {
        name
        for module in MODULES
        for name in public_names(module)
        if not callable(getattr(import_module(module), name))
    }
    described = set()
    for source in [*(ROOT / "txmq").rglob("*.py"), *(ROOT / "broker").rglob("*.py")]:
        body = ast.parse(source.read_text()).body
        for node, text in pairwise(body):
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(text, ast.Expr):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                described |= {ast.unparse(target) for target in targets}

    assert constants - described == set()
