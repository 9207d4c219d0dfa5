"""Write the credit of order 1 as it was, and the seller's balance with it."""

from sqlalchemy import create_engine, text

STATEMENTS = (
    "UPDATE entry SET amount = 500 WHERE order_id = 'order-1'",
    "UPDATE account SET balance = (SELECT sum(amount) FROM entry)",
)

with create_engine("postgresql+psycopg:///seller").begin() as seller:
    for statement in STATEMENTS:
        seller.execute(text(statement))
