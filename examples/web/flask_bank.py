"""The bank with Flask, a ``Session``, and one manager for each worker process."""

from __future__ import annotations

import atexit
import os

from flask import Flask, request
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from examples.web.bank import (
    GROUP,
    UNAVAILABLE,
    Answer,
    Transfer,
    answer_of,
    booked,
    later,
    see_balance,
)
from txmq import SQLResource
from txmq.blocking import TransactionManager

__all__ = ["create_app"]

BOOK = text("INSERT INTO transfer (id, xid, payer, amount) VALUES (:id, :xid, :payer, :amount)")
TAKE = text("UPDATE account SET balance = balance - :amount WHERE name = :payer RETURNING balance")
FIND = text("SELECT xid, payer, amount FROM transfer WHERE id = :id")


def find(engine: Engine, order: Transfer) -> Answer | None:
    """The answer to a transfer that is in the books already."""
    with engine.connect() as connection:
        found = connection.execute(FIND, {"id": order.id}).one_or_none()
    return None if found is None else booked(order, *found)


def create_app(engine: Engine, names: str) -> Flask:
    """The application; its manager, ``app.extensions["txmq"]``, is yet to be opened."""
    app = Flask(__name__)
    app.extensions["txmq"] = tm = TransactionManager(GROUP, names, SQLResource(engine))

    @tm.transactional(topic="transfer", tags="CCB", keys=lambda order: order.id)
    def transfer_out(session: Session, order: Transfer) -> None:
        current = tm.current()
        assert current is not None
        row = {"id": order.id, "payer": order.payer, "amount": order.amount}
        session.execute(BOOK, {**row, "xid": current.xid})
        left = session.execute(TAKE, row).scalar_one_or_none()
        see_balance(order, left)

    @app.post("/transfers")
    def transfer() -> tuple[dict[str, str], int]:
        order = Transfer(**request.get_json())
        answer = find(engine, order)
        if answer is None:
            try:
                answer = answer_of(transfer_out(order))
            except IntegrityError as error:
                # The same request came twice at the same moment, and the other was first.
                answer = find(engine, order) or later(error)
            except UNAVAILABLE as error:
                answer = later(error)
        return answer.body, answer.status

    @app.get("/health")
    def health() -> dict[str, str]:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
        return {"state": "well"}

    return app


def main() -> Flask:
    """For ``gunicorn 'examples.web.flask_bank:main()'``, which calls it in each worker."""
    app = create_app(create_engine(os.environ["BANK_DATABASE"]), os.environ["TXMQ_NAMES"])
    tm = app.extensions["txmq"]
    tm.start()
    atexit.register(tm.stop)
    return app
