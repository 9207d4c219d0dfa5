"""Facts of txmq.protocol.java; the numbers are what a JVM's own String.hashCode gave."""

import pytest

from txmq.protocol.java import string_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("é", 233),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("hello", 99162322),
        ("订单", 1129459),
        ("%RETRY%group", 995971261),
        ("polygenelubricants", -2147483648),
    ],
)
def test_the_hash_is_the_one_java_computes(text, expected):
    assert string_hash(text) == expected


def test_a_character_beyond_16_bits_counts_as_its_two_halves():
    assert string_hash("\N{SNAKE}") == 1772400 == 31 * 0xD83D + 0xDC0D


def test_half_a_character_has_a_hash_as_in_java():
    assert string_hash("\ud83d") == 55357
