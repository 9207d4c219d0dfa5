"""The extra `all` has what the pages and the bank transfer import, and `spark` what a day needs."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from importlib.util import find_spec

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs.pages import ROOT, Page
from tools.release import bill

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BANK = sorted((ROOT / "examples/bank_transfer").rglob("*.py"))
ANOTHER_FRAMEWORK = {"pydantic"}
"""A page shows how its programs look with txmq."""
MODULE = re.compile(r"`(\w+)\.[A-Z]\w+`")
DRIVER = re.compile(r"\b(?:sqlite|postgresql)\+(\w+)")
"""What SQLAlchemy imports for a URL."""


def own_requirements():
    """The requirements in the form that the metadata of a wheel has."""
    found = list(PROJECT["dependencies"])
    for extra, wanted in PROJECT["optional-dependencies"].items():
        for requirement in map(Requirement, wanted):
            marker = f'extra == "{extra}"'
            if requirement.marker:
                marker = f"({requirement.marker}) and {marker}"
            requirement.marker = None
            found.append(f"{requirement} ; {marker}")
    return found


def imported(program):
    """The names of the packages that a program imports."""
    yield from DRIVER.findall(program)
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def named_by(page):
    """The names of the packages that the programs and the tables of a page use."""
    yield from MODULE.findall(page.text)
    yield from DRIVER.findall(page.text)
    for block in page.blocks():
        if block.language == "python":
            yield from imported(block.text)


def distributions(names):
    """The distributions that have these packages; those of Python and ours are left out."""
    others = set(names) - sys.stdlib_module_names - {"examples", "txmq", "txmq_broker"}
    return {canonicalize_name(name) for name in others if find_spec(name)}


def test_the_extra_all_covers_the_imports_of_the_bank_transfer():
    offered = bill.closure(own_requirements(), "all")
    names = [name for file in BANK for name in imported(file.read_text())]

    assert {"aiosqlite", "httpx", "sqlalchemy"} <= distributions(names) <= offered


def test_the_extra_all_covers_the_imports_of_the_pages():
    offered = bill.closure(own_requirements(), "all")
    used = set()
    for file in PAGES:
        page = Page(file, file.read_text())
        installed = set(" ".join(re.findall(r"pip install (.+)$", page.text, re.MULTILINE)).split())
        used |= distributions(named_by(page)) - installed

    assert {"psycopg-pool", "redis"} <= used <= offered | ANOTHER_FRAMEWORK


@pytest.mark.slow
def test_reconcile_can_be_imported_with_the_extra_spark_alone():
    offered = bill.closure(own_requirements(), "spark")
    extras = bill.closure(own_requirements(), "all") - offered
    missing = {
        package: None
        for package, names in packages_distributions().items()
        if {canonicalize_name(name) for name in names} & extras
    }
    program = f"import sys; sys.modules |= {missing}; from txmq.reconcile import reconcile"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert "sqlalchemy" in missing
    assert found.stderr == ""
