"""Charts: what is drawn where, in words too, and that names from the wire do nothing."""

import re
import xml.etree.ElementTree as ET

import pytest

from txmq.client import FigureHistory
from txmq.console.charts import HEIGHT, WIDTH, ChartLine, chart_of, highest, merged, value_text

HOUR_MS = 3600 * 1000
NOW_MS = 10 * HOUR_MS
SVG = "{http://www.w3.org/2000/svg}"


def drawn(*lines, span_ms=HOUR_MS):
    """The figure of some lines as a tree; HTML's parser adds the namespace itself."""
    html = str(chart_of("a", "Messages", "a second", lines, NOW_MS, span_ms))
    return ET.fromstring(html.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" '))


def places(figure, number=1):
    path = figure.find(f".//{SVG}path[@class='line-{number}']").get("d")
    return [
        (kind, float(x), float(y)) for kind, x, y in re.findall(r"([ML])([\d.]+) ([\d.]+)", path)
    ]


def points(*values, step_ms=HOUR_MS // 4):
    return [(NOW_MS - (len(values) - 1 - at) * step_ms, value) for at, value in enumerate(values)]


def test_a_line_goes_from_the_left_to_the_right_and_up():
    figure = drawn(ChartLine("in", points(0, 10, 20, 30, 40)))
    (first, *_, last) = places(figure)
    assert (first[0], last[0]) == ("M", "L")
    assert first[1] < last[1] <= WIDTH
    assert last[2] < first[2] < HEIGHT
    texts = [text.text for text in figure.iter(f"{SVG}text")]
    assert texts == ["0", "25", "50", "09:00", "09:30", "10:00"]


def test_it_is_told_in_words():
    figure = drawn(ChartLine("in", points(5, 40, 20)), ChartLine("out", points(None)))
    assert figure.find(f".//{SVG}title").text == "Messages"
    assert figure.find(f".//{SVG}desc").text == (
        "in: 20 a second now, at most 40 at 09:45, at least 5. out: nothing."
    )
    image = figure.find(f".//{SVG}svg")
    assert image.get("role") == "img"
    names = {item.get("id") for item in figure.iter() if item.get("id")}
    assert set(image.get("aria-labelledby").split()) < names


def test_a_missing_value_is_a_gap_and_a_lonely_one_a_dot():
    figure = drawn(ChartLine("in", points(1, 2, None, 3, None, 4, 5, step_ms=60_000)))
    assert [kind for kind, *_ in places(figure)] == ["M", "L", "M", "L"]
    assert len(figure.findall(f".//{SVG}circle")) == 1


def test_older_points_are_left_out():
    old = drawn(ChartLine("in", [(0, 9e9), *points(1, 2)]))
    assert len(places(old)) == 2
    assert "9e+9" not in str(old)


@pytest.mark.parametrize("values", [[], [None, None]])
def test_nothing_to_draw_is_a_sentence(values):
    figure = drawn(ChartLine("in", points(*values)))
    assert figure.find(f".//{SVG}svg") is None
    assert "There is nothing to draw yet." in "".join(figure.itertext())


def test_names_from_the_wire_are_escaped_and_short():
    hostile = "<script>x</script>\x1b\u202e" + "k" * 1_000_000
    figure = drawn(ChartLine(hostile, points(1, 2)))
    text = "".join(figure.itertext())
    assert figure.find(".//script") is None
    assert len(text) < 1_000
    assert "\x1b" not in text
    assert "\u202e" not in text


def history(broker, *rows, column="lag"):
    return FigureHistory(broker, 60, (column,), tuple((at, (value,)) for at, value in rows))


def test_figures_of_brokers_add_up_by_period():
    found = [
        history("a", (60_010, 1), (120_010, 2)),
        history("b", (61_000, 10), (121_000, None)),
        history("c", (60_000, 100), column="other"),
    ]
    assert merged(found, "lag") == [(60_000, 11), (120_000, 2)]
    assert merged(found, "lag", highest) == [(60_000, 10), (120_000, 2)]


def test_a_time_without_rows_is_a_gap():
    found = [history("a", (60_000, 1), (120_000, 2), (600_000, 3))]
    assert merged(found, "lag") == [(60_000, 1), (120_000, 2), (180_000, None), (600_000, 3)]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "none"), (0, "0"), (0.25, "0.25"), (999.4, "999"), (2_285, "2285"), (33_800, "33.8 k")]
    + [(12_000_000, "12 M")],
)
def test_values_are_short(value, text):
    assert value_text(value) == text
