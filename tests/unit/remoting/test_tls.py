"""TLS on a server's port: who gets in, who is refused and why, and what a peer can cost."""

import asyncio
import ssl
from types import SimpleNamespace

import pytest

from tests.servers.certificates import Authority
from tests.unit.remoting.remoting_stage import ADDRESS, Stage, echo, failure
from txmq.errors import ConnectFailed, ConnectionLost, RequestTimeout
from txmq.limits import CONNECTION_BACKLOG_BYTES, TLS_HANDSHAKE_BYTES_MAX, TLS_HANDSHAKE_S
from txmq.protocol import command as commands
from txmq.remoting.handshake import ServerTls
from txmq.remoting.pool import ConnectionPool
from txmq.security.tls import ClientContext, ClientTls, server_context
from txmq.testing import simulate

CODE = 10
PLACES = "IP:10.0.0.1,DNS:server"
NEVER_COMPLETE = b"\x16\x03\x01\x40\x00" + b"\x01\x01\xf0\x00" + b"\x03\x03" + bytes(16 * 1024 - 6)
"""The first record of a hello of 124 KiB."""


class Files:
    """Certificates of every kind that a peer may show."""

    def __init__(self, folder):
        self.ours, self.theirs = Authority(folder / "ours"), Authority(folder / "theirs")
        self.good = self.ours.issue("good", addresses=PLACES)
        self.elsewhere = self.ours.issue("elsewhere", addresses="DNS:elsewhere")
        self.expired = self.ours.issue("expired", addresses=PLACES, days=-1)
        self.client = self.ours.issue("client", "O=Bank/CN=web-shop")
        self.foreign = self.theirs.issue("foreign", addresses=PLACES)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("certificates"))


def port(pair, *, client_ca=None, is_required=True):
    return ServerTls(SimpleNamespace(value=server_context(*pair, client_ca)), is_required)


def trusting(files, pair=(None, None), **settings):
    tls = {"ca": files.ours.certificate, "certificate": pair[0], "key": pair[1]}
    return ClientTls(**tls | settings)


def run(scenario, tls=None, service=echo, **limits):
    async def staged(world):
        async with Stage(world, service, tls=tls, **limits) as stage:
            await scenario(stage)

    simulate(staged, 1, timeout=3600.0)


async def ask_through(stage, settings, version=None, address=ADDRESS, body=b"x"):
    """What a client's request is answered with, or fails with."""
    context = ClientContext(settings) if settings else None
    if context and version:
        context.value.minimum_version = context.value.maximum_version = version
    pool = ConnectionPool(stage.client.network, stage.client.clock, tls=context)
    try:
        connection = await pool.connection(address)
        return (await connection.ask(CODE, body=body, timeout_s=5.0)).body
    finally:
        await pool.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_of_any_size_are_answered(files, version):
    body = bytes(range(256)) * 8192

    async def scenario(stage):
        assert await ask_through(stage, trusting(files), version, body=body) == body
        assert await ask_through(stage, trusting(files), version, "server:9000") == b"x"
        named = trusting(files, server_name="server")
        assert await ask_through(stage, named, version) == b"x"

    run(scenario, port(files.good))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("shown", "settings", "why"),
    [
        ("expired", {}, "the peer's certificate is refused: certificate has expired"),
        ("elsewhere", {}, "IP address mismatch, certificate is not valid for '10.0.0.1'"),
        ("good", {"server_name": "other"}, "hostname mismatch, certificate is not valid for"),
        ("foreign", {}, "no trusted authority signed .*; name the file of its authority in TXMQ_"),
    ],
)
def test_a_server_that_cannot_prove_its_name_is_refused(
    files, caplog, version, shown, settings, why
):
    async def scenario(stage):
        with pytest.raises(ConnectFailed, match=f"cannot connect to {ADDRESS}: TLS: .*{why}"):
            await ask_through(stage, trusting(files, **settings), version)
        assert stage.listener.connections == 0

    run(scenario, port(getattr(files, shown)))
    assert "refused a connection of 10.0.0.2: the peer" in caplog.text


def test_the_check_of_names_can_be_turned_off(files):
    async def scenario(stage):
        assert await ask_through(stage, trusting(files, check_names=False)) == b"x"

    run(scenario, port(files.elsewhere))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_must_show_a_trusted_certificate(files, caplog, version):
    async def scenario(stage):
        assert await ask_through(stage, trusting(files, files.client), version) == b"x"
        for pair, why in (
            ((None, None), "certificate"),
            (files.foreign, "does not trust the authority of our certificate"),
        ):
            error = await failure(ask_through(stage, trusting(files, pair), version))
            assert isinstance(error, ConnectFailed | ConnectionLost)
            assert why in str(error)

    subjects = []

    def service(connection, request):
        subjects.append(connection.subject)
        return echo(connection, request)

    run(scenario, port(files.good, client_ca=files.ours.certificate), service)
    assert subjects == [("CN=web-shop,O=Bank", "web-shop")]
    assert "the client has no certificate, and tls.client_ca requires one" in caplog.text


@pytest.mark.parametrize("is_required", [True, False])
def test_plain_connections_are_served_or_refused_by_the_tls_mode(files, caplog, is_required):
    async def scenario(stage):
        assert await ask_through(stage, trusting(files)) == b"x"
        for _ in range(9):
            answer = (await asyncio.gather(ask_through(stage, None), return_exceptions=True))[0]
            assert isinstance(answer, ConnectionLost) if is_required else answer == b"x"

    run(scenario, port(files.good, is_required=is_required))
    line = "refused a connection of 10.0.0.2: it speaks without TLS, and tls.mode is enforcing"
    assert caplog.text.count(line) == (1 if is_required else 0)


def test_a_port_without_tls_logs_that_the_peer_speaks_tls(files, caplog):
    async def scenario(stage):
        error = await failure(ask_through(stage, trusting(files)))
        assert "TLS: the peer closed the connection during the handshake" in str(error)

    run(scenario)
    assert "closing 10.0.0.2" in caplog.text
    assert "the peer speaks TLS, which is off here; turn it on with tls.mode" in caplog.text


@pytest.mark.parametrize("bytes_sent", [b"", NEVER_COMPLETE[:300]])
def test_a_slow_handshake_is_cut_off_after_its_timeout(files, bytes_sent):
    async def scenario(stage):
        raw = await stage.raw()
        began = stage.world.now()
        if bytes_sent:
            raw.write(bytes_sent)
        await asyncio.sleep(1)
        refused = await stage.raw()
        await asyncio.sleep(1)
        assert refused.closed_at  # The slow one counts as a connection.
        await asyncio.sleep(2 * TLS_HANDSHAKE_S)
        assert TLS_HANDSHAKE_S <= raw.closed_at - began <= TLS_HANDSHAKE_S + 1
        figures = stage.listener.figures()
        assert (figures["handshakes_refused"], figures["connections_refused"]) == (1, 1)
        assert await ask_through(stage, trusting(files)) == b"x"

    run(scenario, port(files.good), connections_max=1)


def test_a_handshake_above_the_byte_limit_is_cut_off(files, caplog):
    async def scenario(stage):
        raw = await stage.raw()
        raw.write(NEVER_COMPLETE)
        more = b"\x16\x03\x01\x40\x00" + bytes(16 * 1024)
        for _ in range(TLS_HANDSHAKE_BYTES_MAX // len(more)):
            assert raw.closed_at is None
            raw.write(more)
            await asyncio.sleep(0.5)
        assert raw.closed_at
        assert stage.listener.figures()["handshakes_refused"] == 1

    run(scenario, port(files.good))
    assert f"the handshake takes more than {TLS_HANDSHAKE_BYTES_MAX} bytes" in caplog.text


def test_a_peer_that_reads_nothing_over_tls_is_not_served_further(files):
    """The limits of a plain connection hold: the answers wait in the same buffer."""
    served = []

    def service(connection, request):
        served.append(connection)
        return commands.answer(request, body=bytes(1024 * 1024))

    async def scenario(stage):
        context = ClientContext(trusting(files))
        pool = ConnectionPool(stage.client.network, stage.client.clock, tls=context)
        connection = await pool.connection(ADDRESS)
        connection._transport.pause_reading()
        asks = [asyncio.ensure_future(connection.ask(CODE, timeout_s=600.0)) for _ in range(50)]
        await asyncio.sleep(1)
        assert len(served) < 20
        assert served[0].unread_bytes < 2 * CONNECTION_BACKLOG_BYTES
        connection._transport.resume_reading()
        answers = await asyncio.gather(*asks, return_exceptions=True)
        assert not [answer for answer in answers if isinstance(answer, RequestTimeout)]
        assert len(served) == 50
        await pool.close()

    run(scenario, port(files.good), service)


def test_both_ends_notice_a_closed_connection(files):
    async def scenario(stage):
        context = ClientContext(trusting(files))
        pool = ConnectionPool(stage.client.network, stage.client.clock, tls=context)
        connection = await pool.connection(ADDRESS)
        await connection.ask(CODE, timeout_s=5.0)
        (end,) = stage.ends
        end.send(b"")
        last = asyncio.ensure_future(connection.ask(CODE, body=b"late", timeout_s=5.0))
        await asyncio.sleep(0)
        end.close()
        assert isinstance(await failure(last), ConnectionLost)
        await asyncio.sleep(1)
        assert stage.lost == [end]
        assert not connection.is_open
        await (await pool.connection(ADDRESS)).ask(CODE, timeout_s=5.0)
        await pool.close()
        await asyncio.sleep(1)
        assert stage.listener.connections == 0

    run(scenario, port(files.good))


def test_a_client_reads_changed_certificates_for_its_next_connection(files, tmp_path):
    pair = tmp_path / "own.pem", tmp_path / "own.key"

    def show(shown):
        for source, target in zip(shown, pair, strict=True):
            target.write_bytes(source.read_bytes())
            target.chmod(0o600)

    async def scenario(stage):
        show(files.foreign)
        context = ClientContext(trusting(files, pair))
        pool = ConnectionPool(stage.client.network, stage.client.clock, tls=context)

        async def ask():
            connection = await pool.connection(ADDRESS)
            return await connection.ask(CODE, timeout_s=5.0)

        assert isinstance(await failure(ask()), ConnectionLost)
        show(files.client)
        assert (await ask()).code == 0
        await pool.close()

    run(scenario, port(files.good, client_ca=files.ours.certificate))


def test_a_peer_that_half_closes_its_side_receives_its_answer(files):
    """With or without the closing alert of TLS before the end of the stream."""

    async def scenario(stage):
        context = ClientContext(trusting(files))
        for is_announced in (False, True):
            pool = ConnectionPool(stage.client.network, stage.client.clock, tls=context)
            connection = await pool.connection(ADDRESS)
            asked = asyncio.ensure_future(connection.ask(CODE, body=b"x", timeout_s=5.0))
            await asyncio.sleep(0)
            stream = connection._transport
            if is_announced:
                with pytest.raises(ssl.SSLError):
                    stream._tls.unwrap()
                stream._flush()
            stream._raw.write_eof()
            assert (await asked).body == b"x"
            await asyncio.sleep(1)
            assert not connection.is_open
            assert stage.listener.connections == 0

    run(scenario, port(files.good))
