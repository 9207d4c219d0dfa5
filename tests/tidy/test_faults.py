"""Every fault of the catalogue has a test, and no test cites a fault that does not exist."""

import ast
import re
from functools import cache

import pytest

from tools import fault_table

COUNTS = {"P": 22, "M": 14, "S": 14, "N": 12, "C": 9, "T": 4, "D": 12, "R": 7}

# Not when this file is imported: every process that shares the tests would read all of them.
citations = cache(fault_table.citations)


def test_the_catalogue_has_all_94_faults_in_order():
    wanted = [f"{letter}{n}" for letter, count in COUNTS.items() for n in range(1, count + 1)]

    assert list(fault_table.catalogue()) == wanted
    assert len(wanted) == 94


def test_every_fault_has_a_test_that_cites_it():
    cited = {citation.fault for citation in citations()}

    assert sorted(set(fault_table.catalogue()) - cited) == [], "faults without a test"


def test_every_fault_has_a_test_that_needs_no_soak():
    cited = {c.fault for c in citations() if c.test not in left_to_the_soak(c.path)}

    assert sorted(set(fault_table.catalogue()) - cited) == [], "faults that only a soak run tests"


@cache
def left_to_the_soak(path):
    """The names of the tests in a file that are marked as a whole."""
    if "mark.soak" not in (text := path.read_text()):
        return set()
    return {
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and "pytest.mark.soak" in map(ast.unparse, node.decorator_list)
    }


def test_every_cited_fault_is_in_the_catalogue():
    known = fault_table.catalogue()

    unknown = [citation for citation in citations() if citation.fault not in known]

    assert unknown == []


OVERLOOKED = [
    "@pytest.mark.slow\n@{mark}\ndef test(): pass",
    "@{mark}\ndef helper(): pass",
    "pytestmark = {mark}",
    "@pytest.mark.parametrize('n', [pytest.param(1, marks={mark})])\ndef test(n): pass",
    "@pytest.mark.fault()\ndef test(): pass",
    "@pytest.mark.fault(9)\ndef test(): pass",
]


def test_a_fault_mark_that_the_table_would_overlook_is_refused(tmp_path):
    path = tmp_path / "test_some.py"
    for text in OVERLOOKED:
        path.write_text(text.replace("{mark}", "pytest.mark.fault('P9')"))

        with pytest.raises(ValueError, match=re.escape("pytest.mark.fault")):
            list(fault_table.citations_of_file(path))


def test_citations_are_found_with_their_tests(tmp_path):
    path = tmp_path / "test_some.py"
    path.write_text('@pytest.mark.fault("P9", "M10")\n@staged\nasync def test_one(): pass\n')

    found = list(fault_table.citations_of_file(path))

    assert [(citation.fault, citation.test) for citation in found] == [
        ("P9", "test_one"),
        ("M10", "test_one"),
    ]
