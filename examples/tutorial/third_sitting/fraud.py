"""Cheat in the seller's database: edit one credit, and invent another."""

from sqlalchemy import create_engine, text

INVENT = """
    INSERT INTO entry (order_id, account, kind, amount, booked)
    SELECT 'order-99', 'seller', 'credit', 900, max(booked) FROM entry
"""
STATEMENTS = (
    "UPDATE entry SET amount = 5000 WHERE order_id = 'order-1'",
    INVENT,
    "UPDATE account SET balance = (SELECT sum(amount) FROM entry)",
)

with create_engine("postgresql+psycopg:///seller").begin() as seller:
    for statement in STATEMENTS:
        seller.execute(text(statement))
