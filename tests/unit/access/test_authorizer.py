"""The permissions that each request needs: a separate table, compared with the product's."""

from types import SimpleNamespace

import msgspec
import pytest

from tests.running import run_by
from tests.unit.handlers.handler_stage import in_world
from txmq.errors import NoPermission
from txmq.protocol import command
from txmq.protocol.codes import RequestCode as Code
from txmq.security.signatures import Credentials
from txmq_broker.access.accounts import AccessRules, AclFile
from txmq_broker.access.front_door import Authorizer
from txmq_broker.access.protection import Refusals
from txmq_broker.access.requirements import REQUIREMENTS, MessageTopics

RULES = AccessRules.of(
    {
        "plain_acl.yml": msgspec.convert(
            {
                "globalWhiteRemoteAddresses": ["10.0.0.*"],
                "accounts": [
                    {"accessKey": name, "secretKey": f"secret of {name}", **more}
                    for name, more in {
                        "operator": {"admin": True},
                        "nothing": {},
                        "publisher": {"topicPerms": ["T=PUB"]},
                        "subscriber": {"topicPerms": ["T=SUB"]},
                        "consumer": {"groupPerms": ["G=SUB"]},
                        "both-sub": {"topicPerms": ["T=SUB"], "groupPerms": ["G=SUB"]},
                        "from-home": {"whiteRemoteAddress": "192.0.2.7", "topicPerms": ["T=PUB"]},
                    }.items()
                ],
            },
            AclFile,
        )
    }
)
ACCOUNTS = ("nothing", "publisher", "subscriber", "consumer", "both-sub", "operator")
ALL, ADMIN = set(ACCOUNTS), {"operator"}
PUB, SUB = ADMIN | {"publisher"}, ADMIN | {"subscriber", "both-sub"}
GROUP, BOTH = ADMIN | {"consumer", "both-sub"}, ADMIN | {"both-sub"}
FIELDS = {"topic": "T", "b": "T", "group": "G", "consumerGroup": "G", "offset": "7"}
FIELDS |= {"producerGroup": "P", "tranStateTableOffset": "0", "commitLogOffset": "7"}
FIELDS |= {"commitOrRollback": "8"}
BODY = msgspec.json.encode(
    {
        "clientID": "c",
        "clientId": "c",
        "group": "G",
        "consumerGroup": "G",
        "subscriptionData": {"topic": "T", "subString": "*"},
        "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [{"topic": "T"}]}],
    }
)
SENDS = (
    Code.SEND_MESSAGE,
    Code.SEND_MESSAGE_V2,
    Code.SEND_BATCH_MESSAGE,
    Code.SEND_DELAYED_HALF,
    Code.RECALL_MESSAGE,
)
ALLOWED = {
    **dict.fromkeys((*SENDS, Code.END_TRANSACTION), PUB),
    Code.PULL_MESSAGE: BOTH,
    Code.LITE_PULL_MESSAGE: BOTH,
    Code.CONSUMER_SEND_MSG_BACK: BOTH,
    Code.QUERY_CONSUMER_OFFSET: BOTH,
    Code.UPDATE_CONSUMER_OFFSET: BOTH,
    Code.HEART_BEAT: BOTH,
    Code.CHECK_CLIENT_CONFIG: BOTH,
    Code.QUERY_CONSUME_TIME_SPAN: BOTH,
    Code.QUERY_MESSAGE: SUB,
    Code.VIEW_MESSAGE_BY_ID: SUB,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: SUB,
    Code.GET_MAX_OFFSET: SUB,
    Code.GET_MIN_OFFSET: SUB,
    Code.GET_EARLIEST_MSG_STORETIME: SUB,
    Code.QUERY_CONSUME_QUEUE: SUB,
    Code.GET_TOPIC_CONFIG: PUB | SUB,
    Code.GET_TOPIC_STATS_INFO: PUB | SUB,
    Code.QUERY_TOPIC_CONSUME_BY_WHO: PUB | SUB,
    Code.LOCK_BATCH_MQ: GROUP,
    Code.UNLOCK_BATCH_MQ: GROUP,
    Code.UNREGISTER_CLIENT: GROUP,
    Code.GET_CONSUMER_LIST_BY_GROUP: GROUP,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: GROUP,
    Code.GET_CONSUMER_CONNECTION_LIST: GROUP,
    Code.GET_CONSUME_STATS: GROUP,
    Code.QUERY_TOPICS_BY_CONSUMER: GROUP,
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: GROUP,
    Code.QUERY_ASSIGNMENT: ALL,
    Code.SEND_REPLY_MESSAGE: ALL,
    Code.SEND_REPLY_MESSAGE_V2: ALL,
    Code.GET_ROUTEINFO_BY_TOPIC: ALL,
    Code.GET_BROKER_CLUSTER_INFO: ALL,
    Code.GET_BROKER_MEMBER_GROUP: ALL,
    Code.GET_KV_CONFIG: ALL,
    Code.GET_KVLIST_BY_NAMESPACE: ALL,
}  # fmt: skip
"""The accounts that may send each request about topic T, group G and a message of T; a code that
is not here is for administrators."""


def request(code, account=None, *, fields=FIELDS, body=BODY, secret=None, kind=command.JSON):
    if account is not None:
        credentials = Credentials(access_key=account, secret_key=secret or f"secret of {account}")
        fields = credentials.sign(fields, body)
    whole = command.encode(code, 1, fields, body=body, kind=kind)
    (part,) = command.FrameReader().feed(whole)
    return command.decode_whole(part)


class Peer:
    def __init__(self, address):
        self.address = address
        self.host = address.rpartition(":")[0]
        self.subject = None


def passes(sent, host="203.0.113.9", rules=RULES):
    authorizer = Authorizer(
        SimpleNamespace(value=rules), MessageTopics(lambda _: "T", lambda _: ["T"])
    )
    try:
        authorizer.check(Peer(f"{host}:4711"), sent)
    except NoPermission:
        return False
    return True


@run_by(in_world)
async def test_every_served_request_has_an_entry_in_the_requirements(stage, /):
    served = {*stage.broker._dispatch.handlers, *stage.broker._names.served}
    assert served == set(REQUIREMENTS), {Code(code) for code in served ^ set(REQUIREMENTS)}


@pytest.mark.parametrize("code", sorted(REQUIREMENTS), ids=lambda code: Code(code).name)
def test_each_request_is_allowed_to_exactly_the_accounts_of_the_table(code):
    allowed = {account for account in ACCOUNTS if passes(request(code, account))}
    assert allowed == ALLOWED.get(code, ADMIN)
    assert not passes(request(code))
    assert not passes(request(code, "stranger"))
    assert not passes(request(code, "operator", secret="a wrong secret"))


@pytest.mark.parametrize("kind", [command.JSON, command.BINARY])
def test_a_signature_covers_fields_and_body(kind):
    fields = {"b": "T", "i": "KEYS\x01k\x02", "ä": "ö"}
    sent = request(Code.SEND_MESSAGE_V2, "publisher", fields=fields, body=b"100", kind=kind)
    assert passes(sent)
    sent.body = b"900"
    assert not passes(sent)
    sent.body = b"100"
    sent.field_map()["i"] = "KEYS\x01x\x02"
    assert not passes(sent)


def test_a_code_without_an_entry_is_refused():
    assert not passes(request(9999, "operator"))


def test_addresses_of_the_white_lists_need_no_signature():
    sent = request(Code.UPDATE_AND_CREATE_TOPIC)
    assert passes(sent, "10.0.0.200")
    assert not passes(sent, "10.0.1.200")
    unsigned = request(Code.SEND_MESSAGE_V2, fields={**FIELDS, "AccessKey": "from-home"})
    assert passes(unsigned, "192.0.2.7")
    assert not passes(unsigned, "192.0.2.8")
    assert not passes(request(Code.PULL_MESSAGE, "from-home"), "192.0.2.7")


@pytest.mark.parametrize("prefix", ["%RETRY%", "%DLQ%"])
def test_retry_and_dead_letter_topics_belong_to_their_group(prefix):
    fields = {"b": f"{prefix}G", "topic": f"{prefix}G"}
    for code in (Code.SEND_MESSAGE_V2, Code.GET_MAX_OFFSET):
        allowed = {name for name in ACCOUNTS if passes(request(code, name, fields=fields))}
        assert allowed == GROUP


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"])
def test_half_messages_are_for_administrators(topic):
    everything = AccessRules.of(
        {
            "plain_acl.yml": msgspec.convert(
                {
                    "accounts": [
                        {
                            "accessKey": "both-sub",
                            "secretKey": "secret of both-sub",
                            "defaultTopicPerm": "PUB|SUB",
                            "defaultGroupPerm": "SUB",
                        }
                    ]
                },
                AclFile,
            )
        }
    )
    sent = request(Code.PULL_MESSAGE, "both-sub", fields={"topic": topic, "consumerGroup": "G"})
    assert not passes(sent, rules=everything)
    ordinary = request(Code.PULL_MESSAGE, "both-sub", fields={"topic": "X", "consumerGroup": "Y"})
    assert passes(ordinary, rules=everything)


class Audit:
    def __init__(self):
        self.refused = []

    def note(self, connection, request, *, refused):
        self.refused.append(refused)


def test_ever_new_access_keys_of_one_peer_do_not_flood_the_audit():
    audit = Audit()
    authorizer = Authorizer(SimpleNamespace(value=RULES), refusals=Refusals(audit))
    peer = Peer("203.0.113.9:4711")
    for number in range(100):
        with pytest.raises(NoPermission):
            authorizer.check(peer, request(Code.DELETE_TOPIC_IN_BROKER, f"stranger {number}"))
    assert audit.refused == [
        "no account has the accessKey 'stranger 0'",
        "no account has the accessKey 'stranger 9' (10 times)",
        "no account has the accessKey 'stranger 99' (100 times)",
    ]
