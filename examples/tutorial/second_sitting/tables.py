"""Make the tables of both databases, and give Ann 10,000 cents."""

from sqlalchemy import create_engine, text

from txmq import create_fence
from txmq.idempotent import create_done

ACCOUNT = "CREATE TABLE account (name TEXT PRIMARY KEY, balance BIGINT NOT NULL)"
ENTRY = """
    CREATE TABLE entry (
        id BIGSERIAL PRIMARY KEY,
        order_id TEXT NOT NULL,
        account TEXT NOT NULL,
        kind TEXT NOT NULL,
        amount BIGINT NOT NULL,
        booked TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
        UNIQUE (order_id, account, kind)
    )
"""
PLACED = "CREATE TABLE placed (id TEXT PRIMARY KEY, customer TEXT NOT NULL, amount BIGINT NOT NULL)"
OPENING = """
    INSERT INTO entry (order_id, account, kind, amount)
    VALUES ('opening', 'ann', 'opening', 10000), ('opening', 'owner', 'opening', -10000)
"""

shop = create_engine("postgresql+psycopg:///shop")
create_fence(shop)  # Ties a commit to its message.
with shop.begin() as database:
    for statement in (ACCOUNT, ENTRY, PLACED, OPENING):
        database.execute(text(statement))
    database.execute(text("INSERT INTO account VALUES ('ann', 10000)"))

seller = create_engine("postgresql+psycopg:///seller")
create_done(seller)  # The keys whose work is done.
with seller.begin() as database:
    for statement in (ACCOUNT, ENTRY):
        database.execute(text(statement))
    database.execute(text("INSERT INTO account VALUES ('seller', 0)"))
