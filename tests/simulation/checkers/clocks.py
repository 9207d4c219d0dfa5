"""What the wall clocks of brokers can have shown: they are set, and go too fast or too slowly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.simulation.delivery_history import ClockSet
from tests.simulation.history import Event

__all__ = ["Clocks"]


class Clocks:
    """The clocks of all brokers in one history."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._sets: dict[str, list[ClockSet]] = {}
        for event in events:
            if isinstance(event, ClockSet):
                self._sets.setdefault(event.broker, []).append(event)

    def lowest(self, broker: str, begin: float, end: float) -> int:
        """The least that a broker's clock showed from one second to another, in milliseconds."""
        shown = [setting.after_ms for setting in self._within(broker, begin, end)]
        return min([self._at(broker, begin), *shown])

    def highest(self, broker: str, begin: float, end: float) -> int:
        """The most that it showed then."""
        shown = [setting.before_ms for setting in self._within(broker, begin, end)]
        return max([self._at(broker, end), *shown])

    def _within(self, broker: str, begin: float, end: float) -> Iterator[ClockSet]:
        return (setting for setting in self._sets[broker] if begin < setting.at <= end)

    def _at(self, broker: str, second: float) -> int:
        last = self._sets[broker][0]
        for setting in self._sets[broker]:
            if setting.at <= second:
                last = setting
        return last.after_ms + round(1000 * (second - last.at) * last.rate)
