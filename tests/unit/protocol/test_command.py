"""Facts of txmq.protocol.command: one header in two encodings, and the habits of each client."""

import json

import pytest

from txmq.errors import LocalProtocolError, RemoteProtocolError
from txmq.limits import HEADER_FIELDS_MAX, LAX_HEADER_BYTES_MAX
from txmq.protocol import header_binary
from txmq.protocol.command import (
    BINARY,
    JSON,
    ONEWAY,
    VERSION,
    Command,
    FrameReader,
    answer,
    decode,
    encode,
)
from txmq.protocol.headers import (
    EndTransaction,
    OffsetAnswer,
    PullMessage,
    QueueHeader,
    RouteQuery,
    SendAnswer,
    SendMessageV2,
    TopicHeader,
)


def received(header, body=b"", kind=JSON):
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return decode((kind, data, body))


def sent(data):
    (part,) = FrameReader().feed(data)
    return part


# Reading


def test_a_header_as_java_writes_it_is_read():
    command = received(
        b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":409}',
        b"body",
    )

    assert (command.code, command.opaque, command.flag, command.version) == (105, 7, 0, 409)
    assert command.client_language == "JAVA"
    assert command.remark is None
    assert command.kind == JSON
    assert command.body == b"body"
    assert command.field_map() == {"topic": "T"}
    assert not command.is_answer
    assert not command.is_oneway


def test_a_header_as_go_writes_it_is_read():
    command = received(
        b'{"code":34,"language":"GO","version":317,"opaque":1,"flag":0,"remark":"",'
        b'"extFields":null}'
    )

    assert command.client_language == "GO"
    assert command.remark == ""
    assert command.field_map() == {}


def test_a_header_as_the_cpp_client_writes_it_is_read():
    """It has numbers in place of texts, booleans as digits, and a line break after the object."""
    command = received(
        b'{"code":105,"extFields":{"topic":"T","acceptStandardJsonOnly":"0","queueId":3},"flag":0,'
        b'"language":"CPP","opaque":2,"version":63}\n'
    )

    assert command.client_language == "CPP"
    assert command.read(RouteQuery) == RouteQuery(topic="T", accept_standard_json_only=False)
    assert command.read(QueueHeader) == QueueHeader(topic="T", queue_id=3)


def test_a_header_in_the_json_dialect_of_java_is_read():
    command = received(b"{code:'105',opaque:-1,extFields:{topic:'T',queueId:3,},}")

    assert (command.code, command.opaque) == (105, -1)
    assert command.read(QueueHeader) == QueueHeader(topic="T", queue_id=3)


def test_fields_of_any_plain_kind_become_text():
    command = received(
        b'{"code":1,"extFields":{"a":true,"b":false,"c":1,"d":-1.5,"e":"x","f":null,{"g":1}:2}}'
    )

    assert command.field_map() == {"a": "true", "b": "false", "c": "1", "d": "-1.5", "e": "x"}


@pytest.mark.parametrize(
    ("flag", "is_answer", "is_oneway"),
    [(0, False, False), (1, True, False), (2, False, True), (3, True, True)],
)
def test_two_bits_of_the_flag_mark_answers_and_oneway_requests(flag, is_answer, is_oneway):
    command = received({"code": 1, "flag": flag})

    assert command.is_answer is is_answer
    assert command.is_oneway is is_oneway


@pytest.mark.parametrize("opaque", [0, -1, 2**31 - 1, -(2**31)])
def test_the_opaque_of_a_request_can_be_any_32_bit_number(opaque):
    assert received({"code": 1, "opaque": opaque}).opaque == opaque
    assert sent(answer(received({"code": 1, "opaque": opaque})))[1].count(
        f'"opaque":{opaque},'.encode()
    )


@pytest.mark.parametrize("language", ["NODEJS", "", 99, None])
def test_an_unknown_language_is_accepted(language):
    assert received({"code": 1, "language": language}).client_language == "OTHER"


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":1,"extFields":null}',
        b'{"code":1}',
        b'{"code":1,"extFields":{}}',
        b"{code:1}",
        b"{code:1,extFields:null}",
    ],
)
def test_a_header_without_fields_is_read(header):
    command = received(header)

    with pytest.raises(RemoteProtocolError, match="TopicHeader: .*topic"):
        command.read(TopicHeader)
    assert command.field_map() == {}


def test_internal_attribute_names_have_no_meaning_in_a_header():
    """A peer must not set our own attributes by writing them into its header."""
    strict = received(
        b'{"code":1,"kind":1,"body":"aGk=","fields":{"topic":"evil"},"ext":{"topic":"evil"},'
        b'"extFields":{"topic":"T"}}',
        b"body",
    )
    lax = received(
        b'{"code":"1","kind":"x","body":5,"fields":{"topic":"evil"},"ext":[],'
        b'"extFields":{"topic":"T"}}',
        b"body",
    )

    for command in (strict, lax):
        assert command.kind == JSON
        assert command.body == b"body"
        assert command.read(TopicHeader) == TopicHeader("T")
        assert command.field_map() == {"topic": "T"}


@pytest.mark.parametrize(
    "ours", [b'"kind":1', b'"kind":0', b'"fields":{"a":"evil"}', b'"fields":null']
)
def test_internal_attribute_names_have_no_meaning_in_an_end_transaction(ours):
    fields = (
        b'"producerGroup":"P","tranStateTableOffset":"1","commitLogOffset":"2",'
        b'"commitOrRollback":"8"'
    )

    command = received(b'{"code":37,"body":"aGk=",%b,"extFields":{%b}}' % (ours, fields), b"body")

    assert (command.kind, command.body) == (JSON, b"body")
    assert command.read(EndTransaction) == EndTransaction("P", 1, 2, 8)


def test_of_two_fields_with_one_name_the_last_one_counts():
    header = b'{"code":1,"code":2,"extFields":{"topic":"a"},"extFields":{"topic":"b","topic":"c"}}'

    command = received(header)

    assert command.code == 2
    assert command.read(TopicHeader) == TopicHeader("c")
    assert command.field_map() == {"topic": "c"}


def test_unknown_fields_are_ignored():
    fields = {"topic": "T", "bname": "b", "ns": "n", "lo": True, "AccessKey": "k"}
    command = received({"code": 105, "extFields": fields})

    assert command.read(TopicHeader) == TopicHeader("T")


def test_fields_can_be_read_as_several_header_types():
    command = received({"code": 1, "extFields": {"topic": "T", "queueId": 5}})

    assert command.read(QueueHeader) == QueueHeader("T", 5)
    assert command.read(TopicHeader) == TopicHeader("T")


SEND = dict.fromkeys("abc", "x") | dict.fromkeys("defgh", "1")


def test_a_send_is_read_alike_on_the_fast_and_the_slow_path():
    """Its fields are read together with the rest if the code comes first."""
    fast = received({"code": 310, "opaque": 5, "extFields": SEND | {"bname": "b"}}, b"body")
    slow = received({"opaque": 5, "code": 310, "extFields": SEND | {"bname": "b"}}, b"body")

    for command in (fast, slow):
        assert (command.code, command.opaque, command.body, command.kind) == (310, 5, b"body", JSON)
        assert command.read(SendMessageV2) == slow.read(SendMessageV2)
    assert fast.field_map() == SEND
    assert slow.field_map() == SEND | {"bname": "b"}


def test_a_send_read_as_another_header_type_is_refused():
    command = received({"code": 310, "extFields": SEND})

    with pytest.raises(RemoteProtocolError, match="TopicHeader"):
        command.read(TopicHeader)


END = {
    "producerGroup": "P", "tranStateTableOffset": "7", "commitLogOffset": "4711",
    "commitOrRollback": "8",
}  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"fromTransactionCheck": "true", "msgId": "u", "transactionId": "u"},
        {"fromTransactionCheck": "false", "topic": "T"},
        {"fromTransactionCheck": "True", "msgId": None},
        {"bname": "b", "anything": "else"},
    ],
)
def test_an_end_is_read_alike_on_the_fast_and_the_slow_path(more):
    fast = received({"code": 37, "opaque": 5, "extFields": END | more})
    slow = received({"opaque": 5, "code": 37, "extFields": END | more})

    for command in (fast, slow):
        assert (command.code, command.opaque, command.kind) == (37, 5, JSON)
        assert command.read(EndTransaction) == slow.read(EndTransaction)
        assert command.read(EndTransaction).commit_log_offset == 4711
    assert fast.field_map().items() >= END.items()


@pytest.mark.parametrize(("code", "known"), [(310, SEND), (37, END)], ids=["send", "end"])
def test_the_last_code_counts_in_a_send_or_an_end_whose_code_is_given_twice(code, known):
    fields = known | {"topic": "T"}
    header = b'{"code":%d,"extFields":%b,"code":105}' % (code, json.dumps(fields).encode())

    command = received(header)

    assert command.code == 105
    assert command.read(TopicHeader) == TopicHeader("T")
    assert command.field_map() == fields


@pytest.mark.parametrize(
    ("kind", "code", "fields", "named"),
    [
        *((SendMessageV2, 310, SEND | {name: None}, name) for name in "abcdefgh"),
        *((EndTransaction, 37, END | {name: None}, name) for name in END),
        *(
            (EndTransaction, 37, END | {"commitLogOffset": number}, None)
            for number in ("9223372036854775808", "x", "1.5", "")
        ),
    ],
    ids=[
        *(f"send without {name}" for name in "abcdefgh"),
        *(f"end without {name}" for name in END),
        *(f"end at {number}" for number in ("2**63", "a letter", "a fraction", "nothing")),
    ],
)
def test_a_send_or_an_end_with_a_wrong_field_is_refused_when_its_fields_are_read(
    kind, code, fields, named
):
    """Not before: the answer needs the opaque of the header."""
    command = received({"code": code, "opaque": 5, "extFields": fields})

    assert command.opaque == 5
    with pytest.raises(RemoteProtocolError, match=named):
        command.read(kind)


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="cut"),
        pytest.param(b"[]", id="no-object"),
        pytest.param(b"null", id="null"),
        pytest.param(b"{}", id="no-code"),
        pytest.param(b'{"code":null}', id="null-code"),
        pytest.param(b'{"code":"x"}', id="code-no-number"),
        pytest.param(b'{"code":1.5}', id="code-no-integer"),
        pytest.param(b'{"code":2147483648}', id="code-too-large"),
        pytest.param(b'{"code":1e30}', id="code-huge"),
        pytest.param(b'{"code":' + b"9" * 5000 + b"}", id="code-endless"),
        pytest.param(b'{"code":1,"opaque":-2147483649}', id="opaque-too-small"),
        pytest.param(b'{"code":1,"remark":"\xff"}', id="remark-not-utf-8"),
        pytest.param(b'{"code":1,"remark":"\\ud800"}', id="remark-half-character"),
        pytest.param(b'{"code":1,"x":' + DEEP + b"}", id="deep"),
        pytest.param(b'{"code":1,"extFields":' + DEEP + b"}", id="deep-fields"),
        pytest.param(b'{"code":1,{"a":1}:2}', id="object-as-key"),
        pytest.param(b"{code:1,extFields:5}", id="fields-no-object"),
        pytest.param(b"{code:1,extFields:[1]}", id="fields-array"),
        pytest.param(b"{code:1,extFields:{a:[]}}", id="field-array"),
        pytest.param(b"{code:1,extFields:{a:{}}}", id="field-object"),
    ],
)
def test_a_malformed_header_is_refused(header):
    with pytest.raises(RemoteProtocolError):
        received(header)


@pytest.mark.parametrize(
    "fields",
    [
        b"5", b"[]", b'"text"', b"{}", b'{"topic":null}', b'{"topic":["T"]}', b'{"topic":{"a":1}}',
        b'{"topic":"\xff"}', b'{"topic":"\\ud800"}',
    ],
)  # fmt: skip
def test_fields_that_do_not_fit_the_header_type_are_refused(fields):
    header = b'{"code":1,"extFields":' + fields + b"}"

    with pytest.raises(RemoteProtocolError):
        received(header).read(TopicHeader)


@pytest.mark.parametrize("queue", ["x", "", "1.5", "2147483648", "-2147483649", "9" * 5000, "nan"])
def test_an_invalid_or_too_large_number_is_refused(queue):
    command = received({"code": 1, "extFields": {"topic": "T", "queueId": queue}})

    with pytest.raises(RemoteProtocolError, match="QueueHeader"):
        command.read(QueueHeader)


def test_a_field_with_thousands_of_digits_is_refused():
    command = received(b'{"code":1,"extFields":{"topic":' + b"9" * 5000 + b"}}")

    with pytest.raises(RemoteProtocolError):
        command.field_map()


def test_fields_that_are_not_a_json_object_are_refused():
    with pytest.raises(RemoteProtocolError, match="is not a JSON object"):
        received(b'{"code":1,"extFields":5}').field_map()


def test_more_fields_than_any_header_has_are_refused():
    def fields(count):
        return {f"f{number}": "x" for number in range(count)}

    most = received({"code": 1, "extFields": fields(HEADER_FIELDS_MAX)})
    more = received({"code": 1, "extFields": fields(HEADER_FIELDS_MAX + 1)})

    assert len(most.field_map()) == HEADER_FIELDS_MAX
    with pytest.raises(RemoteProtocolError, match=str(HEADER_FIELDS_MAX)):
        more.field_map()


def test_a_long_header_with_numbers_as_fields_is_read():
    """The C++ client writes numbers. Only the JSON dialect is slow to read, and must be short."""
    padding = "x" * LAX_HEADER_BYTES_MAX
    numbers = received({"code": "34", "extFields": {"a": 1, "i": padding}})

    assert numbers.code == 34
    assert numbers.field_map() == {"a": "1", "i": padding}
    with pytest.raises(RemoteProtocolError, match="too long"):
        received(b'{"code":34,"extFields":{a:1,"i":"%b"}}' % padding.encode()).field_map()


def test_a_header_in_binary_form_is_read():
    header = header_binary.BinaryHeader(
        310, 9, 317, -5, 2, "why", {"topic": "T", "queueId": "3", "x": "y"}
    )

    command = received(header_binary.pack(header), b"body", BINARY)

    assert (command.code, command.opaque, command.flag, command.version) == (310, -5, 2, 317)
    assert command.remark == "why"
    assert command.client_language == "GO"
    assert command.kind == BINARY
    assert command.body == b"body"
    assert command.read(QueueHeader) == QueueHeader("T", 3)
    assert command.field_map() == {"topic": "T", "queueId": "3", "x": "y"}


def test_a_broken_header_in_binary_form_is_refused():
    with pytest.raises(RemoteProtocolError):
        received(b"\x00" * 20, kind=BINARY)


# Writing


def test_a_request_is_written_in_the_order_of_java_and_without_white_space():
    part = sent(encode(105, 7, {"topic": "T"}))

    assert part[0] == JSON
    assert part[2] == b""
    assert part[1] == (
        b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":409}'
    )


def test_a_request_without_fields_is_written_without_ext_fields():
    assert b"extFields" not in sent(encode(34, 0, body=b"{}"))[1]
    assert b"extFields" not in sent(encode(34, 0, {}))[1]


def test_a_oneway_request_has_the_oneway_flag():
    assert decode(sent(encode(37, 1, flag=ONEWAY))).is_oneway


def test_an_answer_has_the_opaque_of_its_request_and_the_answer_bit():
    """Without the bit the peer treats it as a request, and its caller waits in vain."""
    to = received({"code": 10, "opaque": -2_000_000_000})

    command = decode(sent(answer(to, 17, body=b"b", remark="no topic")))

    assert command.is_answer
    assert not command.is_oneway
    assert (command.code, command.opaque, command.version) == (17, -2_000_000_000, VERSION)
    assert command.remark == "no topic"
    assert command.body == b"b"


def test_every_field_of_an_answer_is_written_as_text():
    """Numbers there made the C++ client pull endlessly, and Go refuses them."""
    to = received({"code": 10, "opaque": 1})

    part = sent(answer(to, 0, SendAnswer("ID", 3, 42)))

    written = {"msgId": "ID", "queueId": "3", "queueOffset": "42"}
    assert json.loads(part[1])["extFields"] == written


def test_an_answer_is_encoded_like_its_request():
    binary = decode(sent(encode(10, 5, {"topic": "T"}, kind=BINARY)))

    part = sent(answer(binary, 0, SendAnswer("ID", 3, 42), remark="ok"))

    assert part[0] == BINARY
    assert header_binary.unpack(part[1]) == header_binary.BinaryHeader(
        0, 0, VERSION, 5, 1, "ok", {"msgId": "ID", "queueId": "3", "queueOffset": "42"}
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [(32_767, BINARY), (32_768, JSON), (200_050, JSON), (-1000, BINARY), (-32_769, JSON)],
)
def test_a_code_that_binary_headers_cannot_hold_is_written_as_json(code, kind):
    part = sent(encode(code, 1, kind=BINARY))

    assert part[0] == kind
    assert decode(part).code == code


def test_json_and_binary_headers_are_read_alike():
    header = PullMessage("g", "T", 1, 2, 3, 4, 5, 6, 7, subscription="a||b")

    for kind in (JSON, BINARY):
        command = decode(sent(encode(11, 9, header, body=b"x", kind=kind)))

        assert command.kind == kind
        assert command.read(PullMessage) == header
        assert command.body == b"x"


def test_an_omitted_field_is_not_written():
    part = sent(encode(37, 1, EndTransaction("g", 1, 2, 8)))

    assert json.loads(part[1])["extFields"] == {
        "producerGroup": "g", "tranStateTableOffset": "1", "commitLogOffset": "2",
        "commitOrRollback": "8", "fromTransactionCheck": "false",
    }  # fmt: skip


def test_text_beyond_ascii_is_written_unescaped():
    part = sent(encode(105, 1, {"topic": "订单"}))

    assert "订单".encode() in part[1]
    assert decode(part).read(TopicHeader) == TopicHeader("订单")


@pytest.mark.parametrize("kind", [JSON, BINARY])
def test_a_lone_surrogate_cannot_be_sent(kind):
    with pytest.raises(LocalProtocolError):
        encode(105, 1, {"topic": "\ud800"}, kind=kind)
    with pytest.raises(LocalProtocolError):
        answer(Command(code=105, kind=kind), 1, remark="\ud800")


def test_an_answer_above_the_frame_limit_is_refused():
    with pytest.raises(LocalProtocolError):
        answer(received({"code": 11}), body=bytes(16 * 1024 * 1024))


def test_the_largest_number_is_written_and_read_unchanged():
    part = sent(answer(received({"code": 30}), 0, OffsetAnswer(2**63 - 1)))

    assert decode(part).read(OffsetAnswer) == OffsetAnswer(2**63 - 1)
