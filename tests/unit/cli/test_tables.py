"""Tables fit the given width and cut no words."""

import pytest

from txmq.cli.output import table

COLUMNS = ["group", "behind", "waiting", "topics"]
ROWS = [
    ["billing-of-northern-branches", 1200, "4 for retry 2 of 16", "Orders Payments Refunds"],
    ["dunning", 0, "", "Bills"],
]


@pytest.fixture
def printed(monkeypatch, capsys):
    def run(columns, rows, width=None):
        monkeypatch.delenv("COLUMNS", raising=False)
        if width is not None:
            monkeypatch.setenv("COLUMNS", str(width))
        table(columns, rows)
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.parametrize("width", [80, 72, 60])
def test_a_table_fits_the_given_width_and_breaks_between_words(printed, width):
    lines = printed(COLUMNS, ROWS, width)

    assert max(map(len, lines)) <= width
    assert len(lines) > len(printed(COLUMNS, ROWS))
    words = " ".join(lines).split()
    assert {"billing-of-northern-branches", "1200", "Payments", "waiting"} <= set(words)


def test_on_a_narrow_screen_each_row_is_printed_as_a_list_of_fields(printed):
    lines = printed(COLUMNS, ROWS, 40)

    assert lines == [
        "",
        "group    billing-of-northern-branches",
        "behind   1200",
        "waiting  4 for retry 2 of 16",
        "topics   Orders Payments Refunds",
        "",
        "group    dunning",
        "behind   0",
        "waiting",
        "topics   Bills",
    ]


@pytest.mark.parametrize("width", [None, "", "0", "wide"])
def test_lines_in_a_pipe_are_not_wrapped(printed, width):
    rows = [["x" * 300, 1, "", ""]]

    assert any("x" * 300 in line for line in printed(COLUMNS, rows, width))
