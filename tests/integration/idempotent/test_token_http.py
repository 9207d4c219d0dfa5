"""An endpoint that is called again: it repeats a lost response, even from a new process."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path

import httpx
import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.running import in_loop, run_by
from txmq.errors import KeyConflict, KeyInProgress, TokenRefused
from txmq.idempotent.guard import idempotent
from txmq.idempotent.token import TokenGuard
from txmq.idempotent.unique_key import UniqueKeyTable

SHOP = Path(__file__).with_name("token_shop.py")
SECRET = b"of this endpoint alone"
REFUSALS = {KeyInProgress: 409, KeyConflict: 422, TokenRefused: 400}


@contextlib.contextmanager
def process(url, **environ):
    """A shop; asked by method, token and order."""
    command = [sys.executable, str(SHOP), url.render_as_string(hide_password=False)]
    root = str(SHOP.parents[3])
    started = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        env={**os.environ, **environ, "PYTHONPATH": root},
        text=True,
    )
    port = int(started.stdout.readline())

    def ask(method, token="", order=""):
        with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=20)) as line:
            line.request(method, "/", order.encode(), {"Idempotency-Key": token})
            answer = line.getresponse()
            return answer.status, json.loads(answer.read()), answer.headers.get("Retry-After")

    try:
        yield ask
    finally:
        started.kill()
        started.wait()
        started.stdout.close()


def test_a_lost_response_is_returned_by_another_process(shop_of):
    """The first dies by kill -9 between the commit and the answer."""
    shop = shop_of("table", "postgres")

    with process(shop.url, FIRST_LIFE="1") as ask:
        (_, told, _), (_, other, _) = ask("GET"), ask("GET")
        token = told["token"]
        with pytest.raises((RemoteDisconnected, ConnectionResetError)):
            ask("POST", token, "lost")
    with process(shop.url) as ask:
        answers = [ask("POST", token, "lost") for _ in range(3)]
        assert answers == [(200, {"order": "lost", "number": 1}, None)] * 3
        assert ask("POST", other["token"], "found")[1] == {"order": "found", "number": 2}
        assert ask("POST", token, "something else")[0] == 422
        forged = token[:-8] + token[-8:].swapcase()
        assert ask("POST", forged, "lost")[0] == 400
        assert ask("POST", "", "lost")[0] == 400

    assert shop.effects == ["found", "lost"]


def served(guard, at_work, go_on):
    """An application of Starlette's."""

    @idempotent(guard, key=lambda token, order: token, payload=lambda token, order: order)
    async def buy(session, token, order):
        await session.execute(shop_insert(order))
        at_work.set()
        await go_on.wait()
        return {"order": order}

    async def issue(request):
        return JSONResponse({"token": guard.issue()})

    async def order(request):
        token = request.headers.get("Idempotency-Key", "")
        try:
            return JSONResponse(await buy(token, (await request.body()).decode()))
        except tuple(REFUSALS) as problem:
            again = {"Retry-After": "1"} if problem.retryable else {}
            return JSONResponse({"problem": str(problem)}, REFUSALS[type(problem)], again)

    return Starlette(
        routes=[Route("/", issue, methods=["GET"]), Route("/", order, methods=["POST"])]
    )


def shop_insert(order):
    from tests.integration.idempotent.shop_stage import EFFECTS

    return EFFECTS.insert().values(name=order, amount=1)


@run_by(in_loop)
async def test_the_second_of_two_concurrent_requests_is_asked_to_retry(shop_of):
    shop = shop_of("table", "postgres")
    engine = create_async_engine(shop.url)
    at_work, go_on = asyncio.Event(), asyncio.Event()
    app = served(TokenGuard(UniqueKeyTable(engine), secret=SECRET), at_work, go_on)
    there = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=there, base_url="http://shop") as client:
        key = {"Idempotency-Key": (await client.get("/")).json()["token"]}
        first = asyncio.ensure_future(client.post("/", content="tea", headers=key))
        await at_work.wait()
        second = await client.post("/", content="tea", headers=key)
        assert (second.status_code, second.headers["Retry-After"]) == (409, "1")
        go_on.set()
        assert (await first).json() == {"order": "tea"}
        again = await client.post("/", content="tea", headers=key)
        assert (again.status_code, again.json()) == (200, {"order": "tea"})
        wrong = await client.post("/", content="coffee", headers=key)
        assert (wrong.status_code, "Retry-After" in wrong.headers) == (422, False)
    await engine.dispose()
    assert shop.effects == ["tea"]
