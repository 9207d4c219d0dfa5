"""Facts of txmq.protocol.java; the numbers come from String.hashCode of a JVM."""

import pytest

from txmq.protocol.java import string_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0), ("a", 97), ("é", 233), ("TagA", 2598919), ("TagB", 2598920), ("hello", 99162322),
        ("订单", 1129459), ("%RETRY%group", 995971261), ("polygenelubricants", -2147483648),
    ],
)  # fmt: skip
def test_the_hash_of_a_string_matches_java(text, expected):
    assert string_hash(text) == expected


def test_a_character_beyond_16_bits_is_hashed_as_its_two_surrogates():
    assert string_hash("\N{SNAKE}") == 1772400 == 31 * 0xD83D + 0xDC0D


def test_a_lone_surrogate_is_hashed_as_in_java():
    assert string_hash("\ud83d") == 55357
