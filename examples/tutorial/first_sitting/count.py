"""Compare the orders that were sent with the bills."""

from collections import Counter
from pathlib import Path

from sqlalchemy import create_engine, text

sent = set(Path("sent.txt").read_text().split())
deliveries = Path("delivered.txt").read_text().split()
with create_engine("sqlite:///bills.db").connect() as database:
    bills = Counter(database.execute(text("SELECT order_id FROM bill")).scalars())

missing = len(sent - set(bills))
twice = sum(number > 1 for number in bills.values())
print(f"sent {len(sent)}, delivered {len(deliveries)}, missing {missing}, billed twice {twice}")
