"""Show the money in both databases."""

from sqlalchemy import create_engine, text

with create_engine("postgresql+psycopg:///shop").connect() as shop:
    ann = shop.execute(text("SELECT balance FROM account WHERE name = 'ann'")).scalar_one()
    orders = shop.execute(text("SELECT id FROM placed ORDER BY id")).scalars().all()
with create_engine("postgresql+psycopg:///seller").connect() as seller:
    received = seller.execute(text("SELECT balance FROM account")).scalar_one()
print(f"ann {ann}, seller {received}, under way {10_000 - ann - received}, orders", *orders)
