"""What can become of a transfer, as data: what it leaves in the three ledgers, and its class.

A day is made of shapes. Honest ones come by themselves, as often as ``share`` says; the others are
planted.
"""

from typing import Literal, NamedTuple

from txmq.reconcile.classes import Class


class Shape(NamedTuple):
    """A transfer's fate. By default it was debited, ordered and credited once."""

    name: str
    class_: Class
    share: float = 0.0
    """Of a thousand honest transfers."""
    debits: int = 1
    credits: int = 1
    returns: int = 0
    messages: int = 1
    """With ids of their own."""
    copies: int = 0
    """More messages with the id of the first, as a producer that tries again leaves them."""
    state: str = "committed"
    by: str = "producer"
    place: Literal["taken", "stalled", "unknown", "unseen"] = "taken"
    """Where its message lies: behind or before what its consumers have acknowledged, in a queue
    where they have acknowledged nothing, or in no queue yet."""
    failure: Literal["", "retrying", "dead"] = ""
    age: Literal["any", "old", "young"] = "any"
    """Beside the grace."""
    wrong: str = ""
    """What is not as it should be, and of which side."""
    is_backdated: bool = False
    """Whether the last row was booked into the day before."""
    has_one_id: bool = False
    """Whether the second credit is a copy of the first one's row."""


C = Class

HONEST = (
    Shape("honest", C.MATCHED, 880),
    Shape("honest, decided by a check", C.MATCHED, 20, by="check"),
    Shape("honest, decided by an operator", C.MATCHED, 2, by="operator"),
    Shape("honest, by an outbox", C.MATCHED, 50, state="sent"),
    Shape("honest, sent again", C.MATCHED, 15, copies=1),
    Shape("honest, by an outbox, sent twice again", C.MATCHED, 5, state="sent", copies=2),
    Shape("honest, at the second try", C.MATCHED, 5, failure="retrying"),
    Shape("rolled back", C.ROLLED_BACK, 12, debits=0, credits=0, state="rolled_back"),
    Shape("rolled back at a check", C.ROLLED_BACK, 5, 0, 0, state="rolled_back", by="check"),
    Shape("paid back", C.RETURNED, 5, credits=0, returns=1),
    Shape("paid back after a dead letter", C.RETURNED, 1, credits=0, returns=1, failure="dead"),
)

PLANTED = (
    Shape("debited twice", C.DUPLICATE_DEBIT, debits=2),
    Shape("debited twice and never ordered", C.DUPLICATE_DEBIT, debits=2, credits=0, messages=0),
    Shape("paid back twice", C.DUPLICATE_DEBIT, credits=0, returns=2),
    Shape("the same credit twice", C.DUPLICATE_CREDIT, credits=2, has_one_id=True),
    Shape("ordered twice", C.DUPLICATE_MESSAGE, messages=2),
    Shape("ordered twice by an outbox", C.DUPLICATE_MESSAGE, messages=2, state="sent"),
    Shape("ordered twice, credited twice", C.DUPLICATE_MESSAGE, credits=2, messages=2),
    Shape("credited twice", C.DOUBLE_CREDIT, credits=2),
    Shape("credited and paid back", C.DOUBLE_CREDIT, returns=1),
    Shape("credited in another currency", C.CURRENCY_MISMATCH, wrong="credit currency"),
    Shape("ordered in another currency", C.CURRENCY_MISMATCH, wrong="message currency"),
    Shape("debited too much", C.AMOUNT_MISMATCH, wrong="debit amount"),
    Shape("credited too much", C.AMOUNT_MISMATCH, wrong="credit amount"),
    Shape("ordered too much", C.AMOUNT_MISMATCH, wrong="message amount"),
    Shape("ordered unreadably", C.AMOUNT_MISMATCH, wrong="message body"),
    Shape("paid back too much", C.AMOUNT_MISMATCH, credits=0, returns=1, wrong="return amount"),
    Shape("within the tolerance", C.MATCHED, wrong="a minor unit"),
    Shape("debited elsewhere", C.ACCOUNT_MISMATCH, wrong="debit account"),
    Shape("credited elsewhere", C.ACCOUNT_MISMATCH, wrong="credit account"),
    Shape("paid back elsewhere", C.ACCOUNT_MISMATCH, credits=0, returns=1, wrong="return account"),
    Shape("credited out of nothing", C.CREDIT_WITHOUT_MESSAGE, debits=0, messages=0),
    Shape("credited without an order", C.CREDIT_WITHOUT_MESSAGE, messages=0),
    Shape("credited before a decision", C.CREDIT_WITHOUT_MESSAGE, state="prepared"),
    Shape("credited after a rollback", C.CREDIT_WITHOUT_MESSAGE, debits=0, state="rolled_back"),
    Shape("debited, rolled back", C.ROLLED_BACK_BUT_DEBITED, credits=0, state="rolled_back"),
    Shape("rolled back and all done", C.ROLLED_BACK_BUT_DEBITED, state="rolled_back"),
    Shape("to suspense at the payer's bank", C.WRONG_BANK, wrong="credit bank"),
    Shape("paid back at the payee's bank", C.WRONG_BANK, credits=0, returns=1, wrong="return bank"),
    Shape("committed by hand", C.COMMITTED_BUT_NOT_DEBITED, debits=0, by="operator", age="old"),
    Shape("committed, and nothing", C.COMMITTED_BUT_NOT_DEBITED, 0, 0, 0, age="old"),
    Shape("forged", C.MESSAGE_WITHOUT_DEBIT, debits=0, state="sent", age="old"),
    Shape("forged in vain", C.MESSAGE_WITHOUT_DEBIT, 0, 0, 0, state="sent", age="old"),
    Shape("never told", C.DEBIT_WITHOUT_MESSAGE, credits=0, messages=0, age="old"),
    Shape("parked", C.PARKED, credits=0, state="parked", by="broker"),
    Shape("parked at the end", C.PARKED, credits=0, state="parked", by="broker", age="young"),
    Shape("parked, not debited", C.PARKED, debits=0, credits=0, state="parked", by="broker"),
    Shape("undecided", C.PARKED, credits=0, state="prepared", age="old"),
    Shape("undecided, not debited", C.PARKED, debits=0, credits=0, state="prepared", age="old"),
    Shape("given up", C.DEAD_LETTER, credits=0, failure="dead", age="old"),
    Shape("given up at the end", C.DEAD_LETTER, credits=0, failure="dead", age="young"),
    Shape("not taken", C.COMMITTED_UNDELIVERED, credits=0, place="stalled", age="old"),
    Shape("nobody to take it", C.COMMITTED_UNDELIVERED, credits=0, place="unknown", age="old"),
    Shape("not seen", C.COMMITTED_UNDELIVERED, credits=0, place="unseen", age="old"),
    Shape("taken, and nothing", C.DELIVERED_UNCREDITED, credits=0, age="old"),
    Shape("still trying", C.DELIVERED_UNCREDITED, credits=0, failure="retrying", age="old"),
    Shape("young: never told", C.IN_FLIGHT, credits=0, messages=0, age="young"),
    Shape("young: undecided", C.IN_FLIGHT, credits=0, state="prepared", age="young"),
    Shape("young: begun", C.IN_FLIGHT, debits=0, credits=0, state="prepared", age="young"),
    Shape("young: not taken", C.IN_FLIGHT, credits=0, place="stalled", age="young"),
    Shape("young: taken", C.IN_FLIGHT, credits=0, age="young"),
    Shape("young: still trying", C.IN_FLIGHT, credits=0, failure="retrying", age="young"),
    Shape("young: not debited yet", C.IN_FLIGHT, debits=0, credits=0, age="young"),
    Shape("credited late", C.PRIOR_PERIOD, is_backdated=True),
    Shape("paid back late", C.PRIOR_PERIOD, credits=0, returns=1, is_backdated=True),
)

SHAPES = HONEST + PLANTED
