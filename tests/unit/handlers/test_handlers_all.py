"""Rules for all requests, known or unknown: each is answered in its encoding, or is one-way."""

import pytest

from tests.running import run_by
from tests.unit.handlers.handler_stage import (
    consumer,
    in_world,
    in_world_with_client,
    pulling,
    sending,
    with_client,
)
from txmq.protocol import command as commands
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import BINARY, JSON
from txmq_broker.app import Broker

ALL = """
10 11 12 14 15 17 21 25 26 28 29 30 31 32 33 34 35 38 41 42 43 46 200 201 202 203 204 207 208 215
222 223 225 300 303 305 306 307 308 309 310 314 315 316 317 320 321 324 325 328 329 343 345 351 352
361
"""
SERVED = ALL.split()
NEEDED = {
    "mqadmin": "17 200 201 21 202 203 204 208 12 33 28 215 222 307 315",
    "producers": "34 35 310 10 320 324 325",
    "consumers": "34 35 38 11 14 15 30 29 41 42 46 361 31",
}
NOT_SUPPORTED = 3


@run_by(in_world)
async def test_the_broker_serves_what_stock_clients_and_tools_need(stage, /):
    served = {str(code) for code in stage.broker._dispatch._handlers}

    assert served >= set(SERVED)
    for whose, codes in NEEDED.items():
        assert served >= set(codes.split()), whose


@pytest.mark.parametrize("kind", [JSON, BINARY])
@run_by(with_client)
async def test_an_unsupported_request_code_is_answered_not_supported(client, /, kind):
    for code in (0, 1, 13, 39, 40, 105, 301, 353, 400, 999, -7):
        answer = await client.ask(code, kind=kind)

        assert (answer.code, answer.kind) == (NOT_SUPPORTED, kind)
        assert answer.remark == f" request type {code} not supported"


@run_by(in_world)
async def test_a_code_too_large_for_a_binary_header_is_still_answered(stage, /):
    assert await (await stage.client()).code_of(200_050) == NOT_SUPPORTED


@pytest.mark.parametrize("kind", [JSON, BINARY])
@run_by(in_world)
async def test_a_request_without_fields_is_answered_and_keeps_the_connection_open(stage, /, kind):
    for code in SERVED:
        client = await stage.client()
        answer = await client.ask(int(code), kind=kind)

        assert answer.kind == kind, code
        assert answer.is_answer, code
        assert answer.code in (0, 1, 17, 26), code
        assert client.connection.is_open, code


@pytest.mark.parametrize("body", [b"{", b"null", b'{"a":1}', b"\x00" * 50])
@run_by(with_client)
async def test_every_request_with_a_malformed_body_is_answered(client, /, body):
    for code in SERVED:
        answer = await client.ask(int(code), body=body)
        assert answer.code != NOT_SUPPORTED


@run_by(with_client)
async def test_one_way_requests_are_never_answered(client, /):
    for code in (*SERVED, "999"):
        assert await client.is_silent(int(code), oneway=True), code
    assert await client.is_silent(10, sending("T"), body=b"x", oneway=True)
    assert await client.is_silent(11, pulling("T"), oneway=True)
    assert await client.max_offset("T") == 1


@run_by(in_world_with_client)
async def test_an_answer_carries_the_opaque_of_its_request(stage, client, /):
    heard = []

    class Ear:
        def feed(self, data):
            frames = reader.feed(data)
            heard.extend(commands.decode(answer) for answer in frames)
            return frames

        @property
        def held(self):
            return reader.held

    reader, client.connection._reader = client.connection._reader, Ear()
    for opaque in (0, -1, 2**31 - 1, -(2**31)):
        client.connection.send(commands.encode(RequestCode.GET_ALL_TOPIC_CONFIG, opaque))
    await stage.passes(1)

    assert [answer.opaque for answer in heard] == [0, -1, 2**31 - 1, -(2**31)]


@run_by(with_client)
async def test_all_field_values_of_an_answer_are_strings(client, /):
    """Numbers there made the C++ client pull and deliver for ever."""
    raw = []
    reader = client.connection._reader

    class Ear:
        held = 0

        def feed(self, data):
            frames = reader.feed(data)
            raw.extend(frames)
            return frames

    client.connection._reader = Ear()
    await client.send("T")
    await client.pull("T")
    await client.max_offset("T")
    await client.ok(RequestCode.GET_BROKER_CONFIG)

    assert len(raw) == 4
    for frame in raw:
        assert isinstance(frame, tuple)
        assert all(isinstance(value, str) for value in commands.decode(frame).field_map().values())
        assert b'":"' in frame[1].split(b'"extFields":{', 1)[1]


@run_by(in_world_with_client)
async def test_a_stopping_broker_answers_the_requests_it_has_accepted(stage, client, /):
    await client.beat(consumer("g", "T"))
    sent = [client.asking(10, sending("T"), body=b"x") for _ in range(20)]
    await client.topic("U")
    await stage.broker.stop()

    assert [(await future).code for future in sent] == [0] * 20
    assert isinstance(stage.broker, Broker)
