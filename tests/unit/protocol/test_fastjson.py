"""Facts of txmq.protocol.fastjson: what Java reads beyond JSON, and the limits on its cost."""

import pytest

from txmq.errors import RemoteProtocolError
from txmq.limits import JSON_DEPTH_MAX
from txmq.protocol.fastjson import BYTES_MAX, loads, object_keyed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"{}", {}),
        (b"[]", []),
        (b' \t\r\n{ "a" : [ 1 , 2 ] } \n', {"a": [1, 2]}),
        (b"null", None),
        (b"true", True),
        (b"false", False),
        (b"0", 0),
        (b"-12", -12),
        (b"1.5", 1.5),
        (b"-1e3", -1000.0),
        (b"1E+2", 100.0),
        (b"9223372036854775808", 2**63),
        (b'""', ""),
        (b'"a\\"\\\\\\/\\b\\f\\n\\r\\t"', 'a"\\/\b\f\n\r\t'),
        (b'"\\u00e9\\uD83D\\udc0d"', "é\N{SNAKE}"),
        ('"\N{SNAKE}\'"'.encode(), "\N{SNAKE}'"),
        (b'{"a":1,"a":2}', {"a": 2}),
    ],
)
def test_json_is_read_as_json(text, value):
    found = loads(text)

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param(b'{0:"h:1",1:"h:2"}', {"0": "h:1", "1": "h:2"}, id="integer-key"),
        pytest.param(b"{-1:2}", {"-1": 2}, id="negative-key"),
        pytest.param(b"{name:1,$x_1:2}", {"name": 1, "$x_1": 2}, id="word-key"),
        pytest.param(b"{'a':'it\\'s \"it\"'}", {"a": 'it\'s "it"'}, id="single-quotes"),
        pytest.param(b"[1,2,]", [1, 2], id="comma-in-array"),
        pytest.param(b'{"a":1,}', {"a": 1}, id="comma-in-object"),
        pytest.param(b'"\\x41\\0\\v\\q"', "A\0\vq", id="odd-escapes"),
        pytest.param(b'"a\nb"', "a\nb", id="bare-line-break"),
        pytest.param(b"007", 7, id="leading-zeros"),
        pytest.param(
            b'{"t":{{"topic":"T","queueId":0,"brokerName":"b"}:12}}',
            {"t": {(("brokerName", "b"), ("queueId", 0), ("topic", "T")): 12}},
            id="object-key",
        ),
        pytest.param(b"{{}:1}", {(): 1}, id="empty-object-key"),
    ],
)
def test_the_json_dialect_of_java_is_read(text, value):
    assert loads(text) == value


def test_the_order_of_members_of_an_object_key_does_not_matter():
    one = loads(b'{{"a":1,"b":2}:0}')
    other = loads(b'{{"b":2,"a":1}:0}')

    assert one == other


@pytest.mark.parametrize(
    "text",
    [
        b"", b" ", b"{", b"[", b"[1", b"[1 2]", b"[,]", b"{,}", b'{"a"}', b'{"a":}', b'{"a":1',
        b'{"a" 1}', b'{"a":1 "b":2}', b"{:1}", b"{[1]:1}", b"{1a:1}", b"}", b"nul", b"True", b"NaN",
        b"Infinity", b"-", b"+1", b".5", b"1 2", b"{} x", b'"', b'"a', b'"\\', b'"\\u12',
        b'"\\u12G4"', b'"\\x4"', b"'a\"", b'"\\ud83d"', b'"\\udc0d\\ud83d"', b'"\xff"',
        b"\xed\xa0\xbd", b"\xef\xbb\xbf{}", b"undefined", b"{{1:{}}:2}", b'{{"a":[1]}:2}',
        b'{{"a":{}}:2}', b'{{{"a":1}:2}:3}',
    ],
)  # fmt: skip
def test_text_outside_the_dialect_is_refused(text):
    with pytest.raises(RemoteProtocolError):
        loads(text)


def test_a_syntax_error_is_reported_with_its_position():
    with pytest.raises(RemoteProtocolError, match="missing colon after a key at character 4"):
        loads(b'{"a"}')


@pytest.mark.parametrize(
    "nest",
    [
        pytest.param(lambda depth: b"[" * depth + b"]" * depth, id="arrays"),
        pytest.param(lambda depth: b'{"a":' * depth + b"1" + b"}" * depth, id="objects"),
        pytest.param(lambda depth: b"[" * depth, id="unfinished"),
    ],
)
def test_nesting_beyond_the_limit_is_refused(nest):
    with pytest.raises(RemoteProtocolError, match="nested deeper"):
        loads(nest(JSON_DEPTH_MAX + 2))
    with pytest.raises(RemoteProtocolError, match="nested deeper"):
        loads(nest(100_000))


def test_nesting_within_the_limit_is_read():
    value = loads(b"[" * JSON_DEPTH_MAX + b"]" * JSON_DEPTH_MAX)

    depth = 1
    while value:
        (value,) = value
        depth += 1
    assert depth == JSON_DEPTH_MAX


def test_objects_used_as_keys_count_towards_the_nesting_limit():
    with pytest.raises(RemoteProtocolError, match="nested deeper"):
        loads(b"{" * 200_000)


@pytest.mark.parametrize("text", [b"9" * 41, b"-" + b"9" * 5000, b"0." + b"1" * 5000])
def test_a_number_longer_than_any_real_one_is_refused(text):
    """Python converts long numbers to and from text in quadratic time."""
    with pytest.raises(RemoteProtocolError, match="number too long"):
        loads(text)


def test_text_above_the_size_limit_is_refused():
    """One frame of 16 MiB would stop everything else for a quarter of a minute."""
    assert loads(b" " * (BYTES_MAX - 2) + b"{}") == {}
    with pytest.raises(RemoteProtocolError, match="too long"):
        loads(b" " * (BYTES_MAX - 1) + b"{}")


def test_a_float_that_is_too_large_is_read_as_infinity():
    assert loads(b"1e999") == float("inf")


def test_a_map_with_objects_as_keys_is_written_as_java_reads_it():
    written = object_keyed([({"topic": "T", "queueId": 0}, 12), ({"topic": "é"}, {"a": [1]})])

    assert written == '{{"topic":"T","queueId":0}:12,{"topic":"é"}:{"a":[1]}}'.encode()
    assert object_keyed([]) == b"{}"
