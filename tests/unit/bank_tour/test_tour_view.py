"""The view of the tour fits on the screen and prints texts unchanged."""

import asyncio
import io

import pytest
from rich.console import Console

from examples.bank_transfer.books import State
from examples.bank_transfer.tour.audit import Books, Sheet, TransferTotal
from examples.bank_transfer.tour.record import Record
from examples.bank_transfer.tour.report import report, verdict
from examples.bank_transfer.tour.view import LINES_S, View
from tests.running import in_loop, run_by

MARKUP = "transfer 7: 500 ['not a style'] [/nor the end of one]"


def screen(**how):
    return Console(file=io.StringIO(), color_system=None, **how)


@pytest.fixture
def record():
    made = Record(wanted=20)
    books = Books("", {"CNY": 5, "EUR": 5}, {}, {("CNY", State.SENT, False): TransferTotal(1, 2)})
    made.sheet = Sheet(books, books, {"CNY": 10, "EUR": 10}, {"CNY": 0}, ())
    for number in range(20):
        made.tell(f"event {number}.")
    return made


@pytest.mark.parametrize(("height", "events"), [(24, 2), (30, 8), (60, 8)])
def test_a_low_screen_shows_the_latest_events(record, height, events):
    console = screen(force_terminal=True, width=80, height=height)

    console.print(View(record, console)._drawn())

    said = console.file.getvalue()
    assert said.count("\n") <= height
    assert [f"event {number}." in said for number in range(20)] == [
        number >= 20 - events for number in range(20)
    ]


@pytest.mark.parametrize("size", [(10, 5), (40, 24)])
def test_a_narrow_screen_can_be_drawn(record, size):
    width, height = size
    console = screen(force_terminal=True, width=width, height=height)

    console.print(View(record, console)._drawn())

    assert console.file.getvalue()


@pytest.mark.parametrize("how", [
    {"force_terminal": False},
    {"force_terminal": True, "_environ": {"TERM": "dumb"}},
])  # fmt: skip
@run_by(in_loop)
async def test_a_terminal_that_cannot_redraw_gets_lines(record, how):
    console = screen(width=200, **how)
    record.tell(MARKUP)

    async with asyncio.timeout(LINES_S):
        showing = asyncio.create_task(View(record, console).show())
        while MARKUP not in console.file.getvalue():
            await asyncio.sleep(0)
        showing.cancel()


def test_the_report_prints_mistakes_without_interpreting_markup(record):
    console = screen(width=200)
    record.mistake(MARKUP)

    report(record, console)

    assert MARKUP in console.file.getvalue()


NO_CENT = "passed: not a cent is lost, every transfer has ended"
DISAGREE = "the ledgers do not agree, or could not be reconciled"


@pytest.mark.parametrize(
    ("mistakes", "agree", "said"),
    [
        (0, True, f"{NO_CENT}, the ledgers agree"),
        (0, None, f"{NO_CENT}; the ledgers were not reconciled"),
        (0, False, f"failed: {DISAGREE}"),
        (1, None, "failed: 1 mistake, printed above"),
        (2, False, f"failed: 2 mistakes, printed above; {DISAGREE}"),
    ],
)
def test_the_verdict_is_printed_in_the_last_line(record, mistakes, agree, said):
    console = screen(width=40)
    for number in range(mistakes):
        record.mistake(f"wrong {number}")

    verdict(record, console, ledgers_agree=agree)

    assert console.file.getvalue() == f"verdict: {said}\n"
