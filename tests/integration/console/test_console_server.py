"""How a console limits its connections, and how it stops."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from tests.running import run_by
from tests.waiting import run
from txmq.console import server
from txmq.console.settings import ConsoleSettings, origins_of

PAGE = "GET /static/console.css HTTP/1.1\r\nhost: localhost:{}\r\n\r\n"


@asynccontextmanager
async def serving(names="127.0.0.1:1"):
    """A console, by default without a cluster, and its port."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    origins = origins_of("127.0.0.1", port, None, is_loopback=True)
    settings = ConsoleSettings(names=names, origins=origins, needs_login=False)
    stopped, ready = asyncio.Event(), asyncio.Event()
    task = asyncio.ensure_future(server.serve(settings, listening, stopped, lambda _: ready.set()))
    try:
        await ready.wait()
        yield port
    finally:
        stopped.set()
        await task


HALF_A_FORM = "POST /login HTTP/1.1\r\nhost: localhost:{0}\r\norigin: http://localhost:{0}\r\n"
HALF_A_FORM += "content-type: application/x-www-form-urlencoded\r\ncontent-length: 100\r\n\r\nx"


@pytest.mark.parametrize("begun", ["", "GET / HTT", PAGE + "GET / HTT", HALF_A_FORM])
@run_by(run)
async def test_an_incomplete_request_times_out(monkeypatch, begun):
    monkeypatch.setattr(server, "REQUEST_S", 0.1)
    monkeypatch.setattr(server, "IDLE_S", 1)

    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begun.format(port).encode())
        try:
            answer = await reader.read()
        except ConnectionResetError:
            answer = b""
        assert b" 200 " in answer or "css" not in begun
        writer.close()


@run_by(run)
async def test_beyond_the_connection_limit_a_console_answers_503(monkeypatch):
    monkeypatch.setattr(server, "CONSOLE_REQUESTS_MAX", 2)
    monkeypatch.setattr(server, "CONSOLE_WAITING_MAX", 1)

    async with serving() as port:
        streams = [await stream(port) for _ in range(2)]
        await answered(port, b" 503 ")
        for _, writer in streams:
            writer.close()
        await answered(port, b" 200 ")


@pytest.mark.parametrize("begun", ["", "GET / HTT", PAGE, HALF_A_FORM])
@run_by(run)
async def test_waiting_connections_do_not_lock_out_browsers(monkeypatch, begun):
    """400 half-sent requests once made every browser get 503 for ten seconds."""
    monkeypatch.setattr(server, "CONSOLE_REQUESTS_MAX", 5)
    monkeypatch.setattr(server, "CONSOLE_WAITING_MAX", 5, raising=False)

    async with serving() as port:
        waiting = []
        for _ in range(30):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begun.format(port).encode())
            if begun == PAGE:
                assert b" 200 " in await reader.readline()
            waiting.append(writer)
            assert b" 200 " in await first_line(port)
        for writer in waiting:
            writer.close()


@run_by(run)
async def test_a_stop_finishes_a_page_in_progress():
    """The name server accepts but never answers: the page waits until its request times out."""
    asked = asyncio.Queue()
    silent = await asyncio.start_server(lambda _, writer: asked.put_nowait(writer), "127.0.0.1", 0)
    names = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    async with serving(names) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(PAGE.format(port).replace("static/console.css", "topics").encode())
        unanswered = await asked.get()
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"did not answer in time" in answer
    for ended in (writer, unanswered):
        ended.close()
    silent.close()


async def answered(port, status):
    """Ask until the answer has this status; the server accepts and closes asynchronously."""
    async with asyncio.timeout(10):
        while status not in await first_line(port):
            pass


async def first_line(port):
    """The first line of the answer to a single request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PAGE.format(port).encode())
    answer = await reader.readline()
    writer.close()
    return answer


async def stream(port):
    """An open page that receives its changes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    page = "live?page=/&shown=problem-x"
    writer.write(PAGE.format(port).replace("static/console.css", page).encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    return reader, writer


@run_by(run)
async def test_a_stop_does_not_wait_for_open_pages():
    streams = []
    async with serving() as port:
        streams += [await stream(port) for _ in range(2)]
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < server.STOP_S / 2
    for reader, writer in streams:
        await reader.read()
        writer.close()
