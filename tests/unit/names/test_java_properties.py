import pytest

from txmq.errors import RemoteProtocolError
from txmq.protocol.java import dumps, loads


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=1\nb=2\n", {"a": "1", "b": "2"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("# note\n! note\n\n  a = 1 ", {"a": "1 "}),
        ("a:1\nb 2\nc\n", {"a": "1", "b": "2", "c": ""}),
        ("a = = 1", {"a": "= 1"}),
        ("a=one\\\n   two", {"a": "onetwo"}),
        ("a=one\\\\\nb=2", {"a": "one\\", "b": "2"}),
        ("a=one\\", {"a": "one"}),
        ("a\\ b\\=c=\\t\\u00e9\\q", {"a b=c": "\té" + "q"}),
        ("a=1\na=2", {"a": "2"}),
        ("é=ü", {"é": "ü"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
    ],
)
def test_properties_are_read_as_in_java(text, found):
    assert loads(text.encode()) == found


@pytest.mark.parametrize("data", [b"a=\xff", b"a=\\u12", b"a=\\ud800"])
def test_properties_that_are_not_valid_text_are_refused(data):
    with pytest.raises(RemoteProtocolError):
        loads(data)


def test_written_properties_are_read_back_unchanged():
    settings = {"a b": " x\ty\n", "#c": "d=e\\", "path": "C:\\temp"}

    assert loads(dumps(settings)) == settings


def test_booleans_are_written_as_in_java():
    assert dumps({"a": True, "b": 5000}) == b"a=true\nb=5000\n"
