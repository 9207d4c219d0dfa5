"""Bytes that other clients wrote, or that were written by hand, are read and written alike.

The README next to the files tells how each was obtained.
"""

import json
import re
from pathlib import Path

import pytest

from txmq.protocol import batch, header_binary, record
from txmq.protocol.bodies import (
    BrokerRoute,
    ClientConnection,
    ClusterView,
    ConsumerConnections,
    ConsumerIds,
    ConsumerOffsets,
    ConsumerRegistration,
    ConsumeStats,
    ConsumeTimeSpan,
    ConsumeTimeSpans,
    CorrectionOffsets,
    CounterView,
    CounterWindow,
    DataVersion,
    GroupConfig,
    GroupConfigs,
    GroupList,
    Heartbeat,
    LockedQueues,
    LockRequest,
    MessageQueue,
    OffsetPair,
    ProducerConnections,
    ProducerRegistration,
    QueueRoute,
    QueueStats,
    RegistrationBody,
    SubscriptionCheck,
    SubscriptionData,
    TextTable,
    TopicConfig,
    TopicConfigs,
    TopicNames,
    TopicRoute,
    read_queue_map,
)
from txmq.protocol.command import (
    BINARY,
    JSON,
    Command,
    FrameReader,
    answer,
    decode,
    decode_whole,
    encode,
)
from txmq.protocol.fastjson import loads
from txmq.protocol.headers import (
    BrokerRegistration,
    CheckState,
    ClientGroups,
    EndTransaction,
    GroupHeader,
    OffsetCommit,
    OffsetQuery,
    PullAnswer,
    PullMessage,
    RouteQuery,
    SendAnswer,
    SendBack,
    SendMessage,
    SendMessageV2,
)
from txmq.protocol.record import Record
from txmq_broker.names.handlers import read_registration

GOLDEN = Path(__file__).parents[2] / "interop" / "golden"
UNIQUE = "0A00000504D2018BCFE5680000000001"
OFFSET_ID = "0A00000100002A9F0000001CBE991A14"


def golden(name):
    return (GOLDEN / name).read_bytes()


def by_hand(name):
    """Hex and quoted text, a backtick for a double quote inside it, and remarks after ``#``."""
    data = b""
    for line in (GOLDEN / name).read_text().splitlines():
        for text, digits in re.findall(r'"([^"]*)"|([0-9a-f]{2,})', re.sub(r"#[^\"]*$", "", line)):
            data += text.replace("`", '"').encode() if text else bytes.fromhex(digits)
    return data


def received(data):
    (part,) = FrameReader().feed(data)
    return part, decode(part)


# By hand


def test_a_handwritten_binary_request_is_read():
    part, command = received(by_hand("hand-binary-request.hex"))

    assert part[0] == BINARY
    assert (command.code, command.client_language, command.version) == (310, "GO", 317)
    assert (command.opaque, command.is_oneway, command.is_answer) == (-(2**31), True, False)
    assert (command.remark, command.body) == ("né", b"hello")
    sent = command.read(SendMessageV2)
    assert (sent.producer_group, sent.topic, sent.default_topic) == ("g", "T", "TBW102")
    assert (sent.default_topic_queue_nums, sent.queue_id, sent.sys_flag) == (4, -1, 0)
    assert (sent.born_timestamp, sent.flag, sent.properties) == (17, 0, "")
    assert header_binary.pack(header_binary.unpack(part[1])) == part[1]


def test_a_binary_answer_is_written_like_the_handwritten_one():
    to = Command(code=30, opaque=-1, kind=BINARY)

    written = answer(to, 17, {"offset": "-12"}, remark="no such topi")

    assert written == by_hand("hand-binary-answer.hex")


V4 = (bytes.fromhex("0a0000050000c350"), bytes.fromhex("0a00000100002a9f"))
V6 = (
    bytes.fromhex("20010db8000000000000000000000005 0000c350"),
    bytes.fromhex("20010db8000000000000000000000001 00002a9f"),
)


def stored(sys_flag, born_host, store_host, **changes):
    values = {
        "queue_id": 3, "flag": 7, "queue_offset": 2, "position": 1024, "sys_flag": sys_flag,
        "born_ms": 1_700_000_000_123, "born_host": born_host, "stored_ms": 1_700_000_000_456,
        "store_host": store_host, "attempts": 1, "prepared_position": 512, "body": b"body",
        "topic": "Topic", "properties": "KEYS\x01k1\x02A\x01b\x02",
    }  # fmt: skip
    return Record(**values | changes)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hand-record-v1-ipv4.hex", stored(0x04, *V4)),
        ("hand-record-v1-ipv6.hex", stored(0x34, *V6)),
        ("hand-record-v2.hex", stored(0x24, V4[0], V6[1])),
    ],
)
def test_a_handwritten_record_is_read_and_written(name, expected):
    data = by_hand(name)

    assert record.unpack(data) == (expected, len(data))
    if name != "hand-record-v2.hex":  # the second version is only read
        assert record.pack(expected) == data


def test_a_handwritten_batch_is_read_and_written():
    items = [(7, b"body", "TAGS\x01no\x02"), (-1, b"x", "")]

    assert batch.unpack(by_hand("hand-batch.hex")) == items
    assert batch.pack(items) == by_hand("hand-batch.hex")


def test_a_batch_that_go_sends_is_read():
    """Its letters leave the default topic empty."""
    part, command = received(by_hand("hand-go-batch.hex"))

    assert part[0] == JSON
    assert (command.code, command.client_language, command.remark) == (320, "GO", "")
    sent = command.read(SendMessageV2)
    assert (sent.default_topic, sent.default_topic_queue_nums, sent.batch) == ("", 0, True)
    assert batch.unpack(command.body) == [(0, b"body", "")]


# Java: frames

SENT = {
    "producer_group": "producers", "topic": "TopicTest", "default_topic": "TBW102",
    "default_topic_queue_nums": 4, "queue_id": 2, "sys_flag": 0, "flag": 0,
    "born_timestamp": 1_700_000_000_123, "reconsume_times": 0, "unit_mode": False, "batch": False,
    "properties": f"KEYS\x01k1\x02UNIQ_KEY\x01{UNIQUE}\x02WAIT\x01true\x02TAGS\x01TagA",
    "broker_name": "broker-a",
}  # fmt: skip
PLACE = ("broker-a", "10.0.0.1:10911", "DefaultCluster", "10.0.0.1:10912", 0)
REGISTRATION = BrokerRegistration(*PLACE, body_crc32=1_498_433_174)
PULLED = (3, 120, 32, 3, 119, 15_000, 1_700_000_000_000)
PULL = PullMessage("consumers", "TopicTest", *PULLED, expression_type="TAG")
JAVA = {
    "send": (10, 41, 0, None, SendMessage(**SENT)),
    "send-v2": (310, 42, 0, None, SendMessageV2(**SENT)),
    "pull": (11, 43, 0, None, PULL),
    "end-transaction": (
        37,
        -5,
        2,
        "local state 未知",
        EndTransaction("producers", 5, 123_456, 8, True, UNIQUE, UNIQUE),
    ),
    "route": (105, 0, 0, None, RouteQuery("TopicTest")),
    "unregister": (35, 44, 0, None, ClientGroups("10.0.0.5@1234", consumer_group="consumers")),
    "heartbeat": (34, 45, 0, None, None),
    "send-answer": (0, 41, 1, None, SendAnswer(OFFSET_ID, 2, 123)),
    "pull-answer": (0, 43, 1, "FOUND", PullAnswer(0, 124, 0, 200)),
    "check-state": (39, 46, 2, None, CheckState(5, 123_456, UNIQUE, UNIQUE, OFFSET_ID)),
    "register-broker": (103, 47, 0, None, REGISTRATION),
}
BODY_OF = {
    "send": b"hello",
    "send-v2": b"hello",
    "pull-answer": "java-record-v4.bin",
    "check-state": "java-record-v4.bin",
    "register-broker": "java-body-registration.json",
}


@pytest.mark.parametrize("form", ["json", "binary"])
@pytest.mark.parametrize("name", JAVA)
def test_a_frame_that_java_wrote_is_read(name, form):
    code, opaque, flag, remark, header = JAVA[name]

    part, command = received(golden(f"java-{name}-{form}.bin"))

    assert part[0] == (JSON if form == "json" else BINARY)
    assert (command.code, command.opaque, command.flag) == (code, opaque, flag)
    assert (command.remark, command.version, command.client_language) == (remark, 409, "JAVA")
    if header is not None:
        assert command.read(type(header)) == header
    if name != "heartbeat":
        body = BODY_OF.get(name, b"")
        assert command.body == (body if isinstance(body, bytes) else golden(body))


@pytest.mark.parametrize("name", JAVA)
def test_a_binary_header_is_written_as_java_writes_it(name):
    part, _ = received(golden(f"java-{name}-binary.bin"))

    assert header_binary.pack(header_binary.unpack(part[1])) == part[1]


@pytest.mark.parametrize("name", [name for name in JAVA if JAVA[name][3] is None])
def test_a_json_header_is_written_as_java_writes_it(name):
    """Only the order of extFields differs: in Java it is that of a hash map."""
    part, command = received(golden(f"java-{name}-json.bin"))
    fields = decode_whole(part).field_map() if name != "heartbeat" else None

    if command.is_answer:
        written = answer(command, command.code, fields, body=command.body)
    else:
        written = encode(command.code, command.opaque, fields, body=command.body, flag=command.flag)

    ours, _ = received(written)
    assert list(json.loads(ours[1]).items()) == list(json.loads(part[1]).items())
    assert len(written) == len(golden(f"java-{name}-json.bin"))


# Java: records and batches

HELLO = "hello, 订单".encode()
JAVA_RECORD = {
    "queue_offset": 123,
    "position": 123_456_789_012,
    "attempts": 2,
    "prepared_position": 77,
    "body": HELLO,
    "topic": "TopicTest",
    "properties": f"KEYS\x01k1 k2\x02UNIQ_KEY\x01{UNIQUE}\x02TAGS\x01TagA",
}
JAVA5_RECORD = {"body": b"hello", "properties": "KEYS\x01k1 k2\x02TAGS\x01TagA\x02"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("java-record-v4.bin", stored(0x04, *V4, **JAVA_RECORD)),
        ("java-record-v6.bin", stored(0x34, *V6, **JAVA_RECORD)),
        ("java-record-born-v6.bin", stored(0x14, V6[0], V4[1], **JAVA_RECORD)),
        ("java5-record-v1.bin", stored(0x20, V4[0], V6[1], **JAVA_RECORD | JAVA5_RECORD)),
    ],
)
def test_a_record_is_read_and_written_as_java_does(name, expected):
    data = golden(name)

    assert record.unpack(data) == (expected, len(data))
    assert record.pack(expected) == data


@pytest.mark.parametrize(
    ("name", "flags"), [("java-record-zlib.bin", 0x301), ("java-record-zstd.bin", 0x201)]
)
def test_a_body_that_java_compressed_is_decompressed(name, flags):
    found, _ = record.unpack(golden(name))

    assert found.sys_flag == flags
    assert found.plain_body() == b"x" * 300
    assert record.pack(found) == golden(name)


def test_the_ids_of_java_records_match_those_of_java():
    """Both were printed by MessageDecoder.createMessageId."""
    v4, _ = record.unpack(golden("java-record-v4.bin"))
    v6, _ = record.unpack(golden("java-record-v6.bin"))

    assert v4.offset_id == OFFSET_ID
    assert v6.offset_id == "20010DB800000000000000000000000100002A9F0000001CBE991A14"


@pytest.mark.parametrize(("name", "count", "end"), [("java", 3, ""), ("java5", 2, "\x02")])
def test_a_batch_is_read_and_written_as_java_does(name, count, end):
    """Release 5 ends its properties with a separator, 4.9.8 does not."""
    items = [
        (number, b"hello %d" % number, f"KEYS\x01k{number}\x02WAIT\x01true\x02TAGS\x01TagA{end}")
        for number in range(count)
    ]

    assert batch.unpack(golden(f"{name}-batch.bin")) == items
    assert batch.pack(items) == golden(f"{name}-batch.bin")


# Java: bodies

SUBSCRIPTION = SubscriptionData(
    "TopicTest", "TagA||TagB", ["TagA", "TagB"], [2_598_919, 2_598_920], 1_700_000_000_000
)
GO = ClientConnection("10.0.0.5:50000", "10.0.0.5@1234", "GO", 317)
TOPICS = TopicConfigs(
    DataVersion(1_700_000_000_000, 3), {"TopicTest": TopicConfig("TopicTest", 8, 8)}
)
ROUTE = BrokerRoute("broker-a", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}, "DefaultCluster")
QUEUES = [MessageQueue("broker-a", number, "TopicTest") for number in range(2)]
BODIES = {
    "check-client": SubscriptionCheck(
        "10.0.0.5@1234",
        "consumers",
        SubscriptionData(
            "TopicTest", "a > 5", sub_version=1_700_000_000_000, expression_type="SQL92"
        ),
    ),
    "cluster": ClusterView({"broker-a": ROUTE}, {"DefaultCluster": ["broker-a"]}),
    "consume-stats": ConsumeStats(1.5),
    "consumer-connection": ConsumerConnections(
        [GO],
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_PASSIVELY",
        "CLUSTERING",
        {"TopicTest": SUBSCRIPTION},
    ),
    "consumer-ids": ConsumerIds(["a", "b"]),
    "consumer-offsets": ConsumerOffsets({"TopicTest@consumers": {0: 123, 1: 45}}),
    "correction": CorrectionOffsets({0: 12, 1: 2**63 - 1}),
    "counter": CounterView(CounterWindow(6, 0.1, 1.0), CounterWindow(), CounterWindow()),
    "groups": GroupConfigs(TOPICS.data_version, {"consumers": GroupConfig("consumers")}),
    "groups-of-topic": GroupList(["consumers"]),
    "lock": LockRequest("10.0.0.5@1234", "consumers", QUEUES[::-1]),
    "locked": LockedQueues(QUEUES[:1]),
    "producer-connection": ProducerConnections([GO]),
    "registration": RegistrationBody(TOPICS),
    "route-legacy": TopicRoute([QueueRoute("broker-a", 8, 8, 6)], [ROUTE]),
    "route-standard": TopicRoute([QueueRoute("broker-a", 8, 8, 6)], [ROUTE]),
    "table": TextTable({"brokerVersionDesc": "V4_9_8"}),
    "time-span": ConsumeTimeSpans([ConsumeTimeSpan(QUEUES[0], 1, 2, 3, 4)]),
    "topic-config": TOPICS,
    "topics": TopicNames(["TopicTest"]),
}
MAPS_BY_QUEUE = {
    "consume-stats": (
        "offsetTable",
        {
            QUEUES[0]: OffsetPair(10, 5, 1_700_000_000_000),
            QUEUES[1]: OffsetPair(11, 5, 1_700_000_000_000),
        },
    ),
    "topic-stats": (
        "offsetTable",
        {
            QUEUES[0]: QueueStats(0, 10, 1_700_000_000_000),
            QUEUES[1]: QueueStats(1, 11, 1_700_000_000_001),
        },
    ),
    "reset-offset": ("offsetTable", {QUEUES[0]: 5, QUEUES[1]: 6}),
    "consumer-status": ("messageQueueTable", {QUEUES[0]: 5, QUEUES[1]: 6}),
}
WRITTEN_DIFFERENTLY = {
    "consume-stats",  # its map is written apart
    "registration",  # a data version of release 5 has one member more
    "topic-config",
    "groups",
    "time-span",  # Java repeats the times as text
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_java_wrote_is_read(name):
    body = BODIES[name]

    assert type(body).read(golden(f"java-body-{name}.json")) == body


@pytest.mark.parametrize("name", sorted(set(BODIES) - WRITTEN_DIFFERENTLY))
def test_a_body_is_written_with_the_content_java_writes(name):
    """Only a comparison of texts would tell bare keys from quoted ones; Java reads both."""
    assert loads(BODIES[name].write()) == loads(golden(f"java-body-{name}.json"))


@pytest.mark.parametrize("name", MAPS_BY_QUEUE)
def test_a_map_by_queue_that_java_wrote_is_read(name):
    member, entries = MAPS_BY_QUEUE[name]
    kind = type(entries[QUEUES[0]])

    assert read_queue_map(golden(f"java-body-{name}.json"), member, kind) == entries


def test_the_running_info_of_a_java_consumer_is_read():
    found = loads(golden("java-body-running-info.json"))

    (key,) = found["mqTable"]
    assert dict(key) == {"brokerName": "broker-a", "queueId": 0, "topic": "TopicTest"}
    assert found["mqTable"][key]["droped"] is True


@pytest.mark.parametrize(
    ("compressed", "name"),
    [(False, "java-body-registration.json"), (True, "java-body-registration-compressed.bin")],
)
def test_a_registration_is_read_in_both_its_forms(compressed, name):
    header = BrokerRegistration("broker-a", "h:1", "c", "h:2", 0, compressed=compressed)

    assert read_registration(header, golden(name)) == TOPICS


HEARD = Heartbeat(
    "10.0.0.5@1234",
    [ProducerRegistration("producers")],
    [ConsumerRegistration("consumers", subscription_data_set=[SUBSCRIPTION])],
)


@pytest.mark.parametrize("form", ["json", "binary"])
def test_a_heartbeat_that_java_wrote_is_read(form):
    _, command = received(golden(f"java-heartbeat-{form}.bin"))

    assert Heartbeat.read(command.body) == HEARD
    assert loads(HEARD.write()) == loads(command.body)


# The C++ client and ali-ons


def sent_by(client, name):
    _, command = received(golden(f"{client}-{name}.bin"))
    assert command.flag == 0  # neither ever sets the one-way bit
    assert command.kind == JSON
    expected = ("CPP", 63) if client == "cpp" else ("JAVA", 121)
    assert (command.client_language, command.version) == expected
    return command


@pytest.mark.parametrize("client", ["cpp", "ons"])
def test_requests_of_the_cpp_client_and_ali_ons_are_read(client):
    assert sent_by(client, "route").read(RouteQuery) == RouteQuery("TopicTest")
    assert sent_by(client, "consumer-list").read(GroupHeader) == GroupHeader("consumers")
    assert sent_by(client, "query-offset").read(OffsetQuery) == (
        OffsetQuery("consumers", "TopicTest", 0)
    )
    pull = sent_by(client, "pull").read(PullMessage)
    assert (pull.consumer_group, pull.topic, pull.queue_id) == ("consumers", "TopicTest", 0)
    assert (pull.queue_offset, pull.max_msg_nums, pull.sys_flag) == (0, 32, 6)
    assert (pull.suspend_timeout_millis, pull.subscription) == (15_000, "TagA")


def test_a_send_of_the_cpp_client_with_unquoted_numbers_is_read():
    command = sent_by("cpp", "send")

    sent = command.read(SendMessage)
    assert (command.code, command.body) == (10, b"hello")
    assert (sent.default_topic_queue_nums, sent.queue_id, sent.sys_flag) == (4, 0, 0)
    assert (sent.unit_mode, sent.batch, sent.reconsume_times) == (False, False, 0)
    assert sent.properties.startswith("KEYS\x01k1\x02TAGS\x01TagA\x02UNIQ_KEY\x01")


def test_a_send_of_ali_ons_with_letters_and_unquoted_numbers_is_read():
    command = sent_by("ons", "send")

    sent = command.read(SendMessageV2)
    assert (command.code, command.body) == (310, b"hello")
    assert (sent.default_topic_queue_nums, sent.queue_id, sent.unit_mode) == (4, 0, False)
    assert sent.properties == "TAGS\x01TagA\x02KEYS\x01k1\x02"  # no UNIQ_KEY at all


@pytest.mark.parametrize(("client", "shape"), [("cpp", SendMessage), ("ons", SendMessageV2)])
def test_a_body_that_a_client_compressed_is_decompressed(client, shape):
    command = sent_by(client, "send-compressed")
    flags = command.read(shape).sys_flag

    assert flags == 1
    assert stored(flags, *V4, body=command.body).plain_body() == b"x" * 5000


def test_a_delayed_send_of_the_cpp_client_is_read():
    found = stored(0, *V4, properties=sent_by("cpp", "send-delayed").read(SendMessage).properties)

    assert found.property_map()["DELAY"] == "3"
    assert found.property_map()["colour"] == "red"


def test_a_half_message_and_its_end_from_the_cpp_client_are_read():
    half = sent_by("cpp", "send-half").read(SendMessage)
    end = sent_by("cpp", "end-transaction").read(EndTransaction)

    assert half.sys_flag == 4
    assert "TRAN_MSG\x01true\x02" in half.properties
    assert (end.producer_group, end.commit_or_rollback) == ("producers", 8)
    assert (end.from_transaction_check, end.transaction_id) == (False, "")
    assert end.msg_id in half.properties


@pytest.mark.parametrize("client", ["cpp", "ons"])
def test_a_heartbeat_names_its_groups_and_subscriptions(client):
    """The C++ client writes enums as numbers, versions as text, and leaves out what is empty."""
    found = Heartbeat.read(sent_by(client, "heartbeat").body)

    (consumer,) = found.consumer_data_set
    by_topic = {subscription.topic: subscription for subscription in consumer.subscription_data_set}
    assert found.producer_data_set == [ProducerRegistration("producers")]
    assert consumer.group_name == "consumers"
    assert consumer.consume_type == "CONSUME_PASSIVELY"
    assert consumer.message_model == "CLUSTERING"
    assert consumer.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    assert set(by_topic) == {"TopicTest", "%RETRY%consumers"}
    assert by_topic["TopicTest"].tags_set == ["TagA"]
    assert by_topic["TopicTest"].sub_version > 1_700_000_000_000


def test_the_cpp_client_sends_no_hashes_of_its_tags():
    """A filter by its code set would match nothing."""
    (consumer,) = Heartbeat.read(sent_by("cpp", "heartbeat").body).consumer_data_set

    assert consumer.subscription_data_set[1].code_set == [0]


def test_offset_commits_of_the_cpp_client_and_ali_ons_are_read():
    """ali-ons also commits for queues whose offset it does not know yet."""
    assert sent_by("cpp", "update-offset").read(OffsetCommit) == (
        OffsetCommit("consumers", "TopicTest", 0, 2)
    )
    assert sent_by("ons", "update-offset").read(OffsetCommit) == (
        OffsetCommit("consumers", "%RETRY%consumers", 0, -1)
    )
    pull = sent_by("ons", "pull-and-commit").read(PullMessage)
    assert (pull.sys_flag, pull.commit_offset, pull.queue_offset) == (7, 2, 2)


def test_send_backs_of_the_cpp_client_and_ali_ons_are_read():
    assert sent_by("cpp", "send-back").read(SendBack) == SendBack(1000, "consumers", 0)
    origin = ("7F00000100007C8600000000000003E8", "TopicTest")
    expected = SendBack(1000, "consumers", 0, *origin, unit_mode=False, max_reconsume_times=16)
    assert sent_by("ons", "send-back").read(SendBack) == expected


def test_unregistrations_of_the_cpp_client_and_ali_ons_are_read():
    """The C++ client also sends the other kind of group, with an empty name."""
    cpp = sent_by("cpp", "unregister").read(ClientGroups)
    ons = sent_by("ons", "unregister").read(ClientGroups)

    assert (cpp.producer_group, cpp.consumer_group) == ("", "consumers")
    assert (ons.producer_group, ons.consumer_group) == (None, "consumers")


def test_every_golden_file_is_used_here():
    here = Path(__file__).read_text()
    used = {f"java-{name}-{form}.bin" for name in JAVA for form in ("json", "binary")}
    used |= {f"java-body-{name}.json" for name in [*BODIES, *MAPS_BY_QUEUE]}
    used |= {f"{name}-batch.bin" for name in ("java", "java5")}
    for client in ("cpp", "ons"):
        for name in re.findall(r'sent_by\((?:client|"\w+"), "([\w-]+)"\)', here):
            used.add(f"{client}-{name}.bin")

    files = {path.name for path in GOLDEN.iterdir() if path.suffix in {".bin", ".json", ".hex"}}
    assert {name for name in files - used if name not in here} == set()
