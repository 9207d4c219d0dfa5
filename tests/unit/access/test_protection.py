"""Without accounts the address of a peer decides what it may do."""

import pytest

from tests.unit.names.names_peer import Peer
from txmq.protocol.codes import RequestCode as Code
from txmq.protocol.command import answer
from txmq.remoting.dispatch import Dispatcher
from txmq.runtime.network import SystemNetwork
from txmq_broker.access.addresses import AddressPattern
from txmq_broker.access.protection import Protection, Refusals
from txmq_broker.access.requirements import CLIENT_REQUESTS, REGISTRATIONS, REQUIREMENTS

CODES = (Code.SEND_MESSAGE_V2, Code.REGISTER_BROKER, Code.UPDATE_AND_CREATE_TOPIC)
SERVED = Dispatcher(dict.fromkeys(CODES, lambda _, request: answer(request)))


class Audit:
    def __init__(self):
        self.refused = []

    def note(self, connection, request, *, refused):
        self.refused.append((connection.host, request.code, refused))


def protection(trust="10.1.0.0/16,10.9.0.1", brokers="10.2.0.7", audit=None):
    trusted, registered = AddressPattern.parse(trust), AddressPattern.parse(brokers)
    return Protection(SystemNetwork(), trusted, registered, Refusals(audit))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", None),
        ("127.9.9.9", None),
        ("::1", None),
        ("::ffff:127.0.0.1", None),
        ("10.1.255.3", CLIENT_REQUESTS),
        ("::ffff:10.1.255.3", CLIENT_REQUESTS),
        ("10.9.0.1", CLIENT_REQUESTS),
        ("10.2.0.7", REGISTRATIONS),
        ("10.9.0.2", frozenset()),
        ("2001:db8::1", frozenset()),
        ("fe80::1%eth0", frozenset()),
        ("::ffff:128.0.0.1", frozenset()),
        ("", frozenset()),
    ],
)
def test_an_address_decides_which_requests_a_peer_may_use(host, expected):
    assert protection().requests_of(host) == expected


def test_client_requests_and_registrations_are_disjoint():
    assert set(REQUIREMENTS) > CLIENT_REQUESTS | REGISTRATIONS
    assert not CLIENT_REQUESTS & REGISTRATIONS
    assert Code.SEND_MESSAGE_V2 in CLIENT_REQUESTS
    assert Code.UPDATE_AND_CREATE_TOPIC not in CLIENT_REQUESTS


def answers(host, guard):
    peer = Peer(guard.over(SERVED)(host))
    peer.connection.host = host
    return [peer.ask(code) for code in CODES]


def test_loopback_peers_use_the_dispatcher_unrestricted():
    assert protection().over(SERVED)("127.0.0.1") is SERVED


@pytest.mark.parametrize(
    ("host", "served"),
    [("10.1.0.1", [0, 16, 16]), ("10.2.0.7", [16, 0, 16]), ("192.0.2.1", [16, 16, 16])],
)
def test_a_refusal_names_the_setting_and_is_audited(host, served):
    audit = Audit()
    responses = answers(host, protection(audit=audit))
    assert [response.code for response in responses] == served
    remarks = [response.remark for response in responses if response.code]
    assert all("--acl FILE" in remark and "nothing was changed" in remark for remark in remarks)
    if served[0]:
        assert "security.trust" in responses[0].remark
    if served[1]:
        assert "security.trust_brokers" in responses[1].remark
    assert [entry[:2] for entry in audit.refused] == [(host, Code.UPDATE_AND_CREATE_TOPIC)]


def test_a_public_listen_address_is_logged(caplog):
    guard = protection(trust="10.1.0.0/16")
    guard.announce(("127.0.0.1", 10911))
    assert caplog.messages == []
    guard.announce(("0.0.0.0", 10911))
    (line,) = caplog.messages
    assert line == (
        "other machines may reach 0.0.0.0:10911; no accounts: loopback, clients of 10.1.0.0/16"
    )
