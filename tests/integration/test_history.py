"""The history of a real broker over the wire, as commands and pages read it."""

import asyncio

import pytest
from msgspec.structs import replace

from txmq import Message
from txmq.client import Admin, Session
from txmq.errors import InvalidParameter, NoPermission
from txmq.protocol.codes import RequestCode
from txmq.protocol.history import ShowHistory
from txmq.security.signatures import Credentials
from txmq_broker.config import BrokerSettings, StoreSettings
from txmq_broker.testing import embedded

SETTINGS = BrokerSettings(store=StoreSettings(flush="async"))
ACCOUNTS = """accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
- {accessKey: teller-1, secretKey: teller-secret, defaultGroupPerm: DENY, groupPerms: [mine=SUB],
   defaultTopicPerm: DENY, topicPerms: [T=PUB]}
"""


async def minute(broker):
    """Take the rows of the next minute now."""
    for _ in range(6):
        await broker.parts.history.take(broker.parts.flusher.send_times)


def test_rates_latency_and_lag_come_over_the_wire():
    async def run():
        async with embedded(SETTINGS) as broker, Session(broker.names) as session:
            admin = Admin(session)
            (queue, *_) = (await admin.create_topic("T", queues=2)).writable
            await admin.create_group("g")
            await minute(broker)
            for _ in range(3):
                await admin.send(Message(topic="T", body=b"x"))
            await admin.commit_offset("g", queue, 1)
            await minute(broker)
            own = await admin.broker_history("broker-a")
            coarse = await admin.broker_history("broker-a", period_s=60)
            (lag,) = await admin.group_history("g")
            (rate,) = await admin.topic_history("T")
            behind = (await admin.group_lag("g")).lag

            assert own.columns[0] == "messages_in_per_second"
            assert any(row[0] and row[2] and row[3] >= row[2] for _, row in own.rows)
            assert (own.period_s, coarse.period_s, len(coarse.rows)) == (10, 60, 2)
            assert lag.columns == ("lag", "T:0", "T:1")
            assert lag.rows[-1][1][0] == behind == sum(lag.rows[-1][1][1:])
            assert rate.rows[-1][1] == (3 / 60,)
            assert (await admin.group_history("nobody"))[0].columns == ("lag",)
            with pytest.raises(InvalidParameter, match="not both"):
                await session.request(
                    broker.address, RequestCode.SHOW_HISTORY, ShowHistory("g", "T")
                )

    asyncio.run(run())


def test_long_histories_come_in_pages():
    async def run():
        async with embedded(SETTINGS) as broker, Session(broker.names) as session:
            times = broker.parts.history.broker.coarse
            for number in range(1_200):
                times.times.append(60_000 * number)
                times.rows.append((float(number), None, None, None, 0, 0))
            found = await Admin(session).broker_history("broker-a", from_ms=60_000, period_s=60)
            assert [row[0] for _, row in found.rows] == list(map(float, range(1, 1_200)))

    asyncio.run(run())


def test_an_account_sees_the_history_of_its_own_groups_and_topics(tmp_path):
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    accounts.chmod(0o600)

    async def run():
        teller = Credentials(access_key="teller-1", secret_key="teller-secret")
        async with (
            embedded(replace(SETTINGS, acl=str(accounts))) as broker,
            Session(broker.names, credentials=teller) as session,
        ):
            admin = Admin(session)
            assert await admin.group_history("mine")
            with pytest.raises(NoPermission):
                await admin.group_history("other")
            with pytest.raises(NoPermission):
                await admin.broker_history("broker-a")

    asyncio.run(run())


def test_topics_and_dead_letters_are_counted_without_listing_them():
    async def run():
        async with embedded(SETTINGS) as broker, Session(broker.names) as session:
            admin = Admin(session)
            before = await admin.topic_count()
            for name in ("T", "U", "%DLQ%g", "%RETRY%g"):
                await admin.create_topic(name, queues=1)
            await admin.send(Message(topic="%DLQ%g", body=b"x"))
            assert (before, await admin.topic_count()) == (0, 2)
            assert await admin.dead_letter_count("broker-a") == 1
            await admin.delete_topic("U")
            assert await admin.topic_count() == 1

    asyncio.run(run())
