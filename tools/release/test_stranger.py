"""A test in a project of a user, which has txmq and pytest and nothing of this repository."""

from txmq import Message
from txmq.blocking import Producer


def test_an_order_is_sent(txmq_broker):
    with Producer("shop", txmq_broker.names) as producer:
        assert producer.send(Message(topic="Orders", body=b"tea")).offset == 0
