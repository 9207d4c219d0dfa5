"""Lists cut into pages, and questions about many things at once."""

import asyncio

import pytest

from txmq.console.pages import lists
from txmq.console.pages.lists import ask_together, list_page
from txmq.errors import ConnectFailed


def test_a_list_is_searched_sorted_and_cut(monkeypatch):
    monkeypatch.setattr(lists, "CONSOLE_ROWS", 2)
    names = ["Orders-3", "orders-1", "Bills", "Orders-2"]

    first, last, beyond = (list_page(names, number, "ORDERS") for number in (1, 2, 99))

    assert (first.rows, first.number, first.pages, first.total) == (
        ["Orders-2", "Orders-3"],
        1,
        2,
        3,
    )
    assert (last.rows, last.number) == (["orders-1"], 2)
    assert beyond == last
    assert (list_page([], 1, "").rows, list_page([], 1, "").pages) == ([], 1)


def test_answers_have_the_order_of_their_questions_and_few_wait_at_once():
    waiting, most = 0, 0

    async def question(number):
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0)
        waiting -= 1
        return -number

    assert asyncio.run(ask_together(range(50), question)) == [-number for number in range(50)]
    assert most == lists.ASKED_TOGETHER_MAX


def test_a_question_that_fails_fails_all_with_its_own_error():
    async def question(number):
        if number == 3:
            raise ConnectFailed("no server listens there")
        return number

    with pytest.raises(ConnectFailed, match="no server listens there"):
        asyncio.run(ask_together(range(9), question))
