import logging

import pytest

from tests.unit.names.names_peer import Peer
from txmq.errors import RemoteProtocolError, TopicNotFound, UnknownRefusal, WriteFailed
from txmq.limits import REMARK_CHARS_MAX
from txmq.protocol.command import BINARY, JSON, answer
from txmq.protocol.headers import TopicHeader
from txmq.remoting.dispatch import Dispatcher


def raising(problem):
    def handler(connection, request):
        raise problem

    return Peer(Dispatcher({7: handler}))


def test_a_request_reaches_the_handler_of_its_code():
    peer = Peer(Dispatcher({7: lambda _, request: answer(request, body=b"seven")}))

    assert peer.ask(7).body == b"seven"


def test_a_handler_can_answer_later():
    peer = Peer(Dispatcher({7: lambda *_: None}))

    assert peer.send(7) == []


@pytest.mark.parametrize("kind", [JSON, BINARY])
def test_an_unknown_code_is_answered_in_the_encoding_of_the_request(kind):
    """A 4.9 name server does not answer, which costs its caller the whole timeout."""
    found = Peer(Dispatcher({})).ask(9999, kind=kind)

    assert (found.code, found.remark, found.kind) == (3, " request type 9999 not supported", kind)


def test_a_refusal_is_answered_with_its_code_and_remark():
    found = raising(TopicNotFound("no such topic")).ask(7)

    assert (found.code, found.remark) == (17, "no such topic")


@pytest.mark.parametrize("error", [TopicNotFound, RemoteProtocolError])
def test_a_long_remark_of_a_refusal_is_cut_to_fit_a_header(error, caplog):
    """A header holds 256 KiB, and the text of its refusal may need seven bytes for a character."""
    found = raising(error("\ue000" * 300_000)).ask(7)

    assert found.remark == "\ue000" * REMARK_CHARS_MAX
    assert len(caplog.text) < 2 * REMARK_CHARS_MAX


def test_a_refusal_without_a_remark_has_a_default_text():
    assert raising(TopicNotFound()).ask(7).remark.startswith("The topic does not exist")


def test_a_forwarded_refusal_keeps_its_unknown_code():
    assert raising(UnknownRefusal("busy", response_code=1500)).ask(7).code == 1500


@pytest.mark.parametrize("problem", [RemoteProtocolError("bad"), WriteFailed("bad")])
def test_other_txmq_errors_are_answered_with_code_1_and_their_text(problem):
    peer = raising(problem)
    found = peer.ask(7)

    assert (found.code, found.remark) == (1, "bad")
    assert not peer.transport.closed


def test_a_header_without_a_required_field_is_answered_and_the_connection_stays_open():
    peer = Peer(Dispatcher({7: lambda _, request: answer(request, body=request.read(TopicHeader))}))
    found = peer.ask(7)

    assert found.code == 1
    assert "topic" in found.remark
    assert not peer.transport.closed


def test_a_handler_that_raises_is_answered_with_code_1_and_logged(caplog):
    with caplog.at_level(logging.ERROR):
        found = raising(ZeroDivisionError("division by zero")).ask(7)

    assert (found.code, found.remark) == (1, "ZeroDivisionError: division by zero")
    assert "request 7" in caplog.text


def test_a_one_way_request_is_never_answered():
    def served(_, request):
        return answer(request)

    assert Peer(Dispatcher({7: served})).send(7, oneway=True) == []
    assert raising(TopicNotFound()).send(7, oneway=True) == []
    assert raising(KeyError()).send(7, oneway=True) == []
    assert Peer(Dispatcher({})).send(7, oneway=True) == []
