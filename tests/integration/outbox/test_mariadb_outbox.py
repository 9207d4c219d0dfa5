"""Adding messages, where MariaDB differs."""

import pytest
from sqlalchemy import text

from txmq import Message
from txmq.errors import TableMissing

ONE = Message(topic="transfer", body=b"one")


@pytest.mark.parametrize("lane", [None, "a"])
def test_several_messages_are_added_in_one_query(shop_on, lane):
    shop = shop_on("mysql-connection")
    with shop.engine.begin() as connection:

        def questions():
            [(_, count)] = connection.execute(text("SHOW SESSION STATUS LIKE 'Questions'"))
            return int(count)

        before = questions()
        shop.outbox.add_many(connection, [ONE, ONE, ONE], lane)
        assert questions() - before == 2  # One of them is the second question for the count.


def test_a_lane_without_a_lock_row_is_refused(shop_on):
    shop = shop_on("mysql-connection")
    shop.order("DELETE FROM txmq_outbox_lane")
    with shop.engine.begin() as connection, pytest.raises(TableMissing, match="row to lock"):
        shop.outbox.add(connection, ONE, "a")
