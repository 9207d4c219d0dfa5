"""An etcd with TLS and users: how members reach it, and what they report if they cannot."""

import asyncio
import re
import secrets
import subprocess
import sys

import pytest

from tests.running import in_loop, run_by
from tests.servers import database_server, etcd_server
from tests.servers.broker_set import BrokerSet
from tests.servers.certificates import Authority
from tests.servers.serving import environment
from txmq.errors import ConfigError, TransportError
from txmq.runtime.coordinator import Leader, LogEnd
from txmq_broker.replication.etcd import etcd_address, etcd_coordinator

PASSWORD = "a password that nobody sees"
USER = {"TXMQ_ETCD_USER": "txmq", "TXMQ_ETCD_PASSWORD": PASSWORD}
M1 = Leader("m1", "127.0.0.1:10911")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def encrypted(authority):
    """An etcd that speaks TLS with clients whose certificates its authority signed."""
    tls = (*authority.issue("etcd"), authority.certificate)
    with database_server.wanted(lambda: etcd_server.etcd_server(tls)) as server:
        yield server


@pytest.fixture(scope="module")
def with_users():
    """An etcd whose users are on: ``root``, and ``txmq`` with the rights that a set needs."""
    with database_server.wanted(etcd_server.etcd_server) as server:
        asyncio.run(add_users(coordinator(server, {})))
        yield server


async def add_users(etcd):
    prefix = {"key": "L3R4bXEv", "range_end": "L3R4bXEw"}  # /txmq/ and what follows it
    for path, body in (
        ("role/add", {"name": "sets"}),
        ("role/grant", {"name": "sets", "perm": {"permType": "READWRITE", **prefix}}),
        ("user/add", {"name": "txmq", "password": PASSWORD}),
        ("user/grant", {"user": "txmq", "role": "sets"}),
        ("user/add", {"name": "stranger", "password": PASSWORD}),
        ("role/add", {"name": "root"}),
        ("user/add", {"name": "root", "password": PASSWORD}),
        ("user/grant", {"user": "root", "role": "root"}),
        ("enable", {}),
    ):
        await etcd._call(f"/v3/auth/{path}", body)


def coordinator(server, environ, scheme="etcd"):
    address = f"{scheme}://127.0.0.1:{server.port}"
    return etcd_coordinator(address, "c", secrets.token_hex(4), environ)


def with_certificate(authority, subject="O=member"):
    certificate, key = authority.issue("member", subject)
    return {
        "TXMQ_ETCD_CA": str(authority.certificate),
        "TXMQ_ETCD_CERTIFICATE": str(certificate),
        "TXMQ_ETCD_KEY": str(key),
    }


async def use(etcd):
    """Lead, renew, change the set, wait for a change, and resign."""
    seen = await etcd.view()
    leadership = await etcd.lead(M1, seen, 5, LogEnd(0, 0))
    seen = await etcd.view()
    assert seen.leader == M1
    leadership = await etcd.renew(leadership)
    waiting = asyncio.create_task(etcd.changed(seen))
    changed = await etcd.change(leadership, seen, seen._replace(in_sync=("m1", "m2")))
    assert await waiting == changed
    await etcd.resign(leadership)
    assert (await etcd.view()).leader is None


def test_a_coordinator_uses_etcd_over_tls(encrypted, authority):
    asyncio.run(use(coordinator(encrypted, with_certificate(authority), "etcds")))


def test_a_coordinator_uses_etcd_as_a_user(with_users):
    asyncio.run(use(coordinator(with_users, USER)))


@run_by(in_loop)
async def test_a_token_unknown_to_etcd_is_replaced(with_users):
    etcd = coordinator(with_users, USER)
    leadership = await etcd.lead(M1, await etcd.view(), 5, LogEnd(0, 0))
    etcd._token = "forgotten.1"
    seen = await etcd.view()
    etcd._token = "forgotten.1"
    assert await etcd.change(leadership, seen, seen._replace(in_sync=("m1", "m2"))) is not None
    etcd._token = "forgotten.1"
    await etcd.resign(leadership)
    assert (await etcd.view()).leader is None


def test_a_configured_user_works_with_an_etcd_without_users(etcd):
    asyncio.run(use(coordinator(etcd, USER)))


def test_members_and_commands_use_the_same_variables(authority, tmp_path):
    tls = (*authority.issue("etcd"), authority.certificate)
    variables = USER | with_certificate(authority)
    with database_server.wanted(lambda: etcd_server.etcd_server(tls)) as server:
        asyncio.run(add_users(coordinator(server, with_certificate(authority), "etcds")))
        members = BrokerSet(tmp_path, server.port, ("replication.lease=2",), count=2)
        for member in members.members.values():
            member.account = variables
            member.etcd = f"etcds://127.0.0.1:{server.port}"
        with members:
            leader = members.wait_in_sync(1)
            (other,) = (one for one in members.members.values() if one is not leader)
            where = ["--coordinator", other.etcd, "--broker", members.name]
            done = subprocess.run(
                [sys.executable, "-m", "txmq", "cluster", "promote", other.name, *where]
                + ["--reason", "a test"],
                env=environment() | variables,
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert members.wait_in_sync(1) is other
            named = variables | with_certificate(authority, "CN=member")
            text = failure_of(coordinator(server, named, "etcds"))
            assert text.endswith("an etcd with users takes only client certificates without one")
            output = members.told() + done.stdout + done.stderr
            assert PASSWORD not in output
            assert "Traceback" not in output


def failure_of(etcd):
    with pytest.raises(TransportError) as caught:
        asyncio.run(etcd.view())
    text = str(caught.value)
    assert PASSWORD not in text
    assert "\n" not in text
    return text


def test_a_missing_or_wrong_etcd_user_is_explained_in_one_line(with_users):
    address = f"127.0.0.1:{with_users.port}"
    assert failure_of(coordinator(with_users, {})) == (
        f"etcd at {address} has users (etcdserver: user name is empty); set TXMQ_ETCD_USER and "
        "TXMQ_ETCD_PASSWORD"
    )
    wrong = failure_of(coordinator(with_users, USER | {"TXMQ_ETCD_PASSWORD": "wrong"}))
    assert wrong == (
        "etcd refused the user 'txmq': etcdserver: authentication failed, invalid user ID or "
        "password; look at TXMQ_ETCD_USER and TXMQ_ETCD_PASSWORD"
    )
    stranger = failure_of(coordinator(with_users, USER | {"TXMQ_ETCD_USER": "stranger"}))
    assert stranger.endswith(
        "etcdserver: permission denied; the user needs readwrite permission for the prefix /txmq/"
    )


def test_a_certificate_problem_with_etcd_is_explained_in_one_line(
    encrypted, authority, tmp_path, etcd
):
    variables = with_certificate(authority)
    other = Authority(tmp_path / "other", "Another CA")
    text = failure_of(coordinator(encrypted, variables | with_certificate(other), "etcds"))
    assert "no trusted authority signed the peer's certificate" in text
    assert text.endswith("name the file of its authority in TXMQ_ETCD_CA)")
    text = failure_of(coordinator(encrypted, {"TXMQ_ETCD_CA": variables["TXMQ_ETCD_CA"]}, "etcds"))
    assert "set TXMQ_ETCD_CERTIFICATE and TXMQ_ETCD_KEY" in text, text
    # Versions of etcd differ in what they answer.
    text = failure_of(coordinator(encrypted, {}))
    assert "etcds://" in text or "HTTP request to an HTTPS server" in text, text
    text = failure_of(coordinator(etcd, variables, "etcds"))
    # Some versions wait for the rest of the request.
    assert "the peer answers without TLS" in text or "no answer with TLS" in text, text


def test_an_expired_etcd_certificate_is_reported_as_expired(authority):
    certificate, key = authority.issue("expired", days=-1)
    tls = (certificate, key, authority.certificate)
    with database_server.wanted(lambda: etcd_server.etcd_server(tls)) as server:
        text = failure_of(coordinator(server, with_certificate(authority), "etcds"))
    assert "the peer's certificate is refused: certificate has expired" in text


WRONG = {
    "TLS without etcds": ("etcd://h:1", {"TXMQ_ETCD_CA": "ca.pem"}, "write etcds://"),
    "half a pair": ("etcds://h:1", {"TXMQ_ETCD_KEY": "k"}, "TXMQ_ETCD_CERTIFICATE is not"),
    "no password": ("etcd://h:1", {"TXMQ_ETCD_USER": "u"}, "TXMQ_ETCD_PASSWORD is not; set both"),
    "no file": ("etcds://h:1", {"TXMQ_ETCD_CA": "/nosuch.pem"}, "/nosuch.pem cannot be read"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_etcd_variable_is_named_in_the_error(kind):
    address, environ, text = WRONG[kind]
    with pytest.raises(ConfigError, match=re.escape(text)):
        etcd_coordinator(address, "c", "b", environ)


def test_a_password_in_an_address_is_refused_and_not_shown():
    with pytest.raises(ConfigError) as caught:
        etcd_address(f"etcd://txmq:{PASSWORD}@h1:2379")
    assert PASSWORD not in str(caught.value)
    assert "'...@h1:2379'" in str(caught.value)
