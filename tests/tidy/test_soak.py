"""A modest run leaves out kinds of databases and marked tests, and each kind has its turn."""

from pathlib import Path
from types import SimpleNamespace

from tests.soak import left_to_the_soak

KINDS = ["sqlite", "sqlite-async", "postgres", "psycopg-pool", "postgres-django"]


class Case:
    """As much of a collected test as is looked at."""

    def __init__(self, test, *, marks=(), path="tests/integration/test_some.py", **params):
        self.nodeid, self.path, self.originalname, self._marks = path, Path(path), test, marks
        self.callspec = SimpleNamespace(params=params)

    def get_closest_marker(self, name):
        return name in self._marks

    def __repr__(self):
        return f"{self.originalname} {self.callspec.params}"


def kept(cases):
    left = left_to_the_soak(cases)
    return [case for case in cases if case not in left]


def test_each_test_runs_on_sqlite_and_every_fourth_on_a_server_too_each_kind_in_its_turn():
    tests = [[Case(f"t{n}", bank=kind) for kind in KINDS] for n in range(12)]

    found = kept([case for test in tests for case in test])

    assert [len(set(test) & set(found)) for test in tests] == [2, 1, 1, 1] * 3
    assert {case.callspec.params["bank"] for case in found} == set(KINDS)


def test_what_sqlite_cannot_have_runs_on_a_server_each_time():
    tests = [[Case(f"t{n}", bank=kind) for kind in KINDS[2:]] for n in range(3)]

    found = kept([case for test in tests for case in test])

    assert [case.callspec.params["bank"] for case in found] == KINDS[2:]


def test_whatever_else_a_test_is_called_with_is_kept():
    wrong = [Case("t", bank=kind, wrong=each) for kind in KINDS for each in "abc"]
    guards = [Case("g", shop=(guard, kind)) for kind in KINDS for guard in ("table", "token")]
    elsewhere = [Case("u", path="tests/property/test_some.py", bank=kind) for kind in KINDS]

    assert {case.callspec.params["wrong"] for case in kept(wrong)} == set("abc")
    assert {case.callspec.params["shop"][0] for case in kept(guards)} == {"table", "token"}
    assert kept(elsewhere) == elsewhere


def test_what_is_marked_is_left_out():
    assert kept([Case("t"), Case("s", marks=("soak",))])[0].originalname == "t"
    assert kept([Case("s", marks=("soak",))]) == []
