"""One message, two messages."""

import pytest

from txmq.text import quantity


@pytest.mark.parametrize(
    ("count", "words", "shown"),
    [
        (0, ("message",), "0 messages"),
        (1, ("message",), "1 message"),
        (2, ("message",), "2 messages"),
        (1, ("retry", "retries"), "1 retry"),
        (3, ("retry", "retries"), "3 retries"),
        (1, ("row was", "rows were"), "1 row was"),
    ],
)
def test_a_noun_agrees_with_its_count(count, words, shown):
    assert quantity(count, *words) == shown
