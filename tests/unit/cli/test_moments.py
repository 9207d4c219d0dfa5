import pytest

from txmq.ops.moments import EARLIEST, LATEST, age_of, moment_ms

NOW = 1_714_564_800_000


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("2024-05-01T12:00:00Z", NOW),
        ("2024-05-01T12:00", NOW),
        ("2024-05-01 14:00+02:00", NOW),
        ("2024-05-01", NOW - 12 * 3_600_000),
        ("1714564800000", NOW),
        ("2h", NOW - 7_200_000),
        (" 90s ", NOW - 90_000),
        ("1d", NOW - 86_400_000),
    ],
)
def test_moments_are_parsed(text, moment):
    assert moment_ms(text, NOW) == moment


@pytest.mark.parametrize("text", ["", "yesterday", "-2h", "12", "1714564800", "2024-13-01", "2x"])
def test_invalid_moments_are_refused(text):
    """A bare number could be seconds, an offset or a year, so it is refused."""
    with pytest.raises(ValueError, match="a moment such as"):
        moment_ms(text, NOW)


@pytest.mark.parametrize(
    ("age_ms", "text"),
    [
        (-5, "0 s"),
        (119_999, "119 s"),
        (120_000, "2 min"),
        (7_200_000, "2 h"),
        (2 * 86_400_000, "2 d"),
    ],
)
def test_ages_are_printed_in_seconds_minutes_hours_or_days(age_ms, text):
    assert age_of(age_ms) == text
