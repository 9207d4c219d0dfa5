"""Text for people: control characters are shown by name, and a noun agrees with its count."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.text import printable, printable_json, quantity


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("账户已关闭", "账户已关闭"),
        ("حساب", "حساب"),
        ("a\x1b[31mb", "a⟨U+001B⟩[31mb"),
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("a\u200bb", "a⟨U+200B⟩b"),
        ("a\x00b", "a⟨U+0000⟩b"),
        ("a\ud800b", "a⟨U+D800⟩b"),
        ("a\r\nb\tc", "a  b c"),
    ],
)
def test_control_characters_are_shown_by_their_code_point(text, shown):
    assert printable(text) == shown


@given(st.text())
def test_any_text_becomes_one_printable_line(text):
    shown = printable(text)

    shown.encode()
    assert {unicodedata.category(sign) for sign in shown} & {"Cc", "Cf", "Co", "Cs"} == set()
    assert len(shown.splitlines()) <= 1
    assert printable(shown) == shown


@given(st.text(st.characters(exclude_categories=["Cs"])), st.booleans())
def test_printable_json_decodes_to_the_same_value(text, is_ascii):
    written = printable_json(json.dumps({"text": text}, ensure_ascii=is_ascii))

    assert json.loads(written) == {"text": text}
    assert {unicodedata.category(sign) for sign in written} & {"Cc", "Cf", "Co"} == set()


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
