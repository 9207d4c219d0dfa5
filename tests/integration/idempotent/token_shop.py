"""A shop over HTTP, as a process that can be killed: ``python token_shop.py DATABASE``.

GET gives a token, and POST with it in ``Idempotency-Key`` orders. The first order for ``lost`` dies
between its commit and its answer.
"""

import json
import os
import signal
import sys
from http import HTTPStatus
from wsgiref.simple_server import WSGIRequestHandler, make_server

from sqlalchemy import create_engine, text

from txmq.errors import KeyConflict, KeyInProgress, TokenRefused
from txmq.idempotent.guard import idempotent
from txmq.idempotent.token import TokenGuard
from txmq.idempotent.unique_key import UniqueKeyTable

SECRET = b"the same for all processes"
REFUSALS = {
    KeyInProgress: HTTPStatus.CONFLICT,
    KeyConflict: HTTPStatus.UNPROCESSABLE_ENTITY,
    TokenRefused: HTTPStatus.BAD_REQUEST,
}

engine = create_engine(sys.argv[1])
guard = TokenGuard(UniqueKeyTable(engine), secret=SECRET)


@idempotent(guard, key=lambda token, order: token, payload=lambda token, order: order, scope="buy")
def buy(session, token, order):
    name = order.decode()
    session.execute(text("INSERT INTO effects VALUES (:name, 1)"), {"name": name})
    number = session.execute(text("SELECT count(*) FROM effects")).scalar_one()
    return {"order": name, "number": number}


def app(environ, start):
    status, answer, headers = answered(environ)
    start(f"{status.value} {status.phrase}", [("Content-Type", "application/json"), *headers])
    return [json.dumps(answer).encode()]


def answered(environ):
    if environ["REQUEST_METHOD"] == "GET":
        return HTTPStatus.OK, {"token": guard.issue()}, []
    order = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    try:
        answer = buy(environ.get("HTTP_IDEMPOTENCY_KEY", ""), order)
    except tuple(REFUSALS) as problem:
        again = [("Retry-After", "1")] if problem.retryable else []
        return REFUSALS[type(problem)], {"problem": str(problem)}, again
    if order == b"lost" and "FIRST_LIFE" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    return HTTPStatus.OK, answer, []


class Quiet(WSGIRequestHandler):
    def log_message(self, *said):
        pass


if __name__ == "__main__":
    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        print(server.server_port, flush=True)
        server.serve_forever()
