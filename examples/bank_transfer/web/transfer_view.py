"""The view of a transfer: its nine steps, its state in the books, and its bookings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from examples.bank_transfer.books import Entry, State, Transfer
from examples.bank_transfer.orders import Order
from examples.bank_transfer.steps import NINE, Step
from examples.bank_transfer.ways import Way
from examples.bank_transfer.web.desk import DeskOrder
from examples.bank_transfer.web.page_templates import fragment

__all__ = ["HEADLINES", "Headline", "Line", "Note", "TransferView", "lines_of"]


class Note(NamedTuple):
    """An event beside the nine steps, and when it happened."""

    text: str
    after_ms: float
    """Since the first step."""


class Line(NamedTuple):
    """One of the nine steps: its sentence in the story, and txmq's log line when it was taken."""

    number: int
    story: str
    text: str = ""
    after_ms: float | None = None
    """Since the first step; None if it was not taken yet."""
    notes: tuple[Note, ...] = ()


class Headline(NamedTuple):
    """The state of a transfer, in a word and in a sentence."""

    word: str
    text: str
    mood: str
    """``good``, ``wait`` or ``bad``: for the eye, beside the word."""


HEADLINES: Final = {
    State.SENT: Headline("sent", "The debit is booked; CCB has not answered yet.", "wait"),
    State.SETTLED: Headline("settled", "The money is on the payee's account at CCB.", "good"),
    State.RETURNED: Headline("returned", "CCB could not credit it; the money came back.", "bad"),
    State.REFUSED: Headline("refused", "Nothing was booked.", "bad"),
    State.CREDITED: Headline("credited", "The money is on the payee's account.", "good"),
}
UNDER_WAY: Final = Headline("under way", "The debit is not booked yet.", "wait")
UNKNOWN: Final = Headline("not known yet", "The broker will ask ICBC for the result.", "wait")
NOT_MADE: Final = Headline("not made", "Nothing was booked.", "bad")

UNKNOWN_STATUS: Final = 202
AGAIN_STATUS: Final = 503


def lines_of(steps: Sequence[Step]) -> tuple[list[Line], list[Note]]:
    """All nine steps, taken or not, with the events within them; and the events after the last."""
    lines = [Line(number, story) for number, story in enumerate(NINE, 1)]
    after: list[Note] = []
    if not steps:
        return lines, after
    first_s, at = steps[0].at_s, 0
    for step in steps:
        after_ms = (step.at_s - first_s) * 1000
        if step.number:
            at = step.number - 1
            lines[at] = lines[at]._replace(text=step.text, after_ms=after_ms)
        elif at == len(NINE) - 1:
            after.append(Note(step.text, after_ms))
        else:
            lines[at] = lines[at]._replace(notes=(*lines[at].notes, Note(step.text, after_ms)))
    return lines, after


@dataclass(frozen=True, slots=True)
class TransferView:
    """A transfer at one moment: ordered at the desk, or in the books, or both."""

    id: str
    begun: DeskOrder | None
    row: Transfer | None
    entries: Sequence[Entry]
    steps: Sequence[Step]

    @property
    def order(self) -> Order:
        """The order."""
        if self.row is not None:
            row = self.row
            return Order(row.id, row.payer, row.payee, row.amount, row.currency)
        assert self.begun is not None, "the desk or the books have it"
        return self.begun.order

    @property
    def way(self) -> Way | None:
        """The way of notifying CCB; ``None`` in the books of the payee's bank."""
        if self.row is not None:
            return Way(self.row.way) if self.row.way else None
        return None if self.begun is None else self.begun.asked.way

    @property
    def headline(self) -> Headline:
        """The state, in words."""
        if self.row is not None:
            return HEADLINES[State(self.row.state)]
        if self.begun is None or self.begun.status is None:
            return UNDER_WAY
        return UNKNOWN if self.begun.status == UNKNOWN_STATUS else NOT_MADE

    @property
    def reason(self) -> str:
        """The reason for the state, if there is one."""
        if self.row is not None:
            return self.row.reason
        return "" if self.begun is None else self.begun.why

    @property
    def may_be_repeated(self) -> bool:
        """True if the same order may succeed now."""
        begun = self.begun
        return self.row is None and begun is not None and begun.status == AGAIN_STATUS

    @property
    def is_over(self) -> bool:
        """True if the transfer has ended."""
        if self.row is not None:
            return State(self.row.state).is_final
        return self.headline is NOT_MADE

    def parts(self) -> Iterator[tuple[str, str]]:
        """Each part of the page that changes: its name there, and what stands in it."""
        lines, after = lines_of(self.steps)
        shown = {"view": self, "lines": lines, "after": after}
        for name in ("state", "steps", "books"):
            yield name, fragment(f"_{name}.html", shown)
