"""222, 223, 307, 309, 324, 325: what the broker passes on to clients, and what they answer."""

import json

import pytest
from msgspec.structs import replace

from tests.running import run_by
from tests.unit.handlers.handler_stage import SETTINGS, consumer, in_world, queue, sending
from txmq.protocol import command as commands
from txmq.protocol import fastjson, properties
from txmq.protocol import record as records
from txmq.protocol.bodies import Heartbeat, read_queue_map, with_queue_map
from txmq.protocol.command import BINARY, JSON, fields_of
from txmq.protocol.headers import (
    ConsumeDirectly,
    ConsumerStatusQuery,
    ReplyPush,
    ResetOffset,
    SendAnswer,
    SendMessageV2,
    TopicAndGroup,
)
from txmq_broker.config import StoreSettings

RESET, STATUS, RUNNING, DIRECTLY, REPLY, REPLY_V2 = 222, 223, 307, 309, 324, 325
TO_RESET, TO_STATUS, TO_PUSH = 220, 221, 326
BEAT, DELETE_TOPIC = 34, 215
ERROR, BUSY, NO_PERMISSION, NO_TOPIC, OFFLINE, TIMEOUT = 1, 2, 16, 17, 206, 207
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


def saying(code=0, header=None, **given):
    return lambda request: commands.answer(request, code, header, **given)


async def group_of(stage, *topics, group="g", version=None):
    """Two clients: an operator, and a consumer of the group."""
    operator, member = await stage.clients(2)
    await member.beat(consumer(group, *topics), version=version)
    await member.heard(40)
    return operator, member


# 307


@pytest.mark.parametrize("kind", [JSON, BINARY])
@run_by(in_world)
async def test_a_request_to_a_consumer_is_relayed_and_its_answer_passed_on_unchanged(
    stage, /, kind
):
    operator, member = await group_of(stage)
    info = b'{"mqTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{}}}'
    member.replies[RUNNING] = saying(7, {"a": "b"}, body=info, remark="busy, but well")
    header = ConsumeDirectly("g", member.name, jstack_enable=True)
    answer = await operator.ask(RUNNING, header, kind=kind)

    asked = await member.heard(RUNNING)
    assert not asked.is_oneway
    assert asked.field_map() == fields_of(header)
    assert (answer.code, answer.remark, answer.body) == (7, "busy, but well", info)
    assert answer.field_map() == {"a": "b"}
    assert answer.kind == kind


@run_by(in_world)
async def test_other_requests_are_served_while_a_consumer_has_not_answered(stage, /):
    operator, member = await group_of(stage)
    pending = operator.asking(RUNNING, ConsumeDirectly("g", member.name))
    asked = await member.heard(RUNNING)
    await operator.topic("T")
    assert stage.broker._relays.pending == 1
    member.connection.send(commands.answer(asked, body=b"late"))

    assert (await pending).body == b"late"
    assert stage.broker._relays.pending == 0


@pytest.mark.parametrize(("group", "client"), [("other", "client-2"), ("g", "somebody")])
@run_by(in_world)
async def test_relaying_to_an_offline_consumer_is_an_error(stage, /, group, client):
    operator, _ = await group_of(stage)
    answer = await operator.ask(RUNNING, ConsumeDirectly(group, client))

    assert answer.code == ERROR
    assert answer.remark == f"The Consumer <{group}> <{client}> not online"


@pytest.mark.parametrize(("version", "code"), [(61, ERROR), (62, 0)])
@run_by(in_world)
async def test_relaying_to_a_consumer_of_too_old_a_version_is_an_error(stage, /, version, code):
    operator, member = await group_of(stage, version=version)
    member.replies[RUNNING] = saying()

    assert await operator.code_of(RUNNING, ConsumeDirectly("g", member.name)) == code


@run_by(in_world)
async def test_relaying_to_a_silent_consumer_times_out_after_ten_seconds(stage, /):
    operator, member = await group_of(stage)
    began = stage.world.now()

    assert await operator.code_of(RUNNING, ConsumeDirectly("g", member.name)) == TIMEOUT
    assert 10.0 <= stage.world.now() - began < 10.5
    assert stage.broker._relays.pending == 0


@run_by(in_world)
async def test_a_relayed_request_fails_at_once_when_the_consumer_disconnects(stage, /):
    operator, member = await group_of(stage)
    pending = operator.asking(RUNNING, ConsumeDirectly("g", member.name))
    await member.heard(RUNNING)
    member.close()

    assert (await pending).code == ERROR


@run_by(in_world)
async def test_an_answer_for_a_disconnected_operator_is_dropped(stage, /):
    operator, member = await group_of(stage)
    operator.asking(RUNNING, ConsumeDirectly("g", member.name))
    asked = await member.heard(RUNNING)
    operator.close()
    await member.topic("T")
    member.connection.send(commands.answer(asked))
    await member.topic("U")

    assert stage.broker._relays.pending == 0


@run_by(in_world)
async def test_a_one_way_request_is_relayed_and_its_answer_dropped(stage, /):
    operator, member = await group_of(stage)
    member.replies[RUNNING] = saying()
    unanswered = operator.asking(RUNNING, ConsumeDirectly("g", member.name), oneway=True)
    await member.heard(RUNNING)
    await member.topic("T")
    await operator.topic("T")

    assert stage.broker._relays.pending == 0
    assert not unanswered.done(), unanswered.result()


@run_by(in_world)
async def test_a_stopping_broker_does_not_wait_for_relayed_answers(stage, /):
    operator, member = await group_of(stage)
    operator.asking(RUNNING, ConsumeDirectly("g", member.name))
    await member.heard(RUNNING)
    began = stage.world.now()
    await stage.broker._relays.stop()

    assert stage.world.now() == began
    assert stage.broker._relays.pending == 0


@run_by(in_world)
async def test_requests_beyond_the_relay_limit_are_refused(stage, /, monkeypatch):
    operator, member = await group_of(stage)
    monkeypatch.setattr("txmq_broker.handlers.relay.RELAYED_MAX", 1)
    header = ConsumeDirectly("g", member.name)
    operator.asking(RUNNING, header)

    assert await operator.code_of(RUNNING, header) == BUSY


@run_by(in_world)
async def test_a_malformed_answer_of_a_consumer_is_an_error_for_the_operator(stage, /):
    operator, member = await group_of(stage)

    def broken(request):
        frame = commands.answer(request, 0, {"a": "b"})
        return frame.replace(b'"extFields":{"a":"b"}', b'"extFields":["a","b"]')

    member.replies[RUNNING] = broken

    assert await operator.code_of(RUNNING, ConsumeDirectly("g", member.name)) == ERROR


@run_by(in_world)
async def test_an_internal_error_while_relaying_is_answered_and_logged(stage, /, caplog):
    operator = await stage.client()

    async def broken():
        raise ZeroDivisionError("by zero")

    def fail(connection, request):
        stage.broker._relays._later(connection, request, broken())

    stage.broker._dispatch._serve_one[999] = fail
    answer = await operator.ask(999)

    assert (answer.code, answer.remark) == (ERROR, "ZeroDivisionError: by zero")
    assert "request 999" in caplog.text


# 309


@run_by(in_world)
async def test_a_stored_message_is_sent_to_a_consumer_for_direct_consumption(stage, /):
    operator, member = await group_of(stage)
    msg_id = (await operator.send("T", b"again")).read(SendAnswer).msg_id
    result = b'{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":1}'
    member.replies[DIRECTLY] = saying(body=result)
    answer = await operator.ok(DIRECTLY, ConsumeDirectly("g", member.name, msg_id))

    asked = await member.heard(DIRECTLY)
    (record,) = records.unpack_all(asked.body)
    assert (record.body, record.offset_id) == (b"again", msg_id)
    fields = {"consumerGroup": "g", "clientId": member.name, "msgId": msg_id}
    assert asked.field_map() == fields | {"brokerName": "broker-a"}
    assert answer.body == result


@run_by(in_world)
async def test_direct_consumption_without_a_client_id_takes_any_consumer(stage, /):
    operator, member = await group_of(stage)
    msg_id = (await operator.send("T")).read(SendAnswer).msg_id
    member.replies[DIRECTLY] = saying()

    assert await operator.code_of(DIRECTLY, ConsumeDirectly("g", None, msg_id)) == 0


@pytest.mark.parametrize("msg_id", [None, "", "no id", "7F00000100002A9F00000000000F4240"])
@run_by(in_world)
async def test_direct_consumption_of_an_unknown_message_is_an_error(stage, /, msg_id):
    operator, member = await group_of(stage)

    assert await operator.code_of(DIRECTLY, ConsumeDirectly("g", member.name, msg_id)) == ERROR
    assert member.heard_nothing()


# 223


def statuses(body):
    table = fastjson.loads(body)["consumerTable"]
    return {
        name: {dict(key)["queueId"]: at for key, at in offsets.items()}
        for name, offsets in table.items()
    }


@pytest.mark.parametrize("kind", [JSON, BINARY])
@run_by(in_world)
async def test_the_offsets_of_all_clients_of_a_group_are_collected(stage, /, kind):
    operator, one = await group_of(stage)
    other = await stage.client()
    await other.beat(consumer("g"))
    await other.heard(40)
    await one.heard(40)
    for number, member in enumerate((one, other)):
        body = with_queue_map("messageQueueTable", {queue("T", number): 5 + number})
        member.replies[TO_STATUS] = saying(body=body)
    answer = await operator.ok(STATUS, ConsumerStatusQuery("T", "g"), kind=kind)

    assert statuses(answer.body) == {one.name: {0: 5}, other.name: {1: 6}}
    assert (await one.heard(TO_STATUS)).read(TopicAndGroup) == TopicAndGroup("T", "g")
    answer = await operator.ok(STATUS, ConsumerStatusQuery("T", "g", other.name))
    assert statuses(answer.body) == {other.name: {1: 6}}
    assert answer.body == (
        b'{"consumerTable":{"client-3":{{"brokerName":"broker-a","queueId":1,"topic":"T"}:6}},'
        b'"messageQueueTable":{}}'
    )


@run_by(in_world)
async def test_clients_that_do_not_report_offsets_are_left_out(stage, /):
    operator, one = await group_of(stage)
    refusing, silent, confused = await stage.clients(3)
    for member in (refusing, silent, confused):
        await member.beat(consumer("g"))
    one.replies[TO_STATUS] = saying(body=with_queue_map("messageQueueTable", {queue("T"): 5}))
    refusing.replies[TO_STATUS] = saying(ERROR, remark="no")
    confused.replies[TO_STATUS] = saying(body=b"{}")
    began = stage.world.now()
    answer = await operator.ok(STATUS, ConsumerStatusQuery("T", "g"))

    assert statuses(answer.body) == {one.name: {0: 5}}
    assert 5.0 <= stage.world.now() - began < 5.5


@run_by(in_world)
async def test_collecting_the_offsets_of_an_empty_group_is_an_error(stage, /):
    operator = await stage.client()

    assert await operator.code_of(STATUS, ConsumerStatusQuery("T", "g")) == ERROR


@pytest.mark.parametrize("code", [RESET, STATUS])
@run_by(in_world)
async def test_clients_of_too_old_a_version_are_not_asked_for_offsets(stage, /, code):
    operator, _ = await group_of(stage, version=27 + 100)
    (member,) = stage.broker.clients.consumer_group("g").members.values()
    member.version = 27
    await operator.topic("T")
    await operator.commit("g", "T", 0, 0)
    header = ResetOffset("T", "g", -1) if code == RESET else ConsumerStatusQuery("T", "g")

    assert await operator.code_of(code, header) == ERROR


# 222


async def ready_to_reset(stage, *, at=2, count=5, queues=1):
    operator, member = await group_of(stage, "T")
    await operator.topic("T", queues)
    for number in range(queues):
        await operator.fill("T", count, queue=number)
        await operator.commit("g", "T", number, at)
    return operator, member


@pytest.mark.parametrize("kind", [JSON, BINARY])
@run_by(in_world)
async def test_a_reset_sends_the_target_offsets_to_clients_and_operator(stage, /, kind):
    operator, member = await ready_to_reset(stage, queues=2)
    header = ResetOffset("T", "g", -1, is_force=True)
    answer = await operator.ok(RESET, header, kind=kind)

    expected = {queue("T", 0): 5, queue("T", 1): 5}
    assert read_queue_map(answer.body, "offsetTable", int) == expected
    told = await member.heard(TO_RESET)
    assert told.is_oneway
    fields = {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"}
    assert told.field_map() == fields
    assert told.body == answer.body
    assert told.body.startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic"')


@run_by(in_world)
async def test_a_reset_is_sent_to_every_client_of_the_group(stage, /):
    operator, one = await ready_to_reset(stage)
    other = await stage.client()
    await other.beat(consumer("g", "T"))
    await one.heard(40)
    await other.heard(40)
    await operator.ok(RESET, ResetOffset("T", "g", 0, is_force=True))

    assert (await one.heard(TO_RESET)).body == (await other.heard(TO_RESET)).body


@pytest.mark.parametrize(
    ("timestamp", "force", "target"), [(-1, True, 5), (-1, False, 2), (0, False, 0), (0, True, 0)]
)
@run_by(in_world)
async def test_a_reset_moves_a_group_forward_only_with_force(stage, /, timestamp, force, target):
    operator, _ = await ready_to_reset(stage)
    answer = await operator.ok(RESET, ResetOffset("T", "g", timestamp, force))

    assert read_queue_map(answer.body, "offsetTable", int) == {queue("T"): target}


@run_by(in_world)
async def test_a_reset_to_a_time_targets_the_first_message_stored_then(stage, /):
    operator, _ = await group_of(stage, "T")
    await operator.topic("T")
    for _ in range(4):
        await operator.send("T")
        await stage.passes(10)
    await operator.commit("g", "T", 0, 4)
    times = [record.stored_ms for record in (await operator.pull("T")).records]
    for moment, target in [(times[2], 2), (times[1] + 100, 2), (times[3] + 10**6, 4), (0, 0)]:
        answer = await operator.ok(RESET, ResetOffset("T", "g", moment))
        assert read_queue_map(answer.body, "offsetTable", int) == {queue("T"): target}


@run_by(in_world)
async def test_a_reset_leaves_the_stored_offset_to_the_clients(stage, /):
    operator, _ = await ready_to_reset(stage)
    await operator.ok(RESET, ResetOffset("T", "g", -1, is_force=True))

    assert await operator.committed("g", "T") == 2


@run_by(in_world)
async def test_a_cpp_client_receives_the_reset_offsets_as_a_list(stage, /):
    operator, java = await ready_to_reset(stage)
    cpp = await stage.client()
    beat = Heartbeat(cpp.name, [], [consumer("g", "T")])
    frame = commands.encode(BEAT, 10**6, body=beat.write())
    cpp.connection.send(frame.replace(b'"language":"JAVA"', b'"language":"CPP" '))
    await cpp.heard(40)
    await java.heard(40)
    answer = await operator.ok(RESET, ResetOffset("T", "g", 0))

    told = json.loads((await cpp.heard(TO_RESET)).body)
    assert told == {
        "offsetTable": [{"brokerName": "broker-a", "offset": 0, "queueId": 0, "topic": "T"}]
    }
    assert (await java.heard(TO_RESET)).body == answer.body


@run_by(in_world)
async def test_a_reset_of_an_offline_group_is_answered_offline(stage, /):
    operator = await stage.client()
    await operator.topic("T")
    await operator.commit("g", "T", 0, 2)

    assert await operator.code_of(RESET, ResetOffset("T", "g", -1)) == OFFLINE


@run_by(in_world)
async def test_a_reset_needs_a_committed_offset_in_every_queue(stage, /):
    operator, member = await group_of(stage, "T")
    await operator.topic("T", 2)
    await operator.commit("g", "T", 0, 2)

    assert await operator.code_of(RESET, ResetOffset("T", "g", -1)) == ERROR
    assert await operator.code_of(RESET, ResetOffset("U", "g", -1)) == ERROR
    assert member.heard_nothing()


@pytest.mark.parametrize(
    ("number", "offset", "found"),
    [
        (1, 3, {1: 3}), (1, 0, {1: 0}), (1, 5, {1: 5}), (1, None, {1: 5}), (1, -1, {1: 5}),
        (-1, 3, {0: 5, 1: 5}), (None, None, {0: 5, 1: 5}), (1, 6, ERROR), (2, 0, ERROR),
    ],
)  # fmt: skip
@run_by(in_world)
async def test_a_reset_from_rocketmq_5_tools_can_name_a_queue_and_an_offset(
    stage, /, number, offset, found
):
    operator, _ = await ready_to_reset(stage, queues=2)
    header = ResetOffset("T", "g", -1, True, number, offset)
    answer = await operator.ask(RESET, header)

    if answer.code:
        assert answer.code == found
    else:
        table = read_queue_map(answer.body, "offsetTable", int)
        assert {message_queue.queue_id: at for message_queue, at in table.items()} == found


@run_by(in_world)
async def test_a_reset_to_before_the_first_message_is_refused(stage, /):
    operator, _ = await ready_to_reset(stage)
    await operator.ok(DELETE_TOPIC, {"topic": "T"})
    await operator.topic("T")
    await operator.commit("g", "T", 0, 5)

    assert await operator.code_of(RESET, ResetOffset("T", "g", -1, True, 0, 4)) == ERROR
    assert await operator.code_of(RESET, ResetOffset("T", "g", -1, True, 0, 5)) == 0


@run_by(in_world)
async def test_a_disconnected_client_does_not_keep_a_reset_from_the_others(stage, /):
    operator, member = await ready_to_reset(stage)
    group = stage.broker.clients.consumer_group("g")
    (there,) = group.members.values()

    class Gone:
        def oneway(self, *_, **__):
            from txmq.errors import ConnectionLost

            raise ConnectionLost("gone")

    gone = Gone()
    group.members = {gone: replace_connection(there, gone), **group.members}
    await operator.ok(RESET, ResetOffset("T", "g", 0))

    await member.heard(TO_RESET)
    del group.members[gone]


def replace_connection(member, connection):
    return type(member)(
        connection, member.client_id, member.language, member.version, member.seen_at
    )


# 324, 325


@pytest.mark.parametrize("kind", [JSON, BINARY])
@pytest.mark.parametrize("code", [REPLY, REPLY_V2])
@run_by(in_world)
async def test_a_reply_is_pushed_to_the_producer_that_waits_for_it(stage, /, code, kind):
    replier, asker = await stage.clients(2)
    await asker.beat(producers=["p"])
    asker.replies[TO_PUSH] = saying()
    shape = {"shape": SendMessageV2} if code == REPLY_V2 else {}
    header = sending(
        REPLY_TOPIC, REPLY_TO_CLIENT=asker.name, CORRELATION_ID="c", sys_flag=1, **shape
    )
    before = stage.clock.wall_ms()
    answer = await replier.ok(code, header, body=b"yes", kind=kind)

    result = answer.read(SendAnswer)
    assert (result.msg_id, result.queue_id, result.queue_offset) == ("0", 0, 0)
    assert answer.field_map()["MSG_REGION"] == "DefaultRegion"
    assert answer.kind == kind
    pushed = await asker.heard(TO_PUSH)
    push = pushed.read(ReplyPush)
    host, port = replier.connection._transport.get_extra_info("sockname")
    assert pushed.body == b"yes"
    assert (push.producer_group, push.topic) == ("producers", REPLY_TOPIC)
    assert (push.sys_flag, push.flag) == (1, 7)
    assert (push.born_host, push.store_host) == (f"{host}:{port}", stage.broker.address)
    assert push.store_timestamp >= before
    told = properties.parse(push.properties)
    assert told.pop("PUSH_REPLY_TIME") == str(push.store_timestamp)
    assert told == {"REPLY_TO_CLIENT": asker.name, "CORRELATION_ID": "c"}


@pytest.mark.parametrize(
    ("topic", "props", "code"),
    [
        (REPLY_TOPIC, {}, ERROR),
        (REPLY_TOPIC, {"REPLY_TO_CLIENT": "somebody"}, ERROR),
        ("unknown", {"REPLY_TO_CLIENT": "client-2"}, NO_TOPIC),
        ("OFFSET_MOVED_EVENT", {"REPLY_TO_CLIENT": "client-2"}, NO_PERMISSION),
    ],
)
@run_by(in_world)
async def test_a_reply_that_reaches_nobody_is_refused(stage, /, topic, props, code):
    replier, asker = await stage.clients(2)
    await asker.beat(producers=["p"])

    assert await replier.code_of(REPLY, sending(topic, **props), body=b"yes") == code
    assert asker.heard_nothing()


@run_by(in_world)
async def test_a_reply_that_its_producer_refuses_is_an_error(stage, /):
    replier, asker = await stage.clients(2)
    await asker.beat(producers=["p"])
    asker.replies[TO_PUSH] = saying(ERROR, remark="nobody waits for it")
    header = sending(REPLY_TOPIC, REPLY_TO_CLIENT=asker.name)
    answer = await replier.ask(REPLY, header, body=b"yes")

    assert answer.code == ERROR
    assert "nobody waits for it" in answer.remark


@run_by(in_world, replace(SETTINGS, store=StoreSettings(flush="sync")))
async def test_a_reply_that_its_producer_does_not_answer_times_out_after_ten_seconds(stage, /):
    replier, asker = await stage.clients(2)
    await asker.beat(producers=["p"])
    header = sending(REPLY_TOPIC, queue=-1, REPLY_TO_CLIENT=asker.name)
    began = stage.world.now()

    assert await replier.code_of(REPLY, header, body=b"yes") == ERROR
    assert 10.0 <= stage.world.now() - began < 10.5
