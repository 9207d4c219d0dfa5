"""Addresses without an etcd: what the coordinator and the start of a member report."""

import asyncio
import base64
import re
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest

from tests.faults.cut_proxy import CutProxy
from tests.running import in_loop, run_by
from tests.servers import database_server, etcd_server
from tests.servers.serving import environment, free_port
from txmq.errors import ConnectionLost, RequestTimeout, TransportError
from txmq.runtime.clock import SystemClock
from txmq.runtime.coordinator import Leader, LogEnd
from txmq_broker.replication.etcd import EtcdCoordinator
from txmq_broker.replication.held_leadership import HeldLeadership

TIMEOUT_S = 0.3
LEASE_S = 2

ANSWERS = {
    "closes": (b"", "closed the connection without an answer"),
    "redis": (b"-ERR unknown command 'POST'\r\n", "does not answer with HTTP, so it is not etcd"),
    "cut": (b"HTTP/1.1 200", "broke: "),
    "long": (b"x" * 100_000, "does not answer with HTTP, so it is not etcd"),
    "not found": (
        b"HTTP/1.1 404 Not Found\r\n\r\n<html>\n<p>no such page",
        "refused /v3/kv/txn: 404, <html>",
    ),
    "of tls": (
        b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n",
        "refused /v3/kv/txn: 400, Client sent an HTTP request to an HTTPS server.",
    ),
    "without quorum": (
        b'HTTP/1.0 503 Unavailable\r\n\r\n{"message":"etcdserver: no leader"}',
        "refused /v3/kv/txn: 503, etcdserver: no leader",
    ),
    "page": (b"HTTP/1.1 200 OK\r\n\r\n<html>", "does not answer as etcd does"),
    "list": (b"HTTP/1.1 200 OK\r\n\r\n[1]", "does not answer as etcd does"),
    "object": (b'HTTP/1.1 200 OK\r\n\r\n{"ok": true}', "does not answer as etcd does"),
}


@pytest.fixture(scope="module")
def etcd():
    with database_server.wanted(etcd_server.etcd_server) as server:
        yield server


@asynccontextmanager
async def answering(answer):
    """The port of a server that gives every request the same answer; ``None`` is silence."""
    over = asyncio.Event()

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.rpartition(b"Content-Length:")[2]))
        if answer is None:
            await over.wait()
        else:
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        over.set()


def coordinator(*ports):
    return EtcdCoordinator([("127.0.0.1", port) for port in ports], "a/b", timeout=TIMEOUT_S)


@pytest.mark.parametrize("kind", ANSWERS)
@run_by(in_loop)
async def test_an_endpoint_that_is_not_etcd_is_named_with_its_address(kind):
    answer, text = ANSWERS[kind]

    async with answering(answer) as port:
        with pytest.raises(ConnectionLost, match=re.escape(text)) as caught:
            await coordinator(port).view()
        assert f"127.0.0.1:{port}" in str(caught.value)


@run_by(in_loop)
async def test_a_silent_endpoint_times_out():
    async with answering(None) as port:
        text = f"etcd at 127.0.0.1:{port} did not answer within {TIMEOUT_S:g} s"
        with pytest.raises(RequestTimeout, match=re.escape(text)):
            await coordinator(port).view()


@pytest.mark.parametrize("answer", [None, ANSWERS["without quorum"][0]])
@run_by(in_loop)
async def test_the_request_after_a_failed_endpoint_goes_to_another(etcd, answer):
    async with answering(answer) as port:
        store = coordinator(port, etcd.port)
        assert (await store.view()).epoch == 0
        # A change may have had its effect, so its caller decides whether to repeat it.
        store = coordinator(port, etcd.port)
        with pytest.raises(TransportError):
            await store._call("/v3/lease/grant", {"TTL": 5})
        assert "ID" in await store._call("/v3/lease/grant", {"TTL": 5})


@pytest.mark.parametrize("key", ["state", "leader"])
@run_by(in_loop)
async def test_an_etcd_key_that_no_member_wrote_is_named(etcd, key):
    store = EtcdCoordinator([("127.0.0.1", etcd.port)], f"a/foreign {key}")
    path = f"/txmq/sets/a/foreign {key}/{key}"
    pair = [base64.b64encode(part).decode() for part in (path.encode(), b"[7]")]
    await store._call("/v3/kv/put", dict(zip(("key", "value"), pair, strict=True)))
    with pytest.raises(ConnectionLost, match=f"{path} in etcd is not what members write"):
        await store.view()


@run_by(in_loop)
async def test_a_leader_with_a_short_lease_survives_a_hanging_endpoint(etcd):
    with CutProxy(etcd.port) as proxy:
        ports = (proxy.port, etcd.port)
        store = EtcdCoordinator([("127.0.0.1", port) for port in ports], "a/short lease")
        view = await store.view()
        leadership = await store.lead(Leader("m1", "127.0.0.1:1"), view, LEASE_S, LogEnd(0, 0))
        held = HeldLeadership(store, leadership, view, "", SystemClock())
        keeping = asyncio.create_task(held.keep())
        proxy.cut()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(held.ended.wait(), 2 * LEASE_S)
        keeping.cancel()
        assert held.is_certain()
        assert (await store.view()).leader == leadership.leader


# Starts of a member


def start(folder, address):
    """Run a member that cannot start; returns its exit code and the last line of its log."""
    where = ["--data", str(folder), "--listen", f"127.0.0.1:{free_port()}"]
    which = ["--names", "127.0.0.1:1", "--coordinator", address, "--member", "m1"]
    done = subprocess.run(
        [sys.executable, "-m", "txmq", "serve", *where, *which],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.stdout, "Traceback" in done.stderr) == ("", False), done.stderr
    return done.returncode, done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:2379", "127.0.0.1:2379", "etcd://h1", "etcd://h1:x", "etcd://"]
)
def test_a_malformed_coordinator_address_is_refused(tmp_path, address):
    line = (
        f"txmq: replication.coordinator cannot be '{address}'; it takes etcd://HOST:PORT, or "
        "etcds:// for TLS, and further addresses of the same etcd after commas"
    )
    assert start(tmp_path, address) == (2, line)


def test_a_start_without_etcd_says_where_it_looked(tmp_path):
    ports = free_port(), free_port()
    first, second = (f"127.0.0.1:{port}" for port in ports)
    line = (
        "txmq: cannot start: the set has no coordinator: no etcd can be reached "
        f"({first}: Connection refused; {second}: Connection refused)"
    )
    assert start(tmp_path, f"etcd://{first},{second}") == (1, line)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "etcd at {} did not answer within 2 s"),
        (ANSWERS["redis"][0], "{} does not answer with HTTP, so it is not etcd"),
        (ANSWERS["page"][0], "{} does not answer as etcd does: /v3/kv/txn"),
    ],
)
@run_by(in_loop)
async def test_a_member_start_names_a_coordinator_that_is_not_etcd(tmp_path, answer, text):
    async with answering(answer) as port:
        address = f"127.0.0.1:{port}"
        code, line = await asyncio.to_thread(start, tmp_path, f"etcd://{address}")
        message = f"cannot start: the set has no coordinator: {text.format(address)}"
        assert (code, line) == (1, f"txmq: {message}")
