"""Line charts as SVG, drawn at the server: no script, readable without a mouse. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from math import floor, log10
from typing import Final, NamedTuple

from markupsafe import Markup

from txmq.client import FigureHistory
from txmq.text import printable

__all__ = ["ChartLine", "chart_of", "highest", "merged", "total"]

WIDTH: Final = 360
HEIGHT: Final = 150
_LEFT: Final = 44
_RIGHT: Final = 8
_TOP: Final = 8
_BOTTOM: Final = 22
_LINES: Final = 8
"""Styles of lines in the style sheet."""
_NAME_CHARS: Final = 40
_STEPS: Final = (1, 2, 2.5, 5, 10)
_GAP: Final = 2.5
"""Periods without a row that make a gap: the broker was down."""

Point = tuple[int, float | None]


class ChartLine(NamedTuple):
    """One line of a chart."""

    name: str
    points: Sequence[Point]
    """Times in milliseconds since 1970, in order, and values; ``None`` makes a gap."""


def total(values: Iterable[float]) -> float:
    """How brokers' values of one figure are joined that add up."""
    return sum(values)


def highest(values: Iterable[float]) -> float:
    """How durations of brokers are joined: the slowest counts."""
    return max(values)


def merged(
    found: Iterable[FigureHistory], column: str, join: Callable[[Iterable[float]], float] = total
) -> list[Point]:
    """One figure of several brokers, whose rows were not taken at the same moments.

    Args:
        found: The histories of the brokers.
        column: The figure.
        join: Joins the values of the brokers in each period.
    """
    by_period: dict[int, list[float]] = {}
    period_ms = 0
    for history in found:
        if column not in history.columns:
            continue
        at, period_ms = history.columns.index(column), history.period_s * 1000
        for time_ms, values in history.rows:
            period = by_period.setdefault(time_ms // period_ms * period_ms, [])
            value = values[at]
            if value is not None:
                period.append(value)
    points: list[Point] = []
    for time_ms, known in sorted(by_period.items()):
        if points and time_ms - points[-1][0] > _GAP * period_ms:
            points.append((points[-1][0] + period_ms, None))
        points.append((time_ms, join(known) if known else None))
    return points


def chart_of(
    name: str, title: str, unit: str, lines: Sequence[ChartLine], now_ms: int, span_ms: int
) -> Markup:
    """A chart as a figure with its caption, or a sentence if there is nothing to draw.

    Args:
        name: An identifier, different for each chart of a page.
        title: What the chart shows.
        unit: The unit of its values.
        lines: The lines.
        now_ms: The right end.
        span_ms: The time from the left end to the right one.
    """
    since_ms = now_ms - span_ms
    shown = [
        ChartLine(line.name, [point for point in line.points if point[0] >= since_ms])
        for line in lines[:_LINES]
    ]
    caption = Markup("<figcaption>{}<small>{}, times in UTC</small></figcaption>").format(
        title, unit
    )
    if not any(value is not None for line in shown for _, value in line.points):
        text = Markup('<p class="hint">There is nothing to draw yet.</p>')
        return Markup('<figure class="chart" id="chart-{}">{}{}</figure>').format(
            name, caption, text
        )
    top = _top_of(value for line in shown for _, value in line.points if value is not None)
    plot = _Plot(since_ms, span_ms, top)
    parts = [plot.grid(), *(plot.line(line, number) for number, line in enumerate(shown, 1))]
    described = " ".join(_described(line, unit) for line in shown)
    drawing = Markup(
        '<svg viewBox="0 0 {width} {height}" role="img" '
        'aria-labelledby="chart-{name}-title chart-{name}-about">'
        '<title id="chart-{name}-title">{title}</title>'
        '<desc id="chart-{name}-about">{described}</desc>{parts}</svg>'
    ).format(
        width=WIDTH,
        height=HEIGHT,
        name=name,
        title=title,
        described=described,
        parts=Markup("").join(parts),
    )
    return Markup('<figure class="chart" id="chart-{}">{}{}{}</figure>').format(
        name, caption, drawing, _legend(shown)
    )


class _Plot:
    def __init__(self, since_ms: int, span_ms: int, top: float) -> None:
        self._since_ms = since_ms
        self._span_ms = span_ms
        self._top = top

    def grid(self) -> Markup:
        """The axes, with the marks of values and times."""
        parts: list[Markup] = []
        for share in (0.0, 0.5, 1.0):
            y = self._y(self._top * share)
            parts.append(
                Markup(
                    '<line class="grid" x1="{}" y1="{y}" x2="{}" y2="{y}"/>'
                    '<text x="{}" y="{}" text-anchor="end">{}</text>'
                ).format(
                    _LEFT, WIDTH - _RIGHT, _LEFT - 6, _short(y + 4), value_text(self._top * share),
                    y=_short(y),
                )
            )  # fmt: skip
        for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
            at_ms = self._since_ms + int(self._span_ms * share)
            parts.append(
                Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(
                    _short(self._x(at_ms)), HEIGHT - 6, anchor, _clock(at_ms)
                )
            )
        return Markup("").join(parts)

    def line(self, line: ChartLine, number: int) -> Markup:
        """A line, with gaps where values are missing; a lonely value is a dot."""
        steps: list[str] = []
        dots: list[Markup] = []
        previous: float | None = None
        points = [*line.points, (0, None)]
        for (at_ms, value), (_, following) in pairwise(points):
            if value is not None:
                x, y = _short(self._x(at_ms)), _short(self._y(value))
                if previous is None and following is None:
                    dots.append(
                        Markup('<circle class="line-{}" cx="{}" cy="{}" r="1.5"/>').format(
                            number, x, y
                        )
                    )
                else:
                    steps.append(f"{'M' if previous is None else 'L'}{x} {y}")
            previous = value
        path = Markup('<path class="line-{}" d="{}"/>').format(number, " ".join(steps))
        return Markup("").join([path, *dots] if steps else dots)

    def _x(self, at_ms: int) -> float:
        share = (at_ms - self._since_ms) / self._span_ms
        return _LEFT + share * (WIDTH - _LEFT - _RIGHT)

    def _y(self, value: float) -> float:
        return _TOP + (1 - value / self._top) * (HEIGHT - _TOP - _BOTTOM)


def _legend(lines: Sequence[ChartLine]) -> Markup:
    items = [
        Markup('<li class="line-{}">{} <b>{}</b></li>').format(
            number, _name(line), value_text(_last(line))
        )
        for number, line in enumerate(lines, 1)
    ]
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))


def _described(line: ChartLine, unit: str) -> str:
    known = [(value, at_ms) for at_ms, value in line.points if value is not None]
    if not known:
        return f"{_name(line)}: nothing."
    (most, when), least = max(known), min(known)[0]
    return (
        f"{_name(line)}: {value_text(_last(line))} {unit} now, at most {value_text(most)} at "
        f"{_clock(when)}, at least {value_text(least)}."
    )


def _name(line: ChartLine) -> str:
    shown = printable(line.name[:_NAME_CHARS])
    return shown if len(line.name) <= _NAME_CHARS else f"{shown}…"


def _last(line: ChartLine) -> float | None:
    return next((value for _, value in reversed(line.points) if value is not None), None)


def _top_of(values: Iterable[float]) -> float:
    """A round number at or above all values."""
    most = max(values)
    if most <= 0:
        return 1.0
    power = 10.0 ** floor(log10(most))
    return next(step * power for step in _STEPS if step * power >= most * 0.9999)


def value_text(value: float | None) -> str:
    """A value in a few characters: 0.25, 12, 3.4 k, 12 M."""
    if value is None:
        return "none"
    if value >= 1_000_000:
        return f"{value / 1_000_000:.3g} M"
    if value >= 10_000:
        return f"{value / 1_000:.3g} k"
    return f"{value:.3g}" if value < 1_000 else f"{value:.0f}"


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M")


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
