"""The events, live on a terminal; or as lines without one."""

from __future__ import annotations

import asyncio
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from examples.bank_transfer.books import UNCLAIMED, State
from examples.bank_transfer.money import Money
from examples.bank_transfer.tour.audit import Books, Sheet
from examples.bank_transfer.tour.record import Event, Record

__all__ = ["View"]

TURN_S: Final = 0.2
LINES_S: Final = 5.0
"""How often a line with the progress is printed, without a terminal."""
EVENTS_SHOWN: Final = 8
FRAME: Final = 2
"""Lines of a panel that are not its own."""
CURRENCY: Final = "CNY"


class View:
    """Shows a record until it is cancelled.

    Args:
        record: The record to show.
        console: Where to show it.
    """

    def __init__(self, record: Record, console: Console) -> None:
        self._record = record
        self._console = console
        self._shown = 0
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(),
            TimeElapsedColumn(), console=console, expand=True,
        )  # fmt: skip
        self._task = self._bar.add_task(record.phase, total=None)

    async def show(self) -> None:
        """Show it, until cancelled."""
        if not self._console.is_terminal or self._console.is_dumb_terminal:
            await self._lines()
        with Live(self._drawn(), console=self._console, auto_refresh=False, transient=True) as live:
            try:
                while True:
                    await asyncio.sleep(TURN_S)
                    live.update(self._drawn(), refresh=True)
            finally:
                live.update(self._drawn(), refresh=True)

    async def _lines(self) -> None:
        turns = 0
        while True:
            for event in self._news():
                self._say(event.at_s, event.text)
            if turns * TURN_S >= LINES_S:
                turns = 0
                record = self._record
                self._say(
                    record.seconds, f"{record.phase}: {record.asked} of {record.wanted} answered, "
                    f"{_in_flight(record.sheet)} on its way",
                )  # fmt: skip
            turns += 1
            await asyncio.sleep(TURN_S)

    def _say(self, at_s: float, text: str) -> None:
        self._console.print(f"{at_s:7.1f} s  {text}", highlight=False, markup=False, soft_wrap=True)

    def _news(self) -> list[Event]:
        record = self._record
        fresh = min(record.event_count - self._shown, len(record.events))
        self._shown = record.event_count
        return list(record.events)[len(record.events) - fresh :] if fresh else []

    def _drawn(self) -> RenderableType:
        record = self._record
        self._bar.update(
            self._task, description=record.phase, completed=record.asked,
            total=record.wanted or None,
        )  # fmt: skip
        parts: list[RenderableType] = [self._bar]
        if record.sheet is not None:
            parts += [balances(record.sheet), transfers(record)]
        events = Text("\n").join(
            Text(f"{event.at_s:6.1f} s  {event.text}", style="bold red" if event.is_bad else "")
            for event in list(record.events)[-self._room(parts) :]
        )
        parts.append(Panel(events, title="events", title_align="left"))
        return Group(*parts)

    def _room(self, above: list[RenderableType]) -> int:
        """The number of events that fit on the screen."""
        taken = len(self._console.render_lines(Group(*above))) + FRAME
        return max(1, min(EVENTS_SHOWN, self._console.height - taken))


def balances(sheet: Sheet) -> Table:
    """A table of where the money is."""
    table = Table(title="where the money is", title_justify="left")
    table.add_column("")
    places: dict[str, list[str]] = {}
    for currency, opening in sheet.opening.items():
        table.add_column(currency, justify="right")
        here, there = (books.balances.get(currency, 0) for books in (sheet.icbc, sheet.ccb))
        unclaimed = sheet.icbc.journal.get((currency, UNCLAIMED), 0)
        flying = sheet.in_flight.get(currency, 0)
        for place, amount in (
            ("with customers of ICBC", here),
            ("on its way", flying),
            ("with customers of CCB", there),
            ("unclaimed", unclaimed),
            ("together", here + flying + there + unclaimed),
            ("at the beginning", opening),
        ):
            shown = str(Money(amount, currency)).removesuffix(f" {currency}")
            places.setdefault(place, []).append(shown)
    for place, amounts in places.items():
        table.add_row(place, *amounts)
    return table


def transfers(record: Record) -> Table:
    """A table of transfers by state at each bank, and of kills."""
    table = Table(title="transfers", title_justify="left")
    sheet = record.sheet
    assert sheet is not None, "the auditor has read the books"
    for column in ("", *State, "killed"):
        table.add_column(str(column), justify="right" if column else "left")
    for name, books in (("ICBC", sheet.icbc), ("CCB", sheet.ccb)):
        table.add_row(name, *_counts(books), str(record.kills[name]))
    table.add_row("the broker", *("" for _ in State), str(record.kills["the broker"]))
    return table


def _counts(books: Books) -> list[str]:
    return [str(books.count(state) or "") for state in State]


def _in_flight(sheet: Sheet | None) -> str:
    if sheet is None:
        return "nothing"
    return str(Money(sheet.in_flight.get(CURRENCY, 0), CURRENCY))
