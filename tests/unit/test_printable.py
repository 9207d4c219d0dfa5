"""What a terminal would obey is shown."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.text import printable, printable_json


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
def test_what_would_be_obeyed_is_shown_by_its_number(text, shown):
    assert printable(text) == shown


@given(st.text())
def test_all_of_a_text_can_be_seen_and_written(text):
    shown = printable(text)

    shown.encode()
    assert {unicodedata.category(each) for each in shown} & {"Cc", "Cf", "Co", "Cs"} == set()
    assert len(shown.splitlines()) <= 1
    assert printable(shown) == shown


@given(st.text(st.characters(exclude_categories=["Cs"])), st.booleans())
def test_json_keeps_its_meaning(text, is_ascii):
    written = printable_json(json.dumps({"text": text}, ensure_ascii=is_ascii))

    assert json.loads(written) == {"text": text}
    assert {unicodedata.category(sign) for sign in written} & {"Cc", "Cf", "Co"} == set()
