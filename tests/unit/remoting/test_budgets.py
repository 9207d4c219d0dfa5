"""The bytes that a server keeps for all of its peers together."""

import pytest

from txmq.remoting.listener import ByteBudget


@pytest.fixture
def sizes():
    return {}


@pytest.fixture
def budget(sizes):
    def note(holder, size, **more):
        sizes[holder] = size
        return table.note(holder, size, **more)

    table = ByteBudget(100, sizes.__getitem__)
    table.keep = note
    return table


def test_the_oldest_holders_are_cut_until_the_rest_fits(budget):
    assert [budget.keep(name, 40) for name in "ab"] == [[], []]
    assert budget.keep("c", 90) == ["a", "b"]
    assert (budget.total, budget.cut) == (90, 2)


def test_a_holder_that_begins_anew_is_the_youngest(budget):
    budget.keep("a", 40)
    budget.keep("b", 40)
    budget.keep("a", 40, is_new=True)

    assert budget.keep("c", 40) == ["b"]


def test_an_outdated_size_cuts_no_holder(budget, sizes):
    budget.keep("a", 60)
    sizes["a"] = 0

    assert budget.keep("b", 60) == []
    assert budget.total == 60


def test_released_bytes_no_longer_count(budget):
    budget.keep("a", 60)
    budget.keep("a", 0)
    budget.keep("b", 60)
    budget.forget("b")
    budget.forget("nobody")

    assert budget.total == 0
