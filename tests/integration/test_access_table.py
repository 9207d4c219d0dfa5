"""Every request of brokers and name servers, from every kind of sender, over a real socket.

The expected answers come from the table of ``tests.unit.access.test_authorizer``, which is written
independently of the product.
"""

import asyncio
import contextlib
import ssl
from typing import NamedTuple

import pytest

from tests.running import in_loop, run_by
from tests.servers.certificates import Authority
from tests.unit.access.test_authorizer import ACCOUNTS, ADMIN, ALLOWED, BODY, FIELDS
from txmq import Client, ClientSettings, Credentials, Message, Producer
from txmq.protocol import command as commands
from txmq.protocol.codes import RequestCode as Code
from txmq.protocol.properties import render
from txmq.protocol.record import position_in
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings, ServerTlsSettings, StoreSettings

SECRETS = {name: f"secret of {name}" for name in ACCOUNTS}
PERMISSIONS = {
    "operator": "admin: true",
    "publisher": "topicPerms: [T=PUB]",
    "subscriber": "topicPerms: [T=SUB]",
    "consumer": "groupPerms: [G=SUB]",
    "both-sub": "topicPerms: [T=SUB]\n  groupPerms: [G=SUB]",
    "nothing": "defaultTopicPerm: DENY",
}
REFUSALS = ("no accessKey is configured", "check signature failed", "no account has", "account ")
PATIENCE_S = 20.0

FOR_OPERATORS = FIELDS | {
    "topic": "Gone", "group": "Gone", "consumerGroup": "Gone", "brokerName": "gone",
    "brokerAddr": "192.0.2.9:1", "clusterName": "gone", "haServerAddr": "192.0.2.9:2",
    "brokerId": "0", "namespace": "gone", "key": "gone", "clientId": "gone", "accessKey": "gone",
}  # fmt: skip
"""What operators ask here is about things that do not exist, so that the rest stays as it is."""


class Way(NamedTuple):
    """How the bytes travel."""

    tls: ServerTlsSettings
    context: ssl.SSLContext | None

    async def connect(self, address):
        host, _, port = address.rpartition(":")
        return await asyncio.open_connection(host, int(port), ssl=self.context)


@pytest.fixture(params=["plain", "tls"])
def way(request, tmp_path):
    if request.param == "plain":
        return Way(ServerTlsSettings(), None)
    authority = Authority(tmp_path / "certificates")
    certificate, key = map(str, authority.issue("broker"))
    # Permissive, because the operator who prepares the broker comes without TLS.
    tls = ServerTlsSettings(mode="permissive", certificate=certificate, key=key)
    return Way(tls, authority.context())


class Sender:
    """One connection that sends many requests at once."""

    def __init__(self, streams):
        self._reader, self._writer = streams
        self._frames = commands.FrameReader()

    async def ask(self, requests):
        """The answers to ``(code, fields, body)``, in order."""
        for opaque, (code, fields, body) in enumerate(requests):
            self._writer.write(commands.encode(code, opaque, fields, body=body))
        answers = {}
        async with asyncio.timeout(PATIENCE_S):
            while len(answers) < len(requests):
                data = await self._reader.read(1 << 20)
                assert data, "the server has closed the connection"
                for part in self._frames.feed(data):
                    answer = commands.decode(part)
                    if answer.is_answer:  # Brokers ask their clients things, too.
                        answers[answer.opaque] = answer
        return [answers[opaque] for opaque in range(len(requests))]

    def close(self):
        self._writer.close()


def is_refused(answer):
    return answer.code == 16 and answer.remark.startswith(REFUSALS)


async def passing(way, address, requests, account=None, secret=None):
    """The requests that pass for an account."""
    signed = requests
    if account is not None:
        key = Credentials(access_key=account, secret_key=secret or SECRETS[account])
        signed = [(code, key.sign(fields, body), body) for code, fields, body in requests]
    with contextlib.closing(Sender(await way.connect(address))) as sender:
        answers = await sender.ask(signed)
    codes = [code for code, _, _ in requests]
    return {code for code, answer in zip(codes, answers, strict=True) if not is_refused(answer)}


async def fields_of_stored(broker):
    """Fields that name a stored message of T and an open half message of T."""
    account = Credentials(access_key="operator", secret_key=SECRETS["operator"])
    async with Client(broker.names, ClientSettings(credentials=account)) as client:
        await client.admin.create_topic("T", queues=1)
        async with Producer("P", client) as producer:
            sent = await producer.send(Message(topic="T", body=b"a message"))
        half = {
            "a": "P", "b": "T", "c": "TBW102", "d": "1", "e": "0", "f": "4", "g": "1", "h": "0",
            "i": render({"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "F" * 32}),
            "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        stored = await client.session.request(
            broker.address, Code.SEND_MESSAGE_V2, half, body=b"half"
        )
    half_fields = stored.field_map()
    position = position_in(half_fields["msgId"])
    return {
        "offset": str(position_in(sent.offset_id)),
        "tranStateTableOffset": half_fields["queueOffset"],
        "commitLogOffset": str(position),
        "commitOrRollback": "0",
        "msgId": "F" * 32,
    }


def requests_to(handlers, fields):
    """One request of each code that is served."""
    return [
        (
            Code(code),
            fields if code in ALLOWED else FOR_OPERATORS,
            BODY if code in ALLOWED else b"",
        )
        for code in sorted(handlers)
    ]


@run_by(in_loop)
async def test_each_request_is_allowed_only_for_the_senders_in_the_table(tmp_path, way):
    acl = tmp_path / "plain_acl.yml"
    accounts = [
        f"- accessKey: {name}\n  secretKey: {SECRETS[name]}\n  {PERMISSIONS[name]}\n"
        for name in ACCOUNTS
    ]
    acl.write_text("accounts:\n" + "".join(accounts))
    acl.chmod(0o600)
    settings = BrokerSettings(
        data=str(tmp_path / "data"),
        listen="127.0.0.1:0",
        names_listen="127.0.0.1:0",
        acl=str(acl),
        tls=way.tls,
        store=StoreSettings(flush="async"),
    )

    async with Broker(settings) as broker:
        fields = {**FIELDS, **await fields_of_stored(broker)}
        fields |= {"queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "0"}
        for address, handlers in zip((broker.address, broker.names), broker.served()):  # noqa: B905
            requests = requests_to(handlers, fields)
            assert await passing(way, address, requests) == set()
            assert await passing(way, address, requests, "operator", "wrong-one") == set()
            for account in ACCOUNTS:
                allowed = await passing(way, address, requests, account)
                expected = {code for code, _, _ in requests if account in ALLOWED.get(code, ADMIN)}
                assert allowed == expected, account
