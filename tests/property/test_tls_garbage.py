"""Bytes that are not TLS, before or after a handshake, end only their connection."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.running import run_by
from tests.unit.remoting.remoting_stage import ADDRESS, SERVER, Stage, echo
from txmq.limits import TLS_HANDSHAKE_S
from txmq.remoting.handshake import ServerTls
from txmq.remoting.listener import IDLE_S
from txmq.remoting.pool import ConnectionPool
from txmq.security.tls import ClientContext, ClientTls, server_context
from txmq.testing import simulate

CODE = 10
TYPES = st.sampled_from([b"\x14\x03\x03", b"\x15\x03\x03", b"\x16\x03\x01", b"\x17\x03\x03"])
RECORDS = st.builds(
    lambda kind, body: kind + len(body).to_bytes(2, "big") + body, TYPES, st.binary(max_size=80)
)
GARBAGE = st.lists(RECORDS | st.binary(min_size=1, max_size=80), max_size=6)


@pytest.fixture(scope="module")
def contexts(authority):
    pair = authority.issue("garbage", addresses=f"IP:{SERVER}")
    return server_context(*pair, None), ClientContext(ClientTls(ca=authority.certificate))


@given(pieces=GARBAGE, is_greeted=st.booleans(), is_required=st.booleans())
@run_by(simulate, 1, timeout=3600.0)
async def test_garbage_on_a_tls_connection_ends_only_that_connection(
    world, /, contexts, pieces, is_greeted, is_required
):
    server, client = contexts

    tls = ServerTls(SimpleNamespace(value=server), is_required)
    async with Stage(world, echo, tls=tls) as stage:
        pool = ConnectionPool(stage.client.network, stage.client.clock, tls=client)
        connection = await pool.connection(ADDRESS)
        if is_greeted:
            other = ConnectionPool(stage.client.network, stage.client.clock, tls=client)
            transport = (await other.connection(ADDRESS))._transport._raw
        else:
            transport = (await stage.raw()).transport
            transport.write(b"\x16")
        for piece in pieces:
            transport.write(piece)
        await asyncio.sleep(max(IDLE_S / 2, TLS_HANDSHAKE_S) + 1)
        assert (await connection.ask(CODE, body=b"x", timeout_s=5.0)).body == b"x"
        transport.close()
        await asyncio.sleep(1)
        assert stage.ends == [stage.ends[0]]
        assert stage.listener._handshakes == set()
        await pool.close()
