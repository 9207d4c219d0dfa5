"""Rules of the house that no linter knows."""

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import txmq
import txmq_broker
from txmq import errors

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*(ROOT / "txmq").rglob("*.py"), *(ROOT / "broker").rglob("*.py")])
TESTS = sorted((ROOT / "tests").rglob("*.py"))
CLOCKS = re.compile(r"\btime\.(time|monotonic|time_ns)\(|\bdatetime\.now\(|\brandom\.\w+\(")
MAY_SLEEP = {
    "cpp_client.py": "the C++ library takes its threads down when its program ends",
    "test_simulated_loop.py": "shows that sleeping is an error in there",
}
MAY_READ_CLOCKS = {"runtime", "testing"}


def names_of(package):
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return [each.name for each in found if "__main__" not in each.name]


@pytest.mark.parametrize("name", [*names_of(txmq), *names_of(txmq_broker)])
def test_what_a_module_offers_exists_and_is_sorted(name):
    module = importlib.import_module(name)
    offered = getattr(module, "__all__", [])

    assert all(hasattr(module, each) for each in offered)
    assert len(set(offered)) == len(offered)


def leaves(error):
    below = error.__subclasses__()
    return [leaf for each in below for leaf in leaves(each)] if below else [error]


@pytest.mark.parametrize("leaf", leaves(errors.TxmqError), ids=lambda leaf: leaf.__name__)
def test_every_error_says_whether_to_retry_and_whether_it_took_effect(leaf):
    assert isinstance(leaf.retryable, bool)
    assert isinstance(leaf.effect, errors.Effect)
    assert leaf.__doc__
    assert leaf.__name__ in errors.__all__ or leaf.__module__ != errors.__name__


def test_every_refusal_has_a_code_of_its_own():
    codes = [
        leaf.code for leaf in leaves(errors.BrokerRefused) if leaf is not errors.UnknownRefusal
    ]

    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_time_and_chance_come_in_by_the_ports(source):
    if MAY_READ_CLOCKS & set(source.relative_to(ROOT).parts):
        return

    assert not CLOCKS.search(source.read_text())


@pytest.mark.parametrize("source", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_test_sleeps_to_hope(source):
    if source.name in MAY_SLEEP:
        return
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep":
            raise AssertionError(f"{source.name}:{node.lineno} sleeps")


def test_no_module_has_grown_into_a_house():
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}

    assert {name: lines for name, lines in long.items() if lines > 620} == {}
