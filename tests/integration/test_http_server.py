"""The pages for monitoring programs: what is served, what is refused, and the bounds."""

import asyncio

import pytest

from txmq.limits import HTTP_ANSWERS_MAX, HTTP_REQUEST_BYTES_MAX
from txmq.metrics import http as http_server
from txmq.metrics.http import HttpPage, HttpServer


async def hello():
    return HttpPage("hello\n")


async def broken():
    raise ValueError("planted")


PAGES = {"/hello": hello, "/broken": broken}


async def exchange(address, request):
    """Everything that a server answers to these bytes."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    try:
        return (await reader.read()).decode()
    finally:
        writer.close()


def answered(*requests, pages=PAGES):
    async def run():
        async with HttpServer(pages, "127.0.0.1", 0) as server:
            return [await exchange(server.address, request) for request in requests]

    return asyncio.run(run())


def test_a_page_comes_with_its_length_and_closes_the_connection():
    (answer,) = answered(b"GET /hello?from=a%20test HTTP/1.1\r\nHost: x\r\n\r\n")

    head, _, body = answer.partition("\r\n\r\n")
    assert head.splitlines()[0] == "HTTP/1.1 200 OK"
    assert "Content-Length: 6" in head.splitlines()
    assert "Connection: close" in head.splitlines()
    assert body == "hello\n"


def test_a_head_request_returns_the_same_headers_and_no_body():
    got, head = answered(b"GET /hello HTTP/1.1\r\n\r\n", b"HEAD /hello HTTP/1.1\r\n\r\n")

    assert got == head + "hello\n"


def test_a_request_received_in_pieces_is_answered():
    async def run():
        async with HttpServer(PAGES, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.address)
            for piece in (b"GET /he", b"llo HTTP/1.1\r\n\r", b"\nmore"):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            answer = await reader.read()
            writer.close()
            return answer

    assert asyncio.run(run()).endswith(b"\r\n\r\nhello\n")


@pytest.mark.parametrize("path", ["/", "/hell", "/hello/", "/%68ello", "/\xff", ""])
def test_an_unknown_path_is_refused_with_a_list_of_the_pages(path):
    (answer,) = answered(f"GET {path} HTTP/1.1\r\n\r\n".encode("latin-1"))

    assert answer.startswith("HTTP/1.1 404 Not Found\r\n")
    assert answer.endswith("\r\n\r\nGET /hello\nGET /broken\n")


@pytest.mark.parametrize("verb", ["POST", "DELETE", "OPTIONS", "get", ""])
def test_methods_other_than_get_and_head_are_refused(verb):
    (answer,) = answered(f"{verb} /hello HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc".encode())

    assert answer.startswith("HTTP/1.1 405 Method Not Allowed\r\n")
    assert "\r\nAllow: GET, HEAD\r\n" in answer


def test_the_error_of_a_failed_page_is_logged_but_not_shown(caplog):
    (answer,) = answered(b"GET /broken HTTP/1.1\r\n\r\n")

    assert answer.startswith("HTTP/1.1 500 Internal Server Error\r\n")
    assert "planted" not in answer
    assert "planted" in caplog.text


def test_a_request_that_reaches_the_size_limit_is_refused():
    endless, long = answered(
        b"GET /hello HTTP/1.1\r\n" + b"x" * HTTP_REQUEST_BYTES_MAX,
        b"GET /hello HTTP/1.1\r\nA: " + b"x" * HTTP_REQUEST_BYTES_MAX + b"\r\n\r\n",
    )

    for answer in (endless, long):
        assert answer.startswith("HTTP/1.1 431 ")
        assert f"at most {HTTP_REQUEST_BYTES_MAX} bytes" in answer


def test_silent_connections_and_slow_pages_time_out(monkeypatch):
    monkeypatch.setattr(http_server, "EXCHANGE_S", 0.05)

    async def slow():
        await asyncio.Event().wait()

    silent, unfinished, waiting = answered(
        b"", b"GET /slow", b"GET /slow HTTP/1.1\r\n\r\n", pages={"/slow": slow}
    )

    assert silent == unfinished == waiting == ""


def test_a_request_beyond_the_page_limit_is_refused_and_later_ones_are_served():
    async def run():
        begun, released = [], asyncio.Event()

        async def slow():
            begun.append(1)
            await released.wait()
            return HttpPage("at last\n")

        async with HttpServer({**PAGES, "/slow": slow}, "127.0.0.1", 0) as server:
            slow_ones = [
                asyncio.ensure_future(exchange(server.address, b"GET /slow HTTP/1.1\r\n\r\n"))
                for _ in range(HTTP_ANSWERS_MAX)
            ]
            while len(begun) < HTTP_ANSWERS_MAX:
                await asyncio.sleep(0)
            refused = await exchange(server.address, b"GET /hello HTTP/1.1\r\n\r\n")
            released.set()
            pages = await asyncio.gather(*slow_ones)
            return refused, pages, await exchange(server.address, b"GET /hello HTTP/1.1\r\n\r\n")

    refused, pages, served = asyncio.run(run())

    assert refused.startswith("HTTP/1.1 503 Service Unavailable\r\n")
    assert "16 pages are being made, which is the limit" in refused
    assert all(page.endswith("at last\n") for page in pages)
    assert served.endswith("hello\n")


@pytest.mark.parametrize("half", [b"", b"GET /hello HTTP/1.1\r\nHost: "], ids=["silent", "half"])
def test_half_sent_requests_do_not_block_other_requests(monkeypatch, half):
    """Once 16 of them blocked every health probe of a broker for ten seconds."""
    monkeypatch.setattr(http_server, "HTTP_WAITING_MAX", 50, raising=False)

    async def run():
        writers, answers = [], []
        async with HttpServer(PAGES, "127.0.0.1", 0) as server:
            for number in range(200):
                _, writer = await asyncio.open_connection(*server.address)
                writer.write(half)
                writers.append(writer)
                if number % 20 == 0:
                    answers.append(await exchange(server.address, b"GET /hello HTTP/1.1\r\n\r\n"))
            for writer in writers:
                writer.close()
        return answers

    answers = asyncio.run(run())

    assert [answer[:15] for answer in answers] == ["HTTP/1.1 200 OK"] * 10


def test_unread_answers_do_not_block_other_requests(monkeypatch):
    monkeypatch.setattr(http_server, "HTTP_ANSWERS_MAX", 2, raising=False)
    monkeypatch.setattr(http_server, "HTTP_CONNECTIONS_MAX", 2, raising=False)

    async def large():
        return HttpPage("x" * 16 * 1024 * 1024)

    async def run():
        answers, writers = [], []
        async with HttpServer({**PAGES, "/large": large}, "127.0.0.1", 0) as server:
            for _ in range(8):
                reader, writer = await asyncio.open_connection(*server.address)
                writer.write(b"GET /large HTTP/1.1\r\n\r\n")
                assert await reader.read(1)
                writer.transport.pause_reading()
                writers.append(writer)
                answers.append(await exchange(server.address, b"GET /hello HTTP/1.1\r\n\r\n"))
            for writer in writers:
                writer.close()
        return answers

    for answer in asyncio.run(run()):
        assert answer.startswith("HTTP/1.1 200 OK")


def test_a_stopped_server_closes_its_connections():
    async def run():
        async with HttpServer(PAGES, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(b"GET /hello")
            await writer.drain()
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    assert asyncio.run(run()) == b""
