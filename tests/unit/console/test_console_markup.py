"""How templates show text from the wire."""

import re

import pytest

from txmq.console.body_view import HEX_BYTES, SHOWN_BYTES, body_view
from txmq.console.markup import CHARS_SHOWN, PageMarkup, link, url_of

HOSTILE = "<img src=x onerror=alert(1)>\"'\x1b[31m\u202e\u200b{{7*7}}"


def shown(text):
    values = {"problem_text": text, "status": 503}
    return PageMarkup().live("problem.html", values).html


def test_text_is_escaped_and_control_characters_are_visible():
    found = shown(HOSTILE)

    assert "<img" not in found
    assert "&lt;img src=x onerror=alert(1)&gt;&#34;&#39;" in found
    assert "⟨U+001B⟩[31m⟨U+202E⟩⟨U+200B⟩{{7*7}}" in found
    assert not re.search("[\x00-\x08\x1b\u202e\u200b]", found)


def test_a_long_text_is_cut_and_says_how_long_it_is():
    found = shown("x" * 1_000_000)

    assert len(found) < 2 * CHARS_SHOWN
    assert "(1000000 characters)" in found or "(1,000,000 characters)" in found


def test_a_lone_surrogate_is_shown_and_can_be_part_of_a_url():
    assert "⟨U+D800⟩" in shown("\ud800")
    url_of("/topic", name="\ud800").encode()


def test_link_parameters_are_encoded_in_full_length():
    name = 'a&b=c#d?e/f"<>\n' + "x" * 1_000

    found = url_of("/topic", name=name, page=2, search="")

    assert re.fullmatch(r"/topic\?name=[A-Za-z0-9%_.-]+&page=2", found)
    assert str(link("/topic", name="a", page=2)) == "/topic?name=a&amp;page=2"
    assert len(link("/topic", name=name)) > 1_000


def test_the_mark_of_a_page_changes_with_its_live_content():
    markup = PageMarkup()
    first, second = (
        markup.live("problem.html", {"problem_text": text, "status": 503}) for text in "ab"
    )

    assert first.mark != second.mark
    assert first == markup.live("problem.html", {"problem_text": "a", "status": 503})


@pytest.mark.parametrize(
    ("body", "forms"),
    [
        (b'{"amount": 6000}', ("json", "text", "hex")),
        (b"6000", ("text", "hex")),
        (b"", ("text", "hex")),
        ("¥6,000".encode(), ("text", "hex")),
        (b"\xff\x00", ("hex",)),
        (b"[" * 100_000, ("text", "hex")),
        (b"[" * 10_000, ("text", "hex")),
    ],
)
def test_a_body_offers_the_forms_it_can_be_read_in(body, forms):
    found = body_view(body)

    assert (found.forms, found.form, found.size) == (forms, forms[0], len(body))
    assert body_view(body, "hex").form == "hex"
    assert body_view(body, "nothing").form == forms[0]


def test_json_is_indented_and_hex_lines_show_the_text_too():
    assert body_view(b'{"a":[1]}').lines == ("{", '  "a": [', "    1", "  ]", "}")
    (row,) = body_view(b"pay\x00\xff", "hex").lines
    assert row == "000000  70 61 79 00 ff                                   pay.."


def test_a_large_body_is_cut_between_characters():
    found = body_view("é".encode() * SHOWN_BYTES, "text")

    assert set("".join(found.lines)) == {"é"}
    assert (found.size, found.shown) == (2 * SHOWN_BYTES, SHOWN_BYTES)
    cut = body_view(b"x" + "é".encode() * SHOWN_BYTES, "text")
    assert set("".join(cut.lines)) == {"x", "é"}
    assert len(body_view(b"\xff" * 10 * HEX_BYTES).lines) == HEX_BYTES // 16
