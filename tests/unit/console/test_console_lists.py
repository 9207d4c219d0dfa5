"""Lists cut into pages."""

from txmq.console.pages import parts
from txmq.console.pages.parts import list_page


def test_a_list_is_searched_sorted_and_cut(monkeypatch):
    monkeypatch.setattr(parts, "CONSOLE_ROWS", 2)
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
