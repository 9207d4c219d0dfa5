import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.errors import LocalProtocolError
from txmq.limits import FRAME_BYTES_MAX
from txmq.protocol import command
from txmq.protocol.command import FrameReader
from txmq.protocol.headers import EndTransaction, SendMessageV2
from txmq.protocol.templates import SendHeaderTemplate, quoted

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
numbers = st.integers(0, 2**31 - 1)


@given(
    group=names,
    topic=names,
    broker=names,
    properties=st.text(st.characters(exclude_categories=["Cs"])),
    opaque=numbers,
    queue=numbers,
    sys_flag=numbers,
    born=st.integers(0, 2**63 - 1),
    flag=st.integers(-(2**31), 2**31 - 1),
    code=st.sampled_from([310, 320, 7712]),
    is_oneway=st.booleans(),
)
def test_the_template_for_a_send_equals_the_codec(
    group, topic, broker, properties, opaque, queue, sys_flag, born, flag, code, is_oneway
):
    header = SendMessageV2(
        producer_group=group,
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue,
        sys_flag=sys_flag,
        born_timestamp=born,
        flag=flag,
        properties=properties,
        reconsume_times=0,
        unit_mode=False,
        batch=code == 320,
        broker_name=broker,
    )

    head = SendHeaderTemplate(group, topic, "TBW102", 4, broker).head(
        opaque, queue, sys_flag, born, flag, properties, b"body",
        code=code, is_oneway=is_oneway,
    )  # fmt: skip

    assert head + b"body" == command.encode(code, opaque, header, body=b"body", flag=2 * is_oneway)


@given(
    group=names,
    offset=st.integers(-(2**63), 2**63 - 1),
    opaque=numbers,
    decision=st.sampled_from([0, 8, 12]),
    answers_check=st.booleans(),
    msg_id=st.none() | names,
    transaction_id=st.none() | names,
    topic=st.none() | names,
)
def test_an_end_is_encoded_like_any_other_request(
    group, offset, opaque, decision, answers_check, msg_id, transaction_id, topic
):
    end = EndTransaction(
        producer_group=group,
        tran_state_table_offset=offset,
        commit_log_offset=-offset - 1,
        commit_or_rollback=decision,
        from_transaction_check=answers_check,
        msg_id=msg_id,
        transaction_id=transaction_id,
        topic=topic,
    )

    written = command.encode(37, opaque, end)

    assert written == command.encode(37, opaque, command.fields_of(end))


def test_an_end_with_a_lone_surrogate_is_refused():
    with pytest.raises(LocalProtocolError):
        command.encode(37, 1, EndTransaction("g", 1, 2, 8, msg_id="\ud800"))


@pytest.mark.parametrize("topic", ["%RETRY%g", "100%d", "%%"])
def test_percent_signs_in_names_are_kept(topic):
    head = SendHeaderTemplate("%g", topic, "TBW102", 4, "b%s").head(1, 2, 0, 3, 4, "%d", b"")

    (part,) = FrameReader().feed(head)
    fields = command.decode(part).read(SendMessageV2)
    assert (fields.topic, fields.producer_group, fields.broker_name) == (topic, "%g", "b%s")
    assert fields.properties == "%d"


def test_a_lone_surrogate_is_refused():
    with pytest.raises(LocalProtocolError):
        quoted("\ud800")
    with pytest.raises(LocalProtocolError):
        SendHeaderTemplate("g", "\ud800", "TBW102", 4, "b")


def test_a_send_above_the_frame_limit_is_refused():
    form = SendHeaderTemplate("g", "T", "TBW102", 4, "b")
    overhead = len(form.head(1, 0, 0, 0, 0, "", b""))

    form.head(1, 0, 0, 0, 0, "", bytes(FRAME_BYTES_MAX - overhead))
    with pytest.raises(LocalProtocolError):
        form.head(1, 0, 0, 0, 0, "", bytes(FRAME_BYTES_MAX - overhead + 1))
