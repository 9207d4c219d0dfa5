"""The table of outcomes: every local transaction state with every reply of a broker."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.client.values import SendResult, SendStatus
from txmq.databases.guarded_transaction import drive
from txmq.message import Queue, QueueOffset
from txmq.protocol.headers import CheckState
from txmq.protocol.record import host_bytes, offset_id
from txmq.transaction.machine import EndSender
from txmq.transaction.settings import TransactionSettings
from txmq.transaction.state import (
    OUTCOMES,
    SPELLINGS,
    EndReply,
    LocalTransactionState,
    TransactionState,
)

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
AGREES = dict(zip(LocalTransactionState, TransactionState, strict=True))
BROKEN = {(COMMIT, EndReply.ROLLED_BACK), (ROLLBACK, EndReply.COMMITTED)}


@pytest.mark.parametrize("pair", list(product(LocalTransactionState, EndReply)))
def test_only_contradicting_replies_have_no_outcome(pair):
    assert (pair in OUTCOMES) is (pair not in BROKEN)


@pytest.mark.parametrize(("said", "heard"), OUTCOMES)
def test_an_outcome_never_contradicts_the_decision_sent(said, heard):
    state, is_acknowledged = OUTCOMES[said, heard]

    assert state is AGREES[said]
    if is_acknowledged:
        assert heard in (EndReply.TAKEN, EndReply.COMMITTED, EndReply.ROLLED_BACK)
        assert state is not TransactionState.UNKNOWN


def test_local_transaction_states_have_rocketmqs_values():
    assert [state.value for state in LocalTransactionState] == [8, 12, 0]
    assert set(SPELLINGS) == set(LocalTransactionState)


numbers = st.integers(0, 2**63 - 1)


class Brokers:
    """Connections to brokers that accept and record every END."""

    def __init__(self):
        self.ends = []
        self.session = self.clock = self.pool = self.routes = self
        self.sender = EndSender(self, "g", TransactionSettings())

    def monotonic(self):
        return 0.0

    def get(self, topic, now):
        return None

    def master(self, broker):
        return f"address of {broker}"

    def ready(self, address):
        return self

    async def request(self, code, end, **options):
        self.ends.append(end)

    def oneway(self, code, end):
        self.ends.append(end)


@given(offset=numbers, position=numbers, said=st.sampled_from(LocalTransactionState), xid=st.text())
def test_an_end_request_names_both_offsets_of_the_half_message(offset, position, said, xid):
    place = offset_id(host_bytes("10.0.0.1", 10911), position)
    sent = SendResult(SendStatus.OK, Queue("T", "b", 3), QueueOffset(offset), xid, place)

    brokers = Brokers()
    assert drive(brokers.sender.send([sent], said)).reply is EndReply.TAKEN
    (end,) = brokers.ends

    assert (end.tran_state_table_offset, end.commit_log_offset) == (offset, position)
    assert (end.msg_id, end.transaction_id, end.topic) == (xid, xid, "T")
    assert (end.commit_or_rollback, end.from_transaction_check) == (said.value, False)


@given(offset=numbers, position=numbers, said=st.sampled_from(LocalTransactionState))
def test_the_answer_to_a_check_repeats_both_offsets_of_the_check(offset, position, said):
    asked = CheckState(offset, position, None, None)

    brokers = Brokers()
    drive(brokers.sender.answer(brokers, asked, "T", "x", said))
    (end,) = brokers.ends

    assert (end.tran_state_table_offset, end.commit_log_offset) == (offset, position)
    assert (end.msg_id, end.transaction_id) == ("x", "x")
    assert end.from_transaction_check
