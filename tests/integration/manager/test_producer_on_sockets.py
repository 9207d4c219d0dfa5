"""A transaction producer on the sockets of this machine."""

import logging

import pytest

from tests.running import in_loop, run_by
from tests.unit.transaction.producing_stage import (
    Bank,
    message,
)
from txmq.errors import (
    Effect,
)
from txmq.transaction import TransactionProducer, TransactionSettings


@run_by(in_loop)
async def test_sending_without_a_broker_raises_with_its_address_and_no_effect(caplog):
    caplog.set_level(logging.CRITICAL)

    settings = TransactionSettings(timeout=0.2, retries=0)
    async with TransactionProducer("g", "127.0.0.1:1", Bank(), settings) as producer:
        with pytest.raises(Exception, match="127.0.0.1:1") as told:
            await producer.send_in_transaction(message())
        assert told.value.effect is Effect.NONE
