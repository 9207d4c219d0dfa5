"""Facts of txmq.protocol.properties; the parsing table is that of RocketMQ's MessageDecoderTest."""

import pytest

from txmq.errors import LocalProtocolError
from txmq.protocol.properties import find, join, parse, render, without

TEXT = "KEYS\x01k1 k2\x02TAGS\x01A\x02XTAGS\x01no\x02"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        (" ", {}),
        ("aaa", {}),
        ("k1\x01v1", {"k1": "v1"}),
        ("k1\x01", {}),
        ("\x01v1", {}),
        ("k1\x01v1\x02", {"k1": "v1"}),
        ("k1\x01v1\x02k2\x01v2", {"k1": "v1", "k2": "v2"}),
        ("k1\x01v1\x02\x01v2", {"k1": "v1"}),
        ("k1\x01v1\x02k2\x01", {"k1": "v1"}),
        ("\x01v1\x02k2\x01v2", {"k2": "v2"}),
        ("k1\x01\x02k2\x01v2", {"k2": "v2"}),
        ("1\x011\x022\x012", {"1": "1", "2": "2"}),
        ("1\x01\x022\x012", {"2": "2"}),
        ("\x011\x022\x012", {"2": "2"}),
        ("1\x011\x022\x01", {"1": "1"}),
        ("1\x011\x02\x012", {"1": "1"}),
        ("\x02\x02a\x01b\x02\x02", {"a": "b"}),
        ("a\x01b\x01c\x02", {"a": "b\x01c"}),
        ("a\x011\x02a\x012\x02", {"a": "2"}),
    ],
)
def test_pairs_are_parsed_as_java_parses_them(text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("name", "value"), [("KEYS", "k1 k2"), ("TAGS", "A"), ("XTAGS", "no"), ("AGS", None)]
)
def test_one_property_is_found_without_parsing_all(name, value):
    assert find(TEXT, name) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("TAGS", None), ("TAGS\x01", None), ("TAGS\x01\x02", None), ("TAGS\x01A", "A"),
        ("a\x01b\x02TAGS\x01A", "A"), ("TAGS\x01A\x02TAGS\x01B\x02", "B"),
        ("TAGS\x01A\x02TAGS\x01\x02", "A"), ("a\x01TAGS\x01A\x02", None),
    ],
)  # fmt: skip
def test_find_agrees_with_parsing_all_properties(text, value):
    """A filter that reads the first of two tags would disagree with every client."""
    assert find(text, "TAGS") == value == parse(text).get("TAGS")


def test_rendered_pairs_each_end_with_a_separator_and_empty_ones_are_left_out():
    assert render({"a": "1", "b": "2"}) == "a\x011\x02b\x012\x02"
    assert render({"a": "", "": "1", "b": "2"}) == "b\x012\x02"


@pytest.mark.parametrize(
    "values",
    [{"a\x01": "1"}, {"a\x02": "1"}, {"a": "\x01"}, {"a": "\x02"}, {"a\x01": "\x02"}, {"": "\x01"}],
)
def test_a_separator_inside_a_name_or_value_is_refused(values):
    """Separators are never escaped, so the property would change the others."""
    with pytest.raises(LocalProtocolError):
        render(values)


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("KEYS", "TAGS\x01A\x02XTAGS\x01no\x02"),
        ("TAGS", "KEYS\x01k1 k2\x02XTAGS\x01no\x02"),
        ("XTAGS", "KEYS\x01k1 k2\x02TAGS\x01A\x02"),
        ("NONE", TEXT),
        ("AGS", TEXT),
    ],
)
def test_one_property_can_be_removed(name, rest):
    assert without(TEXT, name) == rest


def test_every_occurrence_of_a_property_is_removed():
    """Otherwise removing a delay would reveal an older one."""
    assert without("D\x011\x02a\x01b\x02D\x012\x02D\x013\x02", "D") == "a\x01b\x02"


def test_the_only_property_can_be_removed():
    assert without("WAIT\x01true\x02", "WAIT") == ""
    assert without("WAIT\x01true", "WAIT") == ""


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ("a\x011\x02", "b\x012\x02", "a\x011\x02b\x012\x02"),
        ("a\x011", "b\x012\x02", "a\x011\x02b\x012\x02"),
        ("", "b\x012\x02", "b\x012\x02"),
        ("a\x011\x02", "", "a\x011\x02"),
    ],
)
def test_a_missing_last_separator_is_added_when_texts_are_joined(first, second, both):
    """Old clients leave it out; without it the first appended property would join the last one."""
    assert join(first, second) == both
