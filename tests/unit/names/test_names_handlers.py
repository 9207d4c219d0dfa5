"""Every request of a name server, over real bytes."""

import json
import zlib

import pytest

from tests.unit.names.names_peer import Peer, SetClock, offer, registration
from txmq.protocol.bodies import QueueRoute, RegistrationBody, TopicRoute
from txmq.protocol.codes import RequestCode as Code
from txmq.protocol.command import BINARY
from txmq.remoting.dispatch import Dispatcher
from txmq_broker.names.handlers import NameHandlers, NameOptions, OptionTable
from txmq_broker.names.key_values import KeyValues, KeyValueWriter
from txmq_broker.names.routes import RouteRegistry

A = "10.0.0.1:10911"
WHO = {
    "brokerName": "broker-a", "brokerAddr": A, "clusterName": "DefaultCluster", "brokerId": "0"
}  # fmt: skip
ORDER = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}


class Names:
    """A name server without a listener, and peers that are already connected."""

    def __init__(self, **options):
        self.clock = SetClock()
        self.routes = RouteRegistry()
        self.values = KeyValues()
        writer = KeyValueWriter(self.values)
        self.options = OptionTable(lambda _: None)
        self.options.current = NameOptions(**options)
        handlers = NameHandlers(self.routes, self.values, writer, self.options, self.clock, dict)
        self._service = Dispatcher(handlers.table())

    def peer(self):
        return Peer(self._service, self.clock)


@pytest.fixture
def names():
    return Names()


@pytest.fixture
def broker(names):
    return names.peer()


@pytest.fixture
def client(names):
    return names.peer()


def register(peer, *topics, counter=1, who=None, **given):
    body = RegistrationBody(topic_config_serialize_wrapper=offer(*topics, counter=counter, **given))
    return peer.ask(Code.REGISTER_BROKER, who or registration(), body=body.write())


def listed(answer):
    assert answer.code == 0
    return json.loads(answer.body)["topicList"]


# 103, 104, 904, 322


def test_a_registered_topic_can_be_found(broker, client):
    assert register(broker, "T", read_queue_nums=8, write_queue_nums=8).code == 0

    answer = client.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})

    assert json.loads(answer.body) == {
        "brokerDatas": [
            {"brokerAddrs": {"0": A}, "brokerName": "broker-a", "cluster": "DefaultCluster"}
        ],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": "broker-a", "perm": 6, "readQueueNums": 8, "topicSysFlag": 0,
             "writeQueueNums": 8}
        ],
    }  # fmt: skip


def test_a_registration_without_orders_is_answered_without_a_body(broker):
    answer = register(broker, "T")

    assert answer.body == b""
    assert answer.field_map() == {}


@pytest.mark.parametrize(
    ("options", "body"),
    [({}, b'{"table":{"T":"broker-a:4"}}'), ({"return_order_topic_config_to_broker": False}, b"")],
    ids=["by default", "switched off"],
)
def test_a_registration_is_answered_with_all_ordered_topics_unless_switched_off(options, body):
    names = Names(**options)
    names.peer().ask(Code.PUT_KV_CONFIG, ORDER)

    assert register(names.peer(), "T").body == body


def test_a_replica_that_registers_is_told_the_address_of_its_master(broker, client):
    register(broker)

    answer = register(client, who=registration(number=1, address="10.0.0.2:10911"))

    assert answer.field_map() == {"masterAddr": A, "haServerAddr": "10.0.0.1:10912"}


def test_a_registration_with_a_wrong_checksum_is_refused(names, broker):
    body = RegistrationBody(topic_config_serialize_wrapper=offer("T")).write()
    who = registration(body_crc32=(zlib.crc32(body) & 0x7FFFFFFF) ^ 1)

    answer = broker.ask(Code.REGISTER_BROKER, who, body=body)

    assert (answer.code, answer.remark) == (1, "crc32 not match")
    assert names.routes.topics().topic_list == []


def test_a_one_way_registration_is_applied_and_not_answered(names, broker):
    """Brokers announce a new topic this way, between their regular registrations."""
    body = RegistrationBody(topic_config_serialize_wrapper=offer("T")).write()

    assert broker.send(Code.REGISTER_BROKER, registration(), body=body, oneway=True) == []
    assert names.routes.topics().topic_list == ["T"]


def test_a_registration_belongs_to_its_connection(names, broker):
    register(broker, "T")

    assert len(names.routes.disconnect(broker.connection)) == 1


def test_unregistering_is_answered_and_removes_the_topics(names, broker):
    register(broker, "T")

    assert broker.ask(Code.UNREGISTER_BROKER, WHO).code == 0
    assert names.routes.topics().topic_list == []


def test_a_heartbeat_keeps_a_broker_registered(names, broker):
    register(broker, "T")
    names.clock.now += 100

    assert broker.ask(Code.BROKER_HEARTBEAT, WHO).code == 0
    assert names.routes.expire(names.clock.now + 100) == []


@pytest.mark.parametrize(("counter", "changed", "alive"), [(1, "false", True), (2, "true", False)])
def test_a_query_of_the_data_version_keeps_a_broker_alive_only_if_it_is_known(
    names, broker, counter, changed, alive
):
    """A broker with a newer version registers next, and that keeps it alive."""
    register(broker, "T")
    names.clock.now += 100
    body = offer(counter=counter).data_version.write()

    answer = broker.ask(Code.QUERY_DATA_VERSION, WHO, body=body)

    assert answer.field_map() == {"changed": changed}
    assert json.loads(answer.body) == {"counter": 1, "stateVersion": 0, "timestamp": 1}
    assert (names.routes.expire(names.clock.now + 100) == []) is alive


def test_an_unknown_broker_is_told_to_register(broker):
    answer = broker.ask(Code.QUERY_DATA_VERSION, WHO, body=b'{"counter":1,"timestamp":1}')

    assert answer.field_map() == {"changed": "true"}
    assert answer.body == b""


# 105, 106, 901


def test_a_route_is_written_without_blanks_and_with_quoted_keys(broker, client):
    """Go's client cuts the addresses at commas and colons; a blank would stay in an address."""
    register(broker, "T")
    register(client, who=registration(number=1, address="10.0.0.2:10911"))

    body = client.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).body

    assert not set(body) & set(b" \n\t")
    assert b'"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"}' in body
    assert b'"filterServerTable":{}' in body
    assert b"null" not in body


def test_an_unknown_topic_is_answered_with_code_17(client):
    answer = client.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})

    assert (answer.code, answer.body) == (17, b"")
    assert answer.remark.endswith("for the topic: T")


def test_a_route_requested_in_binary_is_answered_in_binary(broker):
    register(broker, "T")
    fields = {"topic": "T", "acceptStandardJsonOnly": "true"}
    answer = broker.ask(Code.GET_ROUTEINFO_BY_TOPIC, fields, kind=BINARY)

    assert (answer.code, answer.kind) == (0, BINARY)
    assert TopicRoute.read(answer.body).queue_datas[0].broker_name == "broker-a"


@pytest.mark.parametrize(("enabled", "told"), [(True, "broker-a:4"), (False, None)])
def test_a_route_has_the_order_of_its_topic_only_if_the_option_is_on(enabled, told):
    names = Names(order_message_enable=enabled)
    names.peer().ask(Code.PUT_KV_CONFIG, ORDER)
    peer = names.peer()
    register(peer, "T", "U")

    route = json.loads(peer.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).body)
    other = json.loads(peer.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "U"}).body)

    assert route.get("orderTopicConf") == told
    assert "orderTopicConf" not in other


def test_clusters_and_their_brokers_are_listed(broker, client):
    register(broker, "T")

    known = {"brokerAddrs": {"0": A}, "brokerName": "broker-a", "cluster": "DefaultCluster"}
    assert json.loads(client.ask(Code.GET_BROKER_CLUSTER_INFO).body) == {
        "brokerAddrTable": {"broker-a": known},
        "clusterAddrTable": {"DefaultCluster": ["broker-a"]},
    }


def test_the_members_of_a_broker_are_listed(broker, client):
    register(broker)

    answer = client.ask(Code.GET_BROKER_MEMBER_GROUP, WHO)

    assert json.loads(answer.body)["brokerMemberGroup"]["brokerAddrs"] == {"0": A}


# Topics


def test_all_topics_are_listed(broker, client):
    register(broker, "T", "U")

    answer = client.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)

    assert answer.body == b'{"topicList":["T","U"]}'


def test_listing_all_topics_can_be_switched_off():
    client = Names(enable_all_topic_list=False).peer()

    assert client.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).code == 1


def test_topics_are_listed_by_cluster(broker, client):
    register(broker, "T")

    code = Code.GET_TOPICS_BY_CLUSTER
    assert listed(client.ask(code, {"cluster": "DefaultCluster"})) == ["T"]
    assert listed(client.ask(code, {"cluster": "none"})) == []


def test_system_topics_are_listed_with_the_address_of_a_master(broker, client):
    register(broker)

    answer = client.ask(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS)

    topics = ["DefaultCluster", "broker-a"]
    assert json.loads(answer.body) == {"topicList": topics, "brokerAddr": A}


def test_unit_topics_are_listed_by_each_of_three_requests(broker, client):
    for flag in range(4):
        register(broker, f"T{flag}", counter=flag, topic_sys_flag=flag)

    assert listed(client.ask(Code.GET_UNIT_TOPIC_LIST)) == ["T1", "T3"]
    assert listed(client.ask(Code.GET_HAS_UNIT_SUB_TOPIC_LIST)) == ["T2", "T3"]
    assert listed(client.ask(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)) == ["T2"]


def test_write_permission_is_removed_and_restored(names, broker, client):
    register(broker, "T", "U")

    taken = client.ask(Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert names.routes.route("T").queue_datas[0].perm == 4
    given = client.ask(Code.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})

    assert taken.field_map() == {"wipeTopicCount": "2"}
    assert given.field_map() == {"addTopicCount": "2"}
    assert names.routes.route("T").queue_datas[0].perm == 6


@pytest.mark.parametrize(
    ("where", "left"),
    [({}, []), ({"clusterName": "DefaultCluster"}, []), ({"clusterName": "none"}, ["T"])],
)
def test_a_topic_is_deleted(names, broker, client, where, left):
    register(broker, "T")

    assert client.ask(Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "T", **where}).code == 0
    assert names.routes.topics().topic_list == left


def test_a_topic_is_added(names, broker):
    register(broker)
    body = TopicRoute(queue_datas=[QueueRoute("broker-a", 1, 1, 6)], broker_datas=[]).write()

    assert broker.ask(Code.REGISTER_TOPIC_IN_NAMESRV, {"topic": "S"}, body=body).code == 0
    assert names.routes.topics().topic_list == ["S"]


# 100, 101, 102, 219


def test_a_key_value_is_stored_read_and_deleted(client):
    entry = {"namespace": "N", "key": "k"}

    assert client.ask(Code.PUT_KV_CONFIG, {**entry, "value": "v"}).code == 0
    assert client.ask(Code.GET_KV_CONFIG, entry).field_map() == {"value": "v"}
    listed = client.ask(Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"})
    assert listed.body == b'{"table":{"k":"v"}}'

    assert client.ask(Code.DELETE_KV_CONFIG, entry).code == 0
    assert client.ask(Code.GET_KV_CONFIG, entry).code == 22
    assert client.ask(Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"}).code == 22


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (Code.PUT_KV_CONFIG, {"namespace": "N", "key": "k"}),
        (Code.PUT_KV_CONFIG, {"namespace": "N", "value": "v"}),
        (Code.GET_KV_CONFIG, {"namespace": "N"}),
        (Code.GET_KV_CONFIG, {"key": "k"}),
        (Code.DELETE_KV_CONFIG, {"namespace": "N"}),
        (Code.GET_KVLIST_BY_NAMESPACE, {}),
        (Code.REGISTER_BROKER, {}),
        (Code.UNREGISTER_BROKER, {}),
        (Code.BROKER_HEARTBEAT, {}),
        (Code.GET_ROUTEINFO_BY_TOPIC, {}),
        (Code.WIPE_WRITE_PERM_OF_BROKER, {}),
        (Code.QUERY_DATA_VERSION, WHO),
    ],
)
def test_a_request_without_a_required_field_is_answered_with_code_1(client, code, fields):
    """Silence would cost a timeout, and a closed connection would unregister a broker."""
    answer = client.ask(code, fields)

    assert answer.code == 1
    assert answer.remark
    assert not client.transport.closed


# 318, 319, and what is not served


def test_options_are_read_and_changed(client):
    assert client.ask(Code.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true").code == 0
    assert b"orderMessageEnable=true\n" in client.ask(Code.GET_NAMESRV_CONFIG).body


@pytest.mark.parametrize(
    ("body", "code"), [(b"", 0), (b"kvConfigPath=/etc/passwd", 16)], ids=["nothing", "forbidden"]
)
def test_an_update_without_options_is_accepted_and_a_forbidden_one_refused(client, body, code):
    assert client.ask(Code.UPDATE_NAMESRV_CONFIG, body=body).code == code


@pytest.mark.parametrize("code", [Code.SEND_MESSAGE, Code.HEART_BEAT, 4711])
def test_a_request_for_a_broker_is_answered_with_code_3(client, code):
    assert client.ask(code).code == 3
