"""Rules of this project that no linter checks."""

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import txmq
import txmq_broker
from txmq import errors

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*(ROOT / "txmq").rglob("*.py"), *(ROOT / "broker").rglob("*.py")])
TESTS = sorted((ROOT / "tests").rglob("*.py"))
CLOCKS = re.compile(r"\btime\.(time|monotonic|time_ns)\(|\bdatetime\.now\(|\brandom\.\w+\(")
MAY_SLEEP = {
    "cpp_client.py": "the C++ library takes its threads down when its program ends",
    "test_simulated_processes.py": "shows that sleeping is an error in there",
}
MAY_READ_CLOCKS = {"runtime", "testing"}


def names_of(package):
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return [module.name for module in found if "__main__" not in module.name]


def test_every_name_in_all_exists_and_is_listed_once():
    wrong = []
    for name in [*names_of(txmq), *names_of(txmq_broker)]:
        module = importlib.import_module(name)
        offered = getattr(module, "__all__", [])
        wrong += [
            f"{name} lacks {attribute}" for attribute in offered if not hasattr(module, attribute)
        ]
        if len(set(offered)) != len(offered):
            wrong.append(f"{name} offers a name twice")

    assert wrong == []


def leaves(error):
    below = error.__subclasses__()
    return [leaf for subclass in below for leaf in leaves(subclass)] if below else [error]


def test_every_error_says_whether_to_retry_and_whether_it_took_effect():
    wrong = {
        leaf.__name__
        for leaf in leaves(errors.TxmqError)
        if not isinstance(leaf.retryable, bool)
        or not isinstance(leaf.effect, errors.Effect)
        or not leaf.__doc__
        or (leaf.__module__ == errors.__name__ and leaf.__name__ not in errors.__all__)
    }

    assert wrong == set()


def test_every_refusal_has_a_code_of_its_own():
    codes = [
        leaf.code for leaf in leaves(errors.BrokerRefused) if leaf is not errors.UnknownRefusal
    ]

    assert len(set(codes)) == len(codes)


def test_clocks_and_randomness_are_used_only_through_ports():
    wrong = [
        f"{source.relative_to(ROOT)}: {found[0]}"
        for source in SOURCES
        if not MAY_READ_CLOCKS & set(source.relative_to(ROOT).parts)
        if (found := CLOCKS.search(source.read_text()))
    ]

    assert wrong == []


def test_no_test_calls_time_sleep():
    wrong = [
        f"{source.relative_to(ROOT)}:{node.lineno} sleeps"
        for source in TESTS
        if source.name not in MAY_SLEEP and "time.sleep" in (text := source.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep"
    ]

    assert wrong == []
