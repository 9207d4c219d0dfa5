"""10, 310, 320: every check and every outcome of a send."""

import asyncio
import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from msgspec.structs import replace as replaced

from tests.running import run_by
from tests.unit.handlers.handler_stage import (
    SETTINGS,
    batch_of,
    batching,
    in_world,
    in_world_with_client,
    sending,
    with_client,
    with_topics,
)
from txmq.protocol import batch, properties
from txmq.protocol.bodies import GroupConfig, TopicConfig
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import BINARY, JSON
from txmq.protocol.headers import DeleteGroup, SendAnswer, SendMessage, SendMessageV2, TopicHeader
from txmq.protocol.record import host_text, position_in, unpack
from txmq_broker.config import StoreSettings
from txmq_broker.store.queue_store import keys_in

SEND, SEND_V2, BATCH = 10, 310, 320
HALVES = "RMQ_SYS_TRANS_HALF_TOPIC"
DELAYS = ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"]
LONG = 64 * 1024
SHAPES = {SEND: SendMessage, SEND_V2: SendMessageV2}
ERROR, ILLEGAL, UNAVAILABLE, NO_PERMISSION, NO_TOPIC, NO_GROUP = 1, 13, 14, 16, 17, 26

INT32 = st.integers(-(2**31), 2**31 - 1)
TEXTS = st.builds(
    "{}UNIQ_KEY\x01{}\x02{}".format,
    st.sampled_from(["", "TAGS\x01A\x02", "KEYS\x01k l\x02"]),
    st.sampled_from(["u", "v", "ä", "x\x01y"]),
    st.sampled_from(["", "TAGS\x01B", "WAIT\x01true\x02", "a\x01b\x02KEYS\x01u\x02"]),
)
BODIES = st.binary(min_size=1, max_size=9)
ALIKE = st.builds(
    lambda text, size, uniques: [
        (5, number.to_bytes(size, "big"), text.format(unique))
        for number, unique in enumerate(uniques)
    ],
    st.sampled_from(
        ["UNIQ_KEY\x01{}\x02TAGS\x01A\x02", "KEYS\x01{0}\x02WAIT\x01x\x02UNIQ_KEY\x01{0}"]
    ),
    st.integers(1, 9),
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=2, max_size=6),
)
"""Messages of equal sizes that differ in their bodies, unique keys and keys."""


async def stored(client, topic, queue=0):
    return (await client.pull(topic, queue=queue)).records


@pytest.mark.parametrize("kind", [JSON, BINARY])
@pytest.mark.parametrize("code", [SEND, SEND_V2])
@run_by(with_client)
async def test_a_message_is_stored_unchanged_and_answered_in_the_encoding_of_the_request(
    client, /, code, kind
):
    await client.topic("T", 4)
    header = sending("T", queue=2, shape=SHAPES[code], TAGS="A", UNIQ_KEY="u1")

    answer = await client.ok(code, header, body=b"hello", kind=kind)

    result = answer.read(SendAnswer)
    assert answer.kind == kind
    assert (result.queue_id, result.queue_offset, result.transaction_id) == (2, 0, "u1")
    (record,) = await stored(client, "T", 2)
    assert (record.body, record.flag, record.born_ms) == (b"hello", 7, 1_700_000_000_000)
    assert (record.topic, record.queue_id, record.queue_offset) == ("T", 2, 0)
    assert record.property_map() == {"TAGS": "A", "UNIQ_KEY": "u1", "CLUSTER": "DefaultCluster"}
    assert record.offset_id == result.msg_id


@run_by(with_client)
async def test_the_answer_to_a_send_has_all_fields_that_java_clients_require(client, /):
    answer = await client.send("T")

    fields = answer.field_map()
    required = ["MSG_REGION", "TRACE_ON", "msgId", "queueId", "queueOffset", "transactionId"]
    assert sorted(fields) == required
    assert (fields["MSG_REGION"], fields["TRACE_ON"]) == ("DefaultRegion", "true")


@run_by(in_world_with_client)
async def test_a_stored_record_names_its_sender_its_broker_and_its_time(stage, client, /):
    before = stage.clock.wall_ms()
    result = (await client.send("T")).read(SendAnswer)

    (record,) = await stored(client, "T")
    host, port = client.connection._transport.get_extra_info("sockname")
    assert host_text(record.born_host) == f"{host}:{port}"
    assert host_text(record.store_host) == stage.broker.address
    assert before <= record.stored_ms <= stage.clock.wall_ms()
    assert position_in(result.msg_id) == record.position


@run_by(in_world_with_client)
async def test_queue_offsets_are_consecutive_and_store_times_never_go_back(stage, client, /):
    await client.fill("T", 20)
    stage.clock.jump(-60)
    await client.fill("T", 5)

    records = await stored(client, "T")
    assert [record.queue_offset for record in records] == list(range(25))
    times = [record.stored_ms for record in records]
    assert times == sorted(times)


@run_by(with_client)
async def test_the_reconsume_times_of_a_sent_message_are_stored(client, /):
    header = sending("T")
    header.reconsume_times = 3
    await client.ok(SEND, header, body=b"x")

    assert (await stored(client, "T"))[0].attempts == 3


@run_by(with_client)
async def test_compression_flags_are_kept_and_address_flags_are_set_by_the_broker(client, /):
    await client.ok(SEND, sending("T", sys_flag=0x301 | 0x10 | 0x20), body=b"x")

    assert (await stored(client, "T"))[0].sys_flag == 0x301


@run_by(in_world)
async def test_a_sender_with_an_ipv6_address_is_stored_in_full(stage, /):
    client = await stage.client(address="fd00::5")
    await client.send("T", b"x")
    await client.send("T", b"y")
    first, second = await stored(client, "T")

    assert first.sys_flag == 0x10
    assert host_text(first.born_host).startswith("[fd00::5]:")
    assert host_text(first.store_host) == stage.broker.address
    assert (first.body, second.body) == (b"x", b"y")


# The order of the checks


@run_by(in_world_with_client)
async def test_1_a_stopping_broker_refuses_sends(stage, client, /):
    stage.broker.admission.set_cause("stopping", "the broker is stopping")

    answer = await client.ask(SEND, sending("a b"), body=b"x")
    assert (answer.code, answer.remark) == (UNAVAILABLE, "the broker is stopping")


@pytest.mark.parametrize("name", ["", "a b", "x" * 128], ids=["empty", "with a space", "long"])
@run_by(with_client)
async def test_3_an_invalid_topic_name_is_an_error(client, /, name):
    assert await client.code_of(SEND, sending(name), body=b"x") == ERROR


@pytest.mark.parametrize(
    "name",
    [
        "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
    ],
)  # fmt: skip
@run_by(with_client)
async def test_4_sends_to_system_topics_are_refused(client, /, name):
    assert await client.code_of(SEND, sending(name), body=b"x") == NO_PERMISSION


@pytest.mark.parametrize(
    ("topic", "queue", "code"),
    [
        ({"perm": 4}, 0, NO_PERMISSION),
        ({}, 4, ERROR),
        ({}, 99, ERROR),
        ({"write": 0}, -1, NO_PERMISSION),
    ],
    ids=["4: not writable", "6: one queue too far", "6: far too far", "6: no queue to choose"],
)
@run_by(with_client)
async def test_a_send_to_a_queue_that_cannot_be_written_is_refused(client, /, topic, queue, code):
    await client.topic("T", 4, **topic)

    assert await client.code_of(SEND, sending("T", queue=queue), body=b"x") == code


@pytest.mark.parametrize("template", ["", "unknown", "BenchmarkTest"])
@run_by(with_client)
async def test_5_a_send_without_a_usable_template_topic_creates_no_topic(client, /, template):
    assert await client.code_of(SEND, sending("T", default=template), body=b"x") == NO_TOPIC


@pytest.mark.parametrize(("wanted", "made"), [(4, 4), (16, 8), (0, 1)])
@run_by(with_client)
async def test_5_a_send_creates_an_unknown_topic(client, /, wanted, made):
    await client.ok(SEND, sending("T", queues=wanted), body=b"x")

    answer = await client.ok(RequestCode.GET_TOPIC_CONFIG, TopicHeader("T"))
    assert TopicConfig.read(answer.body) == TopicConfig("T", made, made, 6)


@run_by(with_client, with_topics(auto_create=False))
async def test_5_with_auto_creation_off_a_send_creates_no_topic(client, /):
    assert await client.code_of(SEND, sending("T"), body=b"x") == NO_TOPIC


@run_by(with_client)
async def test_5_a_retry_topic_is_created_with_the_queues_of_its_group(client, /):
    config = GroupConfig("g", retry_queue_nums=3)
    await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.write())
    await client.send("%RETRY%g")

    answer = await client.ok(RequestCode.GET_TOPIC_CONFIG, TopicHeader("%RETRY%g"))
    assert TopicConfig.read(answer.body) == TopicConfig("%RETRY%g", 3, 3, 6)
    await client.send("%RETRY%g", queue=2)


@run_by(with_client)
async def test_6_a_send_that_names_a_read_only_queue_is_stored_there(client, /):
    await client.topic("T", 4, write=2)

    assert (await client.send("T", queue=3)).read(SendAnswer).queue_id == 3
    assert await client.max_offset("T", 3) == 1


@run_by(with_client)
async def test_6_a_send_without_a_queue_goes_to_one_of_the_write_queues(client, /):
    await client.topic("T", 4, write=2)
    chosen = {(await client.send("T", queue=-1)).read(SendAnswer).queue_id for _ in range(20)}

    assert chosen == {0, 1}


@run_by(with_client, with_topics(auto_create_groups=False))
async def test_7_a_send_to_the_retry_topic_of_an_unknown_group_is_refused(client, /):
    assert await client.code_of(SEND, sending("%RETRY%g"), body=b"x") == NO_GROUP


@run_by(in_world_with_client)
async def test_7_a_send_to_a_retry_topic_creates_its_group_where_allowed(stage, client, /):
    await client.send("%RETRY%g")

    assert stage.broker.groups.find("g")


@run_by(in_world_with_client)
async def test_7_a_send_to_an_existing_retry_topic_does_not_change_it(stage, client, /):
    await client.send("%RETRY%g")
    state = stage.broker.topics.version
    saved = []
    stage.disk.on_write = lambda event: saved.append(event.path)
    await client.send("%RETRY%g")

    assert stage.broker.topics.version == state
    assert not [path for path in saved if path.startswith("config/topics")]


@run_by(with_client, with_topics(auto_create_groups=False))
async def test_7_a_send_to_the_retry_topic_of_a_deleted_group_is_refused(client, /):
    await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=GroupConfig("g").write())
    await client.send("%RETRY%g")
    await client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup("g"))

    assert await client.code_of(SEND, sending("%RETRY%g"), body=b"x") == NO_GROUP


@pytest.mark.parametrize("name", DELAYS)
@run_by(in_world_with_client)
async def test_8_a_batch_with_a_delayed_message_is_illegal(stage, client, /, name):
    delayed = {name: "3"}
    for header, body in (
        (batching("T"), batch_of(b"a") + batch_of(b"b", **delayed)),
        (batching("T"), batch_of(b"a", b"b", **delayed)),
        (batching("T", **delayed), batch_of(b"a", b"b")),
    ):
        assert await client.code_of(BATCH, header, body=body) == ILLEGAL
    assert await client.max_offset("T") == 0
    assert len(stage.broker.store.delays) == 0


@pytest.mark.parametrize("kind", [JSON, BINARY])
@pytest.mark.parametrize("code", [SEND, SEND_V2])
@pytest.mark.parametrize(
    ("sys_flag", "props"),
    [(4, {"TRAN_MSG": "true"}), (4, {}), (0, {"TRAN_MSG": "true"}), (0, {"TRAN_MSG": "TRUE"})],
    ids=["said twice", "in the header", "in the properties", "in capitals"],
)
@run_by(with_client)
async def test_9_a_half_message_is_recognised_by_its_flag_or_its_property(
    client, /, code, kind, sys_flag, props
):
    await client.topic("T", 4)
    header = sending("T", queue=2, sys_flag=sys_flag, shape=SHAPES[code], UNIQ_KEY="u", **props)

    answer = (await client.ok(code, header, body=b"half", kind=kind)).read(SendAnswer)

    assert (answer.queue_id, answer.queue_offset, answer.transaction_id) == (2, 0, "u")
    assert await client.max_offset("T", queue=2) == 0
    (record,) = await stored(client, HALVES)
    assert (record.body, record.topic, record.queue_id) == (b"half", HALVES, 0)
    assert record.property_map() == {
        "TRAN_MSG": props.get("TRAN_MSG", "true"), "PGROUP": "producers", "UNIQ_KEY": "u",
        "CLUSTER": "DefaultCluster", "REAL_TOPIC": "T", "REAL_QID": "2",
    }  # fmt: skip
    assert answer.msg_id == record.offset_id


@pytest.mark.parametrize("code", [SEND, SEND_V2])
@pytest.mark.parametrize(
    ("topic", "sys_flag", "props"),
    [("T", 0, {}), ("T", 0, {"DELAY": "0"}), (HALVES, 4, {}), (HALVES, 4, {"TRAN_MSG": "true"})],
    ids=["plain", "without a delay", "half by its header", "half by both"],
)
@run_by(with_client)
async def test_the_answer_names_the_id_that_the_broker_gave_to_a_message(
    client, /, code, topic, sys_flag, props
):
    header = sending("T", sys_flag=sys_flag, shape=SHAPES[code], **props)

    answer = (await client.ok(code, header, body=b"x")).read(SendAnswer)

    (record,) = await stored(client, topic)
    assert record.property_map()["UNIQ_KEY"] == answer.transaction_id
    assert len(answer.transaction_id) == 32


@pytest.mark.parametrize("value", ["false", "", "yes"])
@run_by(with_client)
async def test_9_a_message_whose_tran_msg_is_not_true_is_an_ordinary_message(client, /, value):
    await client.ok(SEND, sending("T", TRAN_MSG=value), body=b"x")

    assert [record.body for record in await stored(client, "T")] == [b"x"]


@pytest.mark.parametrize("sys_flag", [8, 12])
@run_by(with_client)
async def test_9_a_send_with_a_commit_or_rollback_flag_is_illegal(client, /, sys_flag):
    assert await client.code_of(SEND, sending("T", sys_flag=sys_flag), body=b"x") == ILLEGAL
    assert await client.max_offset(HALVES) == await client.max_offset("T") == 0


@pytest.mark.parametrize(
    "name", ["%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX", HALVES, "TRANS_CHECK_MAX_TIME_TOPIC"]
)
@pytest.mark.parametrize("is_declared", [True, False])
@run_by(with_client)
async def test_9_a_half_message_for_a_system_or_retry_topic_is_refused(
    client, /, name, is_declared
):
    header = sending(name, sys_flag=4 if is_declared else 0, TRAN_MSG="true")

    assert await client.code_of(SEND, header, body=b"x") == NO_PERMISSION
    assert await client.max_offset(HALVES) == 0


@pytest.mark.parametrize("attempts", [0, 99])
@run_by(with_client)
async def test_10_a_batch_for_a_retry_topic_is_illegal(client, /, attempts):
    header = batching("%RETRY%g")
    header.reconsume_times = attempts

    assert await client.code_of(BATCH, header, body=batch_of(b"a")) == ILLEGAL


@pytest.mark.fault("M13")
@pytest.mark.parametrize("kind", [JSON, BINARY], ids=["json", "binary"])
@pytest.mark.parametrize(
    ("topic", "props", "body", "code"),
    [
        ("T", {}, b"", ILLEGAL),
        ("T", {}, b"x" * 1001, ILLEGAL),
        ("T", {"KEY": "v" * LONG}, b"x", ILLEGAL),
        ("T", {"UNIQ_KEY": "v" * LONG}, b"x", ILLEGAL),
        ("T", {"TRAN_MSG": "true", "PGROUP": "g" * LONG}, b"x", ILLEGAL),
        ("T" * LONG, {}, b"x", ERROR),
    ],
    ids=["empty", "large", "long property", "long id", "long group of a half", "long topic"],
)
@run_by(in_world_with_client, with_topics(message_size_max=1000), topic="T")
async def test_a_message_out_of_bounds_is_refused_and_keeps_the_connection_open(
    stage, client, /, kind, topic, props, body, code
):
    refused = await client.ask(SEND, sending(topic, **props), body=body, kind=kind)

    assert refused.code == code
    assert refused.remark
    await client.ok(SEND, sending("T"), body=b"good", kind=kind)
    assert (await client.pull("T")).bodies == [b"good"]
    assert await client.max_offset(HALVES) == 0
    assert stage.broker.topics.by_name.get(topic) is None or topic == "T"


@pytest.mark.fault("M13")
@pytest.mark.parametrize(
    ("header", "body"),
    [(sending("T"), b""), (sending("T"), b"x" * 1001), (sending("T", KEY="v" * 32_767), b"x")],
    ids=["empty", "too large", "properties too long"],
)
@run_by(with_client, with_topics(message_size_max=1000))
async def test_a_message_that_cannot_be_stored_is_illegal(client, /, header, body):
    assert await client.code_of(SEND, header, body=body) == ILLEGAL
    assert await client.max_offset("T") == 0


@run_by(with_client)
async def test_a_send_without_a_required_field_is_an_error_that_names_it(client, /):
    answer = await client.ask(SEND, TopicHeader("T"), body=b"x")
    assert answer.code == ERROR
    assert "producerGroup" in answer.remark


# The outcome of a send


@run_by(in_world_with_client, replace(SETTINGS, store=StoreSettings(flush="sync")))
async def test_with_sync_flush_a_send_is_answered_after_the_sync(stage, client, /):
    await client.send("T")
    assert stage.broker.store.log.durable == stage.broker.store.log.end


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EIO])
@run_by(in_world)
async def test_a_failed_write_is_answered_unavailable_and_its_offset_is_reused(stage, /, problem):
    client = await stage.client(topic="T")
    await client.send("T", b"first")
    stage.disk.fail_writes(1, problem)
    assert await client.code_of(SEND, sending("T"), body=b"lost") == UNAVAILABLE
    result = (await client.send("T", b"second")).read(SendAnswer)

    assert result.queue_offset == 1
    assert [record.body for record in await stored(client, "T")] == [b"first", b"second"]


@run_by(in_world_with_client, topic="T")
async def test_sends_are_refused_while_the_disk_is_too_full(stage, client, /):
    stage.broker.admission.set_cause("disk", "the disk is more than 90% full")
    assert await client.code_of(SEND, sending("T"), body=b"x") == UNAVAILABLE
    stage.broker.admission.clear_cause("disk")
    await client.send("T")


# Batches


@pytest.mark.parametrize("kind", [JSON, BINARY])
@run_by(with_client, topic="T")
async def test_a_batch_is_stored_as_consecutive_single_messages(client, /, kind):
    header = batching("T", WAIT="true", shared="yes")
    answer = await client.ok(BATCH, header, body=batch_of(b"a", b"b", TAGS="A"), kind=kind)

    result = answer.read(SendAnswer)
    records = await stored(client, "T")
    assert [record.body for record in records] == [b"a", b"b"]
    assert [record.queue_offset for record in records] == [0, 1]
    assert result.msg_id == ",".join(record.offset_id for record in records)
    assert result.queue_offset == 0
    for record in records:
        assert record.property_map().items() >= {
            ("TAGS", "A"),
            ("shared", "yes"),
            ("CLUSTER", "DefaultCluster"),
        }
        assert "WAIT" not in record.property_map()


def test_messages_of_a_batch_are_stored_as_if_they_were_sent_singly():
    @settings(max_examples=40)
    @given(
        st.one_of(st.lists(st.tuples(INT32, BODIES, TEXTS), min_size=1), ALIKE),
        st.sampled_from(["", "shared\x01yes\x02", "KEYS\x01s\x02", "UNIQ_KEY\x01s"]),
        st.booleans(),
    )
    def is_the_same(items, shared, over_v6):
        async def main(stage):
            client = await stage.client(address="fd00::7" if over_v6 else None)
            await client.topic("T", 2)
            header = batching("T")
            header.properties = shared
            await client.ok(BATCH, header, body=batch.pack(items))
            single = sending("T", queue=1, shape=SendMessageV2)
            for single.flag, body, text in items:
                single.properties = properties.join(text, shared)
                await client.ok(SEND_V2, single, body=body)

            store = stage.broker.store
            queues = [store.find_queue("T", number) for number in (0, 1)]
            codes, shown, positions = [], [], []
            for queue in queues:
                entries = queue.read(0, 1000)
                codes.append([code for _, _, code, _ in entries])
                records = [unpack(store.record_bytes(entry[0]))[0] for entry in entries]
                shown.append(
                    [replaced(record, position=0, stored_ms=0, queue_id=0) for record in records]
                )
                words = {word for record in records for word in keys_in(record.properties)}
                held = {entry[0]: number for number, entry in enumerate(entries)}
                positions.append(
                    {
                        word: [
                            held[at]
                            for at in store.positions_of_key("T", word, 0, 2**62)
                            if at in held
                        ]
                        for word in words
                    }
                )
            assert codes[0] == codes[1]
            assert shown[0] == shown[1]
            assert positions[0] == positions[1]
            assert len(shown[0]) == len(items)

        in_world(main)

    is_the_same()


@run_by(with_client)
async def test_a_send_is_a_batch_by_its_flag_not_by_its_request_code(client, /):
    await client.ok(SEND_V2, batching("T"), body=batch_of(b"a", b"b"))
    assert await client.max_offset("T") == 2
    header = sending("T", shape=SendMessageV2)
    await client.ok(BATCH, header, body=b"single")
    assert await client.max_offset("T") == 3


@run_by(with_client)
async def test_a_batch_flag_on_request_10_splits_the_body_only_if_it_is_a_batch(client, /):
    header = sending("T")
    header.batch = True
    await client.ok(SEND, header, body=b"anything at all, longer than a head")
    await client.ok(SEND, header, body=batch_of(b"a", b"b"))

    bodies = [record.body for record in await stored(client, "T")]
    assert bodies == [b"anything at all, longer than a head", b"a", b"b"]


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"no batch", ERROR), (batch_of(b"a")[:-1], ERROR), (batch_of(b"a", TRAN_MSG="true"), 13)],
    ids=["no batch", "cut", "half"],
)
@run_by(with_client, topic="T")
async def test_a_batch_with_an_invalid_message_is_refused_whole(client, /, body, code):
    whole = batch_of(b"good") + body
    assert await client.code_of(BATCH, batching("T"), body=whole) == code
    assert await client.max_offset("T") == 0


@run_by(with_client, topic="T")
async def test_a_transactional_batch_is_refused(client, /):
    header = batching("T")
    header.sys_flag = 4

    assert await client.code_of(BATCH, header, body=batch_of(b"a", b"b")) == ILLEGAL
    assert await client.max_offset(HALVES) == await client.max_offset("T") == 0


# One-way


@run_by(with_client, topic="T")
async def test_a_one_way_send_is_stored_and_never_answered(client, /):
    assert await client.is_silent(SEND, sending("T"), body=b"x", oneway=True)
    assert await client.is_silent(SEND, sending("no such", default=""), body=b"x", oneway=True)
    await client.send("T", b"y")

    assert [record.body for record in await stored(client, "T")] == [b"x", b"y"]


@run_by(in_world, replace(SETTINGS, store=StoreSettings(flush="sync")))
async def test_concurrent_sends_of_several_clients_are_all_stored(stage, /):
    clients = await stage.clients(3)
    await asyncio.gather(*[client.fill("T", 50) for client in clients])

    assert await clients[0].max_offset("T") == 150
